"""What the other branches of a table name: files that may lie in the folder which is cleaned up.

A branch begins as a version of another branch, whose files it reads by a base path. The other way round, main reads
files in a branch's folder when the branch's changes were brought to main. So before anything is deleted, the versions
of all other branches are read, and what they name stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from committerd.errors import CommitterError, CorruptTable, ObjectUnreadable, UnsupportedTable
from committerd.maintenance.bodies import BYTES_AT_ONCE, IndexedManifest, ManifestBatch, each_manifest, unreadable
from committerd.maintenance.names import Names, new_parts, require_known
from committerd.maintenance.survey import Progress
from committerd.stores.port import ObjectStore
from committerd.table.branches import branches
from committerd.table.versions import Table
from committerd_common.paths import VERSIONS, NamingScheme, manifest_key


@dataclass(slots=True, kw_only=True)
class OtherBranches:
    """The other branches of a table. `open`: the store of a branch; an empty name is that of the main branch."""

    root: ObjectStore
    own: str
    """The branch that is cleaned up; empty = the main branch."""
    open: Callable[[str], ObjectStore]
    _read: dict[str, set[str]] = field(default_factory=dict)
    """The keys of the manifests that were read, by branch."""

    def unread(self) -> OtherBranches:
        """The same branches, of which nothing was read yet."""
        return OtherBranches(root=self.root, own=self.own, open=self.open)

    async def folders_within(self) -> tuple[str, ...]:
        """The folders of branches, such as `exp/more`, that lie in the folder of the own one, such as `exp`."""
        inside = f"{self.own}/"
        if not self.own:
            return ()  # they lie in a folder that a cleanup does not list
        names = await branches(self.root)
        return tuple(f"{one.removeprefix(inside)}/" for one in names if one.startswith(inside))

    async def names(self, progress: Progress) -> set[str]:
        """The files that versions name which were not read yet, as if they lay in the own folder.

        `progress`: for each branch, given the number of versions that are read, returns what is called with the number
        of those that were just read.
        Raises `StoreUnavailable`, `CorruptTable` and `UnsupportedTable` if a version can't be read: what it names is
        not known then.
        """
        found: set[str] = set()
        for branch in ["", *await branches(self.root)]:
            if branch != self.own:
                found |= await self._names_of(branch, progress)
        return found

    async def _names_of(self, branch: str, progress: Progress) -> set[str]:
        table, read = Table(self.open(branch)), self._read.setdefault(branch, set())
        versions = reversed(await table.versions())
        scheme = table.scheme or NamingScheme.V2
        keys = [*(manifest_key(one, scheme) for one in versions), *await table.detached_manifests()]
        names, above = Names(), b""

        async def take(manifests: ManifestBatch) -> None:
            nonlocal above
            for key, one in manifests.items():
                if one is None:
                    continue  # a cleanup of that branch has deleted it since
                try:
                    above = _add(names, one, above)
                except CorruptTable as error:
                    raise unreadable(key, error) from error
            read.update(manifests)
            report(len(manifests))

        unread = [key for key in keys if key not in read]
        if not unread:
            return names.keys
        report = progress(len(unread))
        sizes = {one.key: one.size async for batch in table.store.walk(VERSIONS) for one in batch}
        try:
            await each_manifest(table.store, {key: sizes.get(key, BYTES_AT_ONCE) for key in unread}, take)
        except (ObjectUnreadable, CorruptTable, UnsupportedTable) as error:
            raise _unknown(table.uri, error) from error
        return names.keys


def _add(names: Names, one: IndexedManifest, above: bytes) -> bytes:
    """Add what a version names; returns its fragments. `above`: those of the version that was read before.

    Raises `UnsupportedTable` and `CorruptTable`. A damaged fragment may hide what follows it, such as the version.
    """
    outline, fragments = one.file.outline, one.file.fragments
    if not outline.version:
        raise CorruptTable("its version is missing", code="manifest_bytes")
    require_known(outline)
    if not outline.base_paths:
        return b""  # all its files lie in its own folder
    names.add_parts(outline, one.indices, new_parts(fragments, above))
    return fragments


def _unknown(uri: str, error: CommitterError) -> CommitterError:
    text = (
        f"{uri}, another branch of the table: {error}. It may name files of this branch, so nothing is deleted. Mend "
        "that version, or delete the branch with pylance"
    )
    if isinstance(error, ObjectUnreadable):
        return CorruptTable(text)
    return type(error)(text, code=error.code)
