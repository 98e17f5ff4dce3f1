"""The order of the work of `committerd maintain`, with steps that take as long as the test says, in virtual time."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.commands.maintain import loop
from committerd.commands.maintain.loop import MaintenanceLoop, Stop
from committerd.errors import CommitterError
from committerd.maintenance.left_alone import Failure
from committerd.maintenance.passed_over import PassedOver
from committerd.queue.position import Pause
from committerd.settings.maintain import MaintainSettings
from committerd.telemetry import MaintenanceMetrics
from committerd_client import RetryableConflict
from committerd_client.maintenance.plan import MaintenancePlan, RewriteGroup, RewriteReason
from committerd_client.maintenance.table import FragmentState, IndexState, TableState
from tests.simulation.loop import run_virtual

FRAGMENT = FragmentState(id=1, rows=1, deleted=0, bytes=1)
GROUP = RewriteGroup(fragments=(1, 2), rows=2, bytes=2, why=RewriteReason.SMALL)


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test where waiting costs nothing, and nothing is ever late."""

    @functools.wraps(test)
    def run(*args: Any, **given: Any) -> None:
        run_virtual(functools.partial(test, *args, **given))

    return run


class Steps:
    """A table that always has something to rewrite, and whose cleanups end when the test says so."""

    uri = "/table.lance"

    def __init__(self) -> None:
        self.rewritten = self.cleanups = 0
        self.clean = anyio.Event()
        self.has_rewritten, self.has_cleaned, self.has_looked = Reached(5), Reached(3), Reached(6)
        self.summaries: list[dict[str, int]] = []
        self.looks: list[float] = []
        """When plans were made."""
        self.fragments_a_second: float | None = None
        """So many come that could be rewritten, from the first look on; nothing is rewritten then."""
        self.full_a_second = 0
        self.in_a_commit = 1
        """Groups that one commit replaces."""
        self.groups: tuple[RewriteGroup, ...] = (GROUP,)
        self.indices: tuple[IndexState, ...] = ()
        self.fails: set[int] = set()
        """The numbers of the rewrites that fail, from 1 on."""
        self.panics = False
        self.failing_index = ""
        self.leaves: list[Any] = []
        """What `look` was told to leave, each time."""
        self.indexed: list[str] = []
        self.has_indexed = Reached(4)
        self.in_the_making: set[str] = set()
        self.left_alone: tuple[Any, ...] = ()
        self.pausing: Pause | None = None
        """The pause that somebody puts in place while a cleanup deletes."""
        self.pausing_rewrites: World | None = None
        """The world whose queue is paused while fragments are rewritten."""

    async def look(self, *, tasks: int = 1, leave: Any = ()) -> Any:
        if tasks > 1:
            self.looks.append(anyio.current_time())
            self.has_looked.at(len(self.looks))
            self.leaves.append(leave)
        if self.fragments_a_second is None:
            return TableState(version=1, fragments=(), indices=()), MaintenancePlan(
                groups=self.groups[:tasks], indices=self.indices
            )
        count = int((anyio.current_time() - self.looks[0]) * self.fragments_a_second)
        full = self.full_a_second * int(anyio.current_time() - self.looks[0])
        fragments = (FRAGMENT,) * (count + full)
        return TableState(version=1, fragments=fragments, indices=()), MaintenancePlan(mergeable=count, left=count)

    def in_one_commit(self, groups: tuple[RewriteGroup, ...]) -> int:
        return min(len(groups), self.in_a_commit)

    async def rewrite(self, groups: tuple[RewriteGroup, ...]) -> None:
        self.rewritten += len(groups)
        self.has_rewritten.at(self.rewritten)
        if self.pausing_rewrites is not None:
            self.pausing_rewrites.paused = Pause(reason="a backup", since_ms=0)
        if self.panics:
            raise Panics("index out of bounds")
        if self.rewritten in self.fails:
            raise OSError("no committer")

    async def index(self, index: IndexState) -> int:
        self.indexed.append(index.name)
        self.has_indexed.at(len(self.indexed))
        self.in_the_making = {"c"}
        if index.name == self.failing_index:
            raise RetryableConflict("lost")
        return 7


