"""Start, at every assignment: read table and queue, publish outcomes that may be missing, and set the position.

Start reads the group offset and the end of the outcomes topic first, then the table: an outcome published before must
be in a table that is read later, or the table went back. Before all that, Start waits until Kafka has taken all
outcomes that this process has sent. If one were still in flight after its table was deleted, Start would not see it,
and the record would be committed to the next table too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio

from committerd.committer.clock import QueueClock
from committerd.committer.containing import Containment
from committerd.committer.current_head import CurrentHead
from committerd.committer.head import StartAgain
from committerd.committer.intake import Intake
from committerd.committer.loading import Loaded, Loading, load
from committerd.committer.outcome_maker import OutcomeMaker, read_parts
from committerd.committer.publisher import OutcomeBatch, Publisher
from committerd.concurrency import Concurrently, for_each
from committerd.errors import QueueUnavailable, RefusedToRun
from committerd.queue.before_table import refused_before_table
from committerd.queue.offsets import Offsets
from committerd.queue.outcomes import Settled, undecided_refusal
from committerd.queue.port import Acknowledged, Queue, Record, TopicIdentity
from committerd.queue.position import AppMark, Position
from committerd.queue.start import (
    OUTCOMES_TAIL,
    QueueFacts,
    acknowledged_in,
    decode_outcomes,
    owed_from,
    refuse_rewritten_log,
    starting_position,
)
from committerd.table.versions import Table
from committerd.table.writing import complete
from committerd_common.messages import Member, Refusal, Transaction
from committerd_common.request import AppUnit, decode_envelope, decode_transaction, who_asked

_log = logging.getLogger(__name__)

_Read = TypeVar("_Read")

_READ_RECORDS = 1000
"""Maximum number of records read again at a time, to publish outcomes whose version was cleaned up."""
_PUBLISHING_SECONDS_MAX = 5.0
"""Longest wait for Kafka to take outcomes already sent; after that Start fails, and is tried again."""
_PUBLISHED_AT_ONCE = 10_000
"""Maximum number of outcomes that are read from the table at a time; a version holds at most as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Performs Start for one table and queue."""

    queue: Queue
    intake: Intake
    outcome_maker: OutcomeMaker
    publisher: Publisher
    new_table: Callable[[], Table]
    loading: Loading
    clock: QueueClock
    republish_max: int
    transaction_bytes_max: int
    before_table: dict[int, Refusal]
    """The refusals that were published before there was a table, by offset; Start reads them anew."""
    astray: Mapping[int, bytes]
    """As `Putter.astray`."""
    containment: Containment = field(default_factory=Containment)

    async def start(
        self,
        generation: int,
        report: Callable[[str], None] = lambda text: None,
        *,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> CurrentHead:
        """Read table and queue, publish outcomes that may be missing, and seek the queue to the position.

        `report`: called with a text about the progress. `turn`: entered while it reads, and not while it waits for
        Kafka to take outcomes: that may never end, and other tables wait for the turn.

        Raises `RefusedToRun`, `UnsupportedTable`, `CorruptTable`, `StartAgain`, or an `Unavailable`.
        """
        await self._publish_the_rest(report)
        loading = replace(self.loading, report=report, later=True)
        report("waits for its turn to read the table and the queue")
        async with turn():
            report("reads the table and the queue")
            await self.clock.ask(self.queue)
            facts, loaded = await read_facts(self.queue, self.new_table(), loading, republish_max=self.republish_max)
        self._refuse_astray(loaded.table)
        position = starting_position(loaded.position, facts, table_exists=loaded.version > 0)
        await require_same_log(self.queue, position, facts)
        if loaded.newest_ours:
            await complete(loaded.table, loaded.newest_ours)
        self.before_table.clear()
        self.before_table.update(refused_before_table(facts.outcomes, position))
        head, read_at = loaded.head(position), loaded.read_at
        current = CurrentHead(
            head,
            self.loading.monotonic,
            loaded.older,
            generation,
            read_at=read_at,
            looked_at=read_at,
            confirmed_at=read_at,
        )
        owed = owed_from(
            position,
            facts.acknowledged(position.era),
            republish_max=self.republish_max,
            log_start=facts.log_start,
        )
        if head.version:
            await self._publish_again(current, range(owed, position.next_offset), report)
        # The first create may be any record, so none is skipped while there is no table.
        self.intake.begin_behind(position, skips=head.version > 0)
        await self.queue.seek(generation, position.next_offset)
        _log.info(
            "start.done",
            extra={
                "version": head.version,
                "position": position.next_offset,
                "era": position.era,
                "settled_ahead": len(position.settled),
                "log_start": facts.log_start,
                "log_end": facts.log_end,
                "group_offset": facts.acknowledged(0),
                "answers_from": owed,
                "unread_versions": loaded.older.unread_versions,
            },
        )
        return current

    def _refuse_astray(self, table: Table) -> None:
        """Raise `RefusedToRun` (`keys_missing`) if a version was read that this process built on another table."""
        for version, end in self.astray.items():
            if table.has_read(version, end):
                raise RefusedToRun(
                    f"version {version} of {table.uri} was built on a table that was deleted or replaced while the "
                    "version was put, so readers can't open it, and its outcomes are not published. Drop the table "
                    "and make it anew with `committerd recreate`, which says where to continue",
                    code="keys_missing",
                )

    async def _publish_the_rest(self, report: Callable[[str], None]) -> None:
        """Wait until Kafka has taken all outcomes sent so far. Raises `QueueUnavailable` when that takes too long."""
        report("waits until Kafka has taken the earlier outcomes")
        with anyio.move_on_after(_PUBLISHING_SECONDS_MAX) as waited:
            await self.publisher.drained()
        if waited.cancelled_caught:
            raise QueueUnavailable(
                f"Kafka has not taken all earlier outcomes within {_PUBLISHING_SECONDS_MAX:g} s; nothing is committed "
                "until it has"
            )

    async def _publish_again(self, current: CurrentHead, owed: range, report: Callable[[str], None]) -> None:
        """Publish the outcomes of these offsets again, and those of offsets settled ahead."""
        for first in range(owed.start, owed.stop, _PUBLISHED_AT_ONCE):
            report(f"publishes outcomes again: offset {first}, up to {owed.stop}")
            await self._publish_offsets(range(first, min(first + _PUBLISHED_AT_ONCE, owed.stop)), current)
        for ahead in _chunks(list(current.head.position.settled), _PUBLISHED_AT_ONCE):
            report(f"publishes outcomes again: offset {ahead[0]}, settled ahead")
            await self._publish_offsets(ahead, current)
        acknowledge = current.head.acknowledgeable()
        await self.publisher.give(OutcomeBatch(), generation=current.generation, acknowledge=acknowledge)

    async def _publish_offsets(self, passed: Sequence[int], current: CurrentHead) -> None:
        """Publish the outcomes of these offsets again. `passed`: ascending."""
        if not passed:
            return
        position = current.head.position
        versions = current.older.outcome_versions.between(passed[0], passed[-1])
        entries = await _entries(current.table, versions, Offsets.of(passed), position)
        missing = [o for o in passed if o not in entries]
        for chunk in _chunks(missing, _READ_RECORDS):
            async for records in read_parts(self.queue, chunk):
                for record in records:
                    entries[record.offset] = self._without_version(record, current.head.marks, position.era)
        for chunk in _chunks([o for o in passed if o in entries], _READ_RECORDS):
            async for batch in self.outcome_maker.make_again([entries[o] for o in chunk], position):
                await self.publisher.give(batch, generation=current.generation)
                if batch.letters:
                    await self.publisher.drained()  # they may be large: one batch in memory at a time

    def _without_version(
        self, record: Record, marks: Mapping[str, AppMark], era: int
    ) -> tuple[Settled, Member | Refusal]:
        """Return the outcome of a record that the position has passed and that no readable version contains.

        It is COMMITTED if the application's mark names the record, else UNDECIDED.
        """
        who = who_asked(record.headers)
        transaction, app = self._identify(record)
        operation = transaction.WhichOneof("operation") or ""
        mark = marks.get(app.app_id) if app else None
        # The ids that a ReserveFragments got are lost with its version, and an outcome without them would differ.
        whole = operation != "reserve_fragments"
        if mark is not None and whole and mark.names(transaction.uuid, era=era, offset=record.offset):
            settled = Settled(version=mark.table_version, uuid="", operation=operation, ours=True)
            return settled, Member(
                offset=record.offset,
                uuid=mark.uuid,
                producer=who.producer,
                outcome_partition=who.outcome_partition,
                read_version=transaction.read_version,
            )
        settled = Settled(version=0, uuid="", operation=operation, ours=True)
        return settled, undecided_refusal(
            offset=record.offset,
            uuid=transaction.uuid,
            producer=who.producer,
            outcome_partition=who.outcome_partition,
        )

    def _identify(self, record: Record) -> tuple[Transaction, AppUnit | None]:
        """Return the transaction and the application of a record; an empty transaction when it can't be decoded."""
        try:
            app = decode_envelope(record.headers).app
            return decode_transaction(record.value, bytes_max=self.transaction_bytes_max), app
        except Exception as error:  # noqa: BLE001  # any error concerns this record alone
            self.containment.refuse(error, stage="start", offset=record.offset)
            return Transaction(), None


