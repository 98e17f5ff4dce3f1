"""Entries that make another writer use a feature which committerd does not support."""

from __future__ import annotations

import pytest

from committerd.errors import UnsupportedRequest
from committerd.lance.versions.requested_features import MANAGED_BLOBS, SPILLS_ROW_LINEAGE, require_no_new_features
from committerd_common.messages import Manifest

MANAGED = Manifest(schema_metadata={MANAGED_BLOBS: b"true"})
SPILLING = Manifest(config={SPILLS_ROW_LINEAGE: "TRUE"})


@pytest.mark.parametrize(
    "asking",
    [
        MANAGED,
        SPILLING,
        Manifest(schema_metadata={MANAGED_BLOBS: b"yes"}),
        Manifest(schema_metadata={MANAGED_BLOBS: b"\xff"}),
    ],
)
@pytest.mark.parametrize("before", [None, Manifest(), Manifest(schema_metadata={MANAGED_BLOBS: b"false"})])
def test_a_new_entry_is_refused(asking: Manifest, before: Manifest | None) -> None:
    with pytest.raises(UnsupportedRequest, match="only columns of data files say") as refused:
        require_no_new_features(before, asking)
    assert refused.value.code == "table_feature"


@pytest.mark.parametrize("asking", [MANAGED, SPILLING])
def test_an_entry_that_was_there_before_stops_nobody(asking: Manifest) -> None:
    require_no_new_features(asking, asking)
    require_no_new_features(asking, Manifest())


def test_an_entry_that_asks_for_nothing_passes() -> None:
    idle = Manifest(schema_metadata={MANAGED_BLOBS: b"false"}, config={SPILLS_ROW_LINEAGE: "false"})
    require_no_new_features(Manifest(), idle)
