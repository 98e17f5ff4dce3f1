"""Outcomes of one partition are published in order, those of others don't wait, and no acknowledgement passes any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import cast

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.committer import publisher
from committerd.committer.publisher import OutcomeBatch, Publisher
from committerd.errors import QueueUnavailable
from committerd.queue.port import Publication, Queue
from committerd.queue.position import Position
from committerd.telemetry import Metrics
from tests.committer.bench import until


class SlowQueue:
    """Holds back what is published to some partitions until told, and notes what it has taken."""

    def __init__(self) -> None:
        self.held: dict[int, anyio.Event] = {}
        self.failures: dict[int, int] = {}
        """By partition, how often publishing to it fails first."""
        self.asked: list[list[str]] = []
        self.taken: list[str] = []
        self.acknowledged: list[int] = []

    async def publish(self, outcomes: Sequence[Publication]) -> None:
        await self._take(outcomes)

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        await self._take(letters)

    async def _take(self, publications: Sequence[Publication]) -> None:
        names = [one.value.decode() for one in publications]
        self.asked.append(names)
        for one in publications:
            if self.failures.get(one.partition, 0):
                self.failures[one.partition] -= 1
                raise QueueUnavailable("no broker")
            if one.partition in self.held:
                await self.held[one.partition].wait()
        self.taken += names

    async def acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        self.acknowledged.append(offset)
        return True


class Desk:
    """A publisher, and who gives it outcomes."""

    def __init__(self) -> None:
        self.queue = SlowQueue()
        telemetry = Metrics(CollectorRegistry()).of("events")
        self.publisher = Publisher(
            cast(Queue, self.queue), telemetry, wall_clock=lambda: datetime(2030, 1, 2, tzinfo=UTC)
        )
        self.given = 0

    async def give(self, *names: str, letter: str = "") -> None:
        """Outcomes whose names begin with the numbers of their partitions."""
        self.given += 1
        position = Position(cluster_id="c", topic="t", topic_id="i", next_offset=self.given)
        outcomes = [Publication(key=None, value=name.encode(), partition=int(name[0])) for name in names]
        letters = [Publication(key=None, value=letter.encode())] if letter else []
        batch = OutcomeBatch(outcomes=outcomes, letters=letters)
        await self.publisher.give(batch, generation=1, acknowledge=(position, 1))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.publisher.run)
            yield
            with anyio.fail_after(60):
                await self.publisher.drained()
            tasks.cancel_scope.cancel()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(publisher, "_ACKNOWLEDGE_SECONDS", 0.0)
    return Desk()


async def test_the_few_outcomes_of_a_client_do_not_wait_for_the_many_of_a_flood(desk: Desk) -> None:
    flood = desk.queue.held[7] = anyio.Event()
    async with desk.open():
        await desk.give("7 first", "7 second")
        await until(lambda: bool(desk.queue.asked))
        await desk.give("1 small")
        await until(lambda: desk.queue.taken == ["1 small"])
        await anyio.sleep(0.01)
        assert desk.queue.acknowledged == []
        flood.set()
    assert desk.queue.taken == ["1 small", "7 first", "7 second"]
    assert desk.queue.acknowledged == [2]


async def test_outcomes_of_one_partition_keep_their_order_even_if_kafka_fails(desk: Desk) -> None:
    desk.queue.failures[7] = 2
    async with desk.open():
        await desk.give("7 first", "2 beside it")
        await until(lambda: bool(desk.queue.asked))
        await desk.give("7 second")
        await until(lambda: "7 first" in desk.queue.taken)
    assert desk.queue.taken == ["7 first", "2 beside it", "7 second"]
    assert desk.queue.acknowledged[-1] == 2


async def test_dead_letters_keep_their_order_and_come_before_their_outcomes(desk: Desk) -> None:
    letters = desk.queue.held[0] = anyio.Event()
    async with desk.open():
        await desk.give("1 refused", letter="0 letter of 1")
        await until(lambda: bool(desk.queue.asked))
        await desk.give("2 refused", letter="0 letter of 2")
        await desk.give("3 committed")
        await anyio.sleep(0.01)
        assert desk.queue.asked == [["0 letter of 1"]]
        letters.set()
    assert desk.queue.taken.index("1 refused") < desk.queue.taken.index("0 letter of 2")


async def test_so_many_parts_are_on_their_way_at_most(desk: Desk) -> None:
    held = anyio.Event()
    desk.queue.held = dict.fromkeys(range(8), held)
    async with desk.open():
        for partition in range(8):
            await desk.give(f"{partition} outcome")
            most = min(partition + 1, publisher._PARTS_MAX)
            await until(lambda most=most: len(desk.queue.asked) >= most)  # type: ignore[misc]
        await anyio.sleep(0.01)
        assert len(desk.queue.asked) == publisher._PARTS_MAX
        held.set()
    assert sorted(desk.queue.taken) == [f"{partition} outcome" for partition in range(8)]
    assert desk.queue.acknowledged[-1] == 8
