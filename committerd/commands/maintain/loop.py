"""The order of the work: fragments, indices, and again while there is something to do; cleanups run beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from functools import partial

import anyio

from committerd.commands.maintain.committer_share import CommitterShare
from committerd.commands.maintain.reporter import Reporter
from committerd.commands.maintain.rewriting import Rewriter
from committerd.errors import CommitterError
from committerd.maintenance.cleaning import Cleanup
from committerd.queue.position import Pause
from committerd.settings.maintain import MaintainSettings
from committerd.telemetry import MAINTENANCE_STEPS, MaintenanceTelemetry
from committerd_client import ClientError
from committerd_client.maintenance.plan import GROUP_MIN, MaintenancePlan, RewriteGroup
from committerd_client.panics import panics_raised
from committerd_client.tracing import work_span

_GROUPS_MAX = 1_000_000
_FAILED_SECONDS_MIN = 5.0
"""Time from the first failure of a step to its next attempt; each further failure in a row doubles it."""
_FAILED_SECONDS_MAX = 600.0
_NO_TABLE_SECONDS = 5.0
"""Time between two looks whether there is a table, unless maintain.interval_seconds is shorter."""
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
        """Wait until the process is to end, at most `seconds`."""
        with anyio.move_on_after(seconds):
            await self._event.wait()


class Turns:
    """Lets only so many tables be worked on at the same time, each in the order in which it came.

    Cleanups are counted apart: they take long and little memory, and fragments must not pile up meanwhile.
    """

    def __init__(self, tables: int) -> None:
        self._rewriting, self._cleaning = anyio.CapacityLimiter(tables), anyio.CapacityLimiter(tables)

    def of(self, step: str) -> anyio.CapacityLimiter:
        """What a step holds while it works."""
        return self._cleaning if step == "cleanup" else self._rewriting


class _Failures:
    """The failures of one step in a row. After each, the step is left out for longer."""

    def __init__(self) -> None:
        self._count = 0
        self._until = 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds until the step may be tried."""
        return max(self._until - anyio.current_time(), 0.0)

    def note(self, *, good: bool) -> None:
        """Note how an attempt has ended."""
        self._count = 0 if good else self._count + 1
        doubled = _FAILED_SECONDS_MIN * 2.0 ** min(self._count - 1, 60)
        self._until = 0.0 if good else anyio.current_time() + min(doubled, _FAILED_SECONDS_MAX)