async def read_facts(
    queue: Queue, table: Table, loading: Loading, *, republish_max: int = 0
) -> tuple[QueueFacts, Loaded]:
    """Read the group offset and the outcomes, then load the table, then read the topic's identity and bounds.

    Loads the table's history far enough to find all outcomes that may have to be published again: those of the offsets
    from the group offset on, or without one those of `republish_max` offsets below the position. Raises `StartAgain`
    when the topic was recreated meanwhile, so that the bounds may belong to another topic.
    """

    async def read(acknowledged: Acknowledged | None) -> Loaded:
        def owed(position: Position) -> int:
            return owed_from(position, acknowledged_in(position.era, acknowledged), republish_max=republish_max)

        return await load(table, replace(loading, owed_from=owed))

    return await facts_around(queue, read)


async def facts_around(
    queue: Queue, read: Callable[[Acknowledged | None], Awaitable[_Read]]
) -> tuple[QueueFacts, _Read]:
    """Read what the queue says before the table is read, then the table with `read`, then the rest of the queue.

    `read`: given the group offset. Raises as `read_facts`.
    """
    ask_outcomes = Concurrently(partial(queue.outcomes_tail, OUTCOMES_TAIL))
    acknowledged = await ask_outcomes.of(queue.acknowledged)
    tail = ask_outcomes.required()
    found = await read(acknowledged)
    identity = await queue.identity()
    log_start, log_end = await queue.bounds()
    await _require_same_topic(queue, identity)
    outcomes = decode_outcomes(tail)
    if len(outcomes) < len(tail):
        _log.warning("start.outcomes_undecodable", extra={"count": len(tail) - len(outcomes)})
    facts = QueueFacts(
        identity=identity,
        log_start=log_start,
        log_end=log_end,
        group=acknowledged,
        outcomes=outcomes,
        outcomes_are_all=len(tail) < OUTCOMES_TAIL,
    )
    return facts, found


