"""Stable row ids, and the versions that created and last changed each row.

In a table with stable row ids, a row keeps its id for life. Each fragment then has three sequences (row ids, versions
of creation, versions of the last change) with an entry for each physical row. Ids come from a counter in the manifest
that never goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pyroaring import BitMap, BitMap64

from committerd.errors import InvalidRequest
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import DataFragment, Transaction
from committerd_common.row_ids import (
    ROW_ID_MAX,
    RowIds,
    VersionRun,
    count_row_ids,
    decode_row_ids,
    decode_versions,
    encode_joined,
    encode_row_ids,
    encode_versions,
    versions_in,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from committerd_common.row_runs import Numbers, Search

# Lance: rowids/version.rs: a row without a recorded version exists since the first one.
_FIRST_VERSION = 1
_ADDRESSES = 2**32
"""The number of row offsets in a fragment."""


_BROUGHT_MAX = 2**33
"""The most rows with ids that one transaction may add: a bitmap of ids takes 14 MB even if they are consecutive."""
_AHEAD_MAX = 2**40
"""The most by which the id of a new row may exceed the table's counter, because ids are limited."""


def require_free_row_ids(fragments: Iterable[DataFragment], next_row_id: int) -> int:
    """Check that the ids with which new rows come are unused, and return the counter's next value.

    Raises `InvalidRequest` (`row_ids`).
    """
    given = _brought_ids(fragments)
    if not given:
        return next_row_id
    if given.min() < next_row_id:
        raise InvalidRequest(
            f"new rows come with row id {given.min()}, but the table has given out all below {next_row_id}; leave "
            "out the row ids, and the commit assigns them",
            code="row_ids",
        )
    if given.max() >= next_row_id + _AHEAD_MAX:
        raise InvalidRequest(
            f"new rows come with row id {given.max()}, which is too far above the table's next row id, {next_row_id}; "
            "leave out the row ids, and the commit assigns them",
            code="row_ids",
        )
    return int(given.max()) + 1


def require_known_row_ids(fragments: Iterable[DataFragment], next_row_id: int) -> None:
    """Check that the ids of moved rows were used before. Raises `InvalidRequest` (`row_ids`)."""
    given = _brought_ids(fragments)
    if given and given.max() >= next_row_id:
        raise InvalidRequest(
            f"moved rows come with row id {given.max()}, but the table has given out none above {next_row_id - 1}; "
            "leave out the ids of rows that are new",
            code="row_ids",
        )


def require_rows_of(old: Iterable[DataFragment], new: Iterable[DataFragment]) -> None:
    """Check that fragments that replace others have only rows of those. Raises `InvalidRequest` (`row_ids`)."""
    was, brought = BitMap64(), _brought_ids(new)
    for fragment in old:
        was |= _row_ids(fragment, staged=False).bitmap()
    if not brought <= was:
        strange = brought - was
        raise InvalidRequest(
            f"the new fragments have {len(strange)} rows, such as the row with id {strange.min()}, that are in none of "
            "the fragments that lose rows",
            code="row_ids",
        )


def require_moved_rows(left: Iterable[DataFragment], moved: Iterable[DataFragment], *, deleted: int) -> None:
    """Check that all moved rows come from `left`, the fragments that lose rows, and are at most `deleted` rows.

    Any other row would be in the table twice. Raises `InvalidRequest` (`row_ids`).
    """
    moved = [fragment for fragment in moved if fragment.inline_row_ids]
    if not moved:
        return
    rows = sum(_given_rows(fragment) for fragment in moved)
    if rows > deleted:
        raise InvalidRequest(
            f"it brings {rows} rows with the ids of rows of the table, and deletes {deleted} rows; leave out the ids "
            "of rows that are new, and delete the rows that move",
            code="row_ids",
        )
    require_rows_of(left, moved)


