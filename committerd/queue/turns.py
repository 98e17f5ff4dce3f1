"""Turns: re-executions go first, and after a second refusal other records wait for a moment.

An upsert conflicts with every Append since its read version, so under a stream of Appends it would never be committed.
A record that names the refused record that it re-executes (`retry-of`) goes before waiting records. If that is refused
too, a *hold* begins: the committer commits nothing else until the next try arrives. A hold may be for several records
that were refused in the meantime, and each is committed as it arrives. They are all of one operation: if an Update and
a Rewrite had a hold together, the first to arrive would conflict with the other.

A hold lasts `hold_max` seconds at most, and holds take at most a quarter of the time. After each hold comes a *pause*,
three times as long, in which everything is committed; group commit absorbs the records that waited. In a pause, the
refusal of a re-execution is not published: its next try would come too late again. First refusals of an operation that
has needed holds wait as well: the less the table has changed since the second try was executed, the sooner the third
arrives, and under a stream of Appends the changes grow with the length of the pause. No refusal waits much longer
than two holds with their pauses take.

The number of records in a hold adapts, for each operation: it halves after a hold that expires, and grows by one after
a hold that does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from committerd.queue.position import Position
from committerd_common.messages import RETRYABLE, Refusal

AHEAD_MAX = 256
"""The largest number of offsets that a position carries as settled ahead."""
HELD_SHARE = 0.25
"""The largest share of the time that holds take, in the long run."""
ATTEMPT_TO_HOLD_FOR = 2
"""The lowest attempt whose refusal leads to a hold. A first refusal is normal under load, and costs one more try."""
WAITING_MAX = 1000
"""The largest number of refusals that wait to be published; any further one is published at once."""
_TOGETHER_FIRST = 8
"""The largest number of records in an operation's first hold."""
_TOGETHER_MAX = AHEAD_MAX
_PATIENCE = 2 / HELD_SHARE
"""The longest wait of a refusal, in units of `hold_max`: two holds of full length, each with its pause."""


class HoldEnding(StrEnum):
    """The reason why a hold ended."""

    ARRIVED = "arrived"
    """All re-executions that it waited for have arrived."""
    EXPIRED = "expired"
    """`hold_max` seconds have passed."""


@dataclass(frozen=True, slots=True)
class _WaitingRefusal:
    refused_at: float
    operation: str
    again: bool
    """Whether the refused record was a re-execution. A hold waits for the next try of a re-execution. The next try of a
    first attempt may be committed in the same hold, but the hold does not wait for it.
    """


