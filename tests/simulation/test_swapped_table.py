"""A table that is deleted and recreated: outcomes for the deleted one are not committed to its successor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import anyio
import pytest

from committerd.queue.port import Publication
from tests.simulation.chaos import Chaos
from tests.simulation.faults import Rates
from tests.simulation.operator import adopt
from tests.simulation.queue import FakeQueue
from tests.simulation.scenarios import ROUGH
from tests.simulation.world import Scenario, World, simulate

SEEDS = range(30)


ROUGHLY_SWAPPED = Scenario(
    records=60,
    seconds=60.0,
    rates=ROUGH,
    events={Chaos.swap_table: 1.0},
    event_seconds=20.0,
    settings={"group_records_max": 1},
)
"""Requests fail, come late or lose their responses."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: int) -> None:
    violation, _ = ended(seed)
    assert not violation, violation


@cache
def ended(seed: int) -> tuple[str, bool]:
    """Run a seed, once for all tests; returns the report of a violation, and whether it has met the limit."""
    report = simulate(seed, ROUGHLY_SWAPPED)
    return ("" if report.violation is None else report.text()), bool(report.beyond)


def test_the_limit_is_seldom_met() -> None:
    """A put that lands after a swap because it was in flight (docs/limits.md)."""
    assert sum(ended(seed)[1] for seed in SEEDS) <= len(SEEDS) // 5


def test_what_kafka_has_not_taken_yet_is_told_before_another_table_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
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
        world.bucket.delete_all()
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
    )
    report = simulate(1, scenario, prepare=prepare)
    assert report.violation is None, report.text()
    assert swapped.is_set()
    assert "keys_missing" in report.world.refused