def require_rows_live_in(
    left: Sequence[DataFragment],
    moves: Iterable[tuple[Iterable[DataFragment], Collection[int]]],
    newest_first: Iterable[DataFragment],
) -> None:
    """Check that each row that moves is in a fragment that loses rows for it, and has not moved to another one before.

    `moves`: fragments with moved rows, and the ids of the fragments that lose rows for these. `left`: all fragments
    that lose rows.

    Fragments list the ids of deleted rows, too. An Update moves rows to fragments with higher ids, so of all fragments
    that list a row, the one with the highest id holds it. There is one exception: an Update may have moved a row while
    a compaction copied it to a fragment whose id is even higher. There the row is deleted, and its last change is an
    earlier one than in the fragment to which it was moved. Raises `InvalidRequest` (`row_ids`).
    """
    from committerd_common.row_runs import Search

    wanted: list[tuple[BitMap64, Collection[int]]] = []
    for moved, losing in moves:
        ids = BitMap64()
        for fragment in moved:
            if fragment.inline_row_ids:
                ids |= _row_ids(fragment).bitmap()
        if ids:
            wanted.append((ids, losing))
    search = Search(BitMap64().union(*(ids for ids, _ in wanted)))
    for fragment in newest_first:
        if search.is_over:
            return
        segments = _row_ids(fragment, staged=False).segments
        if not search.may_find(segments):
            continue
        here = search.take(segments)
        for ids, losing in wanted:
            strange = BitMap64() if fragment.id in losing else here & ids
            if strange and fragment.HasField("deletion_file"):
                strange = _unchanged_since(strange, fragment, [one for one in left if one.id in losing])
            if strange:
                raise InvalidRequest(
                    f"the new fragments have {len(strange)} rows, such as the row with id {strange.min()}, that "
                    f"are in fragment {fragment.id} now, and the transaction deletes no row there for them: read the "
                    "latest version, and delete the rows where they are",
                    code="row_ids",
                )


def _unchanged_since(ids: BitMap64, fragment: DataFragment, others: Iterable[DataFragment]) -> BitMap64:
    """The rows among these that no other fragment has with a later change than this fragment."""
    from committerd_common.row_runs import numbers_of, offsets_of, versions_at

    wanted = numbers_of(ids.to_array())

    def changed(one: DataFragment) -> tuple[NDArray[np.bool_], Numbers]:
        """(which of the rows it lists, the version of the last change of each of those)"""
        here, offsets = offsets_of(_row_ids(one, staged=False).segments, wanted)
        versions = versions_in(one.inline_last_updated_at_versions, fragment=one.id, staged=False)
        return here, versions_at(versions, offsets, _FIRST_VERSION)

    _, then = changed(fragment)
    for other in others:
        here, now = changed(other)
        here[here] = now > then[here]
        ids, wanted, then = ids - BitMap64(wanted[here].tolist()), wanted[~here], then[~here]
    return ids


def require_unchanged_row_ids(before: DataFragment, after: DataFragment) -> None:
    """Check that a fragment that stays has the same row ids as before. Raises `InvalidRequest` (`row_ids`)."""
    if before.inline_row_ids == after.inline_row_ids:
        return
    from committerd_common.row_runs import equal

    if not equal(_row_ids(before, staged=False).runs(), _row_ids(after).runs()):
        raise InvalidRequest(f"fragment {after.id} has other row ids than before; a row keeps its id", code="row_ids")


def _brought_ids(fragments: Iterable[DataFragment]) -> BitMap64:
    """All row ids that fragments come with. Raises `InvalidRequest` (`row_ids`) if an id occurs twice."""
    with_ids = [fragment for fragment in fragments if fragment.inline_row_ids]
    rows = 0
    for fragment in with_ids:
        given = _given_rows(fragment)
        if given > fragment.physical_rows:
            raise InvalidRequest(
                f"fragment {fragment.id} has {given} row ids and {fragment.physical_rows} rows", code="row_ids"
            )
        rows += given
    if rows > _BROUGHT_MAX:
        raise InvalidRequest(
            f"it brings the ids of {rows} rows; at most {_BROUGHT_MAX} are allowed. Commit in smaller parts",
            code="row_ids",
        )
    ids = BitMap64()
    for fragment in with_ids:
        ids |= _row_ids(fragment).bitmap()
    if len(ids) != rows:
        raise InvalidRequest(f"it brings {rows - len(ids)} row ids twice; each row needs its own id", code="row_ids")
    return ids


