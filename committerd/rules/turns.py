"""Whose turn it is: re-executions go first, and a second refusal makes the others wait a moment.

An upsert conflicts with every Append since its read version, so under a stream of Appends it would never win. A record
that says which refused one it does again (`retry-of`) goes before those that wait. When even that came too late,
nothing else is committed until its next try arrives: racing writers can't give turns, a queue can. Several that are
refused meanwhile are waited for together, and each is committed as it arrives. They are of one operation: of an Update
and a Rewrite that wait together, the one that comes first would contradict the other.

Held is at most `hold_max` seconds at a time and a quarter of the time in all; group commit absorbs what waited. What is
left of that quarter is saved up until it is enough for the work, and so long the refusal itself is not told: told
earlier, it would only start work that comes too late again. A first refusal joins those that wait so. None waits for
longer than it takes to save up for a full hold.

How many of an operation get their turn together follows from how it went: half as many after a hold that ran out, one
more after one that did not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from committerd.format.messages import RETRYABLE
from committerd.rules.ledger import Ledger
from committerd.rules.position import Position

AHEAD_MAX = 256
"""Offsets that a position may carry as settled ahead."""
HELD_SHARE = 0.25
"""Of the time, in the long run."""
ATTEMPT_TO_HOLD_FOR = 2
"""The first refusal is the rule under load, and costs one more try; from the second on the others wait."""
DUE_MAX = 1000
"""Refusals that wait to be told; another is told at once."""
_TOGETHER_FIRST = 8
_TOGETHER_MAX = AHEAD_MAX
_NEEDED_FACTOR = 2.0
"""The next may take longer than the last did."""


class HoldEnding(StrEnum):
    """How a hold came to its end."""

    ARRIVED = "arrived"
    """All that it waited for are here."""
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class _Due:
    refused_at: float
    operation: str
    again: bool
    """Whether it was a re-execution: those are waited for. A first try's next may come in the same hold."""


@dataclass(slots=True)
class _Learned:
    """From earlier holds for one operation."""

    needed: float = 0.0
    """Seconds that a hold must have to be of use, as the last one showed."""
    together: int = _TOGETHER_FIRST


@dataclass(slots=True)
class Turns:
    """Holds of one committer. Times are seconds on one clock that only goes forward."""

    hold_max: float
    promised: set[str] = field(default_factory=set)
    """Refused uuids whose next tries may be committed during this hold."""
    _due: dict[str, _Due] = field(default_factory=dict)
    """Refused uuids that are not told yet, by time of refusal; of each operation one at least is `again`."""
    _awaited: set[str] = field(default_factory=set)
    _operation: str = ""
    """Of those that are waited for."""
    _since: float = 0.0
    _until: float = 0.0
    _learned: defaultdict[str, _Learned] = field(default_factory=lambda: defaultdict(_Learned))
    """By operation."""
    _budget: float | None = None
    _budget_at: float = 0.0

    def refused(self, uuid: str, *, operation: str, attempt: int, now: float) -> bool:
        """A record was refused RETRYABLE. Returns whether that is to be told only when `begin` says so."""
        again = attempt >= ATTEMPT_TO_HOLD_FOR
        if self.hold_max <= 0 or not (again or any(due.operation == operation for due in self._due.values())):
            return False
        together = self._learned[operation].together
        if again and self._awaited and operation == self._operation and len(self.promised) < together:
            self._awaited.add(uuid)
            self.promised.add(uuid)
            return False
        if len(self._due) >= DUE_MAX:
            return False
        self._due[uuid] = _Due(refused_at=now, operation=operation, again=again)
        return True

    def begin(self, now: float) -> list[str]:
        """Begin a hold, if one is due and there is time for it. Returns the uuids whose refusals are to be told now:
        those that it is for, those that have waited for longer than saving up for a full hold takes, and first ones
        that wait with nobody any more.
        """
        told = dict.fromkeys(u for u, due in self._due.items() if now - due.refused_at > self.hold_max / HELD_SHARE)
        seconds = min(self.hold_max, self._accrued(now))
        longest = next((due for due in self._due.values() if due.again), None)
        if not self._awaited and longest is not None and 0 < seconds >= self._learned[longest.operation].needed:
            self._operation = longest.operation
            others = [uuid for uuid, due in self._due.items() if due.operation == self._operation]
            first = sorted(others, key=lambda uuid: not self._due[uuid].again)
            first = first[: self._learned[self._operation].together]
            self._since, self._until = now, now + seconds
            self._awaited.update(uuid for uuid in first if self._due[uuid].again)
            self.promised.update(first)
            told = dict.fromkeys((*first, *told))
        waiting = {due.operation for uuid, due in self._due.items() if due.again and uuid not in told}
        told |= dict.fromkeys(uuid for uuid, due in self._due.items() if due.operation not in waiting)
        for uuid in told:
            del self._due[uuid]
        return list(told)

    def seconds_until(self, now: float) -> float | None:
        """How long until `begin` may have something to tell; None when nothing is due."""
        longest = next((due for due in self._due.values() if due.again), None)
        if longest is None:
            return None
        patience = next(iter(self._due.values())).refused_at + self.hold_max / HELD_SHARE - now
        saved_up = (self._learned[longest.operation].needed - self._accrued(now)) / HELD_SHARE
        return max(patience if self._awaited else min(patience, saved_up), 0.0)

    def seconds_left(self, now: float) -> float:
        """How long nothing else is to be committed; 0 = go on."""
        return max(self._until - now, 0.0) if self._awaited else 0.0

    def end(self, retries: Iterable[str], now: float) -> tuple[HoldEnding, float] | None:
        """Note the tries that have arrived; end the hold when none is missing any more, or its time is over.

        Returns how, and the seconds that it took; None where there is no hold, or it goes on.
        """
        if not self._awaited:
            return None
        self._awaited.difference_update(retries)
        arrived = not self._awaited
        if not arrived and now < self._until:
            return None
        held = min(now, self._until) - self._since
        self._budget = self._accrued(now) - held
        learned = self._learned[self._operation]
        if arrived:
            learned.needed = min(_NEEDED_FACTOR * held, self.hold_max)
            learned.together = min(learned.together + 1, _TOGETHER_MAX)
        else:
            learned.needed = self.hold_max
            learned.together = max(len(self.promised) // 2, 1)
        self._awaited.clear()
        self.promised.clear()
        return (HoldEnding.ARRIVED if arrived else HoldEnding.EXPIRED), held

    def forget(self) -> None:
        """Give nobody a turn any more: the assignment is over. What may be held stays."""
        self._due.clear()
        self._awaited.clear()
        self.promised.clear()

    def _accrued(self, now: float) -> float:
        """Seconds that may be held by now: a share of the time that passed, never more than one full hold."""
        before = self.hold_max if self._budget is None else self._budget
        since = now if self._budget is None else self._budget_at
        self._budget = min(before + (now - since) * HELD_SHARE, self.hold_max)
        self._budget_at = now
        return self._budget


def goes_ahead(retry_of: str | None, position: Position, ledger: Ledger, *, ahead: int) -> bool:
    """Whether a record that names a refused one may go before those that wait.

    Only for one that was really refused RETRYABLE, and while the position can carry one more; `ahead` are those of the
    group being formed already.
    """
    if retry_of is None or len(position.settled) + ahead >= AHEAD_MAX:
        return False
    earlier = ledger.refused(retry_of)
    return earlier is not None and earlier.status == RETRYABLE
