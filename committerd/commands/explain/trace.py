"""Collects what table and topics still know of one transaction.

The outcome names the version or the offset; with the offset, the version that settled the record is found by bisection,
because the position that versions carry only grows. So a history of 10,000 versions costs some 15 reads. Only a
transaction without an outcome in the topic is looked for in all versions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import click

from committerd.commands.printing import ProgressLine
from committerd.errors import CommitterError, CorruptTable
from committerd.kafka.operator import Bounds, TopicOperator
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.timestamps import to_ms
from committerd.lance.transactions.transaction import footprint
from committerd.queue.dead_letter import Letter, decode_letter
from committerd.queue.outcomes import Settled
from committerd.queue.port import Record
from committerd.queue.position import Pause, Position, decode_position
from committerd.table.manifests import OutlineSettled
from committerd.table.many_versions import read_in_order
from committerd.table.versions import Table
from committerd_common.messages import DecodeError, Member, Outcome, Refusal, Transaction, TransactionLabel
from committerd_common.messages import Status as Number

_OUTCOMES_FIRST, _OUTCOMES_FACTOR = 1_000, 4
"""Records of each partition that are read first, from the newest on; how much larger each further part is."""
_TOLD_MIN = 1_000
"""If more versions are searched, the command says so first: that takes seconds."""
_LETTER_EARLIER_MS = 3_600_000
"""A dead letter is published right before its outcome; an hour allows for clocks and pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The record waits in the staged topic."""

    record: Record
    ahead: int
    """Records before it that have no outcome yet."""
    held_back: bool
    """Whether an open Kafka transaction holds it back: no committer can read it before that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One outcome of the transaction."""

    outcome: Outcome
    timestamp_ms: int
    """When it was published; 0 = it is known from the table alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A version, as far as it concerns the transaction."""

    version: int
    timestamp_ms: int
    settled: Settled
    entry: Member | Refusal | None
    """The entry of the record; None for a version that another writer has made of the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """What both transactions touch, as far as their messages say."""

    version: int
    operation: str
    uuids: Sequence[str] = ()
    producers: Sequence[str] = ()
    fragments: Sequence[int] = ()
    keys: int = 0
    """The number of common keys, where both list theirs."""
    config_keys: Sequence[str] = ()
    indices: Sequence[str] = ()
    gone: bool = False
    """Whether the version was cleaned up."""


@dataclass(slots=True)
class Trace:
    """What is known of a transaction."""

    uuid: str
    latest: int = 0
    position: Position | None = None
    pause: Pause | None = None
    waiting: Waiting | None = None
    answers: list[Answer] = field(default_factory=list)
    """Distinct by record, in the order of their publication."""
    place: Place | None = None
    """The version that holds the transaction, or that has refused it."""
    staged: Record | None = None
    """The record with the last outcome, if the topic still has it."""
    letter: Letter | None = None
    collision: Collision | None = None
    reach: dict[str, str] = field(default_factory=dict)
    """By source: how far back it was searched, if that is not to its beginning; or why it could not be asked."""
    unreachable: bool = False
    """Whether a source did not answer, so that what was not found may be there."""


