"""From what a version says to what is sent: outcomes, dead letters, and the acknowledgement behind them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from committerd.committer.publisher import Answers, Publisher
from committerd.queue.dead_letter import letter_of
from committerd.queue.outcomes import Settled, Status, Timings, committed, refused, status_of
from committerd.queue.port import Publication, Queue, Record
from committerd.queue.position import Position
from committerd.telemetry import Telemetry
from committerd_common.messages import COMMITTED, Member, Outcome, Refusal
from committerd_common.messages import Status as StatusNumber

_log = logging.getLogger(__name__)

Entry = tuple[Settled, Member | Refusal]

_LETTER_OVERHEAD_BYTES = 1024
"""What a batch of one record adds to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """Makes answers and hands them to the publisher."""

    queue: Queue
    publisher: Publisher
    telemetry: Telemetry
    acknowledgement: Callable[[Position, int], str]
    log_all: bool = False
    letter_bytes_max: int = 1024 * 1024

    async def give(
        self,
        answers: Answers,
        *,
        generation: int,
        acknowledge: tuple[Position, int] | None = None,
        room: tuple[int, int] = (0, 0),
    ) -> None:
        """Hand over answers with the acknowledgement (position, table version) that they allow."""
        await self.publisher.give(
            replace(
                answers,
                generation=generation,
                acknowledge=acknowledge[0].next_offset if acknowledge else None,
                metadata=self.acknowledgement(*acknowledge) if acknowledge else "",
                records=room[0],
                bytes=room[1],
            )
        )

    async def again(self, entries: Sequence[Entry], position: Position) -> Answers:
        """Answers from the table alone. Dead letters need the record once more; what the log lost is left out."""
        bad = [entry.offset for _, entry in entries if status_of(entry).is_dead_letter]
        records = {}
        if bad:
            records = {r.offset: r for r in await self.queue.read(min(bad), max(bad) + 1) if r.offset in set(bad)}
        self.telemetry.republished_answers.add(len(entries))
        return self.answers(entries, position, records=records, first_time=False)

    def answers(
        self,
        entries: Iterable[Entry],
        position: Position,
        *,
        records: Mapping[int, Record],
        timings: Mapping[int, Timings] | None = None,
        first_time: bool = True,
    ) -> Answers:
        """Answers to records that versions settle. `records` has those that may become dead letters, by offset.

        Those that are told again are not counted and logged again.
        """
        told, outcomes, letters = [], [], []
        topic, timings = position.topic.encode(), timings or {}
        for settled, entry in entries:
            timing = timings.get(entry.offset)
            if isinstance(entry, Member):
                outcome = committed(entry, settled, position, timing)
            else:
                outcome = refused(entry, position, timing)
            told.append(outcome)
            outcomes.append(
                Publication(
                    key=outcome.uuid.encode(),
                    value=outcome.SerializeToString(),
                    headers=_headers(entry, topic),
                    partition=entry.outcome_partition,
                )
            )
            if not isinstance(entry, Member) and status_of(entry).is_dead_letter:
                record = records.get(entry.offset)
                if record is None:
                    _log.warning(
                        "dead_letter.record_gone",
                        extra={"offset": entry.offset, "reason": outcome.reason},
                    )
                else:
                    letters.append(self._letter(record, outcome))
        if first_time:
            self._count(told)
        return Answers(generation=0, outcomes=outcomes, letters=letters)

    def _letter(self, record: Record, outcome: Outcome) -> Publication:
        """The record as it was, with the reason beside it; without its value where that would not fit."""
        reasons = [
            ("committerd-status", StatusNumber.Name(outcome.status).encode()),
            ("committerd-reason", outcome.reason.encode()),
            ("committerd-message", outcome.message.encode()),
            ("committerd-topic", outcome.topic.encode()),
            ("committerd-offset", str(outcome.offset).encode()),
            ("committerd-timestamp-ms", str(record.timestamp_ms).encode()),
        ]
        return letter_of(record, reasons, room=self.letter_bytes_max - _LETTER_OVERHEAD_BYTES)

    def _count(self, outcomes: Iterable[Outcome]) -> None:
        answered: Counter[tuple[str, int]] = Counter()
        for outcome in outcomes:
            answered[outcome.operation, outcome.status] += 1
            if outcome.status != COMMITTED or self.log_all:
                self._count_other(outcome)
        for (operation, number), count in answered.items():
            self.telemetry.transactions.add(count, operation=operation, outcome=Status.of_number(number).value.lower())

    def _count_other(self, outcome: Outcome) -> None:
        status = Status.of_number(outcome.status)
        if status is Status.DUPLICATE:
            self.telemetry.duplicates.add(reason=outcome.reason)
        if status.is_dead_letter:
            self.telemetry.dead_letters.add(reason=outcome.reason)
        _log.info(
            "transaction.answered",
            extra={
                "uuid": outcome.uuid,
                "status": status.value,
                "operation": outcome.operation,
                "reason": outcome.reason,
                "text": outcome.message,
                "version": outcome.version,
                "read_version": outcome.read_version,
                "conflicting_version": outcome.conflicting_version,
                "producer": outcome.producer,
                "offset": outcome.offset,
                "queued_ms": outcome.queued_ms,
                "commit_ms": outcome.commit_ms,
            },
        )


def _headers(entry: Member | Refusal, topic: bytes) -> list[tuple[str, bytes]]:
    """An answer without a uuid is found by topic and offset."""
    headers = [("topic", topic), ("offset", str(entry.offset).encode())]
    if entry.traceparent:
        headers.append(("traceparent", entry.traceparent.encode()))
    return headers
