"""The next version is formed while the one before it is put, and thrown away when the put made something else."""

from __future__ import annotations

import pytest

from committerd.committer.pipeline import Pipeline
from committerd.committer.putting import Draft
from committerd.committer.view import View
from committerd.ports import TopicIdentity
from committerd.table import Table
from tests.simulation.faults import Rates
from tests.simulation.queue import FakeQueue
from tests.simulation.world import Report, Scenario, World, simulate

SLOW = Rates(latency=0.2)


class Taken:
    """Counts drafts that were formed ahead, those of them that were put, and expectations that were wrong."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.formed = self.used = 0
        take = Pipeline.take

        async def counted(pipeline: Pipeline, view: View) -> Draft | None:
            ahead = pipeline._ahead
            draft = await take(pipeline, view)
            self.formed += ahead is not None and ahead.draft is not None
            self.used += draft is not None
            return draft

        self.wrong = 0
        forget = Table.expect_no_more

        def noted(table: Table, version: int) -> None:
            self.wrong += 1
            forget(table, version)

        patch.setattr(Pipeline, "take", counted)
        patch.setattr(Table, "expect_no_more", noted)


def backlog(world: World) -> None:
    """All at once: more than fit in one version."""
    world.producers.plan = [world.producers.plain() for _ in range(40)]


def run(seed: int, *, group: int, seconds: float = 0.1, foreign_seconds: float | None = None) -> Report:
    scenario = Scenario(
        records=40, seconds=seconds, rates=SLOW, foreign_seconds=foreign_seconds, settings={"group_records_max": group}
    )
    return simulate(seed, scenario, prepare=backlog)


def test_what_was_formed_ahead_of_a_backlog_is_put_next(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    report = run(1, group=4)
    assert report.violation is None, report.text()
    assert taken.used == taken.formed > 5


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


def test_nothing_is_formed_ahead_while_less_than_a_group_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    report = run(1, group=1000)
    assert report.violation is None, report.text()
    assert taken.formed == 0


def test_what_a_foreign_version_made_wrong_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    for seed in range(5):
        report = run(seed, group=1, seconds=10, foreign_seconds=1)
        assert report.violation is None, report.text()
    assert taken.used > 5
    assert taken.wrong > 0