class Tracer:
    """Fills a trace, one source after the other."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    async def ask_queue(self, operator: TopicOperator) -> None:
        """Search the staged records without an outcome, and the outcomes."""
        trace, topics = self._trace, operator.topics
        identity = await operator.identity()
        position = trace.position
        if position is not None and position.topic_id != identity.topic_id:
            trace.reach["staged topic"] = "it is not the one that the table's position is about"
            position = None
        start, end = (await operator.bounds(topics.staged))[0]
        _, whole_end = (await operator.bounds(topics.staged, held_back=True))[0]
        first = start if position is None else max(start, min(position.next_offset, whole_end))
        await self._search_waiting(operator, first, end=end, whole_end=whole_end, position=position)
        bounds = await operator.bounds(topics.outcomes)
        await self._search_outcomes(operator, bounds)
        if not trace.answers and any(low for low, _ in bounds.values()):
            trace.reach["outcomes topic"] = "older outcomes have expired"
        if not trace.answers and trace.waiting is None:
            await self._search_letters(operator, identity.topic_id)
        last = trace.answers[-1].outcome if trace.answers else None
        if last is None or last.topic_id != identity.topic_id:
            return
        if last.offset < start:
            trace.reach["staged topic"] = f"its records below offset {start} have expired"
        else:
            trace.staged = next(iter(await operator.read(last.offset, last.offset + 1)), None)

    async def ask_letter(self, operator: TopicOperator) -> None:
        """Search the dead letter of the last outcome."""
        answer = self._trace.answers[-1]
        topic, wanted = operator.topics.dead, f"{answer.outcome.topic}:{answer.outcome.offset}"
        since = max(answer.timestamp_ms - _LETTER_EARLIER_MS, 0)
        bounds = {0: (await operator.since(topic, since))[0]}
        await self._find_letter(operator, bounds, lambda letter: letter.place == wanted)
        if self._trace.letter is None:
            self._trace.reach["dead letter topic"] = "the letter has expired, or was dropped"

    async def ask_table(self, table: Table, versions: Sequence[int]) -> None:
        """Find the version that settled the transaction. `versions`: all that there are, ascending."""
        trace = self._trace
        if trace.answers:
            trace.place = await self._settling(table, versions, trace.answers[-1].outcome)
        elif trace.waiting is None:
            trace.place = await self._searched(table, versions)
        if trace.place is None and versions and versions[0] > 1 and trace.waiting is None:
            trace.reach["table"] = f"versions below {versions[0]} were cleaned up, or only tags keep them"

    async def compare(self, table: Table, transaction: Transaction | None, conflicting: int, operation: str) -> None:
        """Compare with the version over which the transaction was refused."""
        found = await _settled(table, conflicting)
        if found is None:
            self._trace.collision = Collision(version=conflicting, operation=operation, gone=True)
            return
        theirs = await table.committed(conflicting)
        both = _in_common(transaction, theirs.footprint if theirs is not None else None)
        self._trace.collision = Collision(
            version=conflicting,
            operation=operation or found.operation,
            uuids=[one.uuid for one in found.members] or [found.uuid],
            producers=list(dict.fromkeys(one.producer for one in found.members if one.producer)),
            **both,
        )

    async def _search_letters(self, operator: TopicOperator, topic_id: str) -> None:
        """Search a record that was refused before its uuid was read: its outcome has none."""
        trace, topic = self._trace, operator.topics.dead
        bounds = {0: (await operator.bounds(topic))[0]}
        await self._find_letter(operator, bounds, lambda letter: letter.transaction.uuid == trace.uuid)
        if trace.letter is None:
            if bounds[0][0]:
                trace.reach["dead letter topic"] = "older letters have expired, or were dropped"
            return
        found = trace.letter
        outcome = Outcome(
            status=Number.Value(found.status),
            reason=found.reason,
            message=found.message,
            topic=found.topic,
            topic_id=topic_id,
            offset=found.staged_offset,
            era=trace.position.era if trace.position is not None else 0,
        )
        trace.answers = [Answer(outcome=outcome, timestamp_ms=found.timestamp_ms)]

    async def _find_letter(self, operator: TopicOperator, bounds: Bounds, is_it: Callable[[Letter], bool]) -> None:
        progress = ProgressLine("dead letters read", sum(end - start for start, end in bounds.values()))
        async with aclosing(operator.stream(operator.topics.dead, bounds)) as batches:
            async for batch in batches:
                for _, record in batch:
                    letter = decode_letter(record)
                    if letter is not None and is_it(letter):
                        self._trace.letter = letter
                        return
                progress.add(len(batch))

    async def _search_waiting(
        self, operator: TopicOperator, start: int, *, end: int, whole_end: int, position: Position | None
    ) -> None:
        ahead = 0
        progress = ProgressLine("staged records read", whole_end - start)
        ranges = {0: (start, whole_end)}
        async with aclosing(operator.stream(operator.topics.staged, ranges, held_back=whole_end > end)) as batches:
            async for batch in batches:
                for _, record in batch:
                    if position is not None and position.passes(record.offset):
                        continue
                    if uuid_of(record) == self._trace.uuid:
                        self._trace.waiting = Waiting(record=record, ahead=ahead, held_back=record.offset >= end)
                        return
                    ahead += 1
                progress.add(len(batch))

    async def _search_outcomes(self, operator: TopicOperator, bounds: Bounds) -> None:
        """Search from the newest on, and end with the part that has the first one."""
        progress = ProgressLine("outcomes read", sum(end - start for start, end in bounds.values()))
        found: dict[tuple[str, int], Answer] = {}
        async for part in _parts(bounds):
            async with aclosing(operator.stream(operator.topics.outcomes, part)) as batches:
                async for batch in batches:
                    for _, record in batch:
                        outcome = _outcome(record, self._trace.uuid)
                        if outcome is not None:
                            key = outcome.topic_id, outcome.offset
                            found[key] = Answer(outcome=outcome, timestamp_ms=record.timestamp_ms)
                    progress.add(len(batch))
            if found:
                break
        self._trace.answers = sorted(found.values(), key=lambda one: (one.outcome.era, one.outcome.offset))

    async def _settling(self, table: Table, versions: Sequence[int], outcome: Outcome) -> Place | None:
        """The version that the outcome names, or the first one whose position passes the refused record."""
        if outcome.version:
            return await self._at(table, outcome.version, outcome)
        low, high = 0, len(versions) - 1
        while low < high:
            middle = (low + high) // 2
            passed = await _passes(table, versions[middle], outcome)
            if passed:
                high = middle
            else:
                low = middle + 1
        return await self._at(table, versions[low], outcome) if versions else None

    async def _searched(self, table: Table, versions: Sequence[int]) -> Place | None:
        if len(versions) > _TOLD_MIN:
            missing = "no outcome of it was found" if self._trace.reach.get("topics") is None else "Kafka says nothing"
            click.echo(f"{missing}: looks for it in all {len(versions)} versions, from the newest on", err=True)
        progress, holders = ProgressLine("versions read", len(versions)), list[int]()

        async def take(batch: Sequence[int], found: Sequence[Settled | None]) -> bool:
            progress.add(len(batch))
            named = [one.version for one in found if one is not None and _names(one, self._trace.uuid)]
            holders.extend(named[:1])
            return not named

        await read_in_order(versions[::-1], table.settled_of_each, take)
        if not holders:
            return None
        place = await self._at(table, holders[0])
        entry = place.entry if place is not None else None
        if isinstance(entry, Refusal) and entry.version:  # a duplicate: the transaction is in that version
            return await self._at(table, entry.version) or place
        return place

    async def _at(self, table: Table, version: int, outcome: Outcome | None = None) -> Place | None:
        """This version, if it names the transaction, or the record of the outcome."""
        found, uuid = await _skimmed(table, version), self._trace.uuid
        if found is None:
            return None
        outline, settled = found
        entry = next((one for one in settled.entries() if one.uuid == uuid), None)
        if entry is None and outcome is not None and settled.topic_id == outcome.topic_id:
            entry = next((one for one in settled.refusals if one.offset == outcome.offset), None)
        if entry is None and settled.uuid != uuid:
            return None
        return Place(version=version, timestamp_ms=to_ms(outline.timestamp), settled=settled, entry=entry)


def uuid_of(record: Record) -> str:
    """The uuid of a staged record; empty if it can't be read. A record whose transaction is in a file has its key."""
    if record.value:
        try:
            return str(TransactionLabel.FromString(record.value).uuid)
        except DecodeError:
            return ""
    return (record.key or b"").decode("utf-8", "replace")