@dataclass(slots=True)
class Turns:
    """The holds of one committer. Times are in seconds, on a monotonic clock."""

    hold_max: float
    held_for: set[str] = field(default_factory=set)
    """The refused uuids whose next tries may be committed during the present hold."""
    _waiting: dict[str, _WaitingRefusal] = field(default_factory=dict)
    """The refusals that wait to be published, by uuid, in the order of refusal."""
    _awaited: set[str] = field(default_factory=set)
    """The refused uuids whose next tries the present hold waits for; empty if there is no hold."""
    _operation: str = ""
    """The operation of the present hold's records."""
    _since: float = 0.0
    _until: float = 0.0
    _held: float = 0.0
    """The length of the last hold in seconds."""
    _pause_until: float = -math.inf
    _together: dict[str, int] = field(default_factory=dict)
    """The largest number of records in a hold, by operation; only for operations that have had a hold."""

    def refused(self, uuid: str, *, operation: str, attempt: int, now: float) -> bool:
        """Note that a record was refused RETRYABLE.

        Returns whether the refusal waits: then it is published only once `begin` returns its uuid.
        """
        again = attempt >= ATTEMPT_TO_HOLD_FOR
        if self.hold_max <= 0 or not (again or self._would_be_late(operation, now)):
            return False
        if again and self._awaited and operation == self._operation and len(self.held_for) < self._most(operation):
            self._awaited.add(uuid)
            self.held_for.add(uuid)
            return False
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting[uuid] = _WaitingRefusal(refused_at=now, operation=operation, again=again)
        return True

    def _would_be_late(self, operation: str, now: float) -> bool:
        """Whether a second try that starts now would be refused in a pause, or come after the hold that is due."""
        return (operation in self._together and now < self._pause_until) or any(
            refusal.again and refusal.operation == operation for refusal in self._waiting.values()
        )

    def _most(self, operation: str) -> int:
        return self._together.get(operation, _TOGETHER_FIRST)

    def begin(self, now: float) -> list[str]:
        """Begin a hold if one is due, unless there is a hold or a pause.

        Returns the uuids whose refusals are to be published now: those of the new hold; outside of holds and pauses,
        first refusals of operations for which no hold is due any more; and at any time those that have waited too long.
        """
        publish_now = dict.fromkeys(
            u for u, refusal in self._waiting.items() if now - refusal.refused_at > self.hold_max * _PATIENCE
        )
        if not self._awaited and now >= self._pause_until:
            publish_now = dict.fromkeys((*self._begin(now), *publish_now))
            waiting = {
                refusal.operation
                for uuid, refusal in self._waiting.items()
                if refusal.again and uuid not in publish_now
            }
            publish_now |= dict.fromkeys(
                uuid for uuid, refusal in self._waiting.items() if refusal.operation not in waiting
            )
        for uuid in publish_now:
            del self._waiting[uuid]
        return list(publish_now)

    def _begin(self, now: float) -> list[str]:
        longest = next((refusal for refusal in self._waiting.values() if refusal.again), None)
        if longest is None:
            return []
        self._operation = longest.operation
        others = [uuid for uuid, refusal in self._waiting.items() if refusal.operation == self._operation]
        first = sorted(others, key=lambda uuid: not self._waiting[uuid].again)[: self._most(self._operation)]
        self._since, self._until = now, now + self.hold_max
        self._awaited.update(uuid for uuid in first if self._waiting[uuid].again)
        self.held_for.update(first)
        return first

    def seconds_until(self, now: float) -> float | None:
        """Seconds until `begin` may return a uuid; None if no refusal waits."""
        if not self._waiting:
            return None
        patience = next(iter(self._waiting.values())).refused_at + self.hold_max * _PATIENCE - now
        return max(patience if self._awaited else min(patience, self._pause_until - now), 0.0)

    def seconds_left(self, now: float) -> float:
        """Seconds that the present hold still lasts; 0 = there is none, or its time is over."""
        return max(self._until - now, 0.0) if self._awaited else 0.0

    def end(self, retries: Iterable[str], now: float) -> tuple[HoldEnding, float] | None:
        """Note the re-executions that have arrived; end the hold if none is missing any more, or its time is over.

        `retries` are the refused uuids that they name. Returns how the hold ended, and its length in seconds; None if
        there is no hold, or it goes on.
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
            self._together[self._operation] = max(len(self.held_for) // 2, 1)
        self._awaited.clear()
        self.held_for.clear()
        return (HoldEnding.ARRIVED if arrived else HoldEnding.EXPIRED), self._held

    def pause(self, now: float) -> None:
        """Begin the pause after the last hold, at `now`.

        It begins anew when the re-executions whose arrival ended the hold are committed.
        """
        self._pause_until = now + self._held * (1 / HELD_SHARE - 1)

    def forget(self) -> None:
        """Drop all holds and all waiting refusals, because the assignment is over. A pause stays in force."""
        self._waiting.clear()
        self._awaited.clear()
        self.held_for.clear()


def goes_ahead(earlier: Refusal | None, position: Position, *, ahead: int) -> bool:
    """Whether a re-execution may go before waiting records.

    It may if the record that it names was really refused RETRYABLE (`earlier`), and if the position can carry one more
    offset as settled ahead. `ahead` is the number of such offsets in the group being formed.
    """
    return earlier is not None and earlier.status == RETRYABLE and len(position.settled) + ahead < AHEAD_MAX
