"""Kafka's time. This machine's clock may be wrong by hours, and the brokers' clock dates every record.

A broker's response gives its time at some moment between request and response, and the timestamp of each record is a
lower bound. The monotonic clock extends both bounds to now, and this machine's clock is clamped between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

from committerd.queue.port import Queue

_SUSPENDED_SECONDS_MAX = 600.0
"""How far a record's timestamp may exceed the upper bound, since the process may have been suspended.

After a longer suspension the process has left the consumer group, and asks the broker again.
"""


class QueueClock:
    """Kafka's time: this machine's clock, clamped to the known bounds."""

    def __init__(self, wall_clock: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._least = -math.inf
        """Lower bound, in seconds, of Kafka's time minus the monotonic clock; `_most` is the upper bound."""
        self._most = math.inf

    async def ask(self, queue: Queue) -> None:
        """Ask a broker for its time, if brokers provide it, and reset the bounds. Raises `QueueUnavailable`."""
        asked_at = self._monotonic()
        broker_ms = await queue.time_ms()
        if broker_ms is not None:
            self._least, self._most = broker_ms / 1000 - self._monotonic(), broker_ms / 1000 - asked_at

    def note(self, timestamp_ms: int) -> None:
        """Note the timestamp of a record, which the broker set: Kafka's time is at least that now."""
        least = timestamp_ms / 1000 - self._monotonic()
        if least > self._most + _SUSPENDED_SECONDS_MAX:  # a producer set it
            return
        self._least = max(self._least, least)
        # The process may have been suspended, and its monotonic clock may have stopped: the newest timestamp wins.
        if self._most < self._least:
            self._most = self._least

    def now(self) -> datetime:
        """Return Kafka's time, in UTC."""
        at, ours = self._monotonic(), self._wall_clock()
        seconds = ours.timestamp()
        bounded = min(max(seconds, self._least + at), self._most + at)
        return ours if bounded == seconds else datetime.fromtimestamp(bounded, UTC)
