"""Long work gives way after each stretch: one stretch in a round of the event loop, and tables take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from committerd.stretches import GiveWay, Stretches
from committerd.table.judge import judge
from tests.committer.bench import Bench
from tests.lance.samples import fragment
from tests.table.scene import Scene

_STRETCH = 0.0021
"""Processor time, in seconds, that is longer than a stretch."""


class Loop:
    """What ran on the event loop, and in which of its rounds."""

    def __init__(self) -> None:
        self.used = 0.0
        self.round = 0
        self.ran: list[tuple[int, str]] = []
        self.stretches = Stretches(lambda: self.used)

    async def work(self, name: str, give_way: GiveWay, *, steps: int, seconds: float = _STRETCH) -> None:
        """Long work, which takes so much processor time in each step."""
        for _ in range(steps):
            await give_way()
            self.ran.append((self.round, name))
            self.used += seconds

    @property
    def order(self) -> str:
        return "".join(name for _, name in self.ran)

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[TaskGroup]:
        """Count the rounds of the loop while the tasks run that the block starts."""

        async def count() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                self.round += 1

        async with anyio.create_task_group() as counter:
            counter.start_soon(count)
            async with anyio.create_task_group() as tasks:
                yield tasks
            counter.cancel_scope.cancel()


@pytest.fixture
def loop() -> Loop:
    return Loop()


async def test_one_stretch_runs_in_each_round_however_many_tasks_a_table_has(loop: Loop) -> None:
    flooded, quiet = loop.stretches.of_one(), loop.stretches.of_one()
    async with loop.counting() as tasks:
        for _ in range(5):
            tasks.start_soon(partial(loop.work, "f", flooded, steps=10))
        tasks.start_soon(partial(loop.work, "q", quiet, steps=3))
    rounds = [number for number, _ in loop.ran]
    assert len(rounds) == len(set(rounds)) == 53


async def test_a_table_waits_for_one_stretch_of_each_other_table_and_not_for_each_of_its_tasks(loop: Loop) -> None:
    flooded, quiet = loop.stretches.of_one(), loop.stretches.of_one()
    async with loop.counting() as tasks:
        for _ in range(5):
            tasks.start_soon(partial(loop.work, "f", flooded, steps=10))
        tasks.start_soon(partial(loop.work, "q", quiet, steps=5))
    first = loop.order.index("q")
    assert first <= 2
    assert loop.order[first:].startswith("qfqfqfqfq")


async def test_short_steps_share_a_stretch(loop: Loop) -> None:
    give_way = loop.stretches.of_one()
    async with loop.counting() as tasks:
        tasks.start_soon(partial(loop.work, "f", give_way, steps=100, seconds=0.000125))
    assert 20 <= len({number for number, _ in loop.ran}) <= 25


async def test_who_is_cancelled_while_waiting_holds_up_nobody(loop: Loop) -> None:
    of = [loop.stretches.of_one() for _ in range(3)]
    async with loop.counting() as tasks:
        for name, give_way in zip("abc", of, strict=True):
            tasks.start_soon(partial(loop.work, name, give_way, steps=20))
        for later in range(12):  # whoever waits, and whoever has just been called
            with anyio.CancelScope() as scope:
                tasks.start_soon(_cancelled_after, scope, later)
                await loop.work("x", of[later % 3], steps=50)
    assert {name: loop.order.count(name) for name in "abc"} == {"a": 20, "b": 20, "c": 20}
    await loop.work("z", of[0], steps=1)


async def _cancelled_after(scope: anyio.CancelScope, rounds: int) -> None:
    for _ in range(rounds):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def test_no_part_of_a_version_of_many_records_is_made_without_giving_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, names = Scene(tmp_path / "t"), [f"f{number}" for number in range(100)]
    scene.write_versions(1)
    scene.write_files(*(fragment(0, name=name) for name in names))
    bench, judged = Bench(scene), list[int]()

    def counted(*given: object, **named: object) -> object:
        judged[-1] += 1
        return judge(*given, **named)  # type: ignore[arg-type]

    async def give_way() -> None:
        judged.append(0)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr("committerd.committer.deciding.judge", counted)
    bench.assembler.give_way = give_way
    bench.arrive_staged(*names)
    assert await bench.settled() == (list(range(100)), [])
    assert sum(judged) == 100
    assert max(judged) <= 4