def assign_row_ids(fragments: Iterable[DataFragment], next_row_id: int) -> int:
    """Assign ids, in place, to the rows that have none; return the counter's next value.

    Rows without an id are the last ones of a fragment, and it has no more ids than rows. Lance: transaction.rs,
    assign_row_ids. Raises `InvalidRequest` (`row_ids`) if no ids are left.
    """
    for fragment in fragments:
        given = _given_rows(fragment)
        wanted = fragment.physical_rows - given
        if wanted:
            if next_row_id + wanted > ROW_ID_MAX:
                raise InvalidRequest("the table has given out all row ids; copy it into a new one", code="row_ids")
            added = range(next_row_id, next_row_id + wanted)
            row_ids = _row_ids(fragment).followed_by(added) if given else RowIds((added,))
            fragment.inline_row_ids = encode_row_ids(row_ids)
            next_row_id += wanted
    return next_row_id


def stamp_new_rows(fragments: Iterable[DataFragment], version: int) -> None:
    """Record, in place, that this version created all rows."""
    for fragment in fragments:
        stamp = encode_versions([VersionRun(fragment.physical_rows, version)])
        fragment.inline_created_at_versions = stamp
        fragment.inline_last_updated_at_versions = stamp


def stamp_changed_rows(fragments: Iterable[DataFragment], version: int) -> None:
    """Record, in place, that this version was the last to change all rows."""
    for fragment in fragments:
        fragment.inline_last_updated_at_versions = encode_versions([VersionRun(fragment.physical_rows, version)])


def stamp_moved_rows(moved: Iterable[DataFragment], existing: Iterable[DataFragment], version: int) -> None:
    """Record, in place, that this version changed the rows, and which version created each.

    Rows whose id is in no existing fragment are new. If several fragments list an id, the lowest fragment counts: it
    had the row first, and later ones copied the row from it. Lance 6.1: resolve_update_version_metadata; 4.0.0 mistakes
    the id for an address.
    """
    from committerd_common.row_runs import versions_of

    moved = list(moved)
    ids_of = [_row_ids(fragment) for fragment in moved]
    wanted = BitMap64()
    for row_ids in ids_of:
        wanted |= row_ids.bitmap()
    known = _created_versions(wanted, existing).known(version)
    for fragment, row_ids in zip(moved, ids_of, strict=True):
        fragment.inline_created_at_versions = encode_joined(versions_of(row_ids.runs(), known))
    stamp_changed_rows(moved, version)


