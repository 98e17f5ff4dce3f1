"""Replaces the reservations as time passes and versions settle records, and holds back the outcomes of those in line.

A refusal whose outcome is held back is already in the table. Until the outcome is published, the group offset does not
pass it, so the next Start publishes it if this process crashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import anyio

from committerd.committer.intake import Intake, Pending
from committerd.committer.publisher import OutcomeBatch
from committerd.lance.rows.change import RowsAndKeys
from committerd.queue.outcomes import Status, status_of
from committerd.queue.position import Position
from committerd.queue.reservations import Reservations, Retryable
from committerd.telemetry import Telemetry
from committerd_common.messages import Refusal
from committerd_common.request import MARK_MOVED


class Holding:
    """The only writer of `Intake.reservations`, with a clock, metrics, and the outcomes that are held back."""

    def __init__(self, intake: Intake, telemetry: Telemetry, *, seconds_max: float) -> None:
        """`seconds_max`: how long something is reserved at most, in seconds."""
        self._intake = intake
        self._telemetry = telemetry
        self._intake.reservations = Reservations(seconds_max=seconds_max)
        self._held_back: list[tuple[int, str, OutcomeBatch]] = []
        """Offset, uuid and outcome of each record that is held back."""
        self._settled: tuple[Position, int] | None = None
        """The argument of the last `note_settled`."""

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
        first = min((offset for offset, _, _ in self._held_back), default=position.next_offset)
        return replace(position, next_offset=min(first, position.next_offset)), version

    def settle(
        self,
        position: Position,
        refusals: Iterable[Refusal],
        pending: Mapping[int, Pending],
        rows_and_keys: Mapping[int, RowsAndKeys],
    ) -> set[int]:
        """Note that the table's position has passed records; returns the offsets of those whose outcomes wait in line.

        `refusals`: of these records. `pending`: those of them that the intake has, by offset. `rows_and_keys`: as
        `FormedVersion.rows_and_keys`.
        """
        retries = [one.retry_of for one in self._intake.waiting_retries() if position.passes(one.offset)]
        retryable = {
            one.offset: one
            for one in refusals
            if status_of(one) is Status.RETRYABLE and one.reason != MARK_MOVED  # room for its rows can't help
        }
        refused = [
            Retryable(
                uuid=one.uuid,
                producer=one.producer,
                operation=one.operation,
                attempt=pending[offset].attempt if offset in pending else 1,
                retry_of=pending[offset].retry_of if offset in pending else None,
                rows_and_keys=rows_and_keys.get(offset),
            )
            for offset, one in retryable.items()
        ]
        now = anyio.current_time()
        after = self._intake.reservations.settled([uuid for uuid in retries if uuid], refused, now=now)
        self._replace(after, now, ended="arrived")
        return {offset for offset, one in retryable.items() if one.uuid in after.line}

    def hold_back(self, offset: int, uuid: str, batch: OutcomeBatch) -> None:
        """Hold back an outcome, as long as its transaction is in line."""
        self._held_back.append((offset, uuid, batch))

    def pass_time(self) -> Sequence[OutcomeBatch]:
        """Let time pass for the reservations; returns the outcomes that are not to be held back any more."""
        now = anyio.current_time()
        self._replace(self._intake.reservations.at(now, arrived=self._intake.retries()), now, ended="expired")
        return self._due()

    def seconds_until(self) -> float:
        """Return the seconds until `pass_time` may change something; infinite if it never does."""
        return self._intake.reservations.seconds_until(anyio.current_time())

    def end(self) -> Sequence[OutcomeBatch]:
        """End the assignment; returns all outcomes that were held back."""
        self._intake.reservations = self._intake.reservations.forgotten()
        return self._due()

    def _due(self) -> Sequence[OutcomeBatch]:
        line = self._intake.reservations.line
        due = [batch for _, uuid, batch in self._held_back if uuid not in line]
        self._held_back = [one for one in self._held_back if one[1] in line]
        return due

    def _replace(self, after: Reservations, now: float, *, ended: Literal["arrived", "expired"]) -> None:
        """Replace the reservations, and count those that are over."""
        before, self._intake.reservations = self._intake.reservations, after
        over = [one for uuid, one in before.reserved.items() if uuid not in after.reserved]
        if rows := sum(one.rows is not None for one in over):
            self._telemetry.precedences.add(rows, ended=ended)
        if before.hold and not after.hold:
            self._telemetry.holds.add(ended="arrived" if after.complete_at <= now else ended)
            self._telemetry.hold_seconds.add(before.held_seconds(now))