class MaintenanceLoop:
    """The work on one table."""

    def __init__(
        self,
        rewriting: Rewriter,
        cleaning: Cleanup,
        settings: MaintainSettings,
        reporter: Reporter,
        *,
        exists: Callable[[], Awaitable[bool]],
        share: CommitterShare,
        telemetry: MaintenanceTelemetry,
        wall_clock: Callable[[], datetime],
        stop: Stop,
        turns: Turns,
    ) -> None:
        """`exists`: returns whether there is a table. `turns`: of the tables of the process."""
        self._rewriting = rewriting
        self._cleaning = cleaning
        self._settings = settings
        self._reporter = reporter
        self._exists = exists
        self._share = share
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        self._stop = stop
        self._turns = turns
        self._failures = {step: _Failures() for step in MAINTENANCE_STEPS}
        self._found = self._waits_for_table = False
        """Whether the table was there once; whether its absence was reported."""
        self._paused: Pause | None = None
        """The pause that was reported."""
        self._may_wait = True
        """Whether a Rewrite of this process, or of an earlier process, may wait in the queue."""
        self._left: tuple[float, int] | None = None
        """The time of the last look, and the number of small fragments that the table has once its plan is done."""
        self._figures: dict[str, int] = {}
        """For `committerd status`: the state that cleanups found, and when each step last succeeded."""
        self.doing = "it has just started"
        """What it does now, or did last, for people."""
        telemetry.fragments_wanted.set(settings.fragments_max)

    def state(self) -> str:
        """What it does now, or did last, for people."""
        return self.doing

    async def say(self) -> bool:
        """Say what there is to do, and do nothing."""
        leave = await self._leave()
        state, plan = await self._rewriting.look(tasks=_GROUPS_MAX, leave=leave)
        self._reporter.plan(state, plan, self._settings, self._rewriting.left_alone)
        self._reporter.cleanup(await self._cleaning.look())
        return True

    async def once(self) -> bool:
        """Do what there is to do now; whether all of it succeeded, and no index is left alone.

        When a task has failed, no others begin: most likely they would fail too. None begins while the queue is paused.
        """
        if await self._is_paused():
            return True
        good = await self._rewrite_all()
        for step, work in (("index", self._index), ("cleanup", self._clean)):
            if self._may_begin() and not await self._is_paused():
                good = await self._try(step, work) and good
        if not self._may_begin():
            self._reporter.hours_over(self._settings.hours)
        alone = [one for one in self._rewriting.left_alone if one.index]
        for one in alone:
            self._reporter.left_alone(one.index, one.why)
        return good and not alone

    async def forever(self) -> bool:
        """Do what there is to do, again and again.

        Cleanups run beside the rest: on a table with many small commits one takes long, and fragments must not pile
        up meanwhile.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._clean_up)
            while not self._stop.wanted:
                await self._stop.wait(await self._next())
        return True

    def _may_begin(self) -> bool:
        return self._settings.may_begin(self._wall_clock().hour)

    async def _is_there(self) -> bool:
        """Whether there is a table."""
        if not self._found:
            try:
                self._found = await self._exists()
            except Exception:  # noqa: BLE001  # the steps meet it too, and say so
                return True
            if not self._found and not self._waits_for_table:
                self._waits_for_table = True
                self.doing = "it waits until somebody creates the table"
                self._reporter.waits_for_table()
        return self._found

    async def _is_paused(self) -> bool:
        """Whether an operator has paused the queue; says so once."""
        try:
            pause = await self._cleaning.pause()
        except Exception:  # noqa: BLE001  # the steps meet it too, and say so
            return False
        if pause is not None:
            self.doing = f"it waits: the queue is {pause}"
            if pause != self._paused:
                self._reporter.paused(pause)
        self._paused = pause
        return pause is not None

    async def _clean_up(self) -> None:
        """Clean up again and again."""
        while not self._stop.wanted:
            pause = self._settings.interval_seconds
            if not await self._is_there():
                pause = min(pause, _NO_TABLE_SECONDS)
            elif self._may_begin() and not await self._is_paused():
                started = anyio.current_time()
                await self._try("cleanup", self._clean)
                took = anyio.current_time() - started
                pause = max(self._settings.cleanup_seconds, took / _CLEANUP_SHARE) - took
                pause = max(pause, self._failures["cleanup"].seconds_left)
            await self._stop.wait(pause)

    async def _next(self) -> float:
        """Look, and do the next commit of fragments and the indices; the seconds until the next look."""
        interval = self._settings.interval_seconds
        if not await self._is_there():
            return min(interval, _NO_TABLE_SECONDS)
        if not self._may_begin() or await self._is_paused():
            return interval
        pause = interval

        async def rewrite() -> None:
            nonlocal pause
            plan = await self._look()
            pause = self._pause(plan.mergeable, plan.left)
            if plan.groups:
                await self._rewrite(plan.groups)
            pause = 0.0 if plan.waiting else pause

        # Each step waits for its own failures only.
        if not self._failures["rewrite"].seconds_left:
            await self._try("rewrite", rewrite)
        if not self._failures["index"].seconds_left:
            await self._try("index", self._index)
        pause = self._failures["rewrite"].seconds_left or pause
        return min(pause, self._failures["index"].seconds_left or interval)

    async def _look(self) -> MaintenancePlan:
        """What to rewrite next."""
        leave = await self._leave()
        state, plan = await self._rewriting.look(tasks=self._settings.tasks_max, leave=leave)
        self._telemetry.fragments.set(len(state.fragments))
        self._telemetry.small_fragments.set(plan.small)
        self._telemetry.unindexed_rows.set(state.unindexed_rows)
        self._telemetry.waiting_tasks.set(plan.waiting)
        return plan

    async def _leave(self) -> Collection[int]:
        """The fragments that waiting Rewrites replace, such as a Rewrite whose commit had no outcome in time."""
        if not self._may_wait:
            return ()
        found = (await self._cleaning.waiting_records()).replaced
        self._may_wait = bool(found)
        return found

    def _pause(self, found: int, left: int) -> float:
        """Seconds until the next look. `found`: small fragments that can be merged now; `left`: once the plan is done.

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

    async def _leave_committer(self) -> bool:
        """Wait until the next task may begin, so that the committer serves others.

        False if none may begin then, because the process has to end or the hours have ended.
        """
        seconds = self._share.seconds_left
        if not seconds:
            return not self._stop.wanted
        self.doing = f"it leaves the committer to others for {seconds:.0f} s (maintain.committer_share)"
        self._reporter.leaves_committer(seconds)
        await self._stop.wait(seconds)
        return self._may_begin() and not self._stop.wanted

    async def _try(self, step: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether the step succeeded, was ended by a pause, or was left out because of a stop or the hours."""
        if self._stop.wanted or (step != "cleanup" and not await self._leave_committer()):
            return True
        turn = self._turns.of(step)
        waits = not turn.available_tokens
        async with turn:
            over = self._stop.wanted or (waits and not self._may_begin())
            return over or await self._work(step, work)

    async def _work(self, step: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether the step succeeded, or was ended by a pause."""
        self.doing = f"step {step}"
        try:
            with self._telemetry.seconds.timed(step=step), panics_raised():
                await work()
        except Exception as error:  # noqa: BLE001  # pylance raises errors of many kinds
            if isinstance(error, CommitterError) and error.code == "paused":
                await self._is_paused()  # says so
                return True
            self._reporter.failed(step, error)
            self._telemetry.failures.add(step=step)
            self._failures[step].note(good=False)
            self._may_wait = self._may_wait or step == "rewrite"
            self.doing = f"step {step} failed: {error}"
            return False
        self._failures[step].note(good=True)
        self._telemetry.succeeded.set(self._wall_clock().timestamp(), step=step)
        if step != "cleanup":
            self._figures[f"{step}_ms"] = int(self._wall_clock().timestamp() * 1000)
        return True

    async def _rewrite_all(self) -> bool:
        """Rewrite all that there is to rewrite now; whether it succeeded."""
        groups: tuple[RewriteGroup, ...] = ()

        async def look() -> None:
            nonlocal groups
            groups = (await self._rewriting.look(tasks=_GROUPS_MAX, leave=await self._leave()))[1].groups

        good = not self._may_begin() or await self._try("rewrite", look)
        left = groups
        while left and good and not self._stop.wanted and self._may_begin() and not await self._is_paused():
            count = self._rewriting.in_one_commit(left)
            good = await self._try("rewrite", partial(self._rewrite, left[:count]))
            left = left[count:]
            if left and not good:
                self._reporter.gave_up(left=len(left), tasks=len(groups))
        return good

    async def _rewrite(self, groups: tuple[RewriteGroup, ...]) -> None:
        self._reporter.begins(groups)
        done = await self._rewriting.rewrite(groups)
        self._reporter.rewritten(done)
        self._note_left_alone()
        if done is not None:
            self._telemetry.rewritten_bytes.add(done.bytes_read, files="before")
            self._telemetry.rewritten_bytes.add(done.bytes_written, files="after")
            self._telemetry.rewritten_fragments.add(done.fragments_before, files="before")
            self._telemetry.rewritten_fragments.add(done.fragments_after, files="after")

    def _note_left_alone(self) -> None:
        """Show what is left alone now, in the metrics and in the summary of the next cleanup."""
        left = self._rewriting.left_alone
        fragments, indices = sum(len(one.fragments) for one in left), sum(1 for one in left if one.index)
        self._telemetry.left_alone.set(fragments, what="fragments")
        self._telemetry.left_alone.set(indices, what="indices")
        self._figures |= {"left_alone_fragments": fragments, "left_alone_indices": indices}

    async def _index(self) -> None:
        _, plan = await self._rewriting.look(tasks=1)
        failed: Exception | None = None
        for index in plan.indices:
            if not await self._leave_committer() or await self._is_paused():
                break
            # Anew for each index, since each may take hours.
            if index.name in (await self._cleaning.waiting_records()).indices:
                continue
            try:
                self._reporter.indexed(index, await self._rewriting.index(index))
            except Exception as error:
                if isinstance(error, ClientError) and error.unknown:
                    raise  # no committer runs
                failed = failed or error  # what is wrong with one index does not stop the others
        if failed is not None:
            raise failed

    async def _clean(self) -> None:
        state, _ = await self._rewriting.look(tasks=1)
        self._figures |= {"fragments": len(state.fragments), "unindexed_rows": state.unindexed_rows}
        self._note_left_alone()
        started = anyio.current_time()
        found = await self._cleaning.look()
        with work_span("cleanup", {"committerd.table": self._rewriting.uri}):
            cleaned = await self._cleaning.clean(found, may_go_on=lambda: not self._stop.wanted, summary=self._figures)
        self._reporter.cleaned(found, cleaned, seconds=anyio.current_time() - started)
        for why, count in cleaned.by_reason.items():
            self._telemetry.removed_files.add(count, why=why)
        self._telemetry.removed_bytes.add(cleaned.bytes)
        self._telemetry.versions.set(len(found.choice.kept))
        read_at = found.oldest_read_version
        self._telemetry.oldest_read_version.set(found.latest if read_at is None else read_at)
        self._telemetry.stored.set(found.bytes_in_all - cleaned.bytes)
        self._telemetry.unneeded.set(found.unneeded_bytes)
        self._telemetry.passed_over.set(self._cleaning.passed_over.count)
