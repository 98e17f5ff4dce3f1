"""Kafka's time, whatever this machine's clock says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from committerd.committer.clock import QueueClock
from committerd.queue.port import Queue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)


class Times:
    """The brokers' clock, the machine's, which is wrong by `skew`, and the monotonic one."""

    def __init__(self, skew: timedelta = timedelta(0)) -> None:
        self.passed = 0.0
        self.suspended = 0.0
        self.told = True
        self.skew = skew
        self.clock = QueueClock(lambda: self.now + self.skew, lambda: 500.0 + self.passed)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed + self.suspended)

    @property
    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)

    async def ask(self, *, seconds: float = 0.01) -> None:
        await self.clock.ask(cast(Queue, _Broker(self, seconds)))

    def late(self) -> float:
        """Seconds by which the clock is behind the brokers'; negative = ahead of it."""
        return (self.now - self.clock.now()).total_seconds()


class _Broker:
    def __init__(self, times: Times, seconds: float) -> None:
        self.times, self.seconds = times, seconds

    async def time_ms(self) -> int | None:
        self.times.passed += self.seconds / 2
        told = self.times.now_ms if self.times.told else None
        self.times.passed += self.seconds / 2
        return told


@pytest.mark.parametrize("skew", [MONTH, -MONTH, timedelta(seconds=2), timedelta(0)])
async def test_a_broker_that_was_asked_is_believed_and_not_this_machine(skew: timedelta) -> None:
    times = Times(skew)
    await times.ask()
    assert abs(times.late()) <= 0.01
    times.passed += 3600
    assert abs(times.late()) <= 0.01
    assert abs(times.clock.now().timestamp() * 1000 - times.now_ms) <= 10


async def test_within_the_bounds_this_machine_counts() -> None:
    times = Times(timedelta(seconds=0.2))
    await times.ask(seconds=1.0)
    assert times.late() == pytest.approx(-0.2)


async def test_without_an_answer_records_say_that_it_is_later() -> None:
    times = Times(-MONTH)
    times.told = False
    await times.ask()
    assert times.late() == MONTH.total_seconds()
    times.clock.note(times.now_ms - 1500)
    assert times.late() == pytest.approx(1.5, abs=0.001)
    times.clock.note(times.now_ms - 60_000)
    assert times.late() == pytest.approx(1.5, abs=0.001)


async def test_a_process_that_was_suspended_hears_it_from_the_next_record() -> None:
    times = Times(MONTH)
    await times.ask()
    times.suspended = 300
    assert times.late() == pytest.approx(300, abs=0.02)
    times.clock.note(times.now_ms)
    assert times.late() == pytest.approx(0, abs=0.02)


async def test_a_date_that_no_broker_gave_is_not_believed() -> None:
    times: Any = Times()
    await times.ask()
    times.clock.note(times.now_ms + int(MONTH.total_seconds() * 1000))
    assert abs(times.late()) <= 0.01
