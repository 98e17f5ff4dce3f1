"""Holds back the outcomes of refused transactions until a hold begins for their re-executions, or it is their turn.

A held-back refusal is already in the table. Until its outcome is published, the group offset does not pass it, so the
next Start publishes it if this process crashes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio

from committerd.committer.intake import Pending
from committerd.committer.publisher import OutcomeBatch
from committerd.lance.rows.change import RowsAndKeys
from committerd.queue.outcomes import Status, status_of
from committerd.queue.position import Position
from committerd.queue.precedence import Precedence
from committerd.queue.turns import HoldEnding, Turns
from committerd.telemetry import Telemetry
from committerd_common.messages import Refusal
from committerd_common.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The loop's next step."""

    publish: Sequence[OutcomeBatch]
    """Held-back outcomes to publish first."""
    held_for: frozenset[str]
    """Uuids of the refused transactions whose re-executions alone may be committed; empty = no hold."""
    seconds: float
    """How long to wait for those re-executions; 0 = do not wait for more."""


class Holding:
    """`Turns` and `Precedence`, with a clock, metrics, and the outcomes that are held back."""

    def __init__(self, telemetry: Telemetry, precedence: Precedence, *, hold_max: float) -> None:
        self._telemetry = telemetry
        self._precedence = precedence
        self._turns = Turns(hold_max)
        self._held_back: dict[str, list[tuple[int, OutcomeBatch]]] = {}
        """By uuid of the refused transaction: offset and held-back outcome of each of its records.

        A transaction may have been staged twice.
        """
        self._settled: tuple[Position, int] | None = None
        """The argument of the last `note_settled`."""
        self._left: frozenset[str] = frozenset()
        """Uuids of a hold that is over, whose re-executions have arrived and are not committed yet."""

    def note_settled(self, upto: tuple[Position, int] | None) -> None:
        """Note that all outcomes below this position are given to the publisher or held back here.

        `upto`: the position, and the version that carries it.
        """
        self._settled = upto

    def acknowledgeable(self) -> tuple[Position, int] | None:
        """Return the position and version that may be acknowledged: up to the first offset that is held back."""
        if self._settled is None:
            return None
        position, version = self._settled
        first = min((offset for some in self._held_back.values() for offset, _ in some), default=position.next_offset)
        return replace(position, next_offset=min(first, position.next_offset)), version

    def note_retries(self, retries: Iterable[str | None]) -> None:
        """Note that re-executions were committed or refused; `retries` are the refused uuids that they name."""
        if arrived := self._precedence.settled(uuid for uuid in retries if uuid is not None):
            self._telemetry.precedences.add(arrived, ended=HoldEnding.ARRIVED.value)

    def to_hold_back(
        self, refusals: Iterable[Refusal], pending: Iterable[Pending], rows_and_keys: Mapping[int, RowsAndKeys]
    ) -> set[int]:
        """Return the offsets of those refused records whose outcomes are to be held back.

        `rows_and_keys`: as `FormedVersion.rows_and_keys`.
        """
        refused = {refusal.offset for refusal in refusals if status_of(refusal) is Status.RETRYABLE}
        if not refused:
            return refused
        return {
            one.offset
            for one in pending
            if one.offset in refused
            and isinstance(one.decoded, Request)
            and self._waits(one.decoded, one.retry_of, rows_and_keys.get(one.offset))
        }

    def is_awaited(self, rows_and_keys: Iterable[RowsAndKeys]) -> bool:
        """Whether one of these refused transactions gets precedence at once, so that its producer waits for it."""
        return any(self._precedence.may_be_first(one) for one in rows_and_keys)

    def _waits(self, request: Request, retry_of: str | None, rows_and_keys: RowsAndKeys | None) -> bool:
        """Whether a refusal waits. `retry_of`: the refused uuid whose ticket the record had; None = it had none, so
        that it counts as a first attempt for a hold, whatever its headers say.
        """
        attempt, now = request.envelope.attempt, anyio.current_time()
        if rows_and_keys is not None and self._precedence.takes(attempt=attempt, now=now):
            return self._precedence.refused(request.uuid, rows_and_keys, retry_of=retry_of, now=now)
        return self._turns.refused(
            request.uuid, operation=request.operation, attempt=1 if retry_of is None else max(attempt, 2)
        )

    def hold_back(self, offset: int, uuid: str, batch: OutcomeBatch) -> None:
        """Hold back an outcome."""
        self._held_back.setdefault(uuid, []).append((offset, batch))

    def turn(self, retries: Collection[str]) -> Turn:
        """Return the next turn.

        `retries`: uuids of the refused transactions whose re-executions have arrived. When those of the hold have all
        arrived, the hold ends, but they keep the turn until they are committed, in several groups if necessary. Other
        re-executions, which may have arrived earlier, still wait.
        """
        held, seconds = frozenset(self._turns.held_for), self._seconds_left(retries)
        if seconds:
            return Turn(publish=(), held_for=held, seconds=seconds)
        before, self._left = self._left, (held or self._left) & frozenset(retries)
        if self._left and self._left != before:
            return Turn(publish=(), held_for=self._left, seconds=0.0)
        if before:
            self._turns.pause(anyio.current_time())
        self._left = frozenset()
        now = anyio.current_time()
        if expired := self._precedence.expire(now, arrived=retries):
            self._telemetry.precedences.add(expired, ended=HoldEnding.EXPIRED.value)
        uuids = [*self._precedence.due(now), *self._turns.begin(now)]
        due = [batch for uuid in uuids for _, batch in self._held_back.pop(uuid, ())]
        return Turn(publish=due, held_for=frozenset(self._turns.held_for), seconds=self._seconds_left(retries))

    def _seconds_left(self, retries: Iterable[str]) -> float:
        now = anyio.current_time()
        ended = self._turns.end(retries, now)
        if ended is not None:
            self._telemetry.holds.add(ended=ended[0].value)
            self._telemetry.hold_seconds.add(ended[1])
        return self._turns.seconds_left(now)

    def patience(self, seconds: float) -> float:
        """Return how long to wait for records: `seconds`, or less if a hold can begin before."""
        now = anyio.current_time()
        untils = (self._turns.seconds_until(now), self._precedence.seconds_until(now))
        return min([seconds, *(until for until in untils if until is not None)])

    def end(self) -> list[OutcomeBatch]:
        """End the assignment: returns all outcomes that were held back."""
        self._turns.forget()
        self._precedence.forget()
        self._left = frozenset()
        held_back = [batch for some in self._held_back.values() for _, batch in some]
        self._held_back.clear()
        return held_back
