"""Makes outcomes and dead letters from the queue entries of versions."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from committerd.committer.publisher import OutcomeBatch
from committerd.committer.stages import Traced, VersionStages
from committerd.queue.before_table import outcome_before_table
from committerd.queue.dead_letter import letter_of
from committerd.queue.outcomes import Settled, Status, Timings, committed, refused, status_of
from committerd.queue.port import Publication, Queue, Record
from committerd.queue.position import Position
from committerd.stretches import GiveWay, to_all
from committerd.telemetry import Telemetry
from committerd_common.messages import COMMITTED, Member, Outcome, Refusal

_log = logging.getLogger(__name__)

_IN_A_STRETCH = 32
"""Outcomes to make before the stretch of work may end."""

Entry = tuple[Settled, Member | Refusal]


class PutTime(NamedTuple):
    """When a version was put."""

    began_ms: int
    """Unix milliseconds."""
    commit_ms: int
    """How long it took, in milliseconds."""
    stages: VersionStages | None = None
    """Those of the version; None = its records are not traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeMaker:
    """Makes outcomes and dead letters."""

    queue: Queue
    telemetry: Telemetry
    log_all: bool = False
    note: Callable[[Sequence[Outcome]], None] = lambda outcomes: None
    """Called with the outcomes of new versions."""
    give_way: GiveWay = to_all

    async def make_again(self, entries: Sequence[Entry], position: Position) -> AsyncIterator[OutcomeBatch]:
        """Yield the outcomes of entries (by ascending offset) again, from the table alone, in some batches.

        Dead letters need the record, which is read from the log again; those whose record the log has lost are left
        out. A batch has the dead letters of at most `READ_BYTES_MAX` bytes of records.
        """
        self.telemetry.republished_outcomes.add(len(entries))
        bad, made = [entry.offset for _, entry in entries if status_of(entry).is_dead_letter], 0
        async for records in read_parts(self.queue, bad):
            end = bisect_right(entries, records[-1].offset, key=lambda one: one[1].offset)
            some = {record.offset: record for record in records}
            yield await self.make(entries[made:end], position, records=some)
            made = end
        if made < len(entries):
            yield await self.make(entries[made:], position, records={})

    def make_before_table(self, refusal: Refusal, position: Position) -> OutcomeBatch:
        """Make the outcome of a record that is refused while there is no table. A version counts and logs it later."""
        outcome = outcome_before_table(refusal, position)
        _log.info(
            "transaction.refused_before_table",
            extra={"uuid": outcome.uuid, "reason": outcome.reason, "text": outcome.message, "offset": outcome.offset},
        )
        return OutcomeBatch(outcomes=[_publication(refusal, outcome, position)])

    async def make(
        self,
        entries: Iterable[Entry],
        position: Position,
        *,
        records: Mapping[int, Record],
        put: PutTime | None = None,
    ) -> OutcomeBatch:
        """Make the outcomes of records that versions settle.

        `records`: the records that may become dead letters, by offset. `put`: of the version that settles them; None =
        the outcomes were published before, so they are not counted and logged.
        """
        made, outcomes, letters, submitted = [], [], [], []
        traced = list[Traced]()
        for place, (settled, entry) in enumerate(entries):
            if place % _IN_A_STRETCH == 0:
                await self.give_way()
            record, timings = records.get(entry.offset), Timings()
            if record is not None and put is not None:
                timings = Timings(max(put.began_ms - record.timestamp_ms, 0), put.commit_ms)
                self.telemetry.queue_wait.observe(timings.queued_ms / 1000)
                submitted.append((status_of(entry).value.lower(), record.timestamp_ms))
            if isinstance(entry, Member):
                outcome = committed(entry, settled, position, timings)
            else:
                outcome = refused(entry, position, timings)
            made.append(outcome)
            if put is not None and put.stages is not None and put.stages.version == settled.version:
                timestamp_ms = None if record is None else record.timestamp_ms
                traced.append(Traced(outcome, entry.traceparent, timestamp_ms, put.stages))
            outcomes.append(_publication(entry, outcome, position))
            if not isinstance(entry, Member) and status_of(entry).is_dead_letter:
                if record is None:
                    _log.warning(
                        "dead_letter.record_gone",
                        extra={"offset": entry.offset, "reason": outcome.reason},
                    )
                else:
                    letters.append(letter_of(record, outcome))
        if put is not None:
            self._count(made)
            self.note(made)
        return OutcomeBatch(outcomes=outcomes, letters=letters, submitted=submitted, traced=traced)

    def _count(self, outcomes: Iterable[Outcome]) -> None:
        counted: Counter[tuple[str, int]] = Counter()
        for outcome in outcomes:
            counted[outcome.operation, outcome.status] += 1
            if outcome.status != COMMITTED or self.log_all:
                self._count_other(outcome)
        for (operation, number), count in counted.items():
            self.telemetry.transactions.add(count, operation=operation, outcome=Status.of_number(number).value.lower())

    def _count_other(self, outcome: Outcome) -> None:
        status = Status.of_number(outcome.status)
        if status is Status.DUPLICATE:
            self.telemetry.duplicates.add(reason=outcome.reason)
        if status.is_dead_letter:
            self.telemetry.dead_letters.add(reason=outcome.reason)
        _log.info(
            "transaction.settled",
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


async def read_parts(queue: Queue, offsets: Sequence[int]) -> AsyncIterator[Sequence[Record]]:
    """Yield the records at these offsets (ascending) that still exist, in parts as large as `Queue.read` returns them.

    No part is empty. Raises `QueueUnavailable`.
    """
    wanted, place = frozenset(offsets), 0
    while place < len(offsets):
        records = await queue.read(offsets[place], offsets[-1] + 1)
        if not records:
            return
        place = bisect_right(offsets, records[-1].offset)
        found = [record for record in records if record.offset in wanted]
        if found:
            yield found


def _publication(entry: Member | Refusal, outcome: Outcome, position: Position) -> Publication:
    """The outcome as a message. By topic and offset, clients find an outcome without a uuid."""
    headers = [("topic", position.topic.encode()), ("offset", str(entry.offset).encode())]
    if entry.traceparent:
        headers.append(("traceparent", entry.traceparent.encode()))
    return Publication(
        key=outcome.uuid.encode(),
        value=outcome.SerializeToString(),
        headers=headers,
        partition=entry.outcome_partition,
    )
