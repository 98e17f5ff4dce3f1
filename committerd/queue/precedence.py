"""Precedence: of transactions that contradict each other, the one that was refused is committed next.

Two upserts of one row, or of one new key, can't both be committed as they were executed: the later one is refused and
executed again. While it is, a third one could be committed, so that it would be refused once more, and so on. So a
refused transaction *has precedence* from when its outcome is published until its re-execution is settled: what
contradicts it meanwhile is refused, although nothing that is committed contradicts it. Transactions that were refused
and contradict one that has precedence *wait in line*: their outcomes are published one after the other, so that the
re-execution of each meets nothing that was committed since. So each is executed twice at most, however many there are,
and everything else goes on.

Only transactions whose producers say that they execute them again (header `will-retry`) have precedence or wait. If
such a re-execution does not arrive in time, there is no precedence for a while: what a producer promises and does not
do costs the others little.

This differs from `turns`, whose holds are for conflicts with what no one can foresee: Appends that do not name their
keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from committerd.lance.rows.change import RowChange

ATTEMPT_MAX = 2
"""The highest attempt whose refusal gives precedence. One that is refused again all the same needs a hold (`turns`)."""
AWAITED_MAX = 64
"""The largest number of transactions that have precedence. Each other one is compared with all of them."""
LINE_MAX = 1000
"""The largest number of refusals that wait in line; any further one is published at once, and has no precedence."""
BYTES_MAX = 1024 * 1024
"""The most memory of the rows of one transaction that may have precedence, in bytes."""
LINE_BYTES_MAX = 16 * 1024 * 1024
"""The most memory of the rows of all those that have precedence or wait, in bytes."""
WAIT_FACTOR = 4
"""A refusal waits at most this many times `seconds_max`; then it is published, and has no precedence."""
PAUSE_FACTOR = 3
"""After a re-execution that did not arrive in time, there is no precedence for this many times `seconds_max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    change: RowChange
    since: float
    """When it was refused, or, once it has precedence, when that began."""


@dataclass(slots=True)
class Precedence:
    """The refused transactions that have precedence or wait for it. Times are in seconds, on a monotonic clock."""

    seconds_max: float
    """How long a transaction has precedence at most; 0 = none ever has."""
    _awaited: dict[str, _Refused] = field(default_factory=dict)
    """Those that have precedence, by uuid: their re-executions are awaited."""
    _line: dict[str, _Refused] = field(default_factory=dict)
    """Those whose outcomes wait to be published, by uuid, in the order of refusal."""
    _pause_until: float = -math.inf

    def contradicts(self, change: RowChange, now: float) -> RowChange | None:
        """Return the change of a transaction that has precedence and that this one contradicts; None if there is none.

        Only for transactions that are no re-executions: these are judged against the table alone.
        """
        if not self._awaited or now < self._pause_until:
            return None
        for one in self._awaited.values():
            if now < one.since + self.seconds_max and one.change.contradicts(change):
                return one.change
        return None

    def takes(self, change: RowChange, attempt: int, now: float) -> bool:
        """Whether a transaction that was refused at this attempt may have precedence, or wait for it."""
        if self.seconds_max <= 0 or attempt > ATTEMPT_MAX or now < self._pause_until or len(self._line) >= LINE_MAX:
            return False
        return change.bytes <= BYTES_MAX and self._bytes() + change.bytes <= LINE_BYTES_MAX

    def refused(self, uuid: str, change: RowChange, *, attempt: int, now: float) -> bool:
        """Note that a transaction was refused because it contradicts another one; `takes` must say that it may.

        Returns whether its outcome waits: then it is published only once `due` returns its uuid.
        """
        if self._may_be_first(change, before=() if attempt > 1 else self._line.values()):
            self._awaited[uuid] = _Refused(change=change, since=now)
            return False
        self._line[uuid] = _Refused(change=change, since=now)
        return True

    def settled(self, retries: Iterable[str]) -> int:
        """Note that re-executions were committed or refused; `retries` are the refused uuids that they name.

        Returns how many of these had precedence.
        """
        return sum(self._awaited.pop(uuid, None) is not None for uuid in retries)

    def expire(self, now: float) -> int:
        """End the precedence of those whose re-executions did not arrive in time; returns their number."""
        late = [uuid for uuid, one in self._awaited.items() if now >= one.since + self.seconds_max]
        for uuid in late:
            del self._awaited[uuid]
        if late:
            self._pause_until = now + PAUSE_FACTOR * self.seconds_max
        return len(late)

    def due(self, now: float) -> list[str]:
        """Return the uuids whose outcomes are to be published now. They have precedence from now on.

        In a pause, all that wait are due, and have none; so is one that has waited for too long.
        """
        if now < self._pause_until:
            waited, self._line = list(self._line), {}
            return waited
        due: list[str] = []
        left: dict[str, _Refused] = {}
        for uuid, one in self._line.items():
            if now >= one.since + WAIT_FACTOR * self.seconds_max:
                due.append(uuid)
            elif self._may_be_first(one.change, before=left.values()):
                self._awaited[uuid] = _Refused(change=one.change, since=now)
                due.append(uuid)
            else:
                left[uuid] = one
        self._line = left
        return due

    def seconds_until(self, now: float) -> float | None:
        """Seconds until `expire` or `due` has something to do; None if no outcome waits."""
        if not self._line:
            return None
        times = [one.since + self.seconds_max for one in self._awaited.values()]
        times.append(next(iter(self._line.values())).since + WAIT_FACTOR * self.seconds_max)
        return max(min(times) - now, 0.0)

    def forget(self) -> None:
        """Drop everything, because the assignment is over. A pause stays in force."""
        self._awaited.clear()
        self._line.clear()

    def _may_be_first(self, change: RowChange, *, before: Iterable[_Refused]) -> bool:
        """Whether it contradicts none that has precedence, and none of those before it."""
        if len(self._awaited) >= AWAITED_MAX:
            return False
        return not any(one.change.contradicts(change) for others in (self._awaited.values(), before) for one in others)

    def _bytes(self) -> int:
        return sum(one.change.bytes for some in (self._awaited, self._line) for one in some.values())