class Cleanups:
    """As `Cleanup`; the table has nothing to delete."""

    def __init__(self, steps: Steps, world: World, *, fails: bool = False) -> None:
        self._steps, self._world, self._fails = steps, world, fails
        self.passed_over = PassedOver()

    async def look(self) -> Any:
        self._steps.cleanups += 1
        self._steps.has_cleaned.at(self._steps.cleanups)
        await self._steps.clean.wait()
        if self._fails:
            raise OSError("the store is away")
        return SimpleNamespace(
            choice=SimpleNamespace(kept={}), bytes_in_all=0, unneeded_bytes=0, oldest_read_version=None, latest=1
        )

    async def pause(self) -> Pause | None:
        await anyio.lowlevel.checkpoint()
        return self._world.paused

    async def waiting_records(self) -> Any:
        self._world.queue_reads += 1
        replaced = self._world.waiting.pop(0) if self._world.waiting else set()
        return SimpleNamespace(indices=self._steps.in_the_making, replaced=replaced)

    async def clean(self, *_: Any, summary: Any, **_given: Any) -> Any:
        self._steps.summaries.append(dict(summary))
        if self._steps.pausing is not None:
            self._world.paused = self._steps.pausing
            raise CommitterError("nothing more is deleted", code="paused")
        return SimpleNamespace(by_reason={}, bytes=0)


class Said:
    """As `Reporter`, and notes what it was told to print."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.given: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def say(*_: Any, **given: Any) -> None:
            self.said.append(name)
            self.given = given

        return say


class World:
    """What is around the loop."""

    def __init__(self) -> None:
        self.reporter = Said()
        self.registry = CollectorRegistry()
        self.there = True
        self.paused: Pause | None = None
        self.waiting: list[set[int]] = []
        """The fragments that waiting Rewrites replace, one set for each time that the queue is read."""
        self.queue_reads = 0
        self.hours = iter([12] * 1000)
        self.busy_until = 0.0
        """Until then, maintenance has had its share of the committer's time."""

    @property
    def seconds_left(self) -> float:
        """As `CommitterShare`."""
        return max(self.busy_until - anyio.current_time(), 0.0)

    async def exists(self) -> bool:
        return self.there

    def failures(self, step: str) -> float:
        return (
            self.registry.get_sample_value("committerd_maintenance_failures_total", {"dataset": "events", "step": step})
            or 0.0
        )


def loop_of(
    steps: Steps,
    stop: Stop,
    *,
    fails: bool = False,
    interval_seconds: float = 0.01,
    world: World | None = None,
    **settings: Any,
) -> MaintenanceLoop:
    rewriting: Any = steps
    world = world or World()
    cleaning: Any = Cleanups(steps, world, fails=fails)
    reporter: Any = world.reporter
    share: Any = world
    return MaintenanceLoop(
        rewriting,
        cleaning,
        MaintainSettings(interval_seconds=interval_seconds, **settings),
        reporter,
        exists=world.exists,
        share=share,
        telemetry=MaintenanceMetrics(world.registry).of("events"),
        wall_clock=lambda: datetime(2026, 1, 1, next(world.hours), tzinfo=UTC),
        stop=stop,
        turns=loop.Turns(1),
    )


@asynccontextmanager
async def running(steps: Steps, **given: Any) -> AsyncIterator[MaintenanceLoop]:
    """A loop that goes on until the block ends. `given`: as for `loop_of`."""
    stop = Stop()
    made = loop_of(steps, stop, **given)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.forever)
        yield made
        stop.set()


class Reached:
    """An event when a number is reached."""

    def __init__(self, wanted: int) -> None:
        self._wanted, self._event = wanted, anyio.Event()

    def at(self, number: int) -> None:
        if number >= self._wanted:
            self._event.set()

    async def wait(self) -> None:
        with anyio.fail_after(10):
            await self._event.wait()


class Panics(BaseException):
    """As `pyo3_runtime.PanicException`, which can't be imported."""


Panics.__name__ = "PanicException"


