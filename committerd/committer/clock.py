"""Kafka's time. The clock of this machine may be wrong by hours; the brokers' clock dates every record.

A broker's answer says what time it was at some moment between question and answer. The timestamp of each record is a
lower bound. Both give bounds, which the monotonic clock carries on; within them this machine's clock counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

from committerd.queue.port import Queue

_SUSPENDED_SECONDS_MAX = 600.0
"""A process that was suspended for longer is no member of the group any more, and asks again."""


class QueueClock:
    """Kafka's time: this machine's clock, kept within the bounds that are known."""

    def __init__(self, wall_clock: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._least = -math.inf
        """Lower bound of Kafka's time minus the monotonic clock, in seconds; `_most` is the upper bound."""
        self._most = math.inf

    async def ask(self, queue: Queue) -> None:
        """Ask a broker for its time, if it provides that. Raises `QueueUnavailable`."""
        asked_at = self._monotonic()
        told = await queue.time_ms()
        if told is not None:
            self._least, self._most = told / 1000 - self._monotonic(), told / 1000 - asked_at

    def note(self, timestamp_ms: int) -> None:
        """Note the timestamp of a record that the broker has dated: the time is now at least that."""
        least = timestamp_ms / 1000 - self._monotonic()
        if least > self._most + _SUSPENDED_SECONDS_MAX:  # dated by a producer
            return
        self._least = max(self._least, least)
        # The process may have been suspended, and the monotonic clock with it: the newest timestamp counts.
        if self._most < self._least:
            self._most = self._least

    def now(self) -> datetime:
        """Kafka's time, in UTC."""
        at, ours = self._monotonic(), self._wall_clock()
        seconds = ours.timestamp()
        bounded = min(max(seconds, self._least + at), self._most + at)
        return ours if bounded == seconds else datetime.fromtimestamp(bounded, UTC)

    def now_ms(self) -> int:
        """The same, in milliseconds of Unix time."""
        return int(self.now().timestamp() * 1000)
