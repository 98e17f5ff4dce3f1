"""The group of one version: the records that it commits and refuses, how they were judged, and the version itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from committerd.committer.head import Head
from committerd.committer.intake import Pending
from committerd.committer.record_history import AskedUuid
from committerd.committer.stages import Period
from committerd.lance.conflicts.grid import NOTHING_FOUND, Verdict
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.rows.change import RowsAndKeys
from committerd.lance.rows.group import RowGroup, rebased
from committerd.lance.transactions.transaction import reserved_range
from committerd.queue.dedupe import Refused
from committerd.queue.grouping import (
    GroupLimits,
    Weight,
    appends_together,
    configs_together,
    mark_of,
    member_of,
    position_only,
    with_entries,
)
from committerd.queue.ledger import Earlier
from committerd.queue.outcomes import Settled
from committerd.queue.port import Record, TopicIdentity
from committerd.queue.position import AppMark, MarkRoom, Position, advance, encode_metadata, is_new_to, kept_marks
from committerd.queue.race import VersionSummary
from committerd.queue.reservations import ROWS_BYTES_MAX, ROWS_LINE_MAX, ROWS_MAX, Reservations
from committerd.queue.rounds import Part, part_of
from committerd.table.case import Sources
from committerd.table.judge import Judged
from committerd.table.needs import Checkpoint, Steps
from committerd.table.prepare import Prepared, build_version
from committerd.table.row_groups import DeletionFiles, recorded
from committerd.telemetry import Telemetry
from committerd_common.index_details import MEM_WAL_INDEX
from committerd_common.messages import Member, Refusal
from committerd_common.request import Request

_IN_A_STRETCH = 64
"""Members to describe before the stretch of work may end."""


@dataclass(slots=True)
class Verdicts:
    """How the records of a version were judged: counted once it is created, however often it was formed."""

    _conflicts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By (operation of ours, of theirs, verdict)."""
    _rebases: Counter[str] = field(default_factory=Counter)
    """By operation of ours, as the next one."""
    _followed_rows: Counter[str] = field(default_factory=Counter)
    _look_ups: Counter[str] = field(default_factory=Counter)
    """By what was found."""

    def looked_up(self, earlier: Earlier) -> None:
        """Add a look-up of a uuid in the ledger."""
        self._look_ups[earlier.found] += 1

    def add(self, operation: str, judged: Judged | Refused) -> None:
        """Add a record: a member, or a refusal."""
        conflicts = judged.found.conflicts
        for checked in conflicts:
            if checked.theirs is not None:
                self._conflicts[operation, checked.theirs.value, checked.verdict.name.lower()] += 1
        if isinstance(judged, Judged) and any(checked.verdict is Verdict.REBASABLE for checked in conflicts):
            self._rebases[operation] += 1
            if judged.followed is not None:
                self._followed_rows[operation] += judged.followed.rows

    def count(self, telemetry: Telemetry) -> None:
        """Count them: the version was created."""
        for (ours, theirs, verdict), times in self._conflicts.items():
            telemetry.conflicts.add(times, ours=ours, theirs=theirs, verdict=verdict)
        for found, times in self._look_ups.items():
            telemetry.ledger_lookups.add(times, found=found)
        for operation, times in self._rebases.items():
            telemetry.rebases.add(times, operation=operation)
        for operation, rows in self._followed_rows.items():
            telemetry.followed_rows.add(rows, operation=operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedVersion:
    """A version that is formed and not put yet: its records, every byte to write, and the head that follows."""

    prepared: Prepared
    own: VersionSummary
    """Its queue entries and position, which tell it from other writers' versions."""
    after: Head
    """The head after it is created."""
    newest: int = 0
    """`Pending.number` of the last record to arrive among those that it settles; 0 = it settles none."""
    unused_marks: int = 0
    """The number of application marks that it drops because they were unused for 30 days."""
    round_left: Set[int] = frozenset()
    """The offsets of the version's round that still wait; empty = the round is over."""
    rows_and_keys: Mapping[int, RowsAndKeys] = field(default_factory=dict)
    """The rows and keys of each refused Delete or Update for which they may be reserved, by the record's offset."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    """How its members and refusals were judged."""
    rules: Mapping[int, str] = field(default_factory=dict)
    """The conflict rule that refused a record, by the record's offset."""
    decided: Period | None = None
    """When it was decided, on the event loop's clock; None = it holds no records."""
    deadline_ms: float = math.inf
    """The first deadline of its members, in Unix milliseconds."""
    identity: TopicIdentity | None = None
    """The topic's identity, requested after the records had arrived; None = requested before the put."""


@dataclass(slots=True, kw_only=True)
class Members:
    """The records that a version commits and refuses, while they are gathered."""

    head: Head
    """What the version is built on."""
    now_ms: int
    """When gathering began, in Unix milliseconds."""
    limits: GroupLimits = field(default_factory=GroupLimits)
    reservations: Reservations = field(default_factory=Reservations)
    """What is reserved for refused transactions that come again."""
    unbuildable: Mapping[int, Refused] = field(default_factory=dict)
    """The refusals of records that no version can be built of, by offset."""
    earlier: dict[AskedUuid, Earlier] = field(default_factory=dict)
    """What was found of the uuids that were looked up."""
    ruled_out: set[AskedUuid] = field(default_factory=set)
    """The uuids of which the ledger certainly knows nothing (`Ledger.rules_out`), as far as it was asked."""
    marks: dict[str, AppMark] = field(init=False)
    rows: RowGroup = field(init=False)
    """What the requests delete, if they are of part `ROWS`."""
    requests: list[Request] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    refused: dict[str, list[Refusal]] = field(default_factory=dict)
    """The refusals by uuid."""
    rows_and_keys: dict[int, RowsAndKeys] = field(default_factory=dict)
    """As `FormedVersion.rows_and_keys`."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    rules: dict[int, str] = field(default_factory=dict)
    """As `FormedVersion.rules`."""
    uuids: set[str] = field(default_factory=set)
    """The uuids of the requests."""
    weight: Weight = field(default_factory=Weight)
    newest: int = 0
    """`Pending.number` of the last record to arrive among those that the group settles."""
    last: Record | None = None
    """The record with the highest offset among those that the group settles."""
    round_left: Set[int] = frozenset()
    """As `FormedVersion.round_left`."""
    mark_room: MarkRoom | None = None
    """The room for marks of more applications; None = none has asked for it."""
    schema: TableSchema = field(init=False)
    """Of the latest version; without fields if there is no table."""

    def __post_init__(self) -> None:
        manifest, self.marks = self.head.manifest, dict(self.head.marks)
        self.schema = TableSchema(manifest.outline.fields if manifest is not None else ())
        has_mem_wal = manifest is not None and any(index.name == MEM_WAL_INDEX for index in manifest.indices)
        self.rows = RowGroup(keeps_apart=has_mem_wal)

    def first(self, count: int) -> Members:
        """The first requests alone."""
        first = replace(self, requests=self.requests[:count], judged=self.judged[:count], refusals=[])
        first.marks = self.marks
        for one in first.judged:
            if one.change is not None:
                first.rows.add(one.change)
        return first

    def offsets(self) -> list[int]:
        """Return the offsets of the records that the group settles."""
        return [*(r.offset for r in self.requests), *(r.offset for r in self.refusals)]

    def can_record_with(self, judged: Judged) -> bool:
        """Whether the version can record this Delete or Update together with its members; False: it starts another."""
        return not self.requests if judged.change is None else self.rows.takes(judged.change)

    def take(self, request: Request, judged: Judged, pending: Pending) -> None:
        """Add a request that is committed."""
        app, used_ms = request.envelope.app, pending.record.timestamp_ms
        version, era = self.head.version + 1, self.head.position.era
        marks = mark_of(request, self.marks, version=version, used_ms=used_ms, era=era)
        change = judged.change
        shares = judged.by_pylance is None and (change is not None or part_of(request.transaction) is not Part.ROWS)
        # All that may raise is done above, so a request is taken as a whole or not at all.
        self.weight.add(request, self.limits, shares=shares, more_bytes=change.bytes if change else 0)
        if change is not None:
            self.rows.add(change)
        self._settle(pending)
        self.requests.append(request)
        self.verdicts.add(request.operation, judged)
        # Of thousands of versions since its read version, there may be a conflict with each.
        self.judged.append(judged if judged.found is NOTHING_FOUND else replace(judged, found=NOTHING_FOUND))
        self.uuids.add(request.uuid)
        if app is not None and self.mark_room is not None and is_new_to(self.marks, app.app_id):
            self.mark_room.add(app.app_id, app.run)
        self.marks |= marks

    def refuse(self, refusal: Refusal, refused: Refused, pending: Pending, request: Request | None) -> None:
        """Add a refusal. `request`: None if the record can't be decoded."""
        self._settle(pending)
        self.refusals.append(refusal)
        self.refused.setdefault(refusal.uuid, []).append(refusal)
        if request is not None:
            self.verdicts.add(request.operation, refused)
        if refused.rule:
            self.rules[pending.offset] = refused.rule
        known = refused.rows_and_keys
        has_room = len(self.rows_and_keys) < ROWS_MAX + ROWS_LINE_MAX
        if known is not None and known.bytes <= ROWS_BYTES_MAX and has_room:
            self.rows_and_keys[pending.offset] = known

    def _settle(self, pending: Pending) -> None:
        self.newest = max(self.newest, pending.number)
        if self.last is None or pending.offset > self.last.offset:
            self.last = pending.record


def built_group(group: Members, waiting: Sequence[Pending] | None, sources: Sources) -> Steps[FormedVersion]:
    """Build the version that holds this group. `waiting`: the first records without an outcome; None = the version is a
    trial, and keeps the head's position.

    Raises a `RequestError` when the content can't be built.
    """
    head, marks = group.head, kept_marks(group.marks)
    position = head.position if waiting is None else _advanced(group, waiting)
    judged, members = yield from _together(group, position, marks, sources)
    transaction = judged.transaction
    prepared = yield from build_version(
        head.manifest,
        judged,
        scheme=head.table.scheme,
        sources=sources,
        table_metadata=encode_metadata(position, marks),
        holds_records=bool(group.requests),
    )
    own = Settled(
        version=prepared.version,
        uuid=transaction.uuid,
        operation=transaction.WhichOneof("operation") or "",
        ours=True,
        members=members,
        refusals=group.refusals,
    )
    found = VersionSummary(settled=own, position=position, marks=marks)
    deadlines = [at for one in group.requests if (at := one.envelope.deadline_ms) is not None]
    return FormedVersion(
        prepared=prepared,
        own=found,
        after=head.then([found], prepared.file, formed=prepared.committed, unwritten=prepared.judged.deletion_vectors),
        newest=group.newest,
        round_left=group.round_left,
        rows_and_keys=group.rows_and_keys,
        verdicts=group.verdicts,
        rules=group.rules,
        deadline_ms=min(deadlines, default=math.inf),
        unused_marks=len(group.marks) - len(marks),
    )


def _advanced(group: Members, waiting: Sequence[Pending]) -> Position:
    """The position once the records of the group are settled."""
    settled = group.offsets()
    passable = [pending.offset for pending in waiting[: len(settled) + 1]]  # one more than the position can pass
    return advance(group.head.position, passable, settled, last=group.last)


def _together(
    group: Members, position: Position, marks: Mapping[str, AppMark], sources: Sources
) -> Steps[tuple[Judged, list[Member]]]:
    """Return the transaction that the version stores, with all that building it needs, and its members."""
    head = group.head
    uuid, topic_id = str(sources.new_uuid()), position.topic_id
    if not group.requests:
        only = position_only(position, marks, group.refusals, read_version=head.version, uuid=uuid)
        return Judged(transaction=only), []
    judged, transactions = group.judged[0], [one.transaction for one in group.judged]
    is_shared = len(transactions) > 1
    if judged.change is not None:
        judged = yield from _by_rows(group, judged, sources)
        together = judged.transaction
    elif is_shared:
        is_config = group.weight.part is Part.CONFIG
        together = (configs_together if is_config else appends_together)(transactions)
    else:
        together = transactions[0]
    reserved = (0, 0) if is_shared else reserved_range(head.manifest.outline if head.manifest else None, together)
    members = list[Member]()
    for place, (one, judged_one) in enumerate(zip(group.requests, group.judged, strict=True)):
        if place % _IN_A_STRETCH == 0:
            yield Checkpoint()
        members.append(member_of(one, shared=is_shared, reserved=reserved, note=judged_one.note))
    yield Checkpoint()
    stored = with_entries(together, members, group.refusals, topic_id=topic_id, uuid=uuid if is_shared else "")
    return replace(judged, transaction=stored), members


def _by_rows(group: Members, judged: Judged, sources: Sources) -> Steps[Judged]:
    """The Delete or Update that records all members, with the deletion files to write."""
    head = group.head
    assert head.manifest is not None
    latest, rows = head.manifest.part(group.rows.fragments), group.rows
    files = DeletionFiles(latest=head.manifest.outline.base_paths, unwritten=head.history.unwritten, staged_bytes_max=0)
    done = yield from recorded(rows, latest, files, file_ids=sources.file_ids())
    transactions = [one.transaction for one in group.judged]
    judged = replace(judged, files=done.files, deletion_vectors=done.rows)
    if len(transactions) > 1:
        return replace(judged, transaction=rows.transaction(transactions, done), moves=rows.moves)
    return replace(judged, transaction=rebased(transactions[0], done, latest_version=head.version))
