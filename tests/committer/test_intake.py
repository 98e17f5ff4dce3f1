"""Records are compared with the log while other events are handled."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from committerd.committer.intake import Intake
from committerd.queue.position import Position
from tests.simulation.loop import run_virtual
from tests.simulation.queue import FakeBroker, FakeQueue

BEHIND = Position(cluster_id="cluster", topic="t.staged", topic_id="i", next_offset=1, last_offset=0, leader_epoch=-1)
"""The next record has another leader epoch, so the one before it is read again."""


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
        intake = Intake(queue)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(intake.run)
            broker.join(queue)
            await anyio.sleep(1)
            intake.begin_behind(BEHIND)
            for _ in range(2):
                broker.stage(b"record")
            await queue.seek(1, 1)
            await anyio.sleep(1)
            assert queue.asked == 1
            assert not intake.pending
            then(queue)
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        return intake

    return run_virtual(main)


def test_who_loses_the_partition_meanwhile_knows_at_once() -> None:
    assert comparing(lambda queue: queue.revoke(lost=True)).generation is None


def test_who_is_assigned_anew_meanwhile_knows_at_once() -> None:
    intake = comparing(FakeQueue.assign)
    assert intake.generation == 2
    assert not intake.pending
