"""The order of the work: fragments, then indices, and again while there is something to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import anyio

from committerd.commands.maintain.rewriting import Rewriting
from committerd.commands.maintain.shown import Shown
from committerd.settings.maintain import MaintainSettings
from committerd_client.maintenance.plan import Group

_GROUPS_MAX = 1_000_000
_FAILED_SECONDS = 5.0
"""Time from a failed round to the next one."""


class Stop:
    """Set when the process is to end after the task that runs."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    @property
    def wanted(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait for it, at most so long."""
        with anyio.move_on_after(seconds):
            await self._event.wait()


class Rounds:
    """The rounds of one table."""

    def __init__(
        self, rewriting: Rewriting, settings: MaintainSettings, shown: Shown, *, wall_clock: Callable[[], datetime]
    ) -> None:
        self._rewriting = rewriting
        self._settings = settings
        self._shown = shown
        self._wall_clock = wall_clock

    async def say(self) -> bool:
        """Say what there is to do, and do nothing."""
        state, plan = await self._rewriting.look(tasks=_GROUPS_MAX)
        self._shown.plan(state, plan, self._settings)
        return True

    async def once(self, stop: Stop) -> bool:
        """Do what there is to do now; whether all of it succeeded."""
        _, plan = await self._rewriting.look(tasks=_GROUPS_MAX)
        good = True
        step = self._settings.tasks_max
        for first in range(0, len(plan.groups), step):
            if stop.wanted:
                return good
            good = await self._rewrite(plan.groups[first : first + step]) and good
        return await self._index(stop) and good

    async def forever(self, stop: Stop) -> bool:
        """Do what there is to do, again and again."""
        while not stop.wanted:
            await stop.wait(await self._next(stop))
        return True

    async def _next(self, stop: Stop) -> float:
        """One round; the seconds until the next one."""
        if not self._settings.may_begin(self._wall_clock().hour):
            return self._settings.interval_seconds
        try:
            _, plan = await self._rewriting.look(tasks=self._settings.tasks_max)
        except Exception as error:  # noqa: BLE001  # pylance raises errors of many kinds
            self._shown.failed("look", error)
            return self._settings.interval_seconds
        good = await self._rewrite(plan.groups) if plan.groups else True
        good = await self._index(stop) and good
        if not good:
            return _FAILED_SECONDS
        return 0.0 if plan.waiting else self._settings.interval_seconds

    async def _rewrite(self, groups: tuple[Group, ...]) -> bool:
        self._shown.begins(groups)
        try:
            done = await self._rewriting.rewrite(groups)
        except Exception as error:  # noqa: BLE001
            self._shown.failed("rewrite", error)
            return False
        self._shown.rewritten(done)
        return True

    async def _index(self, stop: Stop) -> bool:
        good = True
        _, plan = await self._rewriting.look(tasks=1)
        for index in plan.indices:
            if stop.wanted:
                break
            try:
                version = await self._rewriting.index(index)
            except Exception as error:  # noqa: BLE001
                self._shown.failed("index", error)
                good = False
                continue
            self._shown.indexed(index, version)
        return good
