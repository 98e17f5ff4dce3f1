"""Start: may this committer run on this table and topic, and which outcomes must it publish again?

It decides before the committer settles a record. Table and topic can contradict each other: the topic was recreated or
truncated, the table was restored and cleaned up, its keys were dropped, or one of the two is a copy. If the committer
went on, records would be lost or doubled, or get outcomes that contradict earlier ones. So it refuses to run, says why,
and names the command that solves it. It never skips a record and never resets the position by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from committerd.errors import RefusedToRun
from committerd.queue.port import Acknowledged, Record, TopicIdentity, record_sha256
from committerd.queue.position import Position, start_of
from committerd_common.messages import Outcome

OUTCOMES_TAIL = 200
"""Newest outcomes to read per partition. Outcomes are published in the order of versions, so a few prove enough."""


def acknowledgement(position: Position, version: int) -> str:
    """The metadata of a group offset commit, as JSON: era and table version, for people and the next Start."""
    return json.dumps({"era": position.era, "version": version}, separators=(",", ":"))


def era_of(acknowledged: Acknowledged | None) -> int | None:
    """The era in which the group offset was acknowledged; None if its metadata names none (it was set by hand)."""
    if acknowledged is None:
        return None
    try:
        era = json.loads(acknowledged.metadata)["era"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return era if isinstance(era, int) else None


def acknowledged_in(era: int, acknowledged: Acknowledged | None) -> int | None:
    """The group offset; None if there is none, or if it was acknowledged in an earlier era than this one."""
    known = era_of(acknowledged)
    return None if acknowledged is None or (known is not None and known < era) else acknowledged.offset


def decode_outcomes(values: Iterable[bytes]) -> list[Outcome]:
    """Decode outcomes; skips those that can't be decoded."""
    outcomes = []
    for value in values:
        try:
            outcomes.append(Outcome.FromString(value))
        except DecodeError:
            continue
    return outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The state of the queue at Start. Group offset and outcomes are read before the table, the rest after it."""

    identity: TopicIdentity
    log_start: int
    log_end: int
    group: Acknowledged | None
    """What the consumer group has acknowledged; None = nothing."""
    outcomes: Sequence[Outcome] = ()
    """The last outcomes of the outcomes topic."""
    outcomes_are_all: bool = True
    """Whether `outcomes` holds the whole topic."""

    def with_outcome(self, era: int) -> list[int]:
        """The offsets of this topic that have an outcome of this era or a later one, in a version of the table."""
        topic = self.identity.topic_id
        return [o.offset for o in self.outcomes if o.topic_id == topic and o.era >= era and not o.before_table]

    def acknowledged(self, era: int) -> int | None:
        """As `acknowledged_in`."""
        return acknowledged_in(era, self.group)


def starting_position(position: Position | None, facts: QueueFacts, *, table_exists: bool) -> Position:
    """The position from which the committer continues. Raises `RefusedToRun`, with the cause as its code.

    `position` is the highest that any readable version carries; None if none carries one.
    """
    if position is None:
        _refuse_missing_keys(facts, table_exists=table_exists)
        return start_of(facts.identity, facts.log_start)
    refuse_other_topic(position, facts.identity)
    topic = facts.identity.topic
    reached = max([position.next_offset, *position.settled.bounds])
    if reached > facts.log_end:
        raise RefusedToRun(
            f"the table's position reaches offset {reached}, but {topic} ends at {facts.log_end}: "
            "records that the table has settled were cut off the log, and new ones would get their offsets. "
            "If the log is the right one, `committerd position adopt` sets where to continue",
            code="position_beyond_end",
        )
    if position.next_offset < facts.log_start:
        raise RefusedToRun(
            f"the table's position is offset {position.next_offset}, but {topic} starts at {facts.log_start}: "
            f"{facts.log_start - position.next_offset} offsets were deleted before they were read. Find out from their "
            "producers what was lost; then `committerd position adopt` continues at the log's start",
            code="position_below_log_start",
        )
    behind = facts.acknowledged(position.era)
    if behind is not None and position.next_offset < behind:
        at = f"the table's position is offset {position.next_offset}, but the group has acknowledged {behind}"
        raise _went_back(at, position)
    for offset in facts.with_outcome(position.era):
        if not position.passes(offset):
            at = f"the record at offset {offset} has an outcome, but the table's position is {position.next_offset}"
            raise _went_back(at, position)
    return position


def _went_back(contradiction: str, position: Position) -> RefusedToRun:
    return RefusedToRun(
        f"{contradiction}: the table went back (restored and cleaned up, keys dropped, or a copy). Bring the lost "
        f"versions back, or use `committerd position rewind --offset {position.next_offset}` to judge these records "
        "again, or `committerd position adopt` to give them up",
        code="position_went_back",
    )


def refuse_rewritten_log(position: Position, before: Sequence[Record]) -> None:
    """Raise `RefusedToRun` if the last record that the position passes is there, and the table settled another one.

    `before` is the record at `position.last_offset`, or empty if the log no longer has it.
    """
    for record in before:
        if record.offset == position.last_offset and record_sha256(record) != position.last_sha256:
            raise RefusedToRun(
                f"the record at offset {record.offset} of {position.topic} is not the one that the table settled: the "
                "log was rewritten (restored from elsewhere, or truncated and written again). If this log is the right "
                "one, `committerd position adopt` sets where to continue",
                code="log_rewritten",
            )


def refuse_other_topic(position: Position, identity: TopicIdentity) -> None:
    """Raise `RefusedToRun` (`topic_id`) if the topic of this name is no longer the position's topic."""
    if position.identity == identity:
        return
    raise RefusedToRun(
        f"the table's position is of topic {position.topic} (id {position.topic_id}, cluster "
        f"{position.cluster_id}), but the queue is {identity.topic} (id {identity.topic_id}, cluster "
        f"{identity.cluster_id}): the topic was deleted and recreated, or the settings name another one. If this "
        "one is right, `committerd position adopt` continues at its start",
        code="topic_id",
    )


def owed_from(position: Position, acknowledged: int | None, *, republish_max: int, log_start: int = 0) -> int:
    """The first offset whose outcome is published again at Start; the last is the highest that the position passes.

    `acknowledged`: the group offset, of this era. If the group has acknowledged nothing, at most `republish_max`
    outcomes are published again. `log_start`: 0 = it is not known yet.
    """
    if acknowledged is not None:
        return min(acknowledged, position.next_offset)
    return max(position.next_offset - republish_max, log_start)


def _refuse_missing_keys(facts: QueueFacts, *, table_exists: bool) -> None:
    behind, with_outcome = facts.acknowledged(0), facts.with_outcome(0)
    if behind is None and not with_outcome:
        return
    proof = (
        f"the group has acknowledged offset {behind}"
        if behind is not None
        else f"offset {max(with_outcome)} has an outcome"
    )
    if table_exists:
        raise RefusedToRun(
            f"no version of the table carries a position, but {proof}: its committerd keys were dropped and the "
            "versions with them cleaned up, or this is another table. If it is the right one, `committerd position "
            "adopt` sets where to continue",
            code="keys_missing",
        )
    raise RefusedToRun(
        f"there is no table, but {proof}: it was deleted, or the URI is wrong. Restore it; or make it "
        "anew with `committerd recreate`, which says where to continue",
        code="table_gone",
    )
