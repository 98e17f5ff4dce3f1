"""Whether a queue is paused, for whoever is no committer of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from committerd.errors import CommitterError
from committerd.queue.position import Pause, SaysOfPause, pause_of
from committerd.queue.race import VersionSummary
from committerd.table.carrying import says_of_pause, summaries_of
from committerd.table.many_versions import read_in_order
from committerd.table.versions import Table


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
    said = list[SaysOfPause | None]()

    async def take(_: Sequence[int], found: Sequence[VersionSummary | CommitterError | None]) -> bool:
        # Of a missing or damaged version nothing is known, nor of keys that another writer has spoilt.
        some = [says_of_pause(one) if isinstance(one, VersionSummary) else None for one in found]
        said.extend(some)
        return not any(one is not None and one.ours for one in some)

    await read_in_order(sorted(versions, reverse=True), partial(summaries_of, table), take)
    return said
