"""The order of the work: fragments, indices, and again while there is something to do; cleanups go on beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

import anyio

from committerd.commands.maintain.rewriting import Rewriting
from committerd.commands.maintain.shown import Shown
from committerd.maintenance.cleaning import Cleaning
from committerd.settings.maintain import MaintainSettings
from committerd.telemetry import MaintenanceTelemetry
from committerd_client.maintenance.plan import GROUP_MIN, Group

_GROUPS_MAX = 1_000_000
_FAILED_SECONDS = 5.0
"""Time from a failed round to the next one."""
_LOOK_SECONDS_MIN = 1.0
"""Shortest time between two looks at a table that gets fragments fast, unless maintain.interval_seconds is shorter."""
_CLEANUP_SHARE = 0.5
"""Largest share of the time that cleanups take."""


class Stop:
    """Set when the process is to end after the task that runs."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    @property
    def wanted(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Let the process end."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait for it, at most so long."""
        with anyio.move_on_after(seconds):
            await self._event.wait()


class Rounds:
    """The rounds of one table."""

    def __init__(
        self,
        rewriting: Rewriting,
        cleaning: Cleaning,
        settings: MaintainSettings,
        shown: Shown,
        *,
        telemetry: MaintenanceTelemetry,
        wall_clock: Callable[[], datetime],
        stop: Stop,
    ) -> None:
        self._rewriting = rewriting
        self._cleaning = cleaning
        self._settings = settings
        self._shown = shown
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        self._stop = stop
        self._left: tuple[float, int] | None = None
        """The time of the last look, and the number of small fragments that the table has once its plan is done."""
        self.doing = "it has just started"
        """What it does now, or did last, for people."""
        telemetry.fragments_wanted.set(settings.fragments_max)

    async def say(self) -> bool:
        """Say what there is to do, and do nothing."""
        state, plan = await self._rewriting.look(tasks=_GROUPS_MAX)
        self._shown.plan(state, plan, self._settings)
        self._shown.cleanup(await self._cleaning.look())
        return True

    async def once(self) -> bool:
        """Do what there is to do now; whether all of it succeeded."""
        _, plan = await self._rewriting.look(tasks=_GROUPS_MAX)
        step = self._settings.tasks_max
        parts = [plan.groups[first : first + step] for first in range(0, len(plan.groups), step)]
        good = all([await self._try("rewrite", partial(self._rewrite, part)) for part in parts])
        good = await self._try("index", self._index) and good
        return await self._try("cleanup", self._clean) and good

    async def forever(self) -> bool:
        """Do what there is to do, again and again.

        Cleanups go on beside the rest: on a table with many small commits one takes long, and fragments must not pile
        up meanwhile.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._clean_up)
            while not self._stop.wanted:
                await self._stop.wait(await self._next())
        return True

    async def _clean_up(self) -> None:
        """Clean up again and again."""
        while not self._stop.wanted:
            pause = self._settings.interval_seconds
            if self._settings.may_begin(self._wall_clock().hour):
                started = anyio.current_time()
                await self._try("cleanup", self._clean)
                took = anyio.current_time() - started
                pause = max(self._settings.cleanup_seconds, took / _CLEANUP_SHARE) - took
            await self._stop.wait(pause)

    async def _next(self) -> float:
        """One round; the seconds until the next one."""
        if not self._settings.may_begin(self._wall_clock().hour):
            return self._settings.interval_seconds
        waiting, pause = 0, self._settings.interval_seconds

        async def rewrite() -> None:
            nonlocal waiting, pause
            state, plan = await self._rewriting.look(tasks=self._settings.tasks_max)
            self._telemetry.fragments.set(len(state.fragments))
            self._telemetry.small_fragments.set(plan.small)
            self._telemetry.unindexed_rows.set(state.unindexed_rows)
            self._telemetry.waiting_tasks.set(plan.waiting)
            waiting = plan.waiting
            pause = self._pause(plan.mergeable, plan.left)
            if plan.groups:
                await self._rewrite(plan.groups)

        good = await self._try("rewrite", rewrite)
        good = await self._try("index", self._index) and good
        if not good:
            return _FAILED_SECONDS
        return 0.0 if waiting else pause

    def _pause(self, found: int, left: int) -> float:
        """Seconds until the next look at a table that has so many small fragments; `left`: once the plan is done.

        If they arrive as fast as since the last look, they must not be too many by then, but enough to be rewritten
        together. The first two looks show how fast that is.
        """
        now, before = anyio.current_time(), self._left
        self._left = now, left
        if before is None:
            return min(self._settings.interval_seconds, _LOOK_SECONDS_MIN)
        if found <= before[1]:
            return self._settings.interval_seconds
        a_second = (found - before[1]) / max(now - before[0], 1e-3)
        room = max(self._settings.fragments_max / 2 - left, GROUP_MIN)
        return min(self._settings.interval_seconds, max(room / a_second, _LOOK_SECONDS_MIN))

    async def _try(self, step: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether the step succeeded, or was left out because the process is to end."""
        if self._stop.wanted:
            return True
        self.doing = f"step {step}"
        try:
            with self._telemetry.seconds.timed(step=step):
                await work()
        except Exception as error:  # noqa: BLE001  # pylance raises errors of many kinds
            self._shown.failed(step, error)
            self._telemetry.failures.add(step=step)
            self.doing = f"step {step} failed: {error}"
            return False
        self._telemetry.succeeded.set(self._wall_clock().timestamp(), step=step)
        return True

    async def _rewrite(self, groups: tuple[Group, ...]) -> None:
        self._shown.begins(groups)
        done = await self._rewriting.rewrite(groups)
        self._shown.rewritten(done)
        if done is not None:
            self._telemetry.rewritten_bytes.add(done.bytes_read, files="before")
            self._telemetry.rewritten_bytes.add(done.bytes_written, files="after")
            self._telemetry.rewritten_fragments.add(done.fragments_before, files="before")
            self._telemetry.rewritten_fragments.add(done.fragments_after, files="after")

    async def _index(self) -> None:
        _, plan = await self._rewriting.look(tasks=1)
        if not plan.indices:
            return
        in_the_making = await self._cleaning.indices_in_the_making()
        for index in plan.indices:
            if not self._stop.wanted and index.name not in in_the_making:
                self._shown.indexed(index, await self._rewriting.index(index))

    async def _clean(self) -> None:
        state, _ = await self._rewriting.look(tasks=1)
        figures = {"fragments": len(state.fragments), "unindexed_rows": state.unindexed_rows}
        started = anyio.current_time()
        found = await self._cleaning.look()
        cleaned = await self._cleaning.clean(found, may_go_on=lambda: not self._stop.wanted, summary=figures)
        self._shown.cleaned(found, cleaned, seconds=anyio.current_time() - started)
        for why, count in cleaned.by_reason.items():
            self._telemetry.removed_files.add(count, why=why)
        self._telemetry.removed_bytes.add(cleaned.bytes)
        self._telemetry.versions.set(len(found.choice.kept))
        read_at = found.oldest_read_version
        self._telemetry.oldest_read_version.set(found.latest if read_at is None else read_at)
        self._telemetry.stored.set(found.bytes_in_all - cleaned.bytes)
        self._telemetry.unneeded.set(found.unneeded_bytes)
