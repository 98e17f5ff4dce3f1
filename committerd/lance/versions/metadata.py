"""Bounds a table's own texts: configuration, metadata of table and schema, and metadata of fields.

Each version holds all of them, so with many of them every later commit takes seconds, and every reader reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from committerd.errors import InvalidRequest
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd_common.messages import Manifest

ENTRIES_MAX = 20_000
BYTES_MAX = 4 * 1024 * 1024


def require_little_metadata(before: Manifest | None, after: Manifest) -> None:
    """Return if the version `after` has few entries and bytes of texts, or no more than the version `before`.

    Entries of committerd itself don't count: they have a bound of their own. Raises `InvalidRequest`
    (`metadata_too_large`).
    """
    entries, size = _weight(after)
    if entries <= ENTRIES_MAX and size <= BYTES_MAX:
        return
    entries_before, size_before = (0, 0) if before is None else _weight(before)
    if entries <= entries_before and size <= size_before:
        return
    raise InvalidRequest(
        f"with it, configuration and metadata of the table would have {entries} entries of {size} bytes; at most "
        f"{ENTRIES_MAX} and {BYTES_MAX} are allowed, since every version and every reader has them all. Remove some, "
        "or keep them in a table of their own",
        code="metadata_too_large",
    )


def _weight(manifest: Manifest) -> tuple[int, int]:
    """The number of entries, and the bytes of their keys and values."""
    entries = size = 0
    for texts in _texts(manifest):
        for key, value in texts.items():
            if not key.startswith(KEY_PREFIX):
                entries += 1
                size += len(key) + len(value)
    return entries, size


def _texts(manifest: Manifest) -> Iterator[Mapping[str, str | bytes]]:
    own = (manifest.config, manifest.table_metadata, manifest.schema_metadata)
    return chain(own, (field.metadata for field in manifest.fields if field.metadata))
