"""Turns: re-executions go first, and after a second refusal other records wait for a moment.

An upsert conflicts with every Append since its read version that does not name its keys, so under a stream of such
Appends it would never be committed.
A record that names the refused record that it re-executes (`retry-of`) goes before waiting records. The header alone
proves nothing: each refusal is a ticket for one record of the same producer (`Tickets`). If that record is refused too,
a *hold* begins: the committer commits nothing else until the next try arrives. A hold is for all records of one
operation whose refusals wait, and each is committed as it arrives. They are of one operation because the first Update
to arrive would conflict with a Rewrite in the same hold.

A hold lasts `hold_max` seconds at most, and holds take at most a quarter of the time. After each hold comes a *pause*,
three times as long, in which everything is committed; group commit absorbs the records that waited. In a pause, the
refusal of a re-execution is not published: its next try would come too late again. It is published when the next hold
of its operation begins; the operation that has waited longest comes first.

`make turns` measures upserts under a stream of Appends, and tests/queue/turns_load.py does so without a clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

AHEAD_MAX = 256
"""The largest number of offsets that a position carries as settled ahead."""
HELD_SHARE = 0.25
"""The largest share of the time that holds take, in the long run."""
ATTEMPT_TO_HOLD_FOR = 2
"""The lowest attempt whose refusal leads to a hold. A first refusal is normal under load, and costs one more try."""
TICKETS_MAX = 4096
"""The largest number of refusals whose re-executions may go first; with more, the oldest no longer may."""
WAITING_MAX = 1000
"""The largest number of refusals that wait to be published; any further one is published at once."""


class HoldEnding(StrEnum):
    """The reason why a hold ended."""

    ARRIVED = "arrived"
    """All re-executions that it waited for have arrived."""
    EXPIRED = "expired"
    """`hold_max` seconds have passed."""


@dataclass(slots=True)
class Tickets:
    """The refused transactions that may be re-executed before waiting records: each once, and by its own producer.

    A record that names another refused transaction, or one whose ticket was taken, goes in the order of offsets.
    """

    _producers: dict[str, str] = field(default_factory=dict)
    """By refused uuid, the header `producer` of its record; the newest last."""

    def give(self, uuid: str, producer: str) -> None:
        """Note that a record of this producer was refused RETRYABLE."""
        self._producers.pop(uuid, None)
        self._producers[uuid] = producer
        if len(self._producers) > TICKETS_MAX:
            del self._producers[next(iter(self._producers))]

    def take(self, uuid: str, producer: str) -> bool:
        """Whether a record of this producer that names this refused uuid may go first; no other one may then."""
        if self._producers.get(uuid) != producer:
            return False
        del self._producers[uuid]
        return True


@dataclass(slots=True)
class Turns:
    """The holds of one committer. Times are in seconds, on a monotonic clock."""

    hold_max: float
    held_for: set[str] = field(default_factory=set)
    """The refused uuids whose next tries may be committed during the present hold."""
    _waiting: dict[str, str] = field(default_factory=dict)
    """The operations of the refusals that wait to be published, by uuid, in the order of refusal."""
    _awaited: set[str] = field(default_factory=set)
    """Those of `held_for` whose next tries have not arrived; empty if there is no hold."""
    _operation: str = ""
    """The operation of the present hold's records."""
    _since: float = 0.0
    _until: float = 0.0
    _held: float = 0.0
    """The length of the last hold in seconds."""
    _pause_until: float = -math.inf

    def refused(self, uuid: str, *, operation: str, attempt: int) -> bool:
        """Note that a record was refused RETRYABLE.

        Returns whether the refusal waits: then it is published only once `begin` returns its uuid. If it joins the
        present hold, it does not wait.
        """
        if self.hold_max <= 0 or attempt < ATTEMPT_TO_HOLD_FOR:
            return False
        if self._awaited and operation == self._operation and len(self.held_for) < AHEAD_MAX:
            self._awaited.add(uuid)
            self.held_for.add(uuid)
            return False
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting[uuid] = operation
        return True

    def begin(self, now: float) -> list[str]:
        """Begin a hold if a refusal waits, unless there is a hold or a pause.

        Returns the uuids whose refusals are to be published now: those that the hold is for.
        """
        if self._awaited or now < self._pause_until or not self._waiting:
            return []
        self._operation = next(iter(self._waiting.values()))
        chosen = [uuid for uuid, operation in self._waiting.items() if operation == self._operation][:AHEAD_MAX]
        for uuid in chosen:
            del self._waiting[uuid]
        self._since, self._until = now, now + self.hold_max
        self._awaited.update(chosen)
        self.held_for.update(chosen)
        return chosen

    def seconds_until(self, now: float) -> float | None:
        """Seconds until `begin` may return a uuid; None if no refusal waits, or if the present hold must end first."""
        if not self._waiting or self._awaited:
            return None
        return max(self._pause_until - now, 0.0)

    def seconds_left(self, now: float) -> float:
        """Seconds that the present hold still lasts; 0 = there is none, or its time is over."""
        return max(self._until - now, 0.0) if self._awaited else 0.0

    def end(self, retries: Iterable[str], now: float) -> tuple[HoldEnding, float] | None:
        """Note the re-executions that have arrived; end the hold if none is missing any more, or its time is over.

        `retries` are the refused uuids that they name. Returns how the hold ended, and its length in seconds; None if
        there is no hold, or it continues.
        """
        if not self._awaited:
            return None
        self._awaited.difference_update(retries)
        arrived = not self._awaited
        if not arrived and now < self._until:
            return None
        self._held = min(now, self._until) - self._since
        self.pause(self._since + self._held)
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
