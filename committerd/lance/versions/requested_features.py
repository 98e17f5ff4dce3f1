"""Entries of a table's own texts that make its next writer use a feature which committerd does not know.

Such an entry is a request: the version that has it can still be read and built on. But the next commit of pylance, or
its next compaction, sets a feature flag that stays, and then no committer can run on that table any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from committerd.errors import UnsupportedRequest
from committerd_common.messages import Manifest

MANAGED_BLOBS = "lance.blob.managed"
"""Metadata of the schema. Lance 14: feature_flags.rs, managed_blobs_enabled; a value other than true or false makes
every commit of pylance fail.
"""
SPILLS_ROW_LINEAGE = "lance.row_lineage.spill"
"""Configuration. Lance 14: rowids/spill.rs, inline_row_lineage_max_bytes."""

_VALUE_CHARS_MAX = 100


class _Request(NamedTuple):
    where: str
    key: str
    of: Callable[[Manifest], str | None]
    """The value of the entry; None if there is none, or if its value asks for nothing."""
    effect: str


def _managed(manifest: Manifest) -> str | None:
    value = manifest.schema_metadata.get(MANAGED_BLOBS, b"false").decode("utf-8", "replace")
    return None if value == "false" else value


def _spills(manifest: Manifest) -> str | None:
    value = manifest.config.get(SPILLS_ROW_LINEAGE, "")
    return value if value.lower() == "true" else None


_REQUESTS = (
    _Request("the metadata of the schema", MANAGED_BLOBS, _managed, "pylance's next commit sets feature flag 16384"),
    _Request("the configuration", SPILLS_ROW_LINEAGE, _spills, "pylance's next compaction sets feature flag 2048"),
)


def require_no_new_features(before: Manifest | None, after: Manifest) -> None:
    """Check that the version `after` asks for no feature that the version `before` (None = no table) did not ask for.

    Raises `UnsupportedRequest` (`table_feature`).
    """
    for request in _REQUESTS:
        value = request.of(after)
        if value is None or (before is not None and request.of(before) == value):
            continue
        raise UnsupportedRequest(
            f"it sets {request.key} = {value[:_VALUE_CHARS_MAX]!r} in {request.where}. With that, {request.effect}, "
            "which committerd does not know: it could never commit to the table again. Leave the entry out",
            code="table_feature",
        )
