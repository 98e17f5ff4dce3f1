"""Where a Rewrite put rows: a map from old fragments and offsets to new ones.

A group of a Rewrite is *in order* if the n-th row that was copied from its old fragments is the n-th row of its new
ones. The old fragments count in the order of their list, without the rows that were deleted when the Rewrite read them.
Nothing in a Rewrite of Lance says whether a group is in order. So it counts as in order only if its writer says so
(property `committerd.rows`), or if the operator's setting says it of all writers. In a table with stable row ids the
ids decide, in any order.

A map is made of the messages alone, and of the deletion files that the old fragments name. It is made when rows are
followed, for the fragments in which these rows are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap

from committerd.lance.versions.fragments import FileIdentity, file_identity
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from committerd_common.row_ids import decode_row_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.unsignedinteger]

# `numpy` and `row_runs` are imported where they are needed: numpy takes memory and time, and few commands come here.

_FRAGMENT_BYTES = 200
"""Memory of one fragment in a group, without its row ids: a generous estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Where some rows of one old fragment went."""

    places: Mapping[int, BitMap] = field(default_factory=dict)
    """By new fragment: the offsets of the rows there."""
    lost: BitMap = field(default_factory=BitMap)
    """The offsets, in the old fragment, of the rows that were deleted when the Rewrite read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedGroup:
    """A group of a Rewrite, as far as following its rows needs it."""

    old: tuple[int, ...]
    """The ids of the old fragments, in the order of their rows."""
    copied: tuple[int, ...]
    """The number of rows that were copied from each of them."""
    deletions: Mapping[int, DataFragment] = field(default_factory=dict)
    """The old fragments with deleted rows, without their data files: the deletion file is the one that was read."""
    new: tuple[int, ...]
    rows: tuple[int, ...]
    """The number of rows in each new fragment, including those that are deleted there."""
    files: Mapping[int, tuple[FileIdentity, ...]]
    """The data files of each new fragment."""
    old_row_ids: Mapping[int, bytes] = field(default_factory=dict)
    """The encoded row ids of each old fragment; empty unless all old and new fragments have them."""
    new_row_ids: Mapping[int, bytes] = field(default_factory=dict)
    is_marked: bool = False
    """Whether its writer says that rows keep their order."""
    fault: str = ""
    """Why its rows can't be followed, whatever its writer says; empty = they can."""

    def doubt(self, *, trusts_all: bool) -> str:
        """Why it is not known where its rows went; empty if it is known.

        `trusts_all`: take the groups of all writers for in order if their row counts add up.
        """
        if self.fault or self.old_row_ids or self.is_marked or trusts_all:
            return self.fault
        return "its writer does not say that rows keep their order (property committerd.rows)"

    def moved(self, fragment: int, rows: BitMap, dropped: BitMap) -> Moved:
        """Where these rows of an old fragment are. `dropped`: the rows that were deleted when the Rewrite read them.

        The group must be one without `doubt`. Raises `CorruptTable` (`row_ids`) for row ids that can't be decoded.
        """
        lost = rows & dropped
        rows = rows - dropped
        if not rows:
            return Moved(lost=lost)
        if self.old_row_ids:
            places, strange = self._by_ids(fragment, _numbers(rows))
            return Moved(places=places, lost=lost | strange)
        return Moved(places=self._by_order(fragment, _numbers(rows), _numbers(dropped)), lost=lost)

    def _by_order(self, fragment: int, offsets: Numbers, dropped: Numbers) -> Mapping[int, BitMap]:
        import numpy as np

        before = sum(self.copied[: self.old.index(fragment)])
        ranks = before + offsets.astype(np.int64) - np.searchsorted(dropped, offsets)
        return self._placed(ranks)

    def _by_ids(self, fragment: int, offsets: Numbers) -> tuple[Mapping[int, BitMap], BitMap]:
        """As `moved`; also the rows that no new fragment has."""
        import numpy as np

        from committerd_common.row_runs import ids_at, offsets_of

        row_ids = decode_row_ids(self.old_row_ids[fragment], fragment=fragment, staged=False)
        offsets = offsets.astype(np.uint64)
        found = offsets < len(row_ids)
        ids = ids_at(row_ids.segments, offsets[found])
        places: dict[int, BitMap] = {}
        missing = np.ones(len(ids), np.bool_)
        for new, body in self.new_row_ids.items():
            here, at = offsets_of(decode_row_ids(body, fragment=new, staged=False).segments, ids)
            if len(at):
                places[new] = _bitmap(at)
                missing &= ~here
        return places, _bitmap(np.concatenate((offsets[~found], offsets[found][missing])))

    def _placed(self, ranks: NDArray[np.int64]) -> Mapping[int, BitMap]:
        """The rows of the new fragments with these ascending numbers, counted over all new fragments."""
        import numpy as np

        ends = np.cumsum(np.array(self.rows, np.int64))
        bounds = np.searchsorted(ranks, np.concatenate((np.zeros(1, np.int64), ends)))
        return {
            new: _bitmap(ranks[start:stop] - (end - rows))
            for new, rows, end, start, stop in zip(self.new, self.rows, ends, bounds[:-1], bounds[1:], strict=True)
            if start < stop
        }

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes: a generous estimate."""
        ids = sum(map(len, self.old_row_ids.values())) + sum(map(len, self.new_row_ids.values()))
        return ids + _FRAGMENT_BYTES * (len(self.old) + len(self.new) + 2 * len(self.deletions))


def moved_groups(transaction: Transaction, *, staged: bool) -> tuple[MovedGroup, ...]:
    """The groups of a normalised Rewrite. `staged`: it is not committed yet, so its new fragments have no deletions."""
    is_marked = transaction.transaction_properties.get(ROWS) == IN_ORDER
    return tuple(_group(group, is_marked=is_marked, staged=staged) for group in transaction.rewrite.groups)


def _group(group: Transaction.Rewrite.RewriteGroup, *, is_marked: bool, staged: bool) -> MovedGroup:
    old, new = group.old_fragments, group.new_fragments
    has_ids = bool(new) and all(one.inline_row_ids for one in (*old, *new))
    return MovedGroup(
        old=tuple(one.id for one in old),
        copied=tuple(one.physical_rows - one.deletion_file.num_deleted_rows for one in old),
        deletions={one.id: _without_files(one) for one in old if one.HasField("deletion_file")},
        new=tuple(one.id for one in new),
        rows=tuple(one.physical_rows for one in new),
        files={one.id: tuple(file_identity(file) for file in one.files) for one in new},
        old_row_ids={one.id: one.inline_row_ids for one in old} if has_ids else {},
        new_row_ids={one.id: one.inline_row_ids for one in new} if has_ids else {},
        is_marked=is_marked,
        fault=_fault(group, has_ids=has_ids, staged=staged),
    )


def _fault(group: Transaction.Rewrite.RewriteGroup, *, has_ids: bool, staged: bool) -> str:
    if not all(one.id for one in group.new_fragments):
        return "its new fragments have no ids that were reserved for them"
    if staged and any(one.HasField("deletion_file") for one in group.new_fragments):
        return "its new fragments have deleted rows"
    if has_ids:
        return ""
    uncounted = [
        one.id
        for one in group.old_fragments
        if one.HasField("deletion_file") and not one.deletion_file.num_deleted_rows
    ]
    if uncounted:
        return f"it does not say how many rows of fragment {uncounted[0]} were deleted"
    copied = sum(one.physical_rows - one.deletion_file.num_deleted_rows for one in group.old_fragments)
    rows = sum(one.physical_rows for one in group.new_fragments)
    if copied != rows:
        return f"its old fragments had {copied} rows, and its new ones have {rows}"
    return ""


def _without_files(fragment: DataFragment) -> DataFragment:
    return DataFragment(id=fragment.id, physical_rows=fragment.physical_rows, deletion_file=fragment.deletion_file)


def _numbers(rows: BitMap) -> Numbers:
    import numpy as np

    return np.frombuffer(rows.to_array(), np.uint32)


def _bitmap(offsets: NDArray[np.integer]) -> BitMap:
    from array import array

    import numpy as np

    listed: array[int] = array("I")
    listed.frombytes(offsets.astype(np.uint32).tobytes())
    return BitMap(listed)
