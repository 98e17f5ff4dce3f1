"""Turns as the committer's loop gives them: refusals that are not told yet, and the holds that they wait for.

Such a refusal stands in the table already. As long as one is not told, the group's offset does not pass it, so that
whoever starts next tells it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import anyio

from committerd.committer.intake import Pending
from committerd.committer.publisher import Answers
from committerd.queue.outcomes import Status, status_of
from committerd.queue.position import Position
from committerd.queue.turns import Turns
from committerd.telemetry import Telemetry
from committerd_common.messages import Refusal
from committerd_common.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the loop does next."""

    tell: Sequence[Answers]
    """To be given first."""
    promised: frozenset[str]
    """Refused uuids whose next tries alone may be committed; none = whatever waits."""
    seconds: float
    """How long those are waited for; 0 = what has arrived is all."""


class Holding:
    """`Turns` with a clock, metrics, and the answers that wait."""

    def __init__(self, telemetry: Telemetry, *, hold_max: float) -> None:
        self._telemetry = telemetry
        self._turns = Turns(hold_max)
        self._untold: dict[str, list[tuple[int, Answers]]] = {}
        """Offset and answer, by uuid of the refused transaction; the same may have been staged twice."""
        self._answered: tuple[Position, int] | None = None
        self._left: frozenset[str] = frozenset()
        """Of a hold that is over: refused uuids whose next tries are here and not committed yet."""

    def note_answered(self, upto: tuple[Position, int] | None) -> None:
        """All that this position passes is answered, or kept here; with the version that carries it."""
        self._answered = upto

    def acknowledgeable(self) -> tuple[Position, int] | None:
        """Position and version that may be acknowledged: nothing that is not told yet, and nothing behind it."""
        if self._answered is None:
            return None
        position, version = self._answered
        first = min((offset for some in self._untold.values() for offset, _ in some), default=position.next_offset)
        return replace(position, next_offset=min(first, position.next_offset)), version

    def to_tell_later(self, refusals: Iterable[Refusal], pending: Iterable[Pending]) -> set[int]:
        """Offsets of those refused records whose answers are to be kept back."""
        refused = {refusal.offset for refusal in refusals if status_of(refusal) is Status.RETRYABLE}
        if not refused:
            return refused
        now = anyio.current_time()
        return {
            one.offset
            for one in pending
            if one.offset in refused and isinstance(one.decoded, Request) and self._waits(one.decoded, now)
        }

    def _waits(self, request: Request, now: float) -> bool:
        attempt = request.envelope.attempt
        return self._turns.refused(request.uuid, operation=request.operation, attempt=attempt, now=now)

    def keep(self, offset: int, uuid: str, answers: Answers) -> None:
        """Keep an answer back."""
        self._untold.setdefault(uuid, []).append((offset, answers))

    def turn(self, retries: Collection[str]) -> Turn:
        """Whose turn it is now; `retries` are the refused uuids whose next tries have arrived.

        Those that end a hold by arriving have their turn in it, one group after the other if they have to: other
        re-executions came earlier, maybe, and wait still.
        """
        held, seconds = frozenset(self._turns.promised), self._seconds_left(retries)
        if seconds:
            return Turn(tell=(), promised=held, seconds=seconds)
        before, self._left = self._left, (held or self._left) & frozenset(retries)
        if self._left and self._left != before:
            return Turn(tell=(), promised=self._left, seconds=0.0)
        if before:
            self._turns.pause(anyio.current_time())
        self._left = frozenset()
        uuids = self._turns.begin(anyio.current_time())
        told = [answers for uuid in uuids for _, answers in self._untold.pop(uuid, ())]
        return Turn(tell=told, promised=frozenset(self._turns.promised), seconds=self._seconds_left(retries))

    def _seconds_left(self, retries: Iterable[str]) -> float:
        now = anyio.current_time()
        ended = self._turns.end(retries, now)
        if ended is not None:
            self._telemetry.holds.add(ended=ended[0].value)
            self._telemetry.hold_seconds.add(ended[1])
        return self._turns.seconds_left(now)

    def patience(self, seconds: float) -> float:
        """At most so many seconds to wait for records: less, where a hold can begin earlier."""
        until = self._turns.seconds_until(anyio.current_time())
        return seconds if until is None else min(seconds, until)

    def end(self) -> list[Answers]:
        """The assignment is over: returns all that was kept back."""
        self._turns.forget()
        self._left = frozenset()
        untold = [answers for some in self._untold.values() for _, answers in some]
        self._untold.clear()
        return untold
