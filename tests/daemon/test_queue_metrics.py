"""A member's metrics about its queue: the partition's owner exports all, a standby none, or alerts would sum them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from committerd.committer.state import State
from committerd.daemon.dataset import Dependencies, track_queue
from committerd.daemon.probes import DatasetProbe
from committerd.errors import StoreUnavailable
from committerd.machine import Machine
from committerd.telemetry import Metrics

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Membership:
    owner_turned_at: float = 0.0
    name: str = "active"
    end: int | None = None
    unread: int | None = None
    kept: int | None = None
    held: tuple[int, int] | None = None
    problems: Sequence[str] = ()
    silent: float = 5.0

    def member_state(self) -> str:
        return self.name

    def begins(self, generation: int) -> None:
        return None

    def trouble(self) -> str:
        return ""

    def leave(self) -> None:
        self.name = "joining"

    def end_offset(self) -> int | None:
        return self.end

    def unread_since_ms(self) -> int | None:
        return self.unread

    def held_back(self) -> tuple[int, int] | None:
        return self.held

    def topic_problems(self) -> Sequence[str]:
        return self.problems

    def retention_ms(self) -> int | None:
        return self.kept

    def silent_seconds(self) -> float:
        return self.silent

    def silence_reason(self) -> str:
        return "refused" * 100 if self.silent else ""


_NAMES = ("queue_lag_records", "unread_age_seconds", "staged_retention_seconds")


def told(member: Membership, *, position: int | None, names: Sequence[str] = _NAMES) -> dict[str, float | None]:
    """Lag, age and retention as they are scraped; or other metrics."""
    registry = CollectorRegistry()
    around: Any = SimpleNamespace(member=member, telemetry=Metrics(registry).of("events"), wall_clock=lambda: NOW)
    track_queue(State(position=position), cast(Dependencies, around))
    return {name: registry.get_sample_value(f"committerd_{name}", {"dataset": "events"}) for name in names}


def test_the_holder_of_the_partition_tells_how_far_behind_it_is() -> None:
    now_ms = int(NOW.timestamp() * 1000)
    found = told(Membership(end=10, unread=now_ms - 2_500, kept=60_000), position=7)
    assert found == {"queue_lag_records": 3, "unread_age_seconds": 2.5, "staged_retention_seconds": 60}


def test_it_tells_what_an_open_transaction_holds_back_and_what_is_wrong_with_the_topics() -> None:
    names = ("held_back_records", "held_back_seconds", "topic_problems")
    held = Membership(held=(7, int(NOW.timestamp() * 1000) - 90_000), problems=["one", "two"])
    assert told(held, position=None, names=names) == dict(zip(names, (7, 90, 2), strict=True))
    assert told(Membership(), position=None, names=names) == dict.fromkeys(names, 0)


def test_before_its_start_it_knows_of_no_lag_but_of_what_is_unread() -> None:
    found = told(Membership(end=10, unread=int(NOW.timestamp() * 1000) - 1_000), position=None)
    assert found["queue_lag_records"] == 0
    assert found["unread_age_seconds"] == 1


def test_a_standby_forgets_the_lag_of_when_it_was_active() -> None:
    assert told(Membership(name="standby", end=10), position=7)["queue_lag_records"] == 0


def test_a_member_that_joins_anew_does_not_deny_its_lag() -> None:
    assert told(Membership(name="joining", end=10), position=7)["queue_lag_records"] == 3


def test_a_topic_that_keeps_for_ever_or_is_not_known_makes_no_record_old() -> None:
    assert told(Membership(), position=0)["staged_retention_seconds"] == float("inf")


@pytest.mark.parametrize(("silent", "responds"), [(0.0, True), (19.9, True), (20.0, False), (500.0, False)])
def test_a_kafka_that_does_not_answer_is_told_by_the_probe(silent: float, responds: bool) -> None:
    state = State(name="active", position=7, version=3)
    ready, text, _ = DatasetProbe(state, Membership(silent=silent), Machine()).condition()
    assert ready is responds
    assert "active: version 3, position 7" in text
    why = ("refused" * 100)[:500]
    assert text.startswith(f"Kafka has not responded for {silent:.0f} s ({why}); before that: active") is not ready


def test_a_machine_that_lacks_something_is_not_ready() -> None:
    machine = Machine()
    probe = DatasetProbe(State(name="active"), Membership(), machine)
    machine.note(StoreUnavailable("no answer"))
    assert probe.condition().well
    machine.note(MemoryError("too much"))
    assert probe.condition() == (
        False,
        "unavailable: this process or its machine has not enough memory: MemoryError: too much",
        False,
    )
    machine.works()
    assert probe.condition().well


def test_a_clock_that_is_behind_kafkas_makes_no_negative_age() -> None:
    ahead = int(NOW.timestamp() * 1000) + 5_000
    assert told(Membership(unread=ahead), position=0)["unread_age_seconds"] == 0
