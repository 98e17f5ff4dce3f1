"""Records are compared with the log while other events are handled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from committerd.committer.intake import Intake
from committerd.errors import QueueUnavailable
from committerd.queue import reach
from committerd.queue.offsets import Offsets
from committerd.queue.port import Fetched, FetchFailed, Record
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
    """Counts how often the log is compared with what was read."""

    compared = 0

    async def bounds(self) -> tuple[int, int]:
        self.compared += 1
        return await super().bounds()


def test_what_is_read_again_is_older_and_needs_no_comparison_each_time() -> None:
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
            assert queue.compared == 2, "the first read has a connection of its own"
            intake.settle(replace(START, next_offset=1, settled=Offsets.of([3])))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [1]
            intake.settle(replace(START, next_offset=2, settled=Offsets.of([3])))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [2]
            assert queue.compared == 2

    run_virtual(main)


FLOOD = [("producer", b"a")]


@asynccontextmanager
async def holding(queue: FakeQueue, broker: FakeBroker, producers: bytes, room: int) -> AsyncIterator[Intake]:
    """The intake with room for so many records, of a log with one record for each byte: the name of its producer."""
    async with at_work(broker, queue, reach=Reach(room)) as intake:
        for producer in producers:
            broker.stage(b"record", headers=[("producer", bytes([producer]))])
        intake.begin_behind(START)
        await queue.seek(1, 0)
        await anyio.sleep(5)
        yield intake


class Failing(FakeQueue):
    """The first attempts to read records again fail."""

    attempts = 0

    async def read_again(self, generation: int, offset: int, *, records_max: int) -> Fetched | FetchFailed:
        self.attempts += 1
        if self.attempts < 4:
            raise QueueUnavailable("no broker responds")
        return await super().read_again(generation, offset, records_max=records_max)


def test_who_gets_no_response_tries_again() -> None:
    broker = FakeBroker()

    async def main() -> None:
        queue = Failing(broker)
        async with holding(queue, broker, b"aaaaab", room=4) as intake:
            assert [one.offset for one in intake.pending] == [0, 1, 5]
            intake.settle(replace(START, next_offset=2))
            await anyio.sleep(1)
            assert [one.offset for one in intake.pending] == [5]
            assert intake.fetch_failure is None
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [2, 3, 5]
            assert queue.attempts > 3

    run_virtual(main)


def test_skipped_records_that_are_gone_make_the_committer_start_again() -> None:
    broker = FakeBroker()

    async def main() -> None:
        queue = FakeQueue(broker)
        async with holding(queue, broker, b"aaaaab", room=4) as intake:
            broker.expire(3)
            intake.settle(replace(START, next_offset=2))
            await anyio.sleep(5)
            assert intake.fetch_failure == "offset 2 is out of range"
            assert [one.offset for one in intake.pending] == [5]

    run_virtual(main)


class Slow(FakeQueue):
    """Records that are read again take a while."""

    async def read_again(self, generation: int, offset: int, *, records_max: int) -> Fetched | FetchFailed:
        await anyio.sleep(10)
        return await super().read_again(generation, offset, records_max=records_max)


def test_what_was_asked_for_before_a_new_start_is_dropped() -> None:
    broker = FakeBroker()

    async def main() -> None:
        queue = Slow(broker)
        async with holding(queue, broker, b"aaaaab", room=4) as intake:
            intake.settle(replace(START, next_offset=2))
            await anyio.sleep(5)
            intake.begin_behind(replace(START, next_offset=2))
            await anyio.sleep(10)
            assert not intake.pending
            await queue.seek(1, 2)
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [2, 3, 5]
            assert queue._outstanding == 3

    run_virtual(main)


def test_others_are_delivered_while_records_are_read_again() -> None:
    broker = FakeBroker()

    async def main() -> None:
        queue = Slow(broker)
        async with holding(queue, broker, b"aaaaab", room=4) as intake:
            await queue.done(1, *intake.settle(replace(START, next_offset=2)))
            await anyio.sleep(5)
            broker.stage(b"meanwhile", headers=[("producer", b"c")])
            await anyio.sleep(1)
            assert [one.offset for one in intake.pending] == [5, 6]
            await anyio.sleep(20)
            assert [one.offset for one in intake.pending] == [2, 5, 6]
            assert queue._outstanding == 3, "and what is read again is outstanding too"

    run_virtual(main)


def test_what_would_be_skipped_of_too_many_lines_waits_at_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LINES_MAX", 3)
    broker = FakeBroker()

    async def main() -> None:
        queue = FakeQueue(broker, outstanding_records_max=4)
        async with at_work(broker, queue, reach=Reach(1)) as intake:
            for number in range(12):
                broker.stage(b"record", headers=[("producer", b"%d" % number)])
            intake.begin_behind(START)
            await queue.seek(1, 0)
            for offset in range(12):
                await anyio.sleep(5)
                assert intake.pending[0].offset == offset
                assert len(intake.pending) <= 2, "one may go beyond the room"
                assert len(intake.waiting) <= 5
                await queue.done(1, *intake.settle(replace(START, next_offset=offset + 1)))
            assert not intake.pending
            assert queue._outstanding == 0

    run_virtual(main)


class LateToKnow(FakeQueue):
    """What it delivers comes later than what is read again, while `late`."""

    late = False

    def _fetch(self) -> Fetched | None:
        return None if self.late else super()._fetch()


@pytest.mark.parametrize("epoch", [True, False], ids=["a new leader", "the same leader, after a restart"])
def test_nothing_is_read_again_from_a_log_that_was_written_anew(epoch: bool) -> None:
    """The deliveries tell of it too, and may do so later."""
    broker = FakeBroker()

    async def main() -> None:
        queue = LateToKnow(broker)
        async with holding(queue, broker, b"aaaaaab", room=4) as intake:
            await queue.done(1, *intake.settle(replace(START, next_offset=2, settled=Offsets.of([6]))))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [2, 3]
            queue.late = True
            broker.roll_back(4, epoch=epoch, noticed=True)
            for _ in range(10):
                broker.stage(b"new", headers=FLOOD)
            await queue.done(1, *intake.settle(replace(START, next_offset=4, settled=Offsets.of([6]))))
            await anyio.sleep(5)
            assert not intake.pending
            assert intake.fetch_failure is not None
            assert "written anew" in intake.fetch_failure

    run_virtual(main)


def test_nothing_that_waits_is_taken_once_the_queue_can_not_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LINES_MAX", 1)
    broker = FakeBroker()

    async def main() -> None:
        queue = FakeQueue(broker)
        async with holding(queue, broker, b"aaaabbb", room=6) as intake:
            queue._events.append(FetchFailed(generation=1, reason="the disk is gone"))
            queue.wake()
            await anyio.sleep(5)
            intake.settle(replace(START, next_offset=3))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [4, 5]

    run_virtual(main)


def test_what_waits_is_taken_as_soon_as_records_were_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only when others have outcomes."""
    monkeypatch.setattr(reach, "LINES_MAX", 1)
    broker = FakeBroker()

    async def main() -> None:
        queue = FakeQueue(broker)
        async with holding(queue, broker, b"aaaabbb", room=6) as intake:
            assert [one.offset for one in intake.pending] == [0, 1, 2, 4, 5]
            await queue.done(1, *intake.settle(replace(START, next_offset=3)))
            await anyio.sleep(5)
            assert [one.offset for one in intake.pending] == [3, 4, 5, 6]

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
