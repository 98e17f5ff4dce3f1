"""Tables of a bucket start in turns; one that can't go on keeps no turn from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
from anyio import CapacityLimiter

from committerd.committer.committer import Committer
from committerd.daemon.dataset import make_committer
from committerd.errors import QueueUnavailable
from committerd.queue.port import Publication
from committerd.stores.probing import Neighbours
from tests.simulation.loop import run_virtual
from tests.simulation.queue import FakeQueue
from tests.simulation.world import Scenario, World


class NoDeadLetters(FakeQueue):
    """A queue whose topic for dead letters can't be written to."""

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        raise QueueUnavailable("the topic has no leader")


def committer_of(world: World, queue: FakeQueue, neighbours: Neighbours) -> Committer:
    world.broker.join(queue)
    return make_committer(world.settings, replace(world.processes[0]._dependencies(queue), neighbours=neighbours))


async def until(reached: Callable[[], bool]) -> None:
    with anyio.fail_after(3600):
        while not reached():  # noqa: ASYNC110  # the states are values, and no event
            await anyio.sleep(0.1)


def test_a_table_whose_outcomes_kafka_does_not_take_keeps_no_turn() -> None:
    async def main() -> None:
        stuck, other = World(1, Scenario()), World(2, Scenario())
        for world in (stuck, other):
            await world.foreign.create()
        stuck.stage(b"no transaction", [])
        queue = NoDeadLetters(stuck.broker)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(committer_of(stuck, queue, Neighbours()).run)
            await until(lambda: stuck.auditor.position is not None and stuck.auditor.position.next_offset == 1)
            tasks.cancel_scope.cancel()
        stuck.broker.leave(queue)
        neighbours = Neighbours()
        neighbours.starts = CapacityLimiter(1)
        async with anyio.create_task_group() as tasks:
            waits = committer_of(stuck, NoDeadLetters(stuck.broker), neighbours)
            tasks.start_soon(waits.run)
            await until(lambda: "publishes outcomes again" in waits.state.text)
            goes_on = committer_of(other, FakeQueue(other.broker), neighbours)
            tasks.start_soon(goes_on.run)
            await until(lambda: goes_on.state.name == "active")
            assert "publishes outcomes again" in waits.state.text
            tasks.cancel_scope.cancel()

    run_virtual(main)
