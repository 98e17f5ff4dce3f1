"""Records are compared with the log while other events are handled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from committerd.committer.intake import Intake
from committerd.errors import QueueUnavailable
from committerd.queue.offsets import Offsets
from committerd.queue.port import Fetched, Record
from committerd.queue.position import Position
from committerd.queue.reach import Reach
from tests.simulation.loop import run_virtual
from tests.simulation.queue import FakeBroker, FakeQueue

BEHIND = Position(cluster_id="cluster", topic="t.staged", topic_id="i", next_offset=1, last_offset=0, leader_epoch=-1)
"""The next record has another leader epoch, so the one before it is read again."""
START = replace(BEHIND, next_offset=0, last_offset=-1)


@asynccontextmanager
async def at_work(broker: FakeBroker, queue: FakeQueue, *, reach: Reach | None = None) -> AsyncIterator[Intake]:
    """The intake of a member that has the partition, until the end of the block."""
    intake = Intake(queue, reach=reach)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        broker.join(queue)
        await anyio.sleep(1)
        yield intake
        tasks.cancel_scope.cancel()


class Hanging(FakeQueue):
    """Requests for the bounds of the log get no response."""

    asked = 0

    async def bounds(self) -> tuple[int, int]:
        self.asked += 1
        await anyio.sleep_forever()
        raise AssertionError


def comparing(then: Callable[[FakeQueue], None]) -> Intake:
    """The intake's state a second after `happens` was called during a comparison."""
    broker = FakeBroker()

    async def main() -> Intake:
        queue = Hanging(broker)
        async with at_work(broker, queue) as intake:
            intake.begin_behind(BEHIND)
            for _ in range(2):
                broker.stage(b"record")
            await queue.seek(1, 1)
            await anyio.sleep(1)
            assert queue.asked == 1
            assert not intake.pending
            then(queue)
            await anyio.sleep(1)
        return intake

    return run_virtual(main)


def test_who_loses_the_partition_meanwhile_knows_at_once() -> None:
    assert comparing(lambda queue: queue.revoke(lost=True)).generation is None


def test_who_is_assigned_anew_meanwhile_knows_at_once() -> None:
    intake = comparing(FakeQueue.assign)
    assert intake.generation == 2
    assert not intake.pending


class Counting(FakeQueue):
    """Counts how often the log is compared with what was read, and lets no comparison go on while `gate` is closed."""

    compared = 0
    gate: anyio.Event | None = None

    async def bounds(self) -> tuple[int, int]:
        self.compared += 1
        if self.gate is not None:
            await self.gate.wait()
        return await super().bounds()


def test_what_is_read_again_is_older_and_needs_no_comparison() -> None:
    broker = FakeBroker()

    async def main() -> None:
        queue = Counting(broker)
        async with at_work(broker, queue, reach=Reach(2)) as intake:
            for _ in range(3):
                broker.stage(b"of a flood", headers=[("producer", b"a")])
            broker.leader_epoch = 1
            broker.stage(b"behind it", headers=[("producer", b"b")])
            intake.begin_behind(START)
            await queue.seek(1, 0)
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [0, 3]
            assert queue.compared == 1, "another leader has written the last one"
            assert [one.offset for one in intake.first(5, behind=START)] == [0], "the next one is unread"
            assert intake.oldest_ms == intake.pending[0].record.timestamp_ms
            intake.settle(replace(START, next_offset=1))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [1, 3]
            intake.settle(replace(START, next_offset=1, settled=Offsets.of([3])))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [1]
            intake.settle(replace(START, next_offset=2, settled=Offsets.of([3])))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [2]
            assert queue.compared == 1

    run_virtual(main)


def test_a_lost_connection_is_not_forgotten_when_the_reader_goes_to_another_place() -> None:
    broker = FakeBroker()

    async def main() -> None:
        queue = Counting(broker)
        async with at_work(broker, queue, reach=Reach(2)) as intake:
            for _ in range(3):
                broker.stage(b"of a flood", headers=[("producer", b"a")])
            queue.gate = opened = anyio.Event()
            broker.leader_epoch = 1
            broker.stage(b"behind it", headers=[("producer", b"b")])
            intake.begin_behind(START)
            await queue.seek(1, 0)
            await anyio.sleep(5)
            assert queue.compared == 1
            intake.settle(replace(START, next_offset=1))
            broker.restarts += 1
            broker.stage(b"delivered, and dropped", headers=[("producer", b"b")])
            await anyio.sleep(5)
            opened.set()
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [1, 3]
            assert queue.compared == 2

    run_virtual(main)


class Unreachable(FakeQueue):
    """Requests for the bounds of the log fail."""

    async def bounds(self) -> tuple[int, int]:
        raise QueueUnavailable("no broker responds")


def test_nothing_is_taken_behind_records_that_could_not_be_compared() -> None:
    """Or a position would pass them, as if Kafka did not have them."""
    broker = FakeBroker()

    async def main() -> Intake:
        queue = Unreachable(broker)
        async with at_work(broker, queue) as intake:
            intake.begin_behind(START)
            for offset, unbroken in enumerate((True, False, True)):
                one = Record(offset=offset, value=b"", key=None, headers=(), timestamp_ms=0, leader_epoch=0)
                queue._events.append(Fetched(generation=1, records=[one], unbroken=unbroken))
            queue.wake()
            await anyio.sleep(60)
        return intake

    intake = run_virtual(main)
    assert [pending.offset for pending in intake.pending] == [0]
    assert intake.fetch_failure is not None


def test_records_of_an_assignment_that_is_over_are_dropped_without_harm() -> None:
    broker = FakeBroker()

    async def main() -> Intake:
        queue = FakeQueue(broker)
        async with at_work(broker, queue) as intake:
            intake.begin_behind(START)
            broker.stage(b"record")
            await queue.seek(1, 0)
            await anyio.sleep(1)
            waiting = list(intake.pending)
            assert len(waiting) == 1
            intake.clear()
            assert intake.drop(waiting) == (0, 0)
        return intake

    run_virtual(main)
