"""What a member tells of its queue: the holder of the partition all, a standby nothing, or alerts would add it up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from committerd.committer import State
from committerd.daemon import Surroundings, track_queue
from committerd.telemetry import Telemetry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Membership:
    owner_turned_at: float = 0.0
    name: str = "active"
    end: int | None = None
    unread: int | None = None
    kept: int | None = None

    def member_state(self) -> str:
        return self.name

    def end_offset(self) -> int | None:
        return self.end

    def unread_since_ms(self) -> int | None:
        return self.unread

    def retention_ms(self) -> int | None:
        return self.kept


def told(member: Membership, *, position: int | None) -> dict[str, float | None]:
    """Lag, age and retention as they are scraped."""
    registry = CollectorRegistry()
    around: Any = SimpleNamespace(member=member, telemetry=Telemetry(registry), wall_clock=lambda: NOW)
    track_queue(State(position=position), cast(Surroundings, around))
    names = ("queue_lag_records", "unread_age_seconds", "staged_retention_seconds")
    return {name: registry.get_sample_value(f"committerd_{name}") for name in names}


def test_the_holder_of_the_partition_tells_how_far_behind_it_is() -> None:
    now_ms = int(NOW.timestamp() * 1000)
    found = told(Membership(end=10, unread=now_ms - 2_500, kept=60_000), position=7)
    assert found == {"queue_lag_records": 3, "unread_age_seconds": 2.5, "staged_retention_seconds": 60}


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


def test_a_clock_that_is_behind_kafkas_makes_no_negative_age() -> None:
    ahead = int(NOW.timestamp() * 1000) + 5_000
    assert told(Membership(unread=ahead), position=0)["unread_age_seconds"] == 0
