"""Grouping: which records become one version, and what that version records of the queue.

A run of consecutive Appends becomes one version; every other operation becomes a version of its own. Each transaction
has its own verdict: the version refuses a bad one and commits the rest. A group that holds only refusals becomes an
UpdateConfig of committerd's keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from committerd.queue.ledger import Refused
from committerd.queue.outcomes import REASON_KEY, encode_settled, short
from committerd.queue.position import AppMark, Position, encode_metadata
from committerd_common.messages import Member, Refusal, Transaction
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import Envelope, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of one version; a single transaction always fits. `bytes` counts the sizes of the staged records."""

    records: int = 1000
    bytes: int = 16 * 1024 * 1024
    fragments: int = 10_000
    coalesce_appends: bool = True

    @property
    def full(self) -> int:
        """The number of records that fill a version, whatever their size."""
        return self.records if self.coalesce_appends else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The records that one version settles, and all of the version but its manifest."""

    version: int
    transaction: Transaction
    """The version's transaction, with the queue's properties."""
    members: Sequence[Member]
    refusals: Sequence[Refusal]
    position: Position
    marks: Mapping[str, AppMark]

    @property
    def metadata(self) -> dict[str, str]:
        """The `committerd.` entries of the version's `table_metadata`."""
        return encode_metadata(self.position, self.marks)

    @property
    def settles(self) -> int:
        """The number of records that the version settles."""
        return len(self.members) + len(self.refusals)


def can_share(transaction: Transaction) -> bool:
    """Whether the transaction may share a version with others: it is an Append, and has no tag.

    A tag would become the tag of the whole version.
    """
    return transaction.WhichOneof("operation") == "append" and not transaction.tag


@dataclass(slots=True, kw_only=True)
class Weight:
    """Running totals of a group while it is formed."""

    records: int = 0
    bytes: int = 0
    fragments: int = 0
    shares: bool = True
    """Whether more requests may join: all so far are Appends without a tag."""

    def add(self, request: Request) -> None:
        """Count one more request."""
        self.records += 1
        self.bytes += request.size
        self.fragments += len(request.transaction.append.fragments)
        self.shares = self.shares and can_share(request.transaction)


def joins(request: Request, weight: Weight, limits: GroupLimits) -> bool:
    """Whether one more request may join the group.

    The members of a group need not be judged against each other, because Appends are compatible with each other.
    """
    if not weight.records:
        return True
    return (
        limits.coalesce_appends
        and weight.shares
        and can_share(request.transaction)
        and weight.records < limits.records
        and weight.bytes + request.size <= limits.bytes
        and weight.fragments + len(request.transaction.append.fragments) <= limits.fragments
    )


def member_of(request: Request, *, shared: bool, reserved: tuple[int, int] = (0, 0)) -> Member:
    """The entry in `committerd.members` of a request that the version commits.

    `reserved` is (first fragment id, count), for ReserveFragments. `shared` says that the version has several members;
    then the entry keeps the request's transaction properties.
    """
    app = request.envelope.app
    member = Member(
        offset=request.offset,
        uuid=request.uuid,
        producer=request.envelope.producer,
        outcome_partition=request.envelope.outcome_partition,
        read_version=request.transaction.read_version,
        traceparent=request.envelope.traceparent,
        reserved_first=reserved[0],
        reserved_count=reserved[1],
    )
    if app is not None:
        member.app_id, member.app_version, member.app_run = app.app_id, app.version, app.run
    if shared:
        member.properties.update(request.transaction.transaction_properties)
    return member


def refusal_of(refused: Refused, *, offset: int, envelope: Envelope, transaction: Transaction | None) -> Refusal:
    """The entry in `committerd.refused` of a request that the version's position passes without committing it."""
    refusal = Refusal(
        offset=offset,
        status=StatusNumber.Value(refused.status.value),
        reason=refused.reason,
        message=short(refused.message),
        version=refused.version,
        conflicting_version=refused.conflicting_version,
        conflicting_operation=refused.conflicting_operation,
        producer=envelope.producer,
        outcome_partition=envelope.outcome_partition,
        traceparent=envelope.traceparent,
    )
    if transaction is not None:
        refusal.uuid = transaction.uuid
        refusal.operation = transaction.WhichOneof("operation") or ""
        refusal.read_version = transaction.read_version
    return refusal


def mark_of(
    request: Request, marks: Mapping[str, AppMark], *, version: int, used_ms: int, era: int = 0
) -> dict[str, AppMark]:
    """The mark that committing this request sets, by app-id; empty if the request has no app-id."""
    app = request.envelope.app
    if app is None:
        return {}
    before = marks.get(app.app_id)
    return {
        app.app_id: AppMark(
            run=app.run,
            version=app.version,
            uuid=request.uuid,
            table_version=version,
            used_ms=used_ms,
            era=era,
            offset=request.offset,
            life=before.life if before else 0,
        )
    }


def sole(
    transaction: Transaction, members: Sequence[Member], refusals: Sequence[Refusal], *, topic_id: str
) -> Transaction:
    """The transaction of a version that commits one request: as staged or rebased, with the queue's properties."""
    own = Transaction()
    own.CopyFrom(transaction)
    own.transaction_properties.update(encode_settled(members, refusals, topic_id=topic_id))
    return own


def merged(
    transactions: Sequence[Transaction],
    members: Sequence[Member],
    refusals: Sequence[Refusal],
    *,
    uuid: str,
    topic_id: str,
) -> Transaction:
    """The Append of a version that commits several: all fragments in order, its own uuid, the lowest read version.

    pylance 4.0.0 merges in the same way (`execute_batch`), but drops uuids and properties; committerd keeps both in
    `members`.
    """
    one = Transaction(uuid=uuid, read_version=min(t.read_version for t in transactions))
    one.append.SetInParent()
    for transaction in transactions:
        one.append.fragments.extend(transaction.append.fragments)
    one.transaction_properties.update(encode_settled(members, refusals, topic_id=topic_id))
    return one


def position_only(
    position: Position,
    marks: Mapping[str, AppMark],
    refusals: Sequence[Refusal] = (),
    *,
    read_version: int,
    uuid: str,
    reason: str = "",
) -> Transaction:
    """The transaction of a version that commits no record: an UpdateConfig of committerd's keys in `table_metadata`."""
    transaction = Transaction(uuid=uuid, read_version=read_version)
    entries = encode_metadata(position, marks)
    transaction.update_config.table_metadata_updates.update_entries.extend(
        Transaction.UpdateMapEntry(key=key, value=value) for key, value in sorted(entries.items())
    )
    transaction.transaction_properties.update(encode_settled((), refusals, topic_id=position.topic_id))
    if reason:
        transaction.transaction_properties[REASON_KEY] = reason
    return transaction
