"""Grouping: which records become one version, and what that version records of the queue.

The records of one part of a round (`queue.rounds`) become one version; every other record becomes a version of its own.
Each transaction has its own verdict: the version refuses a bad one and commits the rest. A group that holds only
refusals becomes an UpdateConfig of committerd's keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from committerd.lance.conflicts.key_filter import KeyUnion, appended_keys, encoded_keys
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import REASON_KEY, encode_settled, short
from committerd.queue.position import AppMark, Pause, Position, encode_metadata
from committerd.queue.rounds import Coalesce, Part, changed_keys, part_of
from committerd_common.messages import Member, Refusal, Transaction
from committerd_common.messages import Status as StatusNumber
from committerd_common.own_properties import BLAKE2B_8, KEY_HASH, KEYS
from committerd_common.request import Envelope, Request

_FRAGMENTS_LIKE_A_RECORD = 5
"""A record with so many more fragments takes about as much longer as another record of one fragment takes."""
_FRAGMENTS_OF_TABLE_LIKE_A_RECORD = 700
"""A version counts as one record for each so many fragments of its table. Measured with 500,000 fragments on a local
disk: a flood beside others then has about 0.7 of its own rate.
"""
_SHARED_KEYS_MAX = 2000
"""Maximum number of keys that UpdateConfigs change together if they share a version. The table has room for each of
them, but perhaps not for all; then the version is built a few times to find how many of them fit.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of one version; a single transaction always fits. `bytes` counts the sizes of the staged records."""

    records: int = 1000
    bytes: int = 16 * 1024 * 1024
    fragments: int = 10_000
    coalesce: Coalesce = Coalesce.ALL

    @property
    def full(self) -> int:
        """The number of records that fill a version, whatever their size."""
        return 1 if self.coalesce is Coalesce.NONE else self.records


@dataclass(slots=True, kw_only=True)
class Weight:
    """Running totals of a group while it is formed."""

    records: int = 0
    bytes: int = 0
    fragments: int = 0
    work: int = 0
    """As `work_of`."""
    part: Part | None = None
    """The part of a round that all requests so far belong to; None = more may not join."""
    keys: set[str] = field(default_factory=set)
    """The keys that the UpdateConfigs so far set or remove."""

    def add(self, request: Request, limits: GroupLimits, *, shares: bool = True, more_bytes: int = 0) -> None:
        """Count one more request.

        `shares`: whether more may join it; its part in a round decides too. `more_bytes`: memory that it takes beyond
        its record until the version is made.
        """
        self.records += 1
        self.bytes += request.size + more_bytes
        fragments = _fragments(request.transaction)
        self.fragments += fragments
        self.work += _work_of_fragments(fragments)
        self.part = part_of(request.transaction, limits.coalesce) if shares else None
        if self.part is Part.CONFIG:
            self.keys.update(changed_keys(request.transaction))


def joins(request: Request, weight: Weight, limits: GroupLimits) -> bool:
    """Whether one more request may join the group, as far as parts, limits and config keys say.

    Members that delete rows are judged against each other too (`lance.rows.group`). Appends need not be, because they
    are compatible with each other.
    """
    if not weight.records:
        return True
    part = part_of(request.transaction, limits.coalesce)
    keys = changed_keys(request.transaction) if part is Part.CONFIG else []
    return (
        part is not None
        and part is weight.part
        and weight.records < limits.records
        and weight.bytes + request.size <= limits.bytes
        and weight.fragments + _fragments(request.transaction) <= limits.fragments
        and len(weight.keys) + len(keys) <= _SHARED_KEYS_MAX
        and weight.keys.isdisjoint(keys)
    )


def work_of(transaction: Transaction) -> int:
    """How long a transaction takes, in units of an Append of one file: a record with many files counts as several."""
    return _work_of_fragments(_fragments(transaction))


def work_of_version(fragments: int) -> int:
    """How long a version of a table with so many fragments takes beside its records, in units of an Append of one file.

    The version's manifest has all fragments of the table.
    """
    return fragments // _FRAGMENTS_OF_TABLE_LIKE_A_RECORD


def _work_of_fragments(count: int) -> int:
    return 1 + count // _FRAGMENTS_LIKE_A_RECORD


def _fragments(transaction: Transaction) -> int:
    """The number of fragments that the transaction adds or changes."""
    match transaction.WhichOneof("operation"):
        case "append":
            return len(transaction.append.fragments)
        case "delete":
            return len(transaction.delete.updated_fragments)
        case "update":
            return len(transaction.update.updated_fragments) + len(transaction.update.new_fragments)
        case _:
            return 0


def member_of(request: Request, *, shared: bool, reserved: tuple[int, int] = (0, 0), note: str = "") -> Member:
    """The entry in `committerd.members` of a request that the version commits.

    `reserved` is (first fragment id, count), for ReserveFragments. `shared` says that the version has several members;
    then the entry keeps the request's operation and its transaction properties. `note` says what a rebase changed.
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
        note=short(note),
    )
    if app is not None:
        member.app_id, member.app_version, member.app_run = app.app_id, app.version, app.run
        if app.after is not None:
            member.app_after = app.after
    if shared:
        member.properties.update(request.transaction.transaction_properties)
        for one in (KEYS, KEY_HASH):  # large, and part of the version's own
            member.properties.pop(one, None)
        member.operation = request.operation
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


