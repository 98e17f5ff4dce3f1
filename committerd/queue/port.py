"""The queue as a committer uses it: records, events, and the `Queue` port, which `committerd.kafka` implements.

What goes wrong is raised as one of `committerd.errors`, never as an exception of a Kafka client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdentity:
    """What tells a topic from another of the same name."""

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
    """How many headers it has, where those are more than anybody needs: `headers` has the first of them. Else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """This member owns the staged partition from now on; nothing is delivered until `seek`."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """This member no longer owns the partition."""

    generation: int
    lost: bool
    """True when the group had already given it to another member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Records in offset order, without a hole that Kafka did not make itself."""

    generation: int
    records: Sequence[Record]
    unbroken: bool = True
    """False: since the records before these, the broker was out of touch, and its log may have been written anew.

    Told as soon as it is back, if need be without records.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """The position can't be read: truncated, out of range, another topic id. Start again."""

    generation: int
    reason: str


QueueEvent = Assigned | Revoked | Fetched | FetchFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The group's offset: every record below it has an answer that the broker took."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One record for the outcomes or dead letter topic."""

    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]] = field(default=())
    partition: int = 0


class Queue(Protocol):
    """One dataset's topics, as one member of its consumer group sees them.

    Every method but `next_event` and `done` may raise `QueueUnavailable`. `generation` counts assignments of this
    process: a call with an old one does nothing.
    """

    async def next_event(self) -> QueueEvent:
        """Wait for the next event; one caller at a time."""
        ...

    async def identity(self) -> TopicIdentity:
        """Ask the broker (not a cache) which topic the name stands for now.

        Raises `RefusedToRun` with code `topic_gone` when there is none.
        """
        ...

    async def bounds(self) -> tuple[int, int]:
        """Log start and end of the staged partition: half-open range of readable offsets."""
        ...

    async def time_ms(self) -> int | None:
        """What time it is for the brokers (Unix time); None where they don't tell."""
        ...

    async def acknowledged(self) -> Acknowledged | None:
        """The group's offset, None when it has none."""
        ...

    async def acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        """Commit the group's offset: the next record to read. False when this member no longer owns the partition."""
        ...

    async def seek(self, generation: int, offset: int) -> None:
        """Deliver from this offset on.

        What was fetched before is dropped from the moment of the call (before its first await): `next_event` never
        returns it afterwards.
        """
        ...

    async def done(self, generation: int, records: int, size: int) -> None:
        """So many delivered records and bytes (value, key and headers) are settled: makes room for more."""
        ...

    async def read(self, start: int, end: int) -> list[Record]:
        """Records of the staged partition in the half-open range, those that are still there."""
        ...

    async def outcomes_tail(self, limit: int) -> list[bytes]:
        """Values of the last records of the outcomes topic, at most `limit` of each partition."""
        ...

    async def publish(self, outcomes: Sequence[Publication]) -> None:
        """Write to the outcomes topic; returns when the broker has taken all. A partition out of range means 0."""
        ...

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        """Write to the dead letter topic; returns when the broker has taken all."""
        ...
