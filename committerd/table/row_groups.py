"""Reads what members of a version delete, and writes down what they do together.

`lance.rows` decides; this module reads the deletion files that it needs. Files that were read or written before are not
read again.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from committerd.concurrency import for_each
from committerd.lance.rows.change import RowChange
from committerd.lance.rows.deletions import RowConflict, clash, rows_deleted
from committerd.lance.rows.group import CombinedChange, RowGroup
from committerd.table.staged_files import Allowance, FileLimits, Places, read_deletions
from committerd_common.messages import DataFragment, Manifest


async def with_rows(
    change: RowChange, latest: Manifest, places: Places, *, limits: FileLimits
) -> tuple[RowChange | None, RowConflict | None]:
    """Return the change with the rows that it deletes, and the conflict if the latest version has lost one of them.

    The change is None if its rows can't be determined, which is a conflict too.
    `latest`: an excerpt of the latest version with the fragments that the change names. Raises as `read_deletions`.
    """
    now = {fragment.id: fragment for fragment in latest.fragments}
    allowance = Allowance(limits)
    rows: dict[int, BitMap | RowConflict] = {}
    both: dict[int, BitMap] = {}

    async def read(fragment_id: int) -> None:
        one = change.touched[fragment_id]
        assert one.read is not None
        assert one.staged is not None
        staged = await read_deletions(places, one.staged, staged=True, allowance=allowance)
        then = await read_deletions(places, one.read, staged=False)
        mine = rows_deleted(fragment_id, read=then, staged=staged)
        rows[fragment_id] = mine
        there = now.get(fragment_id)
        if there is not None and there.deletion_file != one.read.deletion_file and not isinstance(mine, RowConflict):
            both[fragment_id] = mine & await read_deletions(places, there, staged=False)

    await for_each(list(change.touched), read)
    for found in rows.values():
        if isinstance(found, RowConflict):
            return None, found
    conflict = clash(dict(sorted(both.items())))
    known = {id: some for id, some in rows.items() if not isinstance(some, RowConflict)}
    return change.with_rows(known), conflict


async def recorded(group: RowGroup, latest: Manifest, places: Places, *, file_ids: Iterator[int]) -> CombinedChange:
    """Return what the members of a group do together to the latest version, an excerpt of which is `latest`."""
    deleted: dict[int, BitMap] = {}

    async def read(fragment: DataFragment) -> None:
        deleted[fragment.id] = await read_deletions(places, fragment, staged=False)

    await for_each(group.to_merge(latest), read)
    return group.recorded(latest, deleted, latest_version=latest.version, file_ids=file_ids)
