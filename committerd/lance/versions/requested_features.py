"""Entries of a table's own texts that make its next writer use a feature which committerd does not support.

Such an entry is a request: the version that has it can still be read and built on. But the next commit of pylance, or
its next compaction, sets a feature flag with which no committer can run on that table.
"""

from __future__ import annotations

from committerd.errors import UnsupportedRequest
from committerd.lance.format.feature_flags import LACKING, FeatureFlag
from committerd.lance.format.wording import quoted
from committerd_common.messages import Manifest

MANAGED_BLOBS = "lance.blob.managed"
"""Metadata of the schema. Lance 14: feature_flags.rs, managed_blobs_enabled; a value other than true or false makes
every commit of pylance fail.
"""
SPILLS_ROW_LINEAGE = "lance.row_lineage.spill"
"""Configuration. Lance 14: rowids/spill.rs, inline_row_lineage_max_bytes."""


def require_no_new_features(before: Manifest | None, after: Manifest) -> None:
    """Check that the version `after` asks for no feature that the version `before` (None = no table) did not ask for.

    Raises `UnsupportedRequest` (`table_feature`).
    """
    known = set() if before is None else set(_requests(before))
    for request, (effect, flag) in _requests(after).items():
        if request not in known:
            raise UnsupportedRequest(
                f"it sets {request}. With that, {effect} sets feature flag {flag.value}, and committerd can't commit "
                f"to the table then: {LACKING[flag]}. Leave the entry out",
                code="table_feature",
            )


def _requests(manifest: Manifest) -> dict[str, tuple[str, FeatureFlag]]:
    """The entries that ask for a feature: key, value and where it stands; each with what sets which feature flag."""
    requests = {}
    blobs = manifest.schema_metadata.get(MANAGED_BLOBS, b"false").decode("utf-8", "replace")
    if blobs != "false":
        entry = f"{MANAGED_BLOBS} = {quoted(blobs)} in the metadata of the schema"
        requests[entry] = "pylance's next commit", FeatureFlag.MANAGED_BLOBS
    spills = manifest.config.get(SPILLS_ROW_LINEAGE, "")
    if spills.lower() == "true":
        entry = f"{SPILLS_ROW_LINEAGE} = {spills!r} in the configuration"
        requests[entry] = "pylance's next compaction", FeatureFlag.SPILLED_ROW_LINEAGE
    return requests
