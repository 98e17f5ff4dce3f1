"""The indices of a branch, for main: after a fast-forward they hold for main's rows too, and their files are copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from committerd.branches.changes import Frame, file_key, same_row_ids
from committerd.lance.format.manifest_file import ManifestFile
from committerd.stores.port import ObjectStore
from committerd_common.index_details import FRAGMENT_REUSE_INDEX, is_system_index
from committerd_common.messages import DataFragment, IndexMetadata, Transaction
from committerd_common.paths import index_prefix

_FILE_BYTES_MAX = 512 * 1024 * 1024
"""Larger files of an index are not copied, because a file is in memory meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChanges:
    """The indices that a branch has and main does not, or the reverse, where they hold for main's rows."""

    new: Sequence[IndexMetadata] = ()
    removed: Sequence[IndexMetadata] = ()

    def transaction(self, uuid: str, version: int) -> Transaction:
        """The CreateIndex that main gets, which has read this version."""
        made = Transaction(uuid=uuid, read_version=version)
        made.create_index.removed_indices.extend(self.removed)
        for index in self.new:
            added = made.create_index.new_indices.add()
            added.CopyFrom(index)
            added.ClearField("base_id")
            added.dataset_version = version
        return made


def index_changes(main: ManifestFile, branch: ManifestFile, frame: Frame) -> IndexChanges | None:
    """The changes of indices that bring main those of the branch; None if there are none.

    An index names rows by their addresses or ids. So it holds for main only if a version of main has the very fragments
    of the branch: `main` must be that version, its promotion. An index that a fragment reuse index translates names
    rows by addresses that they had before a compaction; main has no such translation.
    """
    if any(index.name == FRAGMENT_REUSE_INDEX for index in branch.indices):
        return None
    theirs = {index.uuid.uuid: index for index in main.indices if not is_system_index(index)}
    ours = {index.uuid.uuid: index for index in branch.indices if not is_system_index(index)}
    new = [index for uuid, index in ours.items() if uuid not in theirs]
    removed = [index for uuid, index in theirs.items() if uuid not in ours]
    if not (new or removed) or not _has_same_rows(main, branch, frame):
        return None
    return IndexChanges(new=new, removed=removed)


def _has_same_rows(main: ManifestFile, branch: ManifestFile, frame: Frame) -> bool:
    if len(main.fragments) != len(branch.fragments):
        return False
    known = {one.id: one for one in main.fragments}
    return all(one.id in known and _is_same(known[one.id], one, frame) for one in branch.fragments)


def _is_same(main: DataFragment, branch: DataFragment, frame: Frame) -> bool:
    return (
        file_key(main) == frame.key(branch)
        and main.physical_rows == branch.physical_rows
        and same_row_ids(main, branch)
        and main.deletion_file.num_deleted_rows == branch.deletion_file.num_deleted_rows
    )


async def copied_files(own: ObjectStore, main: ObjectStore, index: IndexMetadata, *, dry: bool) -> bool:
    """Copy the files of an index from the branch's folder to that of main. False: they are not there, or too large.

    pylance 14.0.2 can't compact a table with an index in a base path: it writes the new index to the table's folder,
    and names it in the base path. `dry`: write nothing.
    """
    prefix = index_prefix(index.uuid.uuid)
    keys = await own.list(prefix)
    sizes = [await own.head(key) or 0 for key in keys]
    if not keys or max(sizes) > _FILE_BYTES_MAX:
        return False
    for key in () if dry else keys:
        body = await own.get(key)
        if body is None:
            return False
        await main.put(key, body)
    return True
