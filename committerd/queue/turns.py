"""Whose turn it is: re-executions go first, and a second refusal makes the others wait a moment.

An upsert conflicts with every Append since its read version, so under a stream of Appends it would never win. A record
that says which refused one it does again (`retry-of`) goes before those that wait. When even that came too late,
nothing else is committed until its next try arrives: racing writers can't give turns, a queue can. Several that are
refused meanwhile are waited for together, and each is committed as it arrives. They are of one operation: of an Update
and a Rewrite that wait together, the one that comes first would contradict the other.

Held is at most `hold_max` seconds at a time and a quarter of the time in all: after each hold the others have a pause
of three times as long, and group commit absorbs what waited. In such a pause a refusal is not told: told earlier, it
would only start work that comes too late again. So do first refusals wait, of operations that have needed holds: the
less of the table is new since a second try was executed, the sooner the third is here, and under a stream of appends
what is new is as much as the pause was long. None waits for much longer than two holds and their pauses take.

How many of an operation get their turn together follows from how it went: half as many after a hold that ran out, one
more after one that did not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from committerd.queue.position import Position
from committerd_common.messages import RETRYABLE, Refusal

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
_PATIENCE = 2 / HELD_SHARE
"""Longest holds' times that a refusal waits: somebody else's turn and its pause, and as much again."""


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
class Turns:
    """Holds of one committer. Times are seconds on one clock that only goes forward."""

    hold_max: float
    promised: set[str] = field(default_factory=set)
    """Refused uuids whose next tries may be committed during this hold."""
    _due: dict[str, _Due] = field(default_factory=dict)
    """Refused uuids that are not told yet, by time of refusal."""
    _awaited: set[str] = field(default_factory=set)
    _operation: str = ""
    """Of those that are waited for."""
    _since: float = 0.0
    _until: float = 0.0
    _held: float = 0.0
    """Seconds that the last hold took."""
    _pause_until: float = -math.inf
    _together: dict[str, int] = field(default_factory=dict)
    """By operation, once there was a hold for one of it."""

    def refused(self, uuid: str, *, operation: str, attempt: int, now: float) -> bool:
        """A record was refused RETRYABLE. Returns whether that is to be told only when `begin` says so."""
        again = attempt >= ATTEMPT_TO_HOLD_FOR
        if self.hold_max <= 0 or not (again or self._would_be_late(operation, now)):
            return False
        if again and self._awaited and operation == self._operation and len(self.promised) < self._most(operation):
            self._awaited.add(uuid)
            self.promised.add(uuid)
            return False
        if len(self._due) >= DUE_MAX:
            return False
        self._due[uuid] = _Due(refused_at=now, operation=operation, again=again)
        return True

    def _would_be_late(self, operation: str, now: float) -> bool:
        """Whether a second try that begins now would be refused in a pause, or come after the hold that is due."""
        return (operation in self._together and now < self._pause_until) or any(
            due.again and due.operation == operation for due in self._due.values()
        )

    def _most(self, operation: str) -> int:
        return self._together.get(operation, _TOGETHER_FIRST)

    def begin(self, now: float) -> list[str]:
        """Begin a hold, if one is due and no pause is kept. Returns the uuids whose refusals are to be told now: those
        that it is for; first ones, where it is nobody's of their operation; and those that have waited for too long.
        """
        told = dict.fromkeys(u for u, due in self._due.items() if now - due.refused_at > self.hold_max * _PATIENCE)
        if not self._awaited and now >= self._pause_until:
            told = dict.fromkeys((*self._begin(now), *told))
            waiting = {due.operation for uuid, due in self._due.items() if due.again and uuid not in told}
            told |= dict.fromkeys(uuid for uuid, due in self._due.items() if due.operation not in waiting)
        for uuid in told:
            del self._due[uuid]
        return list(told)

    def _begin(self, now: float) -> list[str]:
        longest = next((due for due in self._due.values() if due.again), None)
        if longest is None:
            return []
        self._operation = longest.operation
        others = [uuid for uuid, due in self._due.items() if due.operation == self._operation]
        first = sorted(others, key=lambda uuid: not self._due[uuid].again)[: self._most(self._operation)]
        self._since, self._until = now, now + self.hold_max
        self._awaited.update(uuid for uuid in first if self._due[uuid].again)
        self.promised.update(first)
        return first

    def seconds_until(self, now: float) -> float | None:
        """How long until `begin` may have something to tell; None when nothing is due."""
        if not self._due:
            return None
        patience = next(iter(self._due.values())).refused_at + self.hold_max * _PATIENCE - now
        return max(patience if self._awaited else min(patience, self._pause_until - now), 0.0)

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
        self._held = min(now, self._until) - self._since
        self.pause(self._since + self._held)
        if arrived:
            self._together[self._operation] = min(self._most(self._operation) + 1, _TOGETHER_MAX)
        else:
            self._together[self._operation] = max(len(self.promised) // 2, 1)
        self._awaited.clear()
        self.promised.clear()
        return (HoldEnding.ARRIVED if arrived else HoldEnding.EXPIRED), self._held

    def pause(self, now: float) -> None:
        """Begin the pause after the last hold; once more, when those that ended it by arriving are committed."""
        self._pause_until = now + self._held * (1 / HELD_SHARE - 1)

    def forget(self) -> None:
        """Give nobody a turn any more: the assignment is over. A pause is kept all the same."""
        self._due.clear()
        self._awaited.clear()
        self.promised.clear()


def goes_ahead(earlier: Refusal | None, position: Position, *, ahead: int) -> bool:
    """Whether a record that names a refused one may go before those that wait.

    Only for one that was really refused RETRYABLE, as `earlier` says, and while the position can carry one more;
    `ahead` are those of the group being formed already.
    """
    return earlier is not None and earlier.status == RETRYABLE and len(position.settled) + ahead < AHEAD_MAX
