"""Reads the staged topic: which files and versions its records need, and what they replace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from committerd.concurrency import for_each
from committerd.errors import RefusedToRun
from committerd.maintenance.names import named_by
from committerd.maintenance.staged import StagedReader
from committerd.queue.dead_letter import Letter
from committerd.queue.port import Acknowledged, Record, TopicIdentity, record_sha256
from committerd.queue.position import Position
from committerd.queue.start import QueueFacts, refuse_rewritten_log, starting_position
from committerd_common.messages import Outcome, Transaction

LETTERS_MAX = 100_000
_CLAIMS_AT_ONCE = 4
_APART_MAX = 1000
"""Offsets that lie closer together are read as one range."""


Keep = Callable[[Iterable[str]], None]
"""A function that keeps files; it is called with the files that each record names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitterProgress:
    """What committers have published."""

    group: Acknowledged | None = None
    """None if they have acknowledged nothing."""
    outcomes: Sequence[Outcome] = ()
    """The last outcomes of the outcomes topic."""


class StagedTopic(Protocol):
    """The staged topic, as far as maintenance reads it. Every method may raise `QueueUnavailable`."""

    async def published(self) -> CommitterProgress:
        """The group offset and the last outcomes."""
        ...

    async def identity(self) -> TopicIdentity:
        """The broker's identity of the topic. Raises `RefusedToRun` (`topic_gone`) if there is no such topic."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """Log start and end, half-open; with the records that an open Kafka transaction holds back."""
        ...

    def records(self, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
        """The records in a half-open range that still exist, also those that an open Kafka transaction holds back."""
        ...

    def letters(self, since_ms: int) -> AsyncIterator[Sequence[Letter]]:
        """The dead letters from this time on, but not more than the newest `LETTERS_MAX`."""
        ...


@dataclass(slots=True)
class RecordNeeds:
    """What the records need that were added."""

    keep: Keep
    read_at: int | None = None
    """The lowest version that they were read at, or that a Restore brings back; None = none."""
    indices: set[str] = field(default_factory=set)
    """The names of the indices that they create or replace."""
    replaced: set[int] = field(default_factory=set)
    """The ids of the fragments that the Rewrites among them replace."""
    records: int = 0

    def add(self, transaction: Transaction) -> None:
        """Add what one transaction needs."""
        self.keep(named_by(transaction))
        self.indices.update(one.name for one in transaction.create_index.new_indices)
        self.replaced.update(one.id for group in transaction.rewrite.groups for one in group.old_fragments)
        for version in (transaction.read_version, transaction.restore.version):
            if version and (self.read_at is None or version < self.read_at):
                self.read_at = version


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """How far the topic was read."""

    end: int
    last_offset: int = -1
    """The offset of the last record below the end, as far as it is known; -1 = it is not."""
    last_sha256: str = ""


async def waiting(
    topic: StagedTopic, reader: StagedReader, position: Position | None, keep: Keep
) -> tuple[RecordNeeds, ReadPosition]:
    """What the records that the position has not passed need, and how far the topic was read.

    `position`: None if it is not about this topic, or if there is none; all records wait then. `require_start` says
    whether it is about this topic. Ask it afterwards: the topic may be deleted and recreated meanwhile.
    """
    start, end = await topic.bounds()
    wanted = RecordNeeds(keep)
    first = start if position is None else max(position.next_offset, start)
    last = await _read(topic, reader, wanted, (first, end), position=position)
    if last is not None:
        return wanted, ReadPosition(end=end, last_offset=last.offset, last_sha256=record_sha256(last))
    if position is not None and position.next_offset == end:
        return wanted, ReadPosition(end=end, last_offset=position.last_offset, last_sha256=position.last_sha256)
    return wanted, ReadPosition(end=end)


async def require_start(topic: StagedTopic, position: Position | None, published: CommitterProgress) -> QueueFacts:
    """Raise `RefusedToRun` if a committer would refuse to run on this table and topic.

    Such a committer may take records for settled that are not. `published`: from before the table was read.
    """
    identity = await topic.identity()
    log_start, log_end = await topic.bounds()
    facts = QueueFacts(
        identity=identity,
        log_start=log_start,
        log_end=log_end,
        group=published.group,
        outcomes=published.outcomes,
    )
    start = starting_position(position, facts, table_exists=True)
    if log_start <= start.last_offset:
        async for batch in topic.records(start.last_offset, start.last_offset + 1):
            refuse_rewritten_log(start, batch)
    return facts


async def staged_since(
    topic: StagedTopic, reader: StagedReader, read_to: ReadPosition, identity: TopicIdentity, *, keep: Keep
) -> tuple[RecordNeeds, ReadPosition]:
    """What the records need that were staged since, and how far the topic was read now.

    Raises `RefusedToRun` (`topic_id`, `log_rewritten`) if it is no longer the topic with this identity and log: then
    it is not known what was staged since.
    """
    wanted = RecordNeeds(keep)
    start, end = await topic.bounds()
    await _require_identity(topic, identity)
    if end < read_to.end:
        raise _changed("the staged topic was truncated meanwhile", "log_rewritten")
    if end == read_to.end:
        return wanted, read_to
    if start <= read_to.last_offset:
        await _require_same(topic, read_to)
    last = await _read(topic, reader, wanted, (max(read_to.end, start), end))
    await _require_identity(topic, identity)
    if last is None:
        return wanted, replace(read_to, end=end)
    return wanted, ReadPosition(end=end, last_offset=last.offset, last_sha256=record_sha256(last))


async def keep_named_at(topic: StagedTopic, reader: StagedReader, offsets: Iterable[int], keep: Keep) -> None:
    """Keep the files that the records at these ascending offsets name, as far as the topic still has them."""
    wanted = RecordNeeds(keep)
    start, end = await topic.bounds()
    for first, last in _spans(one for one in offsets if start <= one < end):
        await _read(topic, reader, wanted, (first, last + 1))


async def keep_named_in_letters(topic: StagedTopic, reader: StagedReader, since_ms: int, keep: Keep) -> None:
    """Keep the files that dead letters from this time on name: `committerd dead replay` may stage them again."""
    wanted = RecordNeeds(keep)

    async def add(letter: Letter) -> None:
        await _add(reader, wanted, letter.as_staged())

    async for batch in topic.letters(since_ms):
        await for_each((one for one in batch if one.can_be_replayed), add, at_once=_CLAIMS_AT_ONCE)


async def _require_identity(topic: StagedTopic, identity: TopicIdentity) -> None:
    if await topic.identity() != identity:
        raise _changed("the staged topic was deleted and recreated meanwhile", "topic_id")


async def _require_same(topic: StagedTopic, read_to: ReadPosition) -> None:
    async for batch in topic.records(read_to.last_offset, read_to.last_offset + 1):
        for record in batch:
            if record.offset == read_to.last_offset and record_sha256(record) != read_to.last_sha256:
                raise _changed("the staged topic was truncated and written again meanwhile", "log_rewritten")


def _changed(what: str, code: str) -> RefusedToRun:
    return RefusedToRun(f"{what}, so it is not known which files its records name", code=code)


async def _read(
    topic: StagedTopic,
    reader: StagedReader,
    wanted: RecordNeeds,
    offsets: tuple[int, int],
    *,
    position: Position | None = None,
) -> Record | None:
    """Add what the records in this half-open range need that the position does not pass. Returns the last record."""
    last = None
    if offsets[0] >= offsets[1]:
        return last
    async for batch in topic.records(*offsets):
        for last in batch:
            if position is None or not position.passes(last.offset):
                wanted.records += 1
                await _add(reader, wanted, last)
    return last


async def _add(reader: StagedReader, wanted: RecordNeeds, record: Record) -> None:
    transaction, claimed = await reader.transaction(record)
    if claimed is not None:
        wanted.keep([claimed])
    if transaction is not None:
        wanted.add(transaction)


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
