"""A table that is deleted and made again: what was answered for the dead one is not committed to its successor."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from committerd.ports import Publication
from tests.simulation.chaos import Chaos
from tests.simulation.faults import Rates
from tests.simulation.operator import adopt
from tests.simulation.queue import FakeQueue
from tests.simulation.world import Scenario, World, simulate


@pytest.mark.parametrize("several", [False, True])
def test_what_kafka_has_not_taken_yet_is_told_before_another_table_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    publish, swapped = FakeQueue.publish, anyio.Event()

    async def late(queue: FakeQueue, outcomes: Sequence[Publication]) -> None:
        await swapped.wait()
        await anyio.sleep(1)
        await publish(queue, outcomes)

    async def swap_before_anything_is_told(chaos: Chaos) -> None:
        if swapped.is_set() or chaos.world.auditor.latest < 2:
            return
        world = chaos.world
        assert not world.auditor.answers
        assert world.broker.group is None
        world.causes.add("keys_missing")
        world.auditor.table_is_swapped()
        world.bucket.delete_all(with_folders=several)
        world.foreign.put_table(5)
        swapped.set()
        world.producers.stage(world.producers.plain())
        await anyio.sleep(15)
        await adopt(world)

    def prepare(world: World) -> None:
        world.producers.plan = [world.producers.plain() for _ in range(8)]

    monkeypatch.setattr(FakeQueue, "publish", late)
    scenario = Scenario(
        records=8,
        seconds=200.0,
        rates=Rates(latency=0.005),
        events={swap_before_anything_is_told: 1.0},
        event_seconds=0.5,
        several=several,
    )
    report = simulate(1, scenario, prepare=prepare)
    assert report.violation is None, report.text()
    assert swapped.is_set()
    assert "keys_missing" in report.world.refused
