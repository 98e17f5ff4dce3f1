"""Bounds a table's own texts: configuration, metadata of table and schema, and metadata of fields.

Each version holds all of them, so with many of them every later commit takes seconds, and every reader reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from committerd.errors import InvalidRequest
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd_common.messages import Manifest, Transaction

ENTRIES_MAX = 20_000
BYTES_MAX = 4 * 1024 * 1024


def require_little_metadata(before: Manifest | None, after: Manifest) -> None:
    """Return if the version `after` has few entries and bytes of texts, or no more than the version `before`.

    Entries of committerd itself don't count: they have a bound of their own. Raises `InvalidRequest`
    (`metadata_too_large`).
    """
    _require_few(*_weight(after), before)


def require_room(before: Manifest, config: Transaction.UpdateConfig) -> None:
    """As `require_little_metadata`, for what a normalised UpdateConfig makes of the version `before`.

    It builds nothing, so that a thousand UpdateConfigs that share a version are not built again and again to find the
    one among them that is too large.
    """
    fields = [field for field in before.fields if field.id in config.field_metadata_updates]
    changes: list[tuple[Mapping[str, str | bytes], Transaction.UpdateMap, bool]] = [
        (before.config, config.config_updates, True),
        (before.table_metadata, config.table_metadata_updates, True),
        (before.schema_metadata, config.schema_metadata_updates, False),
        *((field.metadata, config.field_metadata_updates[field.id], False) for field in fields),
    ]
    there = sum(map(len, _texts(before)))
    if (
        there + sum(len(updates.update_entries) for _, updates, _ in changes) <= ENTRIES_MAX
        and before.ByteSize() + config.ByteSize() <= BYTES_MAX
    ):
        return
    entries, size = _weight(before)
    for texts, updates, is_text in changes:
        was = _sizes(texts)
        now = {} if updates.replace else dict(was)
        for entry in updates.update_entries:
            if entry.HasField("value") and not entry.key.startswith(KEY_PREFIX):
                now[entry.key] = len(entry.key) + len(entry.value if is_text else entry.value.encode())
            else:
                now.pop(entry.key, None)
        entries += len(now) - len(was)
        size += sum(now.values()) - sum(was.values())
    _require_few(entries, size, before)


def _require_few(entries: int, size: int, before: Manifest | None) -> None:
    if entries <= ENTRIES_MAX and size <= BYTES_MAX:
        return
    entries_before, size_before = (0, 0) if before is None else _weight(before)
    if entries <= entries_before and size <= size_before:
        return
    raise InvalidRequest(
        f"with it, configuration and metadata of the table would have {entries} entries of {size} bytes; at most "
        f"{ENTRIES_MAX} and {BYTES_MAX} are allowed, since every version holds them and every reader reads them. "
        "Remove entries, or keep them in another table",
        code="metadata_too_large",
    )


def _weight(manifest: Manifest) -> tuple[int, int]:
    """The number of entries, and the bytes of their keys and values."""
    each = [_sizes(texts) for texts in _texts(manifest)]
    return sum(map(len, each)), sum(sum(sizes.values()) for sizes in each)


def _sizes(texts: Mapping[str, str | bytes]) -> dict[str, int]:
    """The size of each entry that is not committerd's own, by its key."""
    return {key: len(key) + len(value) for key, value in texts.items() if not key.startswith(KEY_PREFIX)}


def _texts(manifest: Manifest) -> Iterator[Mapping[str, str | bytes]]:
    own = (manifest.config, manifest.table_metadata, manifest.schema_metadata)
    return chain(own, (field.metadata for field in manifest.fields if field.metadata))
