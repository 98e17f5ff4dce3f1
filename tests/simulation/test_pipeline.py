"""The next version is formed while the previous one is put, and dropped if the put had another result."""

from __future__ import annotations

import pytest

from committerd.committer.head import Head
from committerd.committer.pipeline import RUN_MAX, Pipeline, Run
from committerd.committer.putting import Settlement
from committerd.committer.view import View
from committerd.queue.port import TopicIdentity
from tests.simulation.faults import Rates
from tests.simulation.queue import FakeQueue
from tests.simulation.world import Report, Scenario, World, simulate

SLOW = Rates(latency=0.2)


class Taken:
    """Counts drafts that were formed ahead, those of them that were put, and dropped runs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.formed = self.used = 0
        self.runs: list[int] = []
        """The number of drafts in each run that was put."""
        take, put = Pipeline.take, Pipeline.put

        async def counted(pipeline: Pipeline, head: Head) -> Run | None:
            ahead = pipeline._ahead
            run = await take(pipeline, head)
            self.formed += len(ahead.formed) if ahead is not None else 0
            self.used += len(run) if run is not None else 0
            return run

        async def noted(pipeline: Pipeline, run: Run, view: View) -> Settlement:
            self.runs.append(len(run))
            return await put(pipeline, run, view)

        self.wrong = 0
        drop = Pipeline._drop

        async def dropped(pipeline: Pipeline) -> None:
            self.wrong += pipeline._ahead is not None
            await drop(pipeline)

        patch.setattr(Pipeline, "take", counted)
        patch.setattr(Pipeline, "put", noted)
        patch.setattr(Pipeline, "_drop", dropped)


def backlog(world: World) -> None:
    """Records that arrive together: more than fit in one version."""
    world.producers.plan = [world.producers.plain() for _ in range(40)]


def run(
    seed: int, *, group: int, seconds: float = 0.1, foreign_seconds: float | None = None, several: bool = False
) -> Report:
    scenario = Scenario(
        records=40,
        seconds=seconds,
        rates=SLOW,
        foreign_seconds=foreign_seconds,
        settings={"group_records_max": group},
        several=several,
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


def trickle(world: World) -> None:
    """Records that arrive one after the other, some during each put."""
    world.producers.plan = [world.producers.plain() for _ in range(100)]


@pytest.mark.parametrize("several", [False, True])
def test_less_than_a_group_is_formed_ahead_if_a_round_trip_hides_it(
    monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    taken, versions = Taken(monkeypatch), 0
    for seed in range(5):
        scenario = Scenario(records=100, seconds=10, rates=SLOW, several=several)
        report = simulate(seed, scenario, prepare=trickle)
        assert report.violation is None, report.text()
        versions += len(report.world.auditor.versions)
    assert versions < 250, "records that arrive during a put share the next version"
    if several:
        assert taken.formed == 0, "the store has no round trip"
    else:
        assert taken.used > versions / 10


def test_what_a_foreign_version_made_wrong_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    for seed in range(5):
        report = run(seed, group=1, seconds=10, foreign_seconds=1)
        assert report.violation is None, report.text()
    assert taken.used > 5
    assert taken.wrong > 0


def test_versions_are_put_in_one_go_where_the_store_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    report = run(1, group=1, several=True)
    assert report.violation is None, report.text()
    assert taken.used == taken.formed, "nothing came in between"
    assert 2 < max(taken.runs) <= RUN_MAX
    versions = len(report.world.auditor.versions)
    assert versions > 40
    assert len(taken.runs) < versions / 2


def test_of_a_run_all_is_dropped_that_is_behind_a_foreign_version(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    for seed in range(5):
        report = run(seed, group=1, seconds=10, foreign_seconds=0.5, several=True)
        assert report.violation is None, report.text()
    assert max(taken.runs) > 2
    assert taken.wrong > 0


@pytest.mark.parametrize("setting", [{"interval_seconds_min": 0.01}, {}])
def test_a_least_time_between_versions_is_kept(monkeypatch: pytest.MonkeyPatch, setting: dict[str, float]) -> None:
    taken = Taken(monkeypatch)
    scenario = Scenario(records=40, seconds=0.1, settings={"group_records_max": 1, **setting}, several=True)
    report = simulate(1, scenario, prepare=backlog)
    assert report.violation is None, report.text()
    assert (max(taken.runs) > 1) is (not setting)
