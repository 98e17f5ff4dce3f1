"""Keeps the deleted rows that deletion files hold, within a bound: those read, and those written.

A deletion file never changes once a version names it, and its name holds a random number. So whoever has read or
written one needs no other read of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pyroaring import BitMap

from committerd_common.messages import DataFragment

DELETION_VECTOR_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of kept deletion vectors."""

_OVERHEAD_BYTES = 500
"""Memory of one kept vector beyond its containers: the key, the objects, and the slot in the dictionary."""
_CONTAINER_BYTES = 32
"""Memory of one container of a bitmap beyond its values."""


class _Kept(NamedTuple):
    rows: BitMap
    size: int


class DeletionVectors:
    """Deleted rows by deletion file, the least recently used dropped first. No caller changes a bitmap in place."""

    def __init__(
        self, bytes_max: int = DELETION_VECTOR_BYTES_MAX, *, note: Callable[[bool], None] = lambda kept: None
    ) -> None:
        """`note`: called at each look-up with whether the content was kept."""
        self._note = note
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self.bytes = 0
        """Estimated memory of the kept vectors, in bytes."""

    def get(self, uri: str, key: str, fragment: DataFragment) -> BitMap | None:
        """The deleted rows of a fragment whose deletion file is `key` in the store `uri`; None if they are not kept.

        They are not taken for the fragment if they do not fit it.
        """
        kept = self._kept.get((uri, key))
        found = kept is not None and _fits(kept.rows, fragment)
        self._note(found)
        if kept is None or not found:
            return None
        self._kept.move_to_end((uri, key))
        return kept.rows

    def keep(self, uri: str, key: str, rows: BitMap) -> None:
        """Keep the content of a deletion file that was read or is written."""
        size = _size(rows)
        if size > self._bytes_max // 4:
            return
        before = self._kept.pop((uri, key), None)
        self.bytes += size - (before.size if before is not None else 0)
        self._kept[uri, key] = _Kept(rows, size)
        while self.bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self.bytes -= dropped.size


def _fits(rows: BitMap, fragment: DataFragment) -> bool:
    """Whether the rows are as many as the fragment says, and are rows of it."""
    count = fragment.deletion_file.num_deleted_rows
    return len(rows) == (count or len(rows)) and not (0 < fragment.physical_rows <= (rows.max() if rows else -1))


def _size(rows: BitMap) -> int:
    facts = rows.get_statistics()
    values = facts["n_bytes_array_containers"] + facts["n_bytes_bitset_containers"] + facts["n_bytes_run_containers"]
    return int(values + _CONTAINER_BYTES * facts["n_containers"] + _OVERHEAD_BYTES)
