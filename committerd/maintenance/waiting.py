"""Reads the staged topic for what its records need: files, and the versions at which they were read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.maintenance.names import named_by
from committerd.queue.port import Record
from committerd.queue.position import Position
from committerd.stores.port import ObjectStore
from committerd_common.messages import Transaction
from committerd_common.paths import transaction_key
from committerd_common.request import decode_envelope, decode_transaction

_BYTES_MAX = 2**31 - 1
_APART_MAX = 1000
"""Single offsets that lie closer together are read in one go."""


Keep = Callable[[Iterable[str]], None]
"""Is called with the files that a record names."""


class StagedTopic(Protocol):
    """The staged topic, as far as maintenance reads it. Every method may raise `QueueUnavailable`."""

    async def bounds(self) -> tuple[int, int]:
        """Log start and end, half-open."""
        ...

    async def topic_id(self) -> str:
        """Kafka's id of the topic."""
        ...

    async def acknowledged(self, era: int) -> int | None:
        """The offset below which the committers have acknowledged all outcomes of this era; None if there is none."""
        ...

    def records(self, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
        """The records in a half-open range that still exist."""
        ...


@dataclass(slots=True)
class Wanted:
    """What some records need."""

    keep: Keep
    read_at: int | None = None
    """The lowest version that they were read at, or that a Restore brings back; None = none."""
    indices: set[str] = field(default_factory=set)
    """The names of the indices that they create or replace."""
    records: int = 0

    def add(self, transaction: Transaction) -> None:
        """Add what one transaction needs."""
        self.keep(named_by(transaction))
        self.indices.update(one.name for one in transaction.create_index.new_indices)
        for version in (transaction.read_version, transaction.restore.version):
            if version and (self.read_at is None or version < self.read_at):
                self.read_at = version


async def waiting(topic: StagedTopic, store: ObjectStore, position: Position | None, keep: Keep) -> tuple[Wanted, int]:
    """What the records need that the position has not passed, and the end of the topic up to which they were read."""
    start, end = await topic.bounds()
    wanted = Wanted(keep)
    first = start if position is None or position.topic_id != await topic.topic_id() else position.next_offset
    await _read(topic, store, wanted, (max(first, start), end), position=position)
    return wanted, end


async def staged_since(topic: StagedTopic, store: ObjectStore, end: int, keep: Keep) -> tuple[Wanted, int]:
    """What the records from offset `end` on need, and the new end."""
    wanted = Wanted(keep)
    _, latest = await topic.bounds()
    await _read(topic, store, wanted, (end, latest))
    return wanted, latest


async def keep_named_at(topic: StagedTopic, store: ObjectStore, offsets: Iterable[int], keep: Keep) -> None:
    """Keep the files that the records at these ascending offsets name, as far as the topic still has them."""
    wanted = Wanted(keep)
    start, _ = await topic.bounds()
    for first, last in _spans(one for one in offsets if one >= start):
        await _read(topic, store, wanted, (first, last + 1))


async def _read(
    topic: StagedTopic,
    store: ObjectStore,
    wanted: Wanted,
    offsets: tuple[int, int],
    *,
    position: Position | None = None,
) -> None:
    if offsets[0] >= offsets[1]:
        return
    async for batch in topic.records(*offsets):
        for record in batch:
            if position is None or not position.passes(record.offset):
                wanted.records += 1
                await _add(store, wanted, record)


async def _add(store: ObjectStore, wanted: Wanted, record: Record) -> None:
    try:
        envelope = decode_envelope(record.headers)
        body: bytes | None = record.value
        if envelope.claim is not None:
            key = transaction_key(envelope.claim.name)
            wanted.keep([key])
            body = await store.get(key)
        if body is not None:
            wanted.add(decode_transaction(body, bytes_max=_BYTES_MAX))
    except (InvalidRequest, UnsupportedRequest):
        return  # the committer refuses it, whatever it names


def _spans(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges, first and last, that hold all of these ascending offsets."""
    first = last = -1
    for offset in offsets:
        if first >= 0 and offset - last <= _APART_MAX:
            last = offset
            continue
        if first >= 0:
            yield first, last
        first = last = offset
    if first >= 0:
        yield first, last
