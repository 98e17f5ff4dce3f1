"""Whether a queue is paused, for whoever is no committer of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from committerd.concurrency import map_each
from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.position import Pause, SaysOfPause, pause_of
from committerd.table.carrying import says_of_pause, summary_of
from committerd.table.versions import Table

_AT_ONCE_MAX = 256
"""Versions that are read at once: the number grows from one, as most often one is enough."""


class PauseWatch:
    """Finds the pause again and again; reads only the versions that came since it last looked."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._seen = 0
        self._pause: Pause | None = None

    async def look(self) -> Pause | None:
        """Return the pause of the queue (`pause_of`). Raises `StoreUnavailable`."""
        newest = await self._table.latest_version() or 0
        if newest != self._seen:
            since = self._seen if self._seen < newest else 0  # it may be another table now
            above = await self._table.versions_above(since)
            self._pause = (
                await pause_since(self._table, above, before=self._pause)
                if since
                else pause_of(await said_of_pause(self._table, above))
            )
            self._seen = newest
        return self._pause


async def pause_since(table: Table, versions: Iterable[int], *, before: Pause | None) -> Pause | None:
    """Return the pause of the queue after these versions, if it was `before` below them. Raises `StoreUnavailable`."""
    said = await said_of_pause(table, versions)
    return pause_of([*said, SaysOfPause(ours=True, has_keys=True, pause=before)])


async def said_of_pause(table: Table, versions: Iterable[int]) -> list[SaysOfPause | None]:
    """Return what versions say, for `pause_of`: these, from the newest down to the newest one of the queue at least.

    Raises `StoreUnavailable`.
    """
    said, newest_first = list[SaysOfPause | None](), sorted(versions, reverse=True)
    size, start = 1, 0
    while start < len(newest_first) and not any(one is not None and one.ours for one in said):
        said += await map_each(newest_first[start : start + size], partial(_said, table), at_once=size)
        start, size = start + size, min(2 * size, _AT_ONCE_MAX)
    return said


async def _said(table: Table, version: int) -> SaysOfPause | None:
    """What one version says; None if it is missing or damaged. Keys that another writer has spoilt count as none."""
    try:
        found = await summary_of(table, version, is_latest=False)
    except (CorruptTable, RefusedToRun):
        return None
    return None if found is None else says_of_pause(found)
