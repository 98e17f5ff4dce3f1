"""The next version is formed while the previous one is put, and dropped if the put had another result."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from committerd.committer.assembling import Assembler
from committerd.committer.head import Head
from committerd.committer.members import FormedVersion
from committerd.committer.pipeline import Pipeline
from committerd.errors import StoreUnavailable
from committerd.queue.port import TopicIdentity
from tests.simulation.faults import Rates
from tests.simulation.queue import FakeQueue
from tests.simulation.world import Report, Scenario, World, simulate

SLOW = Rates(latency=0.2)


class Taken:
    """Counts versions that were formed ahead, those of them that were put, and those that were dropped."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.formed = self.used = self.wrong = 0
        take, drop = Pipeline.take, Pipeline._drop

        async def counted(pipeline: Pipeline, head: Head) -> FormedVersion | None:
            ahead = pipeline._ahead
            formed = await take(pipeline, head)
            self.formed += ahead is not None and ahead.formed is not None
            self.used += formed is not None
            return formed

        async def dropped(pipeline: Pipeline) -> None:
            self.wrong += pipeline._ahead is not None
            await drop(pipeline)

        patch.setattr(Pipeline, "take", counted)
        patch.setattr(Pipeline, "_drop", dropped)


def backlog(world: World) -> None:
    """Records that arrive together: more than fit in one version."""
    world.producers.plan = [world.producers.plain() for _ in range(40)]


def run(
    seed: int, *, group: int, seconds: float = 0.1, foreign_seconds: float | None = None, rates: Rates = SLOW
) -> Report:
    scenario = Scenario(
        records=40,
        seconds=seconds,
        rates=rates,
        foreign_seconds=foreign_seconds,
        settings={"group_records_max": group},
    )
    return simulate(seed, scenario, prepare=backlog)


def test_what_was_formed_ahead_of_a_backlog_is_put_next(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    report = run(1, group=4)
    assert report.violation is None, report.text()
    assert taken.used == taken.formed > 5


def test_a_store_that_takes_seconds_makes_no_work_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    report = run(1, group=4, seconds=100, rates=Rates(latency=1.0))
    assert report.violation is None, report.text()
    assert taken.used == taken.formed > 5


def with_deadlines(world: World) -> None:
    """Records that arrive together, and whose deadlines pass within 20 seconds."""
    world.producers.plan = [world.producers.late(seconds=20) for _ in range(40)]


def test_a_version_formed_ahead_is_dropped_if_a_deadline_has_passed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Pipeline.take

    async def later(pipeline: Pipeline, head: Head) -> FormedVersion | None:
        if pipeline._ahead is not None:
            await anyio.sleep_until(30)
        return await take(pipeline, head)

    monkeypatch.setattr(Pipeline, "take", later)
    taken = Taken(monkeypatch)
    scenario = Scenario(records=40, seconds=0.1, rates=SLOW, settings={"group_records_max": 4})
    report = simulate(1, scenario, prepare=with_deadlines)
    assert report.violation is None, report.text()
    assert taken.formed > taken.used == 0


def test_the_broker_is_asked_which_topic_it_is_once_for_all_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    identity = FakeQueue.identity

    async def counted(queue: FakeQueue) -> TopicIdentity:
        nonlocal asked
        asked += 1
        return await identity(queue)

    monkeypatch.setattr(FakeQueue, "identity", counted)
    report = run(1, group=1)
    assert report.violation is None, report.text()
    versions = len(report.world.auditor.versions)
    assert versions > 40, "each Append is one"
    assert asked < versions / 2


def trickle(world: World) -> None:
    """Records that arrive one after the other, some during each put."""
    world.producers.plan = [world.producers.plain() for _ in range(100)]


def test_less_than_a_group_is_formed_ahead_shortly_before_the_put_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, versions = Taken(monkeypatch), 0
    for seed in range(5):
        scenario = Scenario(records=100, seconds=10, rates=SLOW)
        report = simulate(seed, scenario, prepare=trickle)
        assert report.violation is None, report.text()
        versions += len(report.world.auditor.versions)
    assert versions < 250, "records that arrive during a put share the next version"
    assert taken.used > versions / 10


def test_what_a_foreign_version_made_wrong_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    for seed in range(5):
        report = run(seed, group=1, seconds=10, foreign_seconds=1)
        assert report.violation is None, report.text()
    assert taken.used > 5
    assert taken.wrong > 0


def test_an_error_while_a_version_is_formed_ahead_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assemble, failed = Assembler.assemble, 0

    async def failing(assembler: Assembler, head: Head, *arguments: Any, **named: Any) -> FormedVersion | None:
        nonlocal failed
        if head.manifest is not None and head.version not in head.table._ends:  # the version before is not created yet
            failed += 1
            raise StoreUnavailable("503")
        return await assemble(assembler, head, *arguments, **named)

    monkeypatch.setattr(Assembler, "assemble", failing)
    report = run(1, group=4)
    assert report.violation is None, report.text()
    assert failed > 5
