"""Writers of the same rows that execute again what is refused, or don't: everything is settled, whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

import pytest

from committerd.lance.rows.change import RowsAndKeys
from committerd.queue.reservations import Reservations
from committerd_common.messages import RETRYABLE
from committerd_common.request import MARK_MOVED
from tests.simulation.chaos import Chaos
from tests.simulation.faults import Rates
from tests.simulation.producers import Producers
from tests.simulation.staging import Staged, headers
from tests.simulation.world import Report, Scenario, World, simulate

SCENARIO = Scenario(
    records=100,
    seconds=20,
    rates=Rates(latency=0.02),
    events={Chaos.crash: 1.0, Chaos.hand_over: 1.0},
    event_seconds=8.0,
)


class Upserters(Producers):
    """Writers that change the same few rows. One of twenty does not execute again what is refused."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.plan = [self.plain() for _ in range(2)]
        self._gone: set[str] = set()

    def _next(self) -> Staged:
        if self.plan:
            return self.plan.pop(0)
        answers = self.world.auditor.answers.values()
        refused = [one.uuid for one in answers if one.status == RETRYABLE and one.uuid not in self._gone]
        retry_of = self.rng.choice(refused) if refused else None
        version = self._read_version() if retry_of else self._read_version(stale=True)
        made = self.rows(version or 1)
        if made is None:
            return self._append()
        if retry_of is None:
            return self._with_headers(made, headers(will_retry="true"))
        self._gone.add(retry_of)
        if self.rng.random() < 0.05:
            return self._append()
        return self._with_headers(
            made, headers(attempt=self.rng.choice((2, 2, 3)), retry_of=retry_of, will_retry="true")
        )


class Readers(Producers):
    """Two processes that read one source, and stage again what did not follow the mark, as a re-execution."""

    def _next(self) -> Staged:
        answers = self.world.auditor.answers.values()
        moved = [one.uuid for one in answers if one.reason == MARK_MOVED]
        made = self._read_on()
        if not moved:
            return made
        return self._with_headers(made, [*made.headers, *headers(attempt=2, retry_of=self.rng.choice(moved))])


def test_a_unit_that_does_not_follow_the_mark_reserves_nothing(seen: Counter[str]) -> None:
    def prepare(world: World) -> None:
        world.producers = Readers(world)

    report = simulate(1, SCENARIO, prepare=prepare)
    assert report.violation is None, report.text()
    assert any(one.reason == MARK_MOVED for one in report.world.auditor.answers.values())
    assert not seen.total()


def run(seed: int) -> Report:
    def prepare(world: World) -> None:
        world.producers = Upserters(world)

    return simulate(seed, SCENARIO, prepare=prepare)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what reservations do."""
    counter: Counter[str] = Counter()
    at, settled, conflict_of = Reservations.at, Reservations.settled, Reservations.conflict_of

    def counted_at(self: Reservations, now: float, *, arrived: Container[str]) -> Reservations:
        after = at(self, now, arrived=arrived)
        counter["expired"] += len(self.reserved.keys() - after.reserved.keys())
        counter["held"] += len(after.hold.keys() - self.hold.keys())
        return after

    def counted_settled(self: Reservations, *arguments: Any, **named: Any) -> Reservations:
        after = settled(self, *arguments, **named)
        counter["arrived"] += len(self.reserved.keys() - after.reserved.keys())
        counter["waited"] += len(self.line.keys() - after.line.keys())
        counter["held"] += len(after.hold.keys() - self.hold.keys())
        return after

    def counted_conflict_of(self: Reservations, rows_and_keys: RowsAndKeys) -> RowsAndKeys | None:
        first = conflict_of(self, rows_and_keys)
        counter["refused early"] += first is not None
        return first

    monkeypatch.setattr(Reservations, "at", counted_at)
    monkeypatch.setattr(Reservations, "settled", counted_settled)
    monkeypatch.setattr(Reservations, "conflict_of", counted_conflict_of)
    return counter


def test_everything_is_settled(seen: Counter[str]) -> None:
    for seed in range(12):
        report = run(seed)
        assert report.violation is None, report.text()
    assert min(seen[what] for what in ("waited", "refused early", "arrived", "expired", "held")) > 5, seen


def test_a_refusal_that_is_not_published_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservations, "_moved_up", lambda self, now, new: self)
    assert any(run(seed).violation is not None for seed in range(5))
