"""Finds the outcome of a transaction that another process submitted, or this one before a restart.

Before a process submits a transaction, it saves (in a file, a row, a checkpoint) the transaction's uuid and
`client.bookmark()`. The uuid and a time are enough if the client has a `producer` name that stays the same over
restarts, because the name chooses the partition of the outcomes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from kafka import KafkaConsumer, TopicPartition

from committerd_client.connection import Connection
from committerd_client.errors import KafkaUnavailable, OutcomeNotFound
from committerd_client.kafka_repairs import connect, partitions_of
from committerd_common.messages import COMMITTED, DECODE_ERRORS, DUPLICATE, STATUS_UNSPECIFIED, UNDECIDED, Outcome

T = TypeVar("T")

_CLOCKS_APART_MS = 60_000
"""How far a producer's clock may be ahead of a broker's, in milliseconds."""
_POLL_MS = 200


class Bookmark(NamedTuple):
    """A place in the outcomes topic. Records that are submitted after it was taken have their outcomes at it or later.

    It is two numbers, which can be stored in any form; `Bookmark(*numbers)` restores it.
    """

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedRange:
    """The part of the outcomes topic that was searched."""

    topic: str
    partition: int
    first_offset: int
    lost: bool
    """Whether the topic has already dropped outcomes at or after the bookmark."""


class OutcomeSearch:
    """Searches one partition of the outcomes topic for the outcome of one uuid, with its own consumer.

    The methods block. Call them one after the other, except `stop`.
    """

    def __init__(self, connection: Connection, uuid: str) -> None:
        self._connection = connection
        self.uuid = uuid
        self._consumer: Any = None
        self._place: Any = None
        self._stopped = threading.Event()
        self.best: Outcome | None = None

    def stop(self) -> None:
        """Make the running method end soon; may be called from any thread."""
        self._stopped.set()

    def read_backlog(self, since: Bookmark | datetime, partition: int) -> SearchedRange:
        """Read the outcomes that are there now. Raises `KafkaUnavailable`.

        `partition`: the one to read if `since` is a time; a bookmark names its own.
        """
        try:
            return self._read_backlog(since, partition)
        except KafkaUnavailable:
            raise
        except Exception as error:
            raise KafkaUnavailable(f"outcomes can't be read: {error!r}") from error

    def follow(self, until: float | None) -> None:
        """Read on until the outcome is there, or until this time (monotonic clock, seconds)."""
        while self.best is None and not self._stopped.is_set() and (until is None or time.monotonic() < until):
            self._poll()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)

    def _read_backlog(self, since: Bookmark | datetime, partition: int) -> SearchedRange:
        connection = self._connection
        timeout_ms = int(connection.connect_timeout * 1000)
        self._consumer = consumer = connect(KafkaConsumer, connection.consumer_config())
        wanted = since.partition if isinstance(since, Bookmark) else partition
        self._place = place = TopicPartition(connection.outcomes_topic, wanted)
        deadline = time.monotonic() + connection.connect_timeout
        if wanted not in partitions_of(consumer, connection.outcomes_topic, deadline=deadline):
            raise KafkaUnavailable(
                f"topic {connection.outcomes_topic!r} has no partition {wanted}: it was recreated, or the bookmark is "
                "of another dataset",
                code="topic_missing",
            )
        consumer.assign([place])
        begin = consumer.beginning_offsets([place], timeout_ms=timeout_ms)[place]
        end = consumer.end_offsets([place], timeout_ms=timeout_ms)[place]
        if isinstance(since, Bookmark):
            first = since.offset
        else:
            since_ms = int(since.timestamp() * 1000) - _CLOCKS_APART_MS
            found = consumer.offsets_for_times({place: max(since_ms, 0)}, timeout_ms=timeout_ms)[place]
            first = end if found is None else found.offset
        consumer.seek(place, min(max(first, begin), end))
        self._read_to(end)
        lost = first < begin if isinstance(since, Bookmark) else first == begin > 0
        return SearchedRange(
            topic=connection.outcomes_topic, partition=wanted, first_offset=max(first, begin), lost=lost
        )

    def _read_to(self, end: int) -> None:
        moved, position = time.monotonic(), -1
        while not self._stopped.is_set():
            at = self._consumer.position(self._place)
            if at >= end:
                return
            if at != position:
                moved, position = time.monotonic(), at
            elif time.monotonic() - moved > self._connection.connect_timeout:
                raise KafkaUnavailable(
                    f"{self._place.topic} partition {self._place.partition} does not continue after offset {at}"
                )
            self._poll()

    def _poll(self) -> None:
        for records in self._consumer.poll(timeout_ms=_POLL_MS).values():
            for record in records:
                if record.key == self.uuid.encode():
                    self._consider(record.value or b"")

    def _consider(self, value: bytes) -> None:
        try:
            outcome = Outcome.FromString(value)
        except DECODE_ERRORS:
            return
        if outcome.status != STATUS_UNSPECIFIED and (self.best is None or rank(outcome) > rank(self.best)):
            self.best = outcome


def rank(outcome: Outcome) -> int:
    """The rank of an outcome among several of one uuid: the highest one counts.

    There can be several because a dead letter may have been staged again and committed since.
    """
    if outcome.status in (COMMITTED, DUPLICATE):
        return 2
    return 0 if outcome.status == UNDECIDED else 1


def check_time(since: datetime, *, earliest: datetime | None) -> None:
    """Raise `ValueError` if `since` has no time zone, or if outcomes since then may be in another partition.

    `earliest`: the start of a client whose partition is random; None for a client with a `producer` name.
    """
    if since.tzinfo is None:
        raise ValueError(f"since {since.isoformat()} has no time zone: use datetime.now(UTC)")
    if earliest is not None and since < earliest:
        raise ValueError(
            "resume from a time before this client was started: the outcome went to the partition of the client that "
            "submitted. Give both the same `producer`, or use a bookmark"
        )


async def find_outcome(
    search: OutcomeSearch,
    *,
    since: Bookmark | datetime,
    partition: int,
    history: Callable[[], tuple[Outcome | None, str]],
    until: float | None,
) -> Outcome:
    """The outcome, from the topic as it is now, from the table's history, or from the topic as it grows.

    `until`: when to stop waiting (monotonic clock, seconds). `history`: returns the outcome that it found, if any, and
    a phrase for people that says where it looked. Raises `OutcomeNotFound`, `KafkaUnavailable`.
    """
    try:
        searched = await _in_thread(lambda: search.read_backlog(since, partition), search.stop)
        if search.best is not None and search.best.status != UNDECIDED:
            return search.best
        found, known = await _in_thread(history, search.stop)
        if found is not None:
            return found
        await _in_thread(lambda: search.follow(until), search.stop)
    finally:
        await _in_thread(search.close, search.stop)
    if search.best is None:
        raise not_found(search.uuid, searched, known)
    return search.best


async def _in_thread(function: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run the function in a worker thread; if the caller is cancelled, `stop` makes it end soon."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([running])
        raise


def not_found(uuid: str, searched: SearchedRange, history: str) -> OutcomeNotFound:
    """The error if neither the topic nor the table has the outcome."""
    lost = " (older outcomes are not kept any more)" if searched.lost else ""
    return OutcomeNotFound(
        f"no outcome of transaction {uuid} is in {searched.topic} partition {searched.partition} from offset "
        f"{searched.first_offset} on{lost}, and {history}: unknown, not failed. It may never have reached "
        "Kafka, may still be waiting for its turn, or its outcome went elsewhere. Commit the same transaction again, "
        "with its uuid: DUPLICATE means that it was committed. The same data under a new uuid may be committed twice",
        uuid=uuid,
    )