def transaction_of(trace: Trace) -> Transaction | None:
    """The transaction as it was staged; None if no topic has it any more."""
    for value in (trace.staged and trace.staged.value, trace.letter and trace.letter.value):
        if value:
            try:
                return Transaction.FromString(value)
            except DecodeError:
                continue
    return None


async def _parts(bounds: Bounds) -> AsyncIterator[Bounds]:
    """Ranges that cover the bounds, from the newest records on; each is larger than the one before it."""
    ends, size = {partition: end for partition, (_, end) in bounds.items()}, _OUTCOMES_FIRST
    while any(end > bounds[partition][0] for partition, end in ends.items()):
        part = {partition: (max(bounds[partition][0], end - size), end) for partition, end in ends.items()}
        yield part
        ends, size = {partition: start for partition, (start, _) in part.items()}, size * _OUTCOMES_FACTOR


def _outcome(record: Record, uuid: str) -> Outcome | None:
    if record.key != uuid.encode():
        return None
    try:
        return Outcome.FromString(record.value)
    except DecodeError:
        return None


def _names(settled: Settled, uuid: str) -> bool:
    return settled.uuid == uuid or any(one.uuid == uuid for one in settled.entries())


async def _skimmed(table: Table, version: int) -> OutlineSettled | None:
    """What one version says of itself and of the queue; None if it is missing or damaged."""
    try:
        return await table.outline_settled(version) if version > 0 else None
    except CorruptTable:
        return None


async def _settled(table: Table, version: int) -> Settled | None:
    try:
        return await table.settled(version, keep=False) if version > 0 else None
    except CorruptTable:
        return None


async def _passes(table: Table, version: int, outcome: Outcome) -> bool:
    """Whether this version's position passes the record. One that can't be read counts as one that does not."""
    try:
        outline = await table.outline(version)
        if outline is None:
            return False
        position = decode_position(outline.table_metadata, branch=outline.branch)
    except CommitterError:
        return False
    if position is None or position.topic_id != outcome.topic_id:
        return False
    return position.era > outcome.era or (position.era == outcome.era and position.passes(outcome.offset))


def _in_common(transaction: Transaction | None, theirs: object) -> Mapping[str, Any]:
    if transaction is None or not isinstance(theirs, Footprint):
        return {}
    try:
        ours = footprint(transaction, staged=True)
    except CommitterError:
        return {}
    keys = 0
    if ours.key_filter is not None and theirs.key_filter is not None:
        keys = len((ours.key_filter.exact or frozenset()) & (theirs.key_filter.exact or frozenset()))
    return {
        "fragments": sorted(_fragments(ours) & _fragments(theirs)),
        "keys": keys,
        "config_keys": sorted(
            ((ours.config_upserts | ours.config_deletes) & (theirs.config_upserts | theirs.config_deletes))
            | (ours.table_metadata_keys & theirs.table_metadata_keys)
        ),
        "indices": sorted(ours.creates & theirs.creates),
    }


def _fragments(touched: Footprint) -> frozenset[int]:
    return touched.fragments.union(touched.removed, touched.replaced, *touched.groups)
