"""The requests of `committerd status` to Kafka. A request that fails is reported as a problem; the others still run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from committerd.errors import CommitterError, RefusedToRun
from committerd.kafka.operator import GroupDescription, TopicOperator
from committerd.kafka.transactions import OpenTransaction
from committerd.queue.most_waiting import most_waiting
from committerd.queue.port import Acknowledged, Record, TopicIdentity
from committerd.queue.position import Position
from committerd.queue.reach import lines_of
from committerd.queue.start import (
    OUTCOMES_TAIL,
    QueueFacts,
    decode_outcomes,
    refuse_rewritten_log,
    starting_position,
)
from committerd_common.messages import DecodeError, Outcome, Transaction

Response = TypeVar("Response")


_UNREAD_MAX = 10_000


@dataclass(slots=True)
class QueueState:
    """The known state of the queue; None = not known."""

    operator: TopicOperator
    identity: TopicIdentity | None = None
    bounds: tuple[int, int] | None = None
    acknowledged: Acknowledged | None = None
    outcomes: Sequence[Outcome] | None = None
    group: GroupDescription | None = None
    retention_ms: int | None = None
    """Retention of the staged topic; -1 = unlimited."""
    end: int | None = None
    """End of the staged log, including records that an open Kafka transaction holds back."""
    transactions: Sequence[OpenTransaction] = ()
    """Open Kafka transactions, if they hold records back."""
    oldest: Record | None = None
    """The first record that the position has not passed; None if there is none."""
    oldest_read_version: int | None = None
    """The lowest read version of the first 10,000 records that the position has not passed; None if there is none."""
    most_waiting: Mapping[str, int] = field(default_factory=dict)
    """How many of the first 10,000 records that the position has not passed are of which producer, the most first."""
    refusal: RefusedToRun | None = None
    """Why a committer would refuse to run; None if it would run."""
    problems: list[str] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Whether the committers' group has no member."""
        return self.group is not None and not self.group.members

    async def look_first(self) -> None:
        """Send the requests that must precede the reading of the table."""
        self.acknowledged = await self._response_to(self.operator.acknowledged())
        tail = await self._response_to(self.operator.outcomes_tail(OUTCOMES_TAIL))
        self.outcomes = None if tail is None else decode_outcomes(tail)

    async def look_then(self) -> None:
        """Send the other requests."""
        topics = self.operator.topics
        self.identity = await self._response_to(self.operator.identity())
        if self.identity is not None:
            bounds = await self._response_to(self.operator.bounds(topics.staged))
            self.bounds = None if bounds is None else bounds[0]
            self.end = await self._response_to(self.operator.end())
            if self.held_back:
                self.transactions = await self._response_to(self.operator.open_transactions()) or ()
        self.group = await self._response_to(self.operator.group())
        if self.idle:
            self.problems.append(
                f"no committer runs: consumer group {topics.group} has no member. Remedy: `committerd run`"
            )
        survey = await self._response_to(self.operator.survey())
        if survey is not None:
            self.problems += [one.problem for one in survey.checks if one.problem]
            found = survey.found.get(topics.staged)
            if found is not None and "retention.ms" in found.configs:
                self.retention_ms = int(found.configs["retention.ms"])

    async def compare(self, position: Position | None, *, table_exists: bool) -> None:
        """Find out whether a committer would run from this position, and the oldest record that waits for it."""
        if self.identity is None or self.bounds is None or self.outcomes is None:
            return
        log_start, log_end = self.bounds
        facts = QueueFacts(
            identity=self.identity,
            log_start=log_start,
            log_end=log_end,
            group=self.acknowledged,
            outcomes=self.outcomes,
        )
        try:
            start = starting_position(position, facts, table_exists=table_exists)
            if log_start <= start.last_offset:
                before = await self._response_to(self.operator.read(start.last_offset, start.last_offset + 1))
                refuse_rewritten_log(start, before or ())
        except RefusedToRun as error:
            self.refusal = error
            return
        await self._response_to(self._look_at_unread(start, log_end))

    @property
    def held_back(self) -> int:
        """Number of offsets that can't be read before an open Kafka transaction ends."""
        return max(self.end - self.bounds[1], 0) if self.end is not None and self.bounds is not None else 0

    def pending(self, position: Position | None) -> int | None:
        """Number of offsets that the position has not passed; None if it is not known."""
        if self.bounds is None or self.refusal is not None:
            return None
        if position is None:
            return self.bounds[1] - self.bounds[0]
        return self.bounds[1] - position.next_offset - len(position.settled)

    async def _look_at_unread(self, position: Position, log_end: int) -> None:
        """Find the oldest of the records that the position has not passed, their lowest read version and producers."""
        bounds = {0: (position.next_offset, log_end)}
        waiting = Counter[bytes]()
        async with aclosing(self.operator.stream(self.operator.topics.staged, bounds)) as batches:
            async for batch in batches:
                for _, record in batch:
                    if position.passes(record.offset):
                        continue
                    self.oldest = self.oldest or record
                    read_at = _read_version(record)
                    if read_at and (self.oldest_read_version is None or read_at < self.oldest_read_version):
                        self.oldest_read_version = read_at
                    headers = dict(record.headers)
                    waiting[lines_of(headers.get("producer", b""), headers.get("app-id", b""))[0]] += 1
                self.most_waiting = most_waiting(waiting)
                if waiting.total() >= _UNREAD_MAX:
                    return

    async def _response_to(self, request: Awaitable[Response]) -> Response | None:
        try:
            return await request
        except RefusedToRun as error:
            self.refusal = error
        except CommitterError as error:
            self.problems.append(str(error))
        return None


def _read_version(record: Record) -> int:
    """The read version of a record; 0 if it has none, or can't be decoded here."""
    try:
        return int(Transaction.FromString(record.value).read_version)
    except DecodeError:
        return 0
