"""The order of the work of `committerd maintain`, with steps that take as long as the test says."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.commands.maintain import rounds
from committerd.commands.maintain.rounds import Rounds, Stop
from committerd.settings.maintain import MaintainSettings
from committerd.telemetry import MaintenanceTelemetry
from committerd_client.maintenance.plan import Group, Plan, Why
from committerd_client.maintenance.table import FragmentState, TableState

FRAGMENT = FragmentState(id=1, rows=1, deleted=0, bytes=1)
GROUP = Group(fragments=(1, 2), rows=2, bytes=2, why=Why.SMALL)


class Steps:
    """A table that always has something to rewrite, and whose cleanups end when the test says so."""

    def __init__(self) -> None:
        self.rewritten = self.cleanups = 0
        self.clean = anyio.Event()
        self.has_rewritten, self.has_cleaned, self.has_looked = Reached(5), Reached(3), Reached(6)
        self.looks: list[float] = []
        """When rounds began."""
        self.fragments_a_second: float | None = None
        """So many come that could be rewritten, from the first look on; nothing is rewritten then."""
        self.full_a_second = 0

    async def look(self, *, tasks: int = 1) -> Any:
        if tasks > 1:
            self.looks.append(anyio.current_time())
            self.has_looked.at(len(self.looks))
        if self.fragments_a_second is None:
            return TableState(version=1, fragments=(), indices=()), Plan(groups=(GROUP,))
        count = int((anyio.current_time() - self.looks[0]) * self.fragments_a_second)
        full = self.full_a_second * int(anyio.current_time() - self.looks[0])
        fragments = (FRAGMENT,) * (count + full)
        return TableState(version=1, fragments=fragments, indices=()), Plan(mergeable=count, left=count)

    async def rewrite(self, groups: tuple[Group, ...]) -> None:
        self.rewritten += len(groups)
        self.has_rewritten.at(self.rewritten)


class Cleanups:
    """As `Cleaning`; the table has nothing to delete."""

    def __init__(self, steps: Steps, *, fails: bool = False) -> None:
        self._steps, self._fails = steps, fails

    async def look(self) -> Any:
        self._steps.cleanups += 1
        self._steps.has_cleaned.at(self._steps.cleanups)
        await self._steps.clean.wait()
        if self._fails:
            raise OSError("the store is away")
        return SimpleNamespace(
            choice=SimpleNamespace(kept={}), bytes_in_all=0, unneeded_bytes=0, oldest_read_version=None, latest=1
        )

    async def clean(self, *_: Any, **_given: Any) -> Any:
        return SimpleNamespace(by_reason={}, bytes=0)


class Silent:
    """As `Shown`, and prints nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **_given: None


def rounds_of(
    steps: Steps, stop: Stop, *, fails: bool = False, interval_seconds: float = 0.01, **settings: Any
) -> Rounds:
    rewriting: Any = steps
    cleaning: Any = Cleanups(steps, fails=fails)
    shown: Any = Silent()
    return Rounds(
        rewriting,
        cleaning,
        MaintainSettings(interval_seconds=interval_seconds, **settings),
        shown,
        telemetry=MaintenanceTelemetry(CollectorRegistry()),
        wall_clock=lambda: datetime(2026, 1, 1, 12, tzinfo=UTC),
        stop=stop,
    )


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


@pytest.mark.parametrize("fails", [False, True])
async def test_fragments_are_rewritten_while_a_cleanup_takes_long(fails: bool) -> None:
    steps, stop = Steps(), Stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rounds_of(steps, stop, fails=fails, cleanup_seconds=0.05).forever)
        await steps.has_rewritten.wait()
        assert steps.cleanups == 1
        steps.clean.set()
        await steps.has_cleaned.wait()
        stop.set()


async def test_outside_of_its_hours_it_neither_rewrites_nor_cleans_up() -> None:
    steps, stop = Steps(), Stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rounds_of(steps, stop, hours="13-14").forever)
        await anyio.sleep(0.2)
        stop.set()
    assert (steps.rewritten, steps.cleanups) == (0, 0)


async def test_a_table_that_gets_fragments_fast_is_looked_at_before_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "_LOOK_SECONDS_MIN", 0.02)
    steps, stop = Steps(), Stop()
    steps.fragments_a_second = 1000
    steps.clean.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rounds_of(steps, stop, interval_seconds=60, fragments_max=400).forever)
        await steps.has_looked.wait()
        stop.set()
    assert steps.looks[2] - steps.looks[1] > 0.1, "200 fragments take 0.2 s"


async def test_a_table_that_gets_few_fragments_is_looked_at_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_LOOK_SECONDS_MIN", 0.02)
    for a_second in (0.0, 40.0):
        steps, stop = Steps(), Stop()
        steps.fragments_a_second = a_second
        steps.clean.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rounds_of(steps, stop, interval_seconds=60, fragments_max=1000).forever)
            await anyio.sleep(0.5)
            stop.set()
        assert len(steps.looks) == 2


async def test_fragments_that_nobody_would_rewrite_do_not_make_it_look_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_LOOK_SECONDS_MIN", 0.02)
    steps, stop = Steps(), Stop()
    steps.full_a_second, steps.fragments_a_second = 100_000, 0.0
    steps.clean.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rounds_of(steps, stop, interval_seconds=60, fragments_max=10).forever)
        await anyio.sleep(0.5)
        stop.set()
    assert len(steps.looks) == 2


async def test_too_many_small_fragments_that_can_not_be_rewritten_yet_do_not_make_it_look_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "_LOOK_SECONDS_MIN", 0.01)
    steps, stop = Steps(), Stop()
    steps.fragments_a_second = 200.0
    steps.clean.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rounds_of(steps, stop, interval_seconds=60, fragments_max=1).forever)
        await steps.has_looked.wait()
        stop.set()
    assert steps.looks[-1] - steps.looks[-2] > 0.035, "eight fragments take 0.04 s"
