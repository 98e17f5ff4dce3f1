"""Rows that keep an id for life: their ids, and the versions that created and last changed them.

Only in tables with stable row ids. Each fragment then has three sequences with an entry for each
physical row. Ids come from a counter in the manifest that never goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from pyroaring import BitMap, BitMap64

from committerd.errors import InvalidRequest
from committerd.format.malformed import MalformedError, blamed
from committerd.format.messages import DataFragment, Transaction
from committerd.format.row_ids import (
    ROW_ID_MAX,
    RowIds,
    VersionRun,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
)

# Lance: rowids/version.rs: what is not recorded was there from the first version on.
_FIRST_VERSION = 1


def assign_row_ids(fragments: Iterable[DataFragment], next_row_id: int) -> int:
    """Give ids, in place, to the rows that have none; returns the counter's next value.

    Rows without an id are the last of a fragment. Lance: transaction.rs, assign_row_ids. Raises
    `InvalidRequest` (`row_ids`) when there are more ids than rows.
    """
    for fragment in fragments:
        given = _row_ids(fragment)
        wanted = fragment.physical_rows - len(given)
        if wanted < 0:
            raise InvalidRequest(
                f"fragment {fragment.id} has {len(given)} row ids and {fragment.physical_rows} rows",
                code="row_ids",
            )
        if wanted:
            if next_row_id + wanted > ROW_ID_MAX:
                raise InvalidRequest("the table has given out all row ids; copy it into a new one", code="row_ids")
            added = range(next_row_id, next_row_id + wanted)
            fragment.inline_row_ids = encode_row_ids(given.followed_by(added))
            next_row_id += wanted
    return next_row_id


def stamp_new_rows(fragments: Iterable[DataFragment], version: int) -> None:
    """Say, in place, that all rows were made by this version."""
    for fragment in fragments:
        stamp = encode_versions([VersionRun(fragment.physical_rows, version)])
        fragment.inline_created_at_versions = stamp
        fragment.inline_last_updated_at_versions = stamp


def stamp_changed_rows(fragments: Iterable[DataFragment], version: int) -> None:
    """Say, in place, that all rows were last changed by this version."""
    for fragment in fragments:
        fragment.inline_last_updated_at_versions = encode_versions([VersionRun(fragment.physical_rows, version)])


def stamp_moved_rows(moved: Iterable[DataFragment], existing: Sequence[DataFragment], version: int) -> None:
    """Say, in place, that rows were last changed by this version and created when they first were.

    Rows whose id is in no existing fragment are new. Of several fragments that list an id the
    lowest counts: it held the row first, and later ones copied from it. Lance 6.1:
    resolve_update_version_metadata; 4.0.0 takes the id for an address.
    """
    ids_of = {fragment.id: _row_ids(fragment) for fragment in moved}
    created = _created_versions(ids_of.values(), existing)
    for fragment in moved:
        fragment.inline_created_at_versions = encode_versions(_created_runs(ids_of[fragment.id], created, version))
    stamp_changed_rows(moved, version)


def stamp_changed_offsets(fragment: DataFragment, offsets: BitMap, version: int) -> None:
    """Say, in place, that the rows at these offsets were last changed by this version."""
    if not offsets or not fragment.inline_last_updated_at_versions:
        # What was not recorded is not made up: rows that stay would get a version that they never
        # had.
        return
    if offsets.max() >= fragment.physical_rows:
        raise InvalidRequest(
            f"updated_fragment_offsets name row {offsets.max()} of fragment {fragment.id}, which "
            f"has {fragment.physical_rows} rows",
            code="updated_offsets",
        )
    runs = decode_versions(fragment.inline_last_updated_at_versions, fragment=fragment.id, staged=True)
    if sum(run.rows for run in runs) != fragment.physical_rows:
        raise InvalidRequest(
            f"fragment {fragment.id} has versions for {sum(run.rows for run in runs)} rows, and "
            f"{fragment.physical_rows} rows",
            code="row_versions",
        )
    fragment.inline_last_updated_at_versions = encode_versions(_with_changed(runs, offsets, version))


def updated_offsets(update: Transaction.Update, fragment_id: int) -> BitMap:
    """Rows of a fragment that an update says it changed in place. Lance 7 and later; older ones
    say nothing.
    """
    bitmap = update.updated_fragment_offset_bitmaps.get(fragment_id)
    if bitmap:
        with blamed(f"changed rows of fragment {fragment_id}", code="updated_offsets", staged=True):
            try:
                return BitMap.deserialize(bitmap)
            except (ValueError, IndexError) as error:
                raise MalformedError(f"they are no Roaring bitmap: {error}") from error
    if fragment_id in update.updated_fragment_offsets:
        return BitMap(update.updated_fragment_offsets[fragment_id].values)
    return BitMap()


def has_all_row_ids(fragment: DataFragment) -> bool:
    """Whether every row of a staged fragment came with its id."""
    return len(_row_ids(fragment)) == fragment.physical_rows


def _created_versions(wanted: Iterable[RowIds], existing: Sequence[DataFragment]) -> dict[int, int]:
    """The version that created each row, by row id, as far as its id is found."""
    missing = BitMap64()
    for row_ids in wanted:
        for segment in row_ids.segments:
            missing |= BitMap64(segment)
    created: dict[int, int] = {}
    for fragment in sorted(existing, key=lambda one: one.id):
        if not missing:
            break
        found = dict(_row_ids(fragment, staged=False).offsets(missing))
        if not found:
            continue
        runs = decode_versions(fragment.inline_created_at_versions, fragment=fragment.id, staged=False)
        ends = list(accumulate(run.rows for run in runs))
        for row_id, offset in found.items():
            place = bisect_right(ends, offset)
            created[row_id] = runs[place].version if place < len(runs) else _FIRST_VERSION
        missing -= BitMap64(found)
    return created


def _row_ids(fragment: DataFragment, *, staged: bool = True) -> RowIds:
    if not fragment.HasField("inline_row_ids"):
        return RowIds()
    return decode_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=staged)


def _created_runs(row_ids: RowIds, created: Mapping[int, int], version: int) -> Iterator[VersionRun]:
    """Versions of rows that have these ids; `version` for those that are not in `created`."""
    start = 0
    for row_id, offset in row_ids.offsets(BitMap64(created)):
        yield VersionRun(offset - start, version)
        yield VersionRun(1, created[row_id])
        start = offset + 1
    yield VersionRun(len(row_ids) - start, version)


def _with_changed(runs: Iterable[VersionRun], offsets: BitMap, version: int) -> Iterator[VersionRun]:
    """The runs with `version` at these offsets."""
    start = 0
    for run in runs:
        end = start + run.rows
        for offset in offsets & BitMap(range(start, end)):
            yield VersionRun(offset - start, run.version)
            yield VersionRun(1, version)
            start = offset + 1
        yield VersionRun(end - start, run.version)
        start = end
