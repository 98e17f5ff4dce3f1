"""Start, at every assignment: where the table stands, what is owed to whom, from where to go on.

The group's offset and the end of the outcomes topic are read first, then the table: an answer that was told before must
be found in a table read later, or the table went back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from committerd.committer.answering import Answerer
from committerd.committer.intake import Intake
from committerd.committer.publisher import Answers
from committerd.committer.view import StartAgain, View
from committerd.errors import RequestError
from committerd.format.messages import Member, Outcome, Refusal, Transaction
from committerd.format.request import AppUnit, decode_envelope, decode_transaction, who_asked
from committerd.ports import Acknowledged, Queue, Record
from committerd.rules.answers import Settled, marked_member, undecided_refusal
from committerd.rules.position import AppMark, Position
from committerd.rules.settle import Found
from committerd.rules.startup import QueueFacts, first_owed, refuse_rewritten_log, starting_position
from committerd.writing import complete

_log = logging.getLogger(__name__)

OUTCOMES_TAIL = 200
"""Outcomes looked at in each partition: answers are published in order of versions, so few prove as much as many."""
_READ_RECORDS = 1000
"""Records read again at a time, for answers whose version was cleaned up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Does Start for one table and queue."""

    queue: Queue
    intake: Intake
    answerer: Answerer
    new_view: Callable[[], View]
    republish_max: int
    transaction_bytes_max: int

    async def start(self, generation: int) -> View:
        """Read everything anew, publish what is owed, and have the queue deliver from the position on.

        Raises `RefusedToRun`, `UnsupportedTable`, `CorruptTable`, `StartAgain`, or an `Unavailable`.
        """
        view = self.new_view()
        facts, found = await read_facts(self.queue, view)
        position = starting_position(view.position, facts, table_exists=view.base > 0)
        if facts.log_start <= position.last_offset:
            before = await self.queue.read(position.last_offset, position.last_offset + 1)
            refuse_rewritten_log(position, before)
        view.position = position
        if view.newest_ours:
            await complete(view.table, view.newest_ours)
        owed = first_owed(position, facts, republish_max=self.republish_max)
        if view.base:
            await self._publish_again(found, view, owed, generation)
        self.intake.clear()
        await self.queue.seek(generation, position.next_offset)
        _log.info(
            "start.done",
            extra={
                "version": view.base,
                "position": position.next_offset,
                "era": position.era,
                "settled_ahead": len(position.settled),
                "log_start": facts.log_start,
                "log_end": facts.log_end,
                "group_offset": facts.group_offset,
                "answers_from": owed,
            },
        )
        return view

    async def _publish_again(self, found: Sequence[Found], view: View, owed: int, generation: int) -> None:
        """Publish the answers of every offset from `owed` to the highest that the position passes."""
        position = view.position
        assert position is not None
        entries = dict(_entries(found, position, owed))
        passed = [*range(owed, position.next_offset), *position.settled]
        missing = [o for o in passed if o not in entries]
        for chunk in _chunks(missing, _READ_RECORDS):
            for record in await self.queue.read(chunk[0], chunk[-1] + 1):
                if record.offset in chunk:
                    entries[record.offset] = self._without_version(record, view.marks, position.era)
        for chunk in _chunks([o for o in passed if o in entries], _READ_RECORDS):
            answers = await self.answerer.again([entries[o] for o in chunk], position)
            await self.answerer.give(answers, generation=generation)
        await self.answerer.give(
            Answers(generation=generation), generation=generation, acknowledge=view.acknowledgeable()
        )

    def _without_version(self, record: Record, marks: dict[str, AppMark], era: int) -> tuple[Settled, Member | Refusal]:
        """The answer to a record that the position passes and no readable version names."""
        who = who_asked(record.headers)
        transaction, app = self._identify(record)
        operation = transaction.WhichOneof("operation") or ""
        mark = marks.get(app.app_id) if app else None
        # The ids that a ReserveFragments got went with its version: half an answer would be another one.
        whole = operation != "reserve_fragments"
        if mark is not None and whole and mark.names(transaction.uuid, era=era, offset=record.offset):
            settled = Settled(version=mark.table_version, uuid="", operation=operation, ours=True)
            member = marked_member(
                mark,
                offset=record.offset,
                producer=who.producer,
                outcome_partition=who.outcome_partition,
            )
            member.read_version = transaction.read_version
            return settled, member
        settled = Settled(version=0, uuid="", operation=operation, ours=True)
        return settled, undecided_refusal(
            offset=record.offset,
            uuid=transaction.uuid,
            producer=who.producer,
            outcome_partition=who.outcome_partition,
        )

    def _identify(self, record: Record) -> tuple[Transaction, AppUnit | None]:
        """Transaction and application of a record; an empty one where it can't be decoded."""
        try:
            app = decode_envelope(record.headers).app
            return decode_transaction(record.value, bytes_max=self.transaction_bytes_max), app
        except RequestError:
            return Transaction(), None


async def read_facts(queue: Queue, view: View) -> tuple[QueueFacts, Sequence[Found]]:
    """Read group offset and outcomes, then load the table into `view`, then look at the topic.

    Returns also the readable history, newest first. Raises `StartAgain` where the topic's bounds may be another's.
    """
    acknowledged = await queue.acknowledged()
    outcomes = decode_outcomes(await queue.outcomes_tail(OUTCOMES_TAIL))
    found = await view.load()
    identity = await queue.identity()
    log_start, log_end = await queue.bounds()
    if await queue.identity() != identity:
        raise StartAgain("the topic was made again while it was looked at")
    facts = QueueFacts(
        identity=identity,
        log_start=log_start,
        log_end=log_end,
        group_offset=acknowledged.offset if acknowledged else None,
        group_era=era_of(acknowledged),
        outcomes=outcomes,
    )
    return facts, found


def acknowledgement(position: Position, version: int) -> str:
    """What the group's offset carries beside the number, for people and for the next Start."""
    return json.dumps({"era": position.era, "version": version}, separators=(",", ":"))


def era_of(acknowledged: Acknowledged | None) -> int | None:
    """The era in which the group's offset was acknowledged; None when its metadata doesn't say."""
    if acknowledged is None:
        return None
    try:
        era = json.loads(acknowledged.metadata)["era"]
    except (ValueError, KeyError, TypeError):
        return None
    return era if isinstance(era, int) else None


def decode_outcomes(values: Iterable[bytes]) -> list[Outcome]:
    """Those that can be decoded; of the others the log says so."""
    outcomes = []
    for value in values:
        try:
            outcomes.append(Outcome.FromString(value))
        except DecodeError:
            _log.warning("start.outcome_undecodable", extra={"bytes": len(value)})
    return outcomes


def _entries(
    found: Sequence[Found], position: Position, owed: int
) -> Iterator[tuple[int, tuple[Settled, Member | Refusal]]]:
    """(offset, answer) of each record of this topic that a readable version names; of two the newest comes last."""
    for one in reversed(found):
        if not one.settled.ours or one.settled.topic_id != position.topic_id:
            continue
        for entry in one.settled.entries():
            if entry.offset >= owed:
                yield entry.offset, (one.settled, entry)


def _chunks(offsets: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(offsets), size):
        yield offsets[start : start + size]