@in_virtual_time
async def test_a_panic_of_pylance_is_the_failure_of_its_step() -> None:
    steps, world = Steps(), World()
    steps.panics = True
    steps.indices = (IndexState(name="a", segments=1, unindexed_rows=9),)
    steps.clean.set()
    assert not await loop_of(steps, Stop(), world=world).once()
    assert (steps.rewritten, steps.indexed, steps.cleanups) == (1, ["a"], 1)
    assert world.reporter.said == ["begins", "failed", "indexed", "cleaned"]
    assert [world.failures(step) for step in ("rewrite", "index", "cleanup")] == [1, 0, 0]


@pytest.mark.parametrize("fails", [False, True])
@in_virtual_time
async def test_fragments_are_rewritten_while_a_cleanup_takes_long(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAILED_SECONDS_MIN", 0.01)
    steps = Steps()
    async with running(steps, fails=fails, cleanup_seconds=0.05):
        await steps.has_rewritten.wait()
        assert steps.cleanups == 1
        steps.clean.set()
        await steps.has_cleaned.wait()


@in_virtual_time
async def test_a_cleanup_is_told_when_the_other_steps_last_succeeded() -> None:
    steps, world = Steps(), World()
    steps.left_alone = (
        Failure(fragments=(1, 2, 3), why="", until_ms=0),
        Failure(index="a", why="", until_ms=0),
    )
    noon_ms = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
    async with running(steps, cleanup_seconds=0.05, world=world):
        await steps.has_rewritten.wait()
        steps.clean.set()
        await steps.has_cleaned.wait()
    left = {"left_alone_fragments": 3, "left_alone_indices": 1}
    assert steps.summaries[0] == {
        "fragments": 0,
        "unindexed_rows": 0,
        "rewrite_ms": noon_ms,
        "index_ms": noon_ms,
        **left,
    }
    gauge = "committerd_maintenance_left_alone"
    assert world.registry.get_sample_value(gauge, {"dataset": "events", "what": "fragments"}) == 3
    assert world.registry.get_sample_value(gauge, {"dataset": "events", "what": "indices"}) == 1


@in_virtual_time
async def test_outside_of_its_hours_it_neither_rewrites_nor_cleans_up() -> None:
    steps = Steps()
    async with running(steps, hours="13-14"):
        await anyio.sleep(0.2)
    assert (steps.rewritten, steps.cleanups) == (0, 0)


@in_virtual_time
async def test_a_table_that_gets_fragments_fast_is_looked_at_before_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_LOOK_SECONDS_MIN", 0.02)
    steps = Steps()
    steps.fragments_a_second = 1000
    steps.clean.set()
    async with running(steps, interval_seconds=60, fragments_max=400):
        await steps.has_looked.wait()
    assert steps.looks[2] - steps.looks[1] > 0.1, "200 fragments take 0.2 s"


@pytest.mark.parametrize(
    ("small", "full", "fragments_max"),
    [
        pytest.param(0.0, 0, 1000, id="no fragments come"),
        pytest.param(40.0, 0, 1000, id="few fragments come"),
        pytest.param(0.0, 100_000, 10, id="fragments come that nobody would rewrite"),
    ],
)
@in_virtual_time
async def test_it_looks_after_the_interval_if(
    small: float, full: int, fragments_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`small`, `full`: fragments per second."""
    monkeypatch.setattr(loop, "_LOOK_SECONDS_MIN", 0.02)
    steps = Steps()
    steps.full_a_second, steps.fragments_a_second = full, small
    steps.clean.set()
    async with running(steps, interval_seconds=60, fragments_max=fragments_max):
        await anyio.sleep(0.5)
    assert len(steps.looks) == 2


@in_virtual_time
async def test_too_many_small_fragments_that_can_not_be_rewritten_yet_do_not_make_it_look_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_LOOK_SECONDS_MIN", 0.01)
    steps = Steps()
    steps.fragments_a_second = 200.0
    steps.clean.set()
    async with running(steps, interval_seconds=60, fragments_max=1):
        await steps.has_looked.wait()
    assert steps.looks[-1] - steps.looks[-2] > 0.035, "eight fragments take 0.04 s"


@in_virtual_time
async def test_after_failures_it_waits_longer_and_longer_until_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAILED_SECONDS_MIN", 0.05)
    steps, world = Steps(), World()
    steps.fails = {1, 2, 3, 5}
    steps.has_looked = Reached(6)
    steps.clean.set()
    async with running(steps, world=world):
        await steps.has_looked.wait()
    waits = [after - before for before, after in pairwise(steps.looks)]
    assert all(waited >= 0.99 * at_least for waited, at_least in zip(waits, (0.05, 0.1, 0.2, 0, 0.05), strict=False))
    assert world.failures("rewrite") == 4


@in_virtual_time
async def test_the_wait_after_failures_is_bounded_and_a_success_resets_it() -> None:
    failures = loop._Failures()
    for seconds in (5, 10, 20, 40, 80, 160, 320, 600, 600):
        failures.note(good=False)
        assert seconds - 4 < failures.seconds_left <= seconds
    failures.note(good=True)
    assert failures.seconds_left == 0
    failures.note(good=False)
    assert failures.seconds_left <= 5


@in_virtual_time
async def test_a_step_does_not_wait_for_the_failures_of_another_one() -> None:
    steps = Steps()
    steps.fails = {1}
    steps.indices = (IndexState(name="a", segments=1, unindexed_rows=9),)
    steps.clean.set()
    async with running(steps):
        await steps.has_indexed.wait()
    assert steps.rewritten == 1


@in_virtual_time
async def test_once_begins_no_more_tasks_after_one_has_failed() -> None:
    steps, world = Steps(), World()
    steps.groups, steps.fails, steps.in_a_commit = (GROUP,) * 7, {4}, 2
    steps.indices = (IndexState(name="a", segments=1, unindexed_rows=9),)
    steps.clean.set()
    assert not await loop_of(steps, Stop(), world=world, tasks_max=2).once()
    assert (steps.rewritten, steps.indexed, steps.cleanups) == (4, ["a"], 1)
    assert world.reporter.said == ["begins", "rewritten", "begins", "failed", "gave_up", "indexed", "cleaned"]


@in_virtual_time
async def test_once_obeys_the_hours() -> None:
    steps, world = Steps(), World()
    steps.groups = (GROUP,) * 3
    assert await loop_of(steps, Stop(), world=world, hours="13-14").once()
    assert (steps.rewritten, steps.cleanups, steps.looks, world.reporter.said) == (0, 0, [], ["hours_over"])
    world = World()
    world.hours = iter([12] * 5 + [13] * 100)
    assert await loop_of(steps, Stop(), world=world, hours="12-13", tasks_max=1).once()
    assert 0 < steps.rewritten < 3
    assert world.reporter.said[-1] == "hours_over"


@in_virtual_time
async def test_while_the_queue_is_paused_it_says_so_once_and_does_nothing() -> None:
    steps, world = Steps(), World()
    world.paused = Pause(reason="a backup", since_ms=0)
    steps.clean.set()
    async with running(steps, world=world) as made:
        await anyio.sleep(0.2)
        assert (steps.rewritten, steps.cleanups, steps.looks, world.reporter.said) == (0, 0, [], ["paused"])
        assert made.doing == "it waits: the queue is paused since 1970-01-01T00:00:00Z: a backup"
        world.paused = None
        await steps.has_rewritten.wait()
    once = World()
    once.paused = Pause(reason="a backup", since_ms=0)
    assert await loop_of(steps, Stop(), world=once).once()
    assert once.reporter.said == ["paused"]


@in_virtual_time
async def test_a_pause_during_the_rewrites_of_a_single_run_leaves_out_the_rest() -> None:
    steps, world = Steps(), World()
    steps.clean.set()
    steps.pausing_rewrites = world
    steps.indices = (IndexState(name="a", segments=1, unindexed_rows=9),)
    assert await loop_of(steps, Stop(), world=world).once()
    assert (steps.rewritten, steps.indexed, steps.cleanups) == (1, [], 0)
    assert world.reporter.said.count("paused") == 1


@in_virtual_time
async def test_a_cleanup_that_a_pause_ends_has_not_failed() -> None:
    steps, world = Steps(), World()
    steps.clean.set()
    steps.pausing = Pause(reason="a backup", since_ms=0)
    assert await loop_of(steps, Stop(), world=world).once()
    assert "failed" not in world.reporter.said
    assert world.reporter.said[-1] == "paused"
    assert world.failures("cleanup") == 0


@in_virtual_time
async def test_a_task_does_not_begin_when_the_hours_end_while_it_waits_for_its_share() -> None:
    steps, world = Steps(), World()
    steps.indices = (IndexState(name="a", segments=1, unindexed_rows=9),)
    steps.clean.set()
    world.busy_until = anyio.current_time() + 0.05
    world.hours = iter([12] + [13] * 100)
    assert await loop_of(steps, Stop(), world=world, hours="12-13").once()
    assert (steps.looks, steps.rewritten, steps.indexed) == ([], 0, [])
    assert world.reporter.said == ["leaves_committer", "hours_over"]


@in_virtual_time
async def test_while_there_is_no_table_it_says_so_once_and_counts_no_failure() -> None:
    steps, world = Steps(), World()
    world.there = False
    steps.clean.set()
    async with running(steps, world=world) as made:
        await anyio.sleep(0.2)
        assert world.reporter.said == ["waits_for_table"]
        assert made.doing == "it waits until somebody creates the table"
        world.there = True
        await steps.has_rewritten.wait()
    assert [world.failures(step) for step in ("rewrite", "index", "cleanup")] == [0, 0, 0]


@in_virtual_time
async def test_fragments_that_a_waiting_rewrite_replaces_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAILED_SECONDS_MIN", 0.01)
    steps, world = Steps(), World()
    world.waiting = [{4, 5}, {5}, set(), {6}, set()]  # as after a restart; and after the failure
    steps.fails = {3}
    steps.has_looked = Reached(7)
    steps.clean.set()
    async with running(steps, world=world):
        await steps.has_looked.wait()
    assert [set(one) for one in steps.leaves[:7]] == [{4, 5}, {5}, set(), {6}, set(), set(), set()]
    assert world.queue_reads == 5, "the queue is read only while something of ours may wait"


@in_virtual_time
async def test_indices_in_the_making_are_read_before_each_index_and_one_that_fails_does_not_stop_the_others() -> None:
    steps, world = Steps(), World()
    steps.groups = ()
    steps.indices = tuple(IndexState(name=name, segments=1, unindexed_rows=9) for name in "abcd")
    steps.failing_index = "b"
    steps.clean.set()
    assert not await loop_of(steps, Stop(), world=world).once()
    assert steps.indexed == ["a", "b", "d"]
    assert world.failures("index") == 1


@in_virtual_time
async def test_tasks_wait_while_maintenance_has_had_its_share_of_the_committers_time_and_cleanups_do_not() -> None:
    steps, world = Steps(), World()
    steps.clean.set()
    started = anyio.current_time()
    world.busy_until = started + 0.4
    async with running(steps, world=world, cleanup_seconds=0.01):
        await steps.has_cleaned.wait()
        assert (steps.rewritten, steps.looks) == (0, []), "a plan would be old by the time that the task begins"
        await steps.has_rewritten.wait()
        assert steps.looks[0] - started >= 0.399


@in_virtual_time
async def test_once_waits_for_its_share_before_each_task_and_index_and_ends_at_once_when_it_is_told_to() -> None:
    steps, world = Steps(), World()
    steps.groups, steps.indices = (GROUP,) * 2, (IndexState(name="a", segments=1, unindexed_rows=9),)
    steps.clean.set()
    begun: list[float] = []

    class Busy(World):
        @property
        def seconds_left(self) -> float:
            begun.append(anyio.current_time())
            return 0.05

    assert await loop_of(steps, Stop(), world=Busy(), tasks_max=1).once()
    assert (steps.rewritten, steps.indexed) == (2, ["a"])
    assert len(begun) == 5, "the look, two tasks, the step, its index"

    steps, world = Steps(), World()
    steps.clean.set()
    world.busy_until = anyio.current_time() + 60
    with anyio.fail_after(10):
        async with running(steps, world=world):
            await anyio.sleep(0.1)
    assert steps.rewritten == 0