def stamp_rows_by_address(moved: Iterable[DataFragment], existing: Iterable[DataFragment], version: int) -> None:
    """Record like `stamp_moved_rows`, but as Lance 4.0.0 does, which mistakes a row's id for its address.

    So a row gets the version that created the row at that address, or the first version if there is no such row.
    """
    moved = list(moved)
    ids_of = {fragment.id: _row_ids(fragment) for fragment in moved}
    wanted = {row_id // _ADDRESSES for row_ids in ids_of.values() for row_id in _some_of_each_fragment(row_ids)}
    recorded = {fragment.id: fragment for fragment in existing if fragment.id in wanted}
    known: dict[int, tuple[list[int], list[int]]] = {}

    def recorded_at(address: int) -> tuple[int, int]:
        """The version that created the row at this address, and the next address where another version may begin."""
        number, offset = divmod(address, _ADDRESSES)
        if number not in known:
            runs: Sequence[VersionRun] = ()
            if number in recorded:
                body = recorded[number].inline_created_at_versions
                runs = decode_versions(body, fragment=number, staged=False)
            known[number] = list(accumulate(run.rows for run in runs)), [run.version for run in runs]
        ends, versions = known[number]
        run = bisect_right(ends, offset)
        if run == len(ends):
            return _FIRST_VERSION, (number + 1) * _ADDRESSES
        return versions[run], number * _ADDRESSES + ends[run]

    def runs_of(row_ids: RowIds) -> Iterator[VersionRun]:
        for segment in row_ids.segments:
            if not isinstance(segment, range):
                yield from (VersionRun(1, recorded_at(row_id)[0]) for row_id in segment)
                continue
            at = segment.start
            while at < segment.stop:
                made, end = recorded_at(at)
                yield VersionRun(min(end, segment.stop) - at, made)
                at = end

    for fragment in moved:
        fragment.inline_created_at_versions = encode_versions(runs_of(ids_of[fragment.id]))
    stamp_changed_rows(moved, version)


def _some_of_each_fragment(row_ids: RowIds) -> Iterator[int]:
    """At least one id for each fragment that the ids would be in if they were addresses."""
    for segment in row_ids.segments:
        if isinstance(segment, range):
            yield from range(segment.start, segment.stop, _ADDRESSES)
            yield segment[-1]
        else:
            yield from segment


def stamp_changed_offsets(fragment: DataFragment, offsets: BitMap, version: int) -> None:
    """Record, in place, that this version was the last to change the rows at these offsets of the fragment."""
    if not offsets or not fragment.inline_last_updated_at_versions:
        # If the other rows have no recorded version, nothing can be recorded: they would get one that they never had.
        return
    if offsets.max() >= fragment.physical_rows:
        raise InvalidRequest(
            f"updated_fragment_offsets name row {offsets.max()} of fragment {fragment.id}, which "
            f"has {fragment.physical_rows} rows",
            code="updated_offsets",
        )
    from committerd_common.row_runs import with_changed

    before = versions_in(fragment.inline_last_updated_at_versions, fragment=fragment.id, staged=True)
    if (rows := sum(before.rows.tolist())) != fragment.physical_rows:
        raise InvalidRequest(
            f"fragment {fragment.id} has versions for {rows} rows, and {fragment.physical_rows} rows",
            code="row_versions",
        )
    fragment.inline_last_updated_at_versions = encode_joined(with_changed(before, offsets, version))


def updated_offsets(update: Transaction.Update, fragment_id: int) -> BitMap:
    """The offsets of the rows of a fragment that an update names as changed in place; empty before Lance 7.

    Raises `InvalidRequest` (`updated_offsets`).
    """
    bitmap = update.updated_fragment_offset_bitmaps.get(fragment_id)
    if bitmap:
        with blamed(f"changed rows of fragment {fragment_id}", code="updated_offsets", staged=True):
            try:
                return BitMap.deserialize(bitmap)
            except (ValueError, IndexError) as error:
                raise MalformedError(f"they are not a Roaring bitmap: {error}") from error
    if fragment_id in update.updated_fragment_offsets:
        return BitMap(update.updated_fragment_offsets[fragment_id].values)
    return BitMap()


def has_all_row_ids(fragment: DataFragment) -> bool:
    """Whether every row of a staged fragment comes with its id."""
    return _given_rows(fragment) == fragment.physical_rows


def _created_versions(wanted: BitMap64, existing: Iterable[DataFragment]) -> Search:
    """A search for the versions that created the wanted rows, by row id, after a look into the existing fragments."""
    from committerd_common.row_runs import Search

    search = Search(wanted)
    for fragment in existing:
        if search.is_over:
            break
        segments = _row_ids(fragment, staged=False).segments
        if search.may_find(segments):
            created = versions_in(fragment.inline_created_at_versions, fragment=fragment.id, staged=False)
            search.look_into(segments, created, _FIRST_VERSION)
    return search


def _given_rows(fragment: DataFragment) -> int:
    """The number of rows that come with their ids."""
    return count_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=True)


def _row_ids(fragment: DataFragment, *, staged: bool = True) -> RowIds:
    return decode_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=staged)
