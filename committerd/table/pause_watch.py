"""Whether a queue is paused, for whoever is no committer of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.position import Pause, decode_pause
from committerd.table.versions import Table


class FoundPause(NamedTuple):
    """What a version says of the pause."""

    ours: bool
    """Whether it is a version of the queue."""
    pause: Pause | None


class PauseWatch:
    """Finds the pause again and again; reads only the versions that came since it last looked."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._seen = 0
        self._pause: Pause | None = None

    async def look(self) -> Pause | None:
        """Return the pause that the newest version of the queue carries; without such a version, that of the latest.

        Leaves out versions that are damaged. Raises `StoreUnavailable`.
        """
        newest = await self._table.latest_version() or 0
        if newest == self._seen:
            return self._pause
        since = self._seen if self._seen < newest else 0  # it may be another table now
        found = await newest_of_queue(self._table, await self._table.versions_above(since))
        if found is None and not since:
            found = await _found(self._table, newest)
        if found is not None or not since:
            self._pause = found.pause if found is not None else None
        self._seen = newest
        return self._pause


async def newest_of_queue(table: Table, versions: Iterable[int]) -> FoundPause | None:
    """Return what the newest version of the queue among these says; None if there is none.

    Raises `StoreUnavailable`.
    """
    for version in sorted(versions, reverse=True):
        found = await _found(table, version)
        if found is not None and found.ours:
            return found
    return None


async def _found(table: Table, version: int) -> FoundPause | None:
    """What one version says; None if it is missing or damaged."""
    try:
        file, settled = await table.read(version), await table.settled(version, keep=False)
        if file is None or settled is None:
            return None
        return FoundPause(settled.ours, decode_pause(file.outline.table_metadata, branch=file.outline.branch))
    except (CorruptTable, RefusedToRun):
        return None
