"""What a version changed of the fragments and rows of the version below it.

It compares the two lists of fragments, and does not look at the transaction. So it is right for each operation, a
Restore too, and for versions whose transactions can't be read. Chunks that both versions share cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from committerd.lance.format.fragment_list import Chunk, FragmentList
from committerd_common.messages import DataFragment, PackedManifest


class Difference(NamedTuple):
    """What a version adds to an earlier version, and removes from it."""

    fragments_added: int
    fragments_removed: int
    rows_added: int | None
    """Rows that can be read in the later version and not in the earlier version, by their places: an update removes a
    row and adds a row, and a compaction adds as many as it removes. None = a fragment does not say how many it has.
    """
    rows_removed: int | None


class ChangedChunks(NamedTuple):
    """The chunks that only one of two versions has."""

    before: Sequence[Chunk]
    after: Sequence[Chunk]

    @property
    def size(self) -> int:
        """Their size in bytes, which says how long `difference` takes: about 1 ms for 512 KiB."""
        return sum(len(chunk.body) for chunks in self for chunk in chunks)


def changed_chunks(before: FragmentList, after: FragmentList) -> ChangedChunks:
    """The chunks that the two lists do not share."""
    same = set(before.chunks).intersection(after.chunks)
    old = [chunk for chunk in before.chunks if chunk not in same]
    new = [chunk for chunk in after.chunks if chunk not in same]
    # Lists that were read from two objects share no chunk, but may have equal ones.
    equal = {chunk.body for chunk in old}.intersection(chunk.body for chunk in new)
    return ChangedChunks(
        [chunk for chunk in old if chunk.body not in equal], [chunk for chunk in new if chunk.body not in equal]
    )


def difference(changed: ChangedChunks) -> Difference:
    """What the later version adds and removes."""
    packed_before, packed_after = _packed(changed.before), _packed(changed.after)
    old, new = _rows_of(packed_before - packed_after), _rows_of(packed_after - packed_before)
    added = [new[one] for one in new.keys() - old.keys()]
    removed = [old[one] for one in old.keys() - new.keys()]
    fragments_added, fragments_removed = len(added), len(removed)
    for one in old.keys() & new.keys():
        before, after = old[one], new[one]
        fewer = None if before is None or after is None else before - after
        removed.append(None if fewer is None else max(fewer, 0))
        added.append(None if fewer is None else max(-fewer, 0))
    return Difference(fragments_added, fragments_removed, _sum(added), _sum(removed))


def _packed(chunks: Iterable[Chunk]) -> set[bytes]:
    """The fragments as they are stored. To decode only fragments that differ is four times as fast as to decode all."""
    return {one for chunk in chunks for one in PackedManifest.FromString(chunk.body).fragments}


def _rows_of(packed: Iterable[bytes]) -> dict[int, int | None]:
    """By fragment: its rows that can be read."""
    return {one.id: _readable(one) for one in map(DataFragment.FromString, packed)}


def _readable(fragment: DataFragment) -> int | None:
    """The fragment's rows that can be read; None if it does not say.

    Lance's old writers wrote neither number: 0 rows, and 0 deleted rows with a deletion file, mean unknown.
    """
    physical, deleted = fragment.physical_rows, fragment.deletion_file.num_deleted_rows
    unknown = not physical or (fragment.HasField("deletion_file") and not deleted)
    return None if unknown else physical - deleted


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
