"""The queue as a committer uses it: records, events, and the `Queue` port, which `committerd.kafka` implements.

Failures are raised as errors of `committerd.errors`, never as exceptions of a Kafka client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from committerd_common.request import headers_size, sent_sha256

READ_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of records that are read at a time."""
HEADER_OVERHEAD_BYTES = 160
"""Memory that a tuple, a str and a bytes object take in addition to their content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdentity:
    """Identifies a topic: after it is deleted and recreated under the same name, its id is different."""

    cluster_id: str
    topic: str
    topic_id: str
    """As Kafka prints it: base64url of 16 bytes, without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of the staged topic."""

    offset: int
    value: bytes
    """Empty for a tombstone."""
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_ms: int = 0
    """Unix time; the broker's clock where the topic uses LogAppendTime."""
    leader_epoch: int = -1
    headers_found: int = 0
    """The number of headers, if there are so many that `headers` holds only the first of them; otherwise 0."""


def record_sha256(record: Record) -> str:
    """The SHA-256 of key and value, as hex digits; it differs for another record at the same offset."""
    return sent_sha256(record.key, record.value)


def record_size(record: Record) -> int:
    """The bytes that a record takes in memory: value, key, headers, and Python's overhead for each header."""
    headers = record.headers
    return len(record.value) + len(record.key or b"") + headers_size(headers) + HEADER_OVERHEAD_BYTES * len(headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """This member of the consumer group now owns the staged partition. No records arrive before `seek`."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """This member no longer owns the staged partition."""

    generation: int
    lost: bool
    """True if the group has already assigned it to another member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Records in offset order. An offset is missing only if Kafka has no record there."""

    generation: int
    records: Sequence[Record]
    unbroken: bool = True
    """False if the connection to the broker was lost since the records before these, so that its log may have been
    rewritten. The event is sent as soon as the connection is back, even if there are no records.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """The records at the position can't be fetched: log truncated, offset out of range, another topic id.

    The committer does Start again.
    """

    generation: int
    reason: str


QueueEvent = Assigned | Revoked | Fetched | FetchFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The offset that the group has committed: the broker has taken the outcome of every record below it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One record to publish to the outcomes or the dead letter topic."""

    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]] = field(default=())
    partition: int = 0


class Queue(Protocol):
    """One dataset's topics, as one member of its consumer group sees them.

    Every method but `next_event` and `done` may raise `QueueUnavailable`. `generation` counts the assignments of this
    process; a call with an old generation does nothing, except for `read_again`.
    """

    async def next_event(self) -> QueueEvent:
        """Wait for the next event. Only one caller at a time may wait."""

    async def identity(self) -> TopicIdentity:
        """Ask the broker (not a cache) for the current identity of the staged topic.

        Raises `RefusedToRun` with code `topic_gone` if there is no such topic.
        """

    async def bounds(self) -> tuple[int, int]:
        """Log start and log end of the staged partition: the half-open range of readable offsets."""

    async def time_ms(self) -> int | None:
        """The brokers' time in Unix milliseconds; None if they don't report it."""

    async def acknowledged(self) -> Acknowledged | None:
        """The offset that the group has committed; None if it has committed none."""

    async def acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        """Commit `offset`, the next record to read, for the group.

        Returns False if this member no longer owns the partition.
        """

    async def seek(self, generation: int, offset: int) -> None:
        """Deliver records from this offset on.

        The call drops records that were fetched before, ahead of its first await: `next_event` never returns them
        afterwards. None is outstanding then.
        """

    async def read_again(self, generation: int, offset: int, *, records_max: int) -> Fetched | FetchFailed:
        """The next records from this offset on, at least one and at most `records_max`. Deliveries go on meanwhile.

        `offset` must have been delivered since the last `seek`, and a record must exist at or after it. The records are
        outstanding as if they were delivered, unless `seek` is called before they are here. `Fetched.unbroken` refers
        to the connection of these reads only; it is False at the first. An old generation does not prevent the read,
        but its records are not counted as outstanding.
        """

    async def done(self, generation: int, records: int, size: int) -> None:
        """Report that this many outstanding records, of `size` bytes (value, key and headers), are settled.

        The queue delivers no more while too many records are outstanding.
        """

    async def read(self, start: int, end: int, *, bytes_max: int = READ_BYTES_MAX) -> list[Record]:
        """The records of the staged partition from `start` up to `end` (exclusive) that still exist.

        Returns only the first of them if all have more than `bytes_max` bytes, but at least one.
        """

    async def outcomes_tail(self, limit: int) -> list[bytes]:
        """The values of the last records of the outcomes topic, at most `limit` from each partition."""

    async def publish(self, outcomes: Sequence[Publication]) -> None:
        """Write to the outcomes topic; returns once the broker has taken all records.

        A record for a partition that the topic does not have goes to partition 0.
        """

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        """Write to the dead letter topic; returns once the broker has taken all records."""


class EventTopic(Protocol):
    """The topic of a dataset's change events, which has one partition. Every method may raise `QueueUnavailable`."""

    async def events_topic_id(self) -> str:
        """The topic's id, as the broker knows it. It changes when the topic is deleted and made again."""

    async def events_tail(self, limit: int) -> list[bytes]:
        """The values of the last records, at most `limit`, in their order."""

    async def publish_events(self, events: Sequence[Publication]) -> None:
        """Write to the topic, in this order; returns once the broker has taken all records."""