def with_entries(
    transaction: Transaction, members: Sequence[Member], refusals: Sequence[Refusal], *, topic_id: str, uuid: str = ""
) -> Transaction:
    """The transaction of a version: a copy of what its members do together, with the queue's properties.

    `uuid`: the one of a version of several members; empty = that of `transaction`.
    """
    own = Transaction()
    own.CopyFrom(transaction)
    own.uuid = uuid or transaction.uuid
    own.transaction_properties.update(encode_settled(members, refusals, topic_id=topic_id))
    return own


def appends_together(transactions: Sequence[Transaction]) -> Transaction:
    """The Append of several: all fragments in order, and the lowest read version.

    pylance 4.0.0 merges in the same way (`execute_batch`), but drops uuids and properties; committerd keeps both in
    `members`. Its `committerd.keys` are those of all, with the name of their hash.
    """
    one = Transaction(read_version=min(t.read_version for t in transactions))
    one.append.SetInParent()
    for transaction in transactions:
        one.append.fragments.extend(transaction.append.fragments)
    keys = _keys_together(transactions)
    if keys is not None:
        one.transaction_properties.update({KEYS: encoded_keys(keys.message()), KEY_HASH: BLAKE2B_8})
    return one


def _keys_together(transactions: Sequence[Transaction]) -> KeyUnion | None:
    """The keys of all rows that several Appends bring; None if one does not say, or if they don't fit one filter."""
    union: KeyUnion | None = None
    for transaction in transactions:
        keys = appended_keys(transaction)
        if keys is None or (union is not None and not union.takes(keys)):
            return None
        union = union or KeyUnion(keys)
        union.add(keys)
    return union


def configs_together(transactions: Sequence[Transaction]) -> Transaction:
    """The UpdateConfig of several that change different keys: all their entries, and the lowest read version."""
    one = Transaction(read_version=min(t.read_version for t in transactions))
    one.update_config.SetInParent()
    for transaction in transactions:
        config = transaction.update_config
        if config.HasField("config_updates"):
            one.update_config.config_updates.MergeFrom(config.config_updates)
        if config.HasField("table_metadata_updates"):
            one.update_config.table_metadata_updates.MergeFrom(config.table_metadata_updates)
    return one


def position_only(
    position: Position,
    marks: Mapping[str, AppMark],
    refusals: Sequence[Refusal] = (),
    *,
    read_version: int,
    uuid: str,
    reason: str = "",
    pause: Pause | None = None,
) -> Transaction:
    """The transaction of a version that commits no record: an UpdateConfig of committerd's keys in `table_metadata`."""
    transaction = Transaction(uuid=uuid, read_version=read_version)
    entries = encode_metadata(position, marks, pause)
    transaction.update_config.table_metadata_updates.update_entries.extend(
        Transaction.UpdateMapEntry(key=key, value=value) for key, value in sorted(entries.items())
    )
    transaction.transaction_properties.update(encode_settled((), refusals, topic_id=position.topic_id))
    if reason:
        transaction.transaction_properties[REASON_KEY] = reason
    return transaction