async def require_same_log(queue: Queue, position: Position, facts: QueueFacts) -> None:
    """Compare the last record that the position passes, if the log still has it, with the one that the table settled.

    Raises `RefusedToRun` (`log_rewritten`) if it is another record. Raises `StartAgain` if it is another one because
    the topic was deleted and recreated since `facts` were read.
    """
    if facts.log_start > position.last_offset:
        return
    before = await queue.read(position.last_offset, position.last_offset + 1)
    try:
        refuse_rewritten_log(position, before)
    except RefusedToRun:
        await _require_same_topic(queue, facts.identity)
        raise


async def _require_same_topic(queue: Queue, identity: TopicIdentity) -> None:
    """Raise `StartAgain` if the topic no longer has this identity: what was read may be of the new topic."""
    if await queue.identity() != identity:
        raise StartAgain("the topic was deleted and recreated while it was read")


async def _entries(
    table: Table, versions: Iterable[int], wanted: Container[int], position: Position
) -> dict[int, tuple[Settled, Member | Refusal]]:
    """Return the outcomes that these versions hold of the wanted offsets of this topic, by offset; the newest wins.

    Skips versions that can't be read any more.
    """
    entries: dict[int, tuple[Settled, Member | Refusal]] = {}

    async def read(version: int) -> None:
        settled = await table.settled(version)
        if settled is None or settled.topic_id != position.topic_id:
            return
        for entry in settled.entries():
            known = entries.get(entry.offset)
            if entry.offset in wanted and (known is None or known[0].version < version):
                entries[entry.offset] = settled, entry

    await for_each(versions, read)
    return entries


def _chunks(offsets: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(offsets), size):
        yield offsets[start : start + size]
