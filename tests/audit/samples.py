"""A small, consistent table with its queue, which the audit's tests damage."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from committerd.audit.audit import Audit, AuditReport, QueueBounds
from committerd.audit.history import AuditedHistory, AuditedVersion
from committerd.queue.offsets import Offsets
from committerd.queue.outcomes import Settled
from committerd.queue.port import Record, TopicIdentity, record_sha256
from committerd.queue.position import Position, start_of
from committerd_common.messages import Member, Outcome, Refusal, Transaction
from committerd_common.messages import Status as StatusNumber

TOPIC = TopicIdentity(cluster_id="c", topic="t.staged", topic_id="present")
OTHER = replace(TOPIC, topic_id="other")
NOW_MS = 1_700_000_000_000


def uuid_of(number: int) -> str:
    return str(uuid.UUID(int=number))


def record(offset: int, number: int | None = None) -> Record:
    """The record at an offset; it stages the transaction of the same number."""
    value = Transaction(uuid=uuid_of(offset if number is None else number)).SerializeToString()
    return Record(offset=offset, value=value, timestamp_ms=NOW_MS + offset)


def position(
    next_offset: int, *, era: int = 0, topic: TopicIdentity = TOPIC, settled: tuple[int, ...] = ()
) -> Position:
    start = start_of(topic, next_offset)
    if next_offset == 0:
        return replace(start, era=era, settled=Offsets.of(settled))
    last = next_offset - 1
    return replace(
        start, era=era, settled=Offsets.of(settled), last_offset=last, last_sha256=record_sha256(record(last))
    )


def member(offset: int, number: int | None = None, **given: Any) -> Member:
    return Member(offset=offset, uuid=uuid_of(offset if number is None else number), **given)


def refusal(offset: int, status: StatusNumber.ValueType = StatusNumber.INVALID, **given: Any) -> Refusal:
    known: dict[str, Any] = {"offset": offset, "uuid": uuid_of(offset), "status": status, "reason": "schema"}
    return Refusal(**known | given)


def queue_version(number: int, position: Position | None, *entries: Member | Refusal, **given: Any) -> AuditedVersion:
    """A version of the queue."""
    settled = Settled(
        version=number,
        uuid=f"of version {number}",
        operation="append",
        ours=True,
        members=[one for one in entries if isinstance(one, Member)],
        refusals=[one for one in entries if isinstance(one, Refusal)],
        topic_id=position.topic_id if position else TOPIC.topic_id,
    )
    return AuditedVersion(settled=settled, position=position, **given)


def foreign_version(number: int, position: Position | None = None, uuid: str = "") -> AuditedVersion:
    settled = Settled(version=number, uuid=uuid or f"of version {number}", operation="append", ours=False)
    return AuditedVersion(settled=settled, position=position)


def committed(offset: int, version: int, **given: Any) -> Outcome:
    known: dict[str, Any] = {"offset": offset, "uuid": uuid_of(offset), "version": version, "topic_id": TOPIC.topic_id}
    return Outcome(**known | {"status": StatusNumber.COMMITTED} | given)


def refused(offset: int, **given: Any) -> Outcome:
    known: dict[str, Any] = {"offset": offset, "uuid": uuid_of(offset), "topic_id": TOPIC.topic_id}
    return Outcome(**known | {"status": StatusNumber.INVALID, "reason": "schema"} | given)


VERSIONS = (
    foreign_version(1),
    queue_version(2, position(1), member(0)),
    foreign_version(3, position(1)),
    queue_version(4, position(3), member(1), refusal(2)),
)
OUTCOMES = (committed(0, 2), committed(1, 4), refused(2), refused(2, status=StatusNumber.UNDECIDED))
RECORDS = tuple(record(offset) for offset in range(5))
BOUNDS = QueueBounds(identity=TOPIC, log_start=0, log_end=5, acknowledged=3, acknowledged_era=0)


def audited(
    versions: Sequence[AuditedVersion] = VERSIONS,
    outcomes: Sequence[Outcome] = OUTCOMES,
    records: Sequence[Record] = RECORDS,
    **bounds: Any,
) -> AuditReport:
    history = AuditedHistory()
    for version in versions:
        history.add(version)
    audit = Audit(replace(BOUNDS, **bounds), history)
    for outcome in outcomes:
        audit.outcome(outcome)
    for record in records:
        audit.record(record)
    return audit.report()


def codes(report: AuditReport) -> list[str]:
    return [finding.code for finding in report.findings]
