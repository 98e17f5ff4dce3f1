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
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from pyroaring import BitMap

from committerd.lance.versions.fragments import FileIdentity, file_identity
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from committerd_common.row_ids import decode_row_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# `numpy` and `row_runs` are imported where they are needed: numpy takes memory and time, and few commands come here.

_Rows: TypeAlias = dict[int, BitMap]
"""By fragment: offsets of rows."""

_FRAGMENT_BYTES = 200
"""Memory of one fragment in a group, without its row ids: a generous estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRows:
    """Where some rows of old fragments went."""

    places: Mapping[int, BitMap] = field(default_factory=dict)
    """By new fragment: the offsets of the rows there."""
    lost: Mapping[int, BitMap] = field(default_factory=dict)
    """By old fragment, if there are any: the offsets of the rows that have no place, or more than one. As a rule they
    were deleted when the Rewrite read them.
    """


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
    row_id_bytes: int = 0
    """The size of all these row ids, in bytes."""
    is_marked: bool = False
    """Whether its writer says that rows keep their order."""
    is_staged: bool = False
    """Whether it is not committed yet, so that a fault in its new fragments is the record's."""
    fault: str = ""
    """Why its rows can't be followed, whatever its writer says; empty = they can."""

    def doubt(self, *, trusts_all: bool) -> str:
        """Why it is not known where its rows went; empty if it is known.

        `trusts_all`: take the groups of all writers for in order if their row counts add up.
        """
        if self.fault or self.old_row_ids or self.is_marked or trusts_all:
            return self.fault
        return "its writer does not say that rows keep their order (property committerd.rows)"

    def moved(self, rows: Mapping[int, BitMap], dropped: Mapping[int, BitMap]) -> MovedRows:
        """Where these rows of old fragments are, by fragment. `dropped`: by fragment, the rows that were deleted when
        the Rewrite read them.

        Decodes the row ids of each fragment once, so follow the rows of all fragments in one call. The group must be
        one without `doubt`. Raises `CorruptTable` (`row_ids`) for row ids that can't be decoded; `InvalidRequest` for
        those of the new fragments of a staged Rewrite.
        """
        nothing = BitMap()
        gone = {id: some & dropped.get(id, nothing) for id, some in rows.items()}
        places, strange = self._found({id: some - gone[id] for id, some in rows.items()}, dropped)
        lost = {id: some | strange.get(id, nothing) for id, some in gone.items()}
        return MovedRows(places=places, lost={id: some for id, some in lost.items() if some})

    def _found(self, rows: _Rows, dropped: Mapping[int, BitMap]) -> tuple[_Rows, _Rows]:
        """(the places of these rows, by new fragment; the rows without a place or with several, by old fragment)"""
        ordered = {id: rows[id] for id in self.old if rows.get(id)}
        if not ordered:
            return {}, {}
        return self._by_ids(ordered) if self.old_row_ids else self._by_order(ordered, dropped)

    def _by_order(self, rows: _Rows, dropped: Mapping[int, BitMap]) -> tuple[_Rows, _Rows]:
        import numpy as np

        from committerd_common.row_runs import counts_below

        places, strange = _Rows(), _Rows()
        ends = np.cumsum(np.array(self.rows, np.int64))
        before = dict(zip(self.old, accumulate(self.copied, initial=0), strict=False))
        for id, some in rows.items():
            offsets = _numbers(some)
            ranks = before[id] + offsets - counts_below(dropped.get(id, BitMap()), offsets)
            known = int(np.searchsorted(ranks, ends[-1])) if len(ends) else 0
            if known < len(ranks):  # its deletion file has other rows than it says
                strange[id] = _bitmap(offsets[known:])
                ranks = ranks[:known]
            _add(places, self._placed(ranks, ends))
        return places, strange

    def _placed(self, ranks: NDArray[np.int64], ends: NDArray[np.int64]) -> _Rows:
        """The rows of the new fragments with these ascending numbers, counted over all new fragments.

        `ends`: the number behind the last row of each new fragment.
        """
        import numpy as np

        if not len(ranks):
            return {}
        first, last = np.searchsorted(ends, (ranks[0], ranks[-1]), "right").tolist()
        each = np.split(ranks, np.searchsorted(ranks, ends[first:last]))
        return {
            self.new[position]: _bitmap(some - (ends[position] - self.rows[position]))
            for position, some in enumerate(each, start=first)
            if len(some)
        }

    def _by_ids(self, rows: _Rows) -> tuple[_Rows, _Rows]:
        import numpy as np

        from committerd_common.row_runs import found_in, joined_numbers

        places, strange = _Rows(), _Rows()
        each: list[NDArray[np.uint64]] = []
        for id, some in rows.items():
            offsets = _numbers(some)
            each.append(self._ids_of(id, offsets))
            strange[id] = _bitmap(offsets[len(each[-1]) :])
        ids = joined_numbers(each)
        each.clear()
        ids.sort()
        times, found = np.zeros(len(ids), np.int32), 0
        for new, body in self.new_row_ids.items():
            if found > len(ids):  # the fragments repeat ids, so some row is lost
                break
            row_ids = decode_row_ids(body, fragment=new, staged=self.is_staged)
            for at, there in found_in(row_ids.segments, ids):
                _add(places, {new: _bitmap(there)})
                np.add.at(times, at, 1)
                found += len(at)
        wrong = ids[times != 1]
        for id, some in rows.items() if len(wrong) else ():
            offsets = _numbers(some)
            here = self._ids_of(id, offsets)
            lost = wrong[np.minimum(np.searchsorted(wrong, here), len(wrong) - 1)] == here
            _add(strange, {id: _bitmap(offsets[: len(here)][lost])})
        return places, strange

    def _ids_of(self, fragment: int, offsets: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """The ids of the rows at these ascending offsets of an old fragment, without those behind the last id."""
        import numpy as np

        from committerd_common.row_runs import ids_at

        row_ids = decode_row_ids(self.old_row_ids[fragment], fragment=fragment, staged=False)
        known = int(np.searchsorted(offsets, len(row_ids)))
        return ids_at(row_ids.segments, offsets[:known].astype(np.uint64))

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes: a generous estimate."""
        return self.row_id_bytes + _FRAGMENT_BYTES * (len(self.old) + len(self.new) + 2 * len(self.deletions))


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
        row_id_bytes=sum(len(one.inline_row_ids) for one in (*old, *new)) if has_ids else 0,
        is_marked=is_marked,
        is_staged=staged,
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
        return f"its old fragments had {copied} row{'' if copied == 1 else 's'}, and its new ones have {rows}"
    return ""


def _without_files(fragment: DataFragment) -> DataFragment:
    return DataFragment(id=fragment.id, physical_rows=fragment.physical_rows, deletion_file=fragment.deletion_file)


def _numbers(rows: BitMap) -> NDArray[np.uint32]:
    import numpy as np

    return np.frombuffer(rows.to_array(), np.uint32)


def _add(places: _Rows, more: _Rows) -> None:
    """Add rows to `places`, whose bitmaps are ours to change."""
    for id, rows in more.items():
        if id in places:
            places[id] |= rows
        else:
            places[id] = rows


def _bitmap(offsets: NDArray[np.integer]) -> BitMap:
    from array import array

    import numpy as np

    listed: array[int] = array("I")
    listed.frombytes(offsets.astype(np.uint32).tobytes())
    return BitMap(listed)
