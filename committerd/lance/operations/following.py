"""Follows rows through Rewrites: a Delete or an Update over a Rewrite, and a Rewrite over either.

The functions here are generators (`FollowingRebase`): where rows went in a version decides which deletion files must be
read for the next version. They yield fragments, and are sent the rows that are deleted in these.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import TypeAlias

from pyroaring import BitMap

from committerd.lance.format.kind import Kind
from committerd.lance.operations.deletions import deletions_to_merge, merge_deletions
from committerd.lance.operations.rebase import (
    DeletionRead,
    Deletions,
    FollowedRows,
    FollowFacts,
    FollowingRebase,
    RebasedTransaction,
    RebaseFacts,
    RowConflict,
    copied,
)
from committerd.lance.rows.deletions import changed_lists, clash, deletion_file, rows_deleted, without_rows
from committerd.lance.versions.fragments import FileIdentity
from committerd.lance.versions.moves import moved_groups
from committerd_common.messages import DataFragment, Manifest, Transaction
from committerd_common.own_properties import EMPTIED

FOLLOWED_ROWS_MAX = 4_000_000
"""The most rows that are followed for one transaction: a map takes up to 40 bytes for each."""

_Rows: TypeAlias = dict[int, BitMap]
"""By fragment: offsets of rows."""


def follow_deletions(transaction: Transaction, facts: FollowFacts) -> FollowingRebase:
    """A Delete or an Update that deletes its rows where they are in the latest version.

    It is a conflict if others deleted one of the rows, changed columns of a fragment to which the rows had moved, or
    moved them on in an order that is not known.
    """
    rebased = copied(transaction)
    updated, removed = changed_lists(rebased)
    moved = _moved_by(facts, {*removed, *(one.id for one in updated)})
    touched = yield from _touched(updated, removed, facts.read, moved)
    if isinstance(touched, RowConflict):
        return touched
    followed = yield from _followed(touched, facts)
    if isinstance(followed, RowConflict):
        return followed
    now, versions = followed
    kept = [one for one in updated if one.id not in moved], [one for one in removed if one not in moved]
    del updated[:], removed[:]
    updated.extend(kept[0])
    removed.extend(kept[1])
    rest = yield from _merged_in_place(rebased, facts)
    if isinstance(rest, RowConflict):
        return rest
    rebased = rest.transaction
    updated, removed = changed_lists(rebased)
    latest = {one.id: one for one in facts.latest(now)}
    deleted = yield from _deleted(latest.values())
    files, both = dict(rest.files), _Rows()
    for id in sorted(now):
        if id not in latest:
            return RowConflict(
                message=f"others deleted all rows of fragment {id}, to which rows that this transaction changes had "
                "been moved"
            )
        both[id] = now[id] & deleted.get(id, BitMap())
        shrunk = without_rows(
            latest[id],
            deleted.get(id, BitMap()),
            now[id],
            latest_version=facts.latest_version,
            file_ids=facts.file_ids,
        )
        if shrunk.deletion_file is None:
            removed.append(id)
            continue
        updated.append(latest[id])
        updated[-1].deletion_file.CopyFrom(shrunk.deletion_file)
        files |= {shrunk.key: shrunk.body} if shrunk.key else {}
    if found := clash(both):
        return found
    rows = sum(map(len, touched.values()))
    return RebasedTransaction(transaction=rebased, files=files, followed=FollowedRows(rows=rows, versions=versions))


def carry_deletions(transaction: Transaction, facts: FollowFacts) -> FollowingRebase:
    """The Rewrite, whose new fragments lack the rows that others deleted in the old ones since its read version.

    Its groups stay as they were staged, so that the map of its rows can still be made: an old fragment that lost all
    its rows is named in property `committerd.emptied`, and a new one without rows has a deletion file of all its rows.
    """
    rebased = copied(transaction)
    rebased.read_version = facts.latest_version
    emptied: list[int] = []
    files: dict[str, bytes] = {}
    rows = 0
    for moves, group in zip(moved_groups(transaction, staged=True), rebased.rewrite.groups, strict=True):
        latest = {one.id: one for one in facts.latest([one.id for one in group.old_fragments])}
        late = [
            one
            for one in group.old_fragments
            if one.id not in latest or latest[one.id].deletion_file != one.deletion_file
        ]
        dropped = yield from _deleted(late)
        gone = yield from _deleted(latest[one.id] for one in late if one.id in latest)
        deleted = {
            one.id: (gone.get(one.id, BitMap()) if one.id in latest else _all(one)) - dropped.get(one.id, BitMap())
            for one in late
        }
        rows += sum(map(len, deleted.values()))
        if rows > FOLLOWED_ROWS_MAX:
            return _too_many(rows, "late_deletions")
        moved = moves.moved(deleted, dropped)
        for id, lost in moved.lost.items():
            missing = "1 row" if len(lost) == 1 else f"{len(lost)} rows"
            return RowConflict(
                message=f"its new fragments lack {missing} of fragment {id} that it should have copied, and that "
                "others deleted meanwhile",
                rule="late_deletions",
            )
        emptied += (one.id for one in late if one.id not in latest)
        for new in group.new_fragments:
            if new.id in moved.places:
                file, key, body = deletion_file(
                    new.id, moved.places[new.id], latest_version=facts.latest_version, file_ids=facts.file_ids
                )
                new.deletion_file.CopyFrom(file)
                files[key] = body
    if emptied:
        rebased.transaction_properties[EMPTIED] = ",".join(map(str, emptied))
    return RebasedTransaction(transaction=rebased, files=files, followed=FollowedRows(rows=rows))


def _moved_by(facts: FollowFacts, ours: Collection[int]) -> set[int]:
    """The fragments of ours that a Rewrite replaced."""
    gone = (theirs.fragments for _, theirs in facts.theirs if theirs.kind is Kind.REWRITE)
    return set(ours).intersection(frozenset[int]().union(*gone))


def _touched(
    updated: Iterable[DataFragment], removed: Collection[int], read: Manifest, moved: Collection[int]
) -> Generator[Sequence[DeletionRead], Sequence[BitMap], _Rows | RowConflict]:
    """The rows that ours deletes in the fragments `moved`, as at the read version."""
    then = {one.id: one for one in read.fragments if one.id in moved}
    ours = [one for one in updated if one.id in moved and one.id not in removed]
    before = yield from _deleted(then.values())
    after = yield from _deleted(ours, is_staged=True)
    touched = {id: _all(then[id]) - before.get(id, BitMap()) for id in removed if id in moved}
    for one in ours:
        rows = rows_deleted(one.id, read=before.get(one.id, BitMap()), staged=after.get(one.id, BitMap()))
        if isinstance(rows, RowConflict):
            return rows
        touched[one.id] = rows
    count = sum(map(len, touched.values()))
    return _too_many(count, "moved_rows") if count > FOLLOWED_ROWS_MAX else touched


def _followed(
    touched: Mapping[int, BitMap], facts: FollowFacts
) -> Generator[Sequence[DeletionRead], Sequence[BitMap], tuple[_Rows, tuple[int, ...]] | RowConflict]:
    """Where the rows are in the latest version, and the versions that moved them."""
    now = dict(touched)
    versions: list[int] = []
    files: dict[int, tuple[FileIdentity, ...]] = {}
    """Of each fragment to which rows were moved."""
    for version, theirs in facts.theirs:
        here = now.keys() & theirs.fragments
        if not here:
            continue
        if theirs.kind is not Kind.REWRITE:
            # The grid has judged the fragments of the read version; these came later.
            changed = sorted(id for id in (here & files.keys()) - theirs.removed if theirs.files.get(id) != files[id])
            if changed:
                return RowConflict(
                    message=f"version {version} changed columns of fragment {changed[0]}, to which rows that this "
                    "transaction changes had been moved",
                    rule="moved_rows",
                    version=version,
                )
            continue
        for group in theirs.moves:
            inside = [id for id in group.old if id in now]
            if not inside:
                continue
            doubt = group.doubt(trusts_all=facts.trusts_all)
            if doubt:
                return RowConflict(
                    message=f"version {version} moved its rows, and where they are now is not known: {doubt}",
                    rule="moved_rows",
                    version=version,
                )
            dropped = yield from _deleted(group.deletions[id] for id in inside if id in group.deletions)
            moved = group.moved({id: now.pop(id) for id in inside}, dropped)
            if found := clash(moved.lost):
                return found
            _add(now, moved.places)
            files |= group.files
        versions.append(version)
    return now, tuple(versions)


def _merged_in_place(
    rebased: Transaction, facts: FollowFacts
) -> Generator[Sequence[DeletionRead], Sequence[BitMap], RebasedTransaction | RowConflict]:
    """Merge the deletions of the fragments that did not move."""
    updated, _ = changed_lists(rebased)
    latest = Manifest(fragments=facts.latest([one.id for one in updated]))
    merges = deletions_to_merge(rebased, facts.read, latest)
    read = yield from _deleted(one.read for one in merges)
    ours = yield from _deleted((one.ours for one in merges), is_staged=True)
    now = yield from _deleted(one.latest for one in merges)
    found = [
        Deletions(
            read=read.get(one.ours.id, BitMap()),
            ours=ours.get(one.ours.id, BitMap()),
            latest=now.get(one.ours.id, BitMap()),
        )
        for one in merges
    ]
    deletions = list(zip(merges, found, strict=True))
    in_place = RebaseFacts(latest_version=facts.latest_version, deletions=deletions, file_ids=facts.file_ids)
    return merge_deletions(rebased, in_place)


def _deleted(
    fragments: Iterable[DataFragment], *, is_staged: bool = False
) -> Generator[Sequence[DeletionRead], Sequence[BitMap], Mapping[int, BitMap]]:
    """The deleted rows of the fragments that have a deletion file, by fragment."""
    wanted = [DeletionRead(one, is_staged) for one in fragments if one.HasField("deletion_file")]
    rows = (yield wanted) if wanted else ()
    return {one.fragment.id: deleted for one, deleted in zip(wanted, rows, strict=True)}


def _all(fragment: DataFragment) -> BitMap:
    rows = BitMap()
    rows.add_range(0, fragment.physical_rows)
    return rows


def _add(places: _Rows, more: Mapping[int, BitMap]) -> None:
    for id, rows in more.items():
        places[id] = places.get(id, BitMap()) | rows


def _too_many(rows: int, rule: str) -> RowConflict:
    return RowConflict(message=f"{rows} rows would have to be followed; the limit is {FOLLOWED_ROWS_MAX}", rule=rule)
