"""The rows that transactions delete: which deletion files must be read for them, and what follows from these.

`lance.rows` has the rules. This module asks for the deletion files that they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from committerd.lance.operations.rebase import DeletionMerge, Deletions
from committerd.lance.rows.change import RowChange
from committerd.lance.rows.deletions import RowConflict, clash, rows_deleted
from committerd.lance.rows.group import CombinedChange, RowGroup
from committerd.table.needs import DeletionFile, Rows, Steps
from committerd.table.places import deletion_file_location
from committerd_common.messages import BasePath, DataFragment, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFiles:
    """Where the deletion files of the versions lie that a transaction is judged with."""

    latest: Sequence[BasePath]
    """The base paths of the latest version, and so of staged files."""
    read: Sequence[BasePath] = ()
    """The base paths of the read version."""
    unwritten: Mapping[str, BitMap] = field(default_factory=dict)
    """The content of deletion files in the table's folder that are still to be written, by key."""
    staged_bytes_max: int

    def staged(self, fragment: DataFragment) -> DeletionFile | None:
        """The staged deletion file of a fragment; None if it has none, as for the next two."""
        return _file(fragment, self.latest, staged=True)

    def then(self, fragment: DataFragment) -> DeletionFile | None:
        """The deletion file that a fragment has at the read version."""
        return _file(fragment, self.read, staged=False)

    def now(self, fragment: DataFragment) -> DeletionFile | None:
        """The deletion file that a fragment has in the latest version."""
        return _file(fragment, self.latest, staged=False)

    def rows(self, wanted: Sequence[DeletionFile | None]) -> Steps[Sequence[BitMap]]:
        """The rows that each of these files holds; empty for a fragment without such a file. Throws as `Rows`."""
        found = [self._known(one) for one in wanted]
        unknown = [one for one, rows in zip(wanted, found, strict=True) if one is not None and rows is None]
        read = iter((yield Rows(unknown, self.staged_bytes_max)) if unknown else ())
        return [next(read) if rows is None else rows for rows in found]

    def _known(self, file: DeletionFile | None) -> BitMap | None:
        if file is None:
            return BitMap()
        return self.unwritten.get(file.location.key) if file.location.base is None else None


def _file(fragment: DataFragment, bases: Sequence[BasePath], *, staged: bool) -> DeletionFile | None:
    if not fragment.HasField("deletion_file"):
        return None
    return DeletionFile(fragment, deletion_file_location(fragment, bases, staged=staged), staged)


def with_rows(
    change: RowChange, latest: Manifest, files: DeletionFiles
) -> Steps[tuple[RowChange | None, RowConflict | None]]:
    """Return the change with the rows that it deletes, and the conflict if the latest version has lost one of them.

    The change is None if its rows can't be determined, which is a conflict too.
    `latest`: an excerpt of the latest version with the fragments that the change names. Throws as `Rows`.
    """
    now = {fragment.id: fragment for fragment in latest.fragments}
    wanted = list[DeletionFile | None]()
    for id, one in change.touched.items():
        assert one.read is not None
        assert one.staged is not None
        there = now.get(id)
        moved_on = there is not None and there.deletion_file != one.read.deletion_file
        wanted += (
            files.staged(one.staged),
            files.then(one.read),
            files.now(there) if there is not None and moved_on else None,
        )
    found = iter((yield from files.rows(wanted)))
    known, both = dict[int, BitMap](), dict[int, BitMap]()
    for id in change.touched:
        staged, then, others = next(found), next(found), next(found)
        mine = rows_deleted(id, read=then, staged=staged)
        if isinstance(mine, RowConflict):
            return None, mine
        known[id] = mine
        if common := mine & others:
            both[id] = common
    return change.with_rows(known), clash(dict(sorted(both.items())))


def recorded(
    group: RowGroup, latest: Manifest, files: DeletionFiles, *, file_ids: Iterator[int]
) -> Steps[CombinedChange]:
    """What the members of a group do together to the latest version, an excerpt of which is `latest`."""
    merged = group.to_merge(latest)
    rows = yield from files.rows([files.now(one) for one in merged])
    deleted = {one.id: some for one, some in zip(merged, rows, strict=True)}
    return group.recorded(latest, deleted, latest_version=latest.version, file_ids=file_ids)


def deletions_of(
    merges: Sequence[DeletionMerge], files: DeletionFiles
) -> Steps[Sequence[tuple[DeletionMerge, Deletions]]]:
    """The deleted rows of each of these fragments at the read version, as staged, and in the latest version."""
    wanted = [file for one in merges for file in (files.then(one.read), files.staged(one.ours), files.now(one.latest))]
    found = iter((yield from files.rows(wanted)))
    return [(one, Deletions(read=next(found), ours=next(found), latest=next(found))) for one in merges]
