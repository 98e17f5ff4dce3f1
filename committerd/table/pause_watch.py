"""Whether a queue is paused, for whoever is no committer of it."""

from __future__ import annotations

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.position import Pause, decode_pause
from committerd.table.versions import Table


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
        pause = self._pause if since else None
        for version in sorted(await self._table.versions_above(since), reverse=True):
            try:
                file, settled = await self._table.read(version), await self._table.settled(version, keep=False)
                if file is None or settled is None:
                    continue
                carried = decode_pause(file.outline.table_metadata, branch=file.outline.branch)
            except (CorruptTable, RefusedToRun):
                continue
            if settled.ours:
                pause = carried
                break
            if version == newest and not since:
                pause = carried
        self._seen, self._pause = newest, pause
        return pause
