"""Writes the version that pauses a queue, or the version that resumes it."""

from __future__ import annotations

from collections.abc import Callable

from committerd.commands.printing import Reading
from committerd.commands.system import monotonic, open_history, sources, stores_of
from committerd.committer import operate
from committerd.committer.loading import Loading, load
from committerd.errors import SettingsError
from committerd.queue.position import Pause
from committerd.settings.load import Settings


async def change_pause(configured: Settings, change: Callable[[Pause | None], Pause | None], *, reason: str) -> int:
    """Commit one version in which the pause is what `change` returns, given the present one; returns its number.

    `change` may raise, and is called again when another version was faster. Raises as `operate.write`, and
    `SettingsError` if there is no table.
    """
    async with stores_of(configured) as stores:
        table = await open_history(stores, configured.dataset)
        loading = Loading(monotonic=monotonic, report=Reading(), later=True)
        loaded = await load(table, loading)
        if not loaded.version:
            raise SettingsError(f"there is no table at {table.uri}, so no committer commits: there is nothing to pause")
        return await operate.write(loaded, loading, sources(), new_position=None, change_pause=change, reason=reason)
