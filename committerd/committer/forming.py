"""From waiting records to the next version: judge each, take what fits together, build once.

Records are looked at in the order of their offsets. What can't be committed is refused and rides along; the group ends
before the first record that can't share its version.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import anyio.lowlevel

from committerd.committer.decoding import Decoder
from committerd.committer.intake import Fingerprints, Intake, Pending
from committerd.committer.putting import Draft
from committerd.committer.view import View
from committerd.errors import RequestError
from committerd.format.messages import Member, Refusal, Transaction
from committerd.format.request import Envelope, Request, who_asked
from committerd.judged import refused_by
from committerd.prepare import (
    Allowed,
    Judged,
    PrepareOptions,
    Rejected,
    World,
    build_version,
    create_options,
    judge,
)
from committerd.rules.answers import Settled, Status
from committerd.rules.conflicts import Verdict
from committerd.rules.grouping import (
    Group,
    GroupLimits,
    Weight,
    joins,
    mark_of,
    member_of,
    merged,
    position_only,
    refusal_of,
    reserved_range,
    sole,
)
from committerd.rules.ledger import Asked, Refused, dedupe
from committerd.rules.position import AppMark, Position, advance, kept_marks
from committerd.rules.settle import Found
from committerd.rules.turns import goes_ahead
from committerd.telemetry import Telemetry

_AT_ONCE = 64
"""Records that are judged without a pause: some milliseconds."""
STALE_MS = 5 * 24 * 3600 * 1000
"""Lance's cleanup deletes files that no version names after 7 days; a record older than 5 is looked at closely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormingOptions:
    """What the operator allows."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    verify_files: Literal["always", "stale", "never"] = "stale"
    allowed: Allowed = field(default_factory=Allowed)
    app_marks_max: int = 1000


@dataclass(slots=True)
class _Forming:
    """A group while it grows."""

    marks: dict[str, AppMark]
    now_ms: int
    """When it was begun, Unix time."""
    requests: list[Request] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    refused: dict[str, list[Refusal]] = field(default_factory=dict)
    """The same by uuid."""
    uuids: set[str] = field(default_factory=set)
    weight: Weight = field(default_factory=Weight)
    newest: int = 0
    """Number of the record that arrived last of those that the group settles."""

    def offsets(self) -> list[int]:
        """Of the records that the group settles."""
        return [*(r.offset for r in self.requests), *(r.offset for r in self.refusals)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """Forms groups for one table. Changes nothing; may raise an `Unavailable`, `UnsupportedTable` or `CorruptTable`."""

    options: FormingOptions
    decoder: Decoder
    world: World
    telemetry: Telemetry

    async def form(self, view: View, intake: Intake, *, held_for: Container[str] | None = None) -> Draft | None:
        """The next version, None when nothing waits.

        `held_for`: during a hold, the refused uuids whose next tries alone may be committed. Other re-executions that
        can't be are refused even then, so that their next tries come in the same hold.
        """
        coalesce = self.options.limits.coalesce_appends
        unbuildable: dict[int, Refused] = {}
        assert view.position is not None
        # As they are now: more may arrive, or the assignment end, while we read.
        records = self.options.limits.records if coalesce else min(self.options.limits.records, _AT_ONCE)
        waiting = intake.first(records + 1, behind=view.position)
        retries = [one for one in intake.waiting_retries() if not view.position.passes(one.offset)]
        turns = _in_turn(view, waiting, retries, only_retries=held_for is not None)
        held = {p.offset for p in turns if held_for is not None and p.retry_of not in held_for}
        while True:
            started = view.monotonic()
            forming = await self._gather(view, turns, coalesce=coalesce, unbuildable=unbuildable, held=held)
            if not forming.requests and not forming.refusals:
                return None
            self.telemetry.commit_duration.observe(view.monotonic() - started, stage="judge")
            try:
                return await self._build(forming, view, waiting)
            except RequestError as error:
                if len(forming.requests) == 1:
                    unbuildable[forming.requests[0].offset] = refused_by(error)
                elif coalesce and forming.requests:
                    # Each passed on its own and together they can't be built: find out which one it is.
                    coalesce = False
                else:
                    raise

    async def form_create(self, view: View, pending: Pending, *, is_first: bool) -> Draft | None:
        """Version 1 from a create that goes ahead of the waiting records; None when it can't be committed now.

        `is_first`: no record waits before it.
        """
        forming = _Forming(marks={}, now_ms=self._now_ms())
        request = await self.decoder.decode(pending, view.table)
        if isinstance(request, Refused):
            return None
        answer = await self._judge(request, pending, forming, view)
        if isinstance(answer, Refused):
            return None
        self._take(forming, pending, answer, view)
        try:
            return await self._build(forming, view, [pending] if is_first else [])
        except RequestError:
            return None

    async def form_keys(self, view: View) -> Draft:
        """A version that puts our keys back, which a foreign one lowered or dropped."""
        return await self._build(_Forming(marks=dict(view.marks), now_ms=self._now_ms()), view, [])

    async def _gather(
        self,
        view: View,
        turns: Sequence[Pending],
        *,
        coalesce: bool,
        unbuildable: Mapping[int, Refused],
        held: Container[int],
    ) -> _Forming:
        """Judge waiting records, in this order, until one can't join. Those `held` may only be refused."""
        assert view.position is not None
        limits = replace(self.options.limits, coalesce_appends=coalesce)
        forming = _Forming(marks=dict(view.marks), now_ms=self._now_ms())
        for number, pending in enumerate(turns, start=1):
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()  # others have things to do meanwhile
            if len(forming.requests) + len(forming.refusals) >= limits.records:
                break
            request = await self.decoder.decode(pending, view.table)
            if isinstance(request, Refused):
                self._refuse(forming, pending, request)
                continue
            if not joins(request, forming.weight, limits):
                break
            answer = unbuildable.get(pending.offset) or await self._judge(request, pending, forming, view)
            if isinstance(answer, Refused):
                self._refuse(forming, pending, answer)
            elif pending.offset not in held:
                self._take(forming, pending, answer, view)
        return forming

    async def _judge(self, request: Request, pending: Pending, forming: _Forming, view: View) -> Judged | Refused:
        """Steps of one request against the latest version and the group that it may join."""
        envelope, version = request.envelope, view.base + 1
        asked = Asked(
            uuid=request.uuid,
            read_version=request.transaction.read_version,
            app=envelope.app,
            is_replay=envelope.replay_of is not None,
        )
        answer = dedupe(
            asked,
            view.ledger,
            forming.marks,
            version=version,
            members=forming.uuids,
            refusals=forming.refused.get(request.uuid, ()),
        )
        answer = answer or _expired(envelope, forming.now_ms)
        if answer is None and envelope.read_uuid is not None:
            answer = await self._recreated(envelope.read_uuid, request.transaction.read_version, view)
        if answer is not None:
            return answer
        judged = await judge(
            view.table,
            view.latest,
            request.transaction,
            options=self._prepare_options(request, age_ms=forming.now_ms - pending.record.timestamp_ms),
            world=self.world,
        )
        if judged.found.conflicts:
            self._count_conflicts(request, judged)
        return judged

    def _prepare_options(self, request: Request, *, age_ms: int) -> PrepareOptions:
        options, envelope = self.options, request.envelope
        return PrepareOptions(
            allowed=options.allowed,
            verify_files=options.verify_files == "always" or (options.verify_files == "stale" and age_ms > STALE_MS),
            rules_out_duplicate=envelope.app is not None,
            create=create_options(envelope.create_options),
            create_only=envelope.create_only,
        )

    async def _recreated(self, uuid: str, version: int, view: View) -> Refused | None:
        """Whether `version`, that it was read at, is of another table of that name now: made by another than `uuid`."""
        if not 0 < version <= view.base:
            return None
        made = await view.table.committed(version)
        if made is None or made.settled.uuid in ("", uuid):
            return None
        return Refused(
            status=Status.INVALID,
            reason="table_recreated",
            message=f"it was read at version {version} made by transaction {uuid}, but that version of this table was "
            f"made by {made.settled.uuid}: the table was deleted and made again. Do the work again on the new table",
        )

    def _take(self, forming: _Forming, pending: Pending, judged: Judged, view: View) -> None:
        request = pending.decoded
        assert isinstance(request, Request)
        forming.newest = max(forming.newest, pending.number)
        forming.requests.append(request)
        forming.judged.append(judged)
        forming.uuids.add(request.uuid)
        forming.weight.add(request)
        assert view.position is not None
        if request.envelope.app is not None:
            forming.marks |= mark_of(
                request, forming.marks, version=view.base + 1, now_ms=forming.now_ms, era=view.position.era
            )

    def _refuse(self, forming: _Forming, pending: Pending, refused: Refused) -> None:
        request = pending.decoded if isinstance(pending.decoded, Request) else None
        refusal = refusal_of(
            refused,
            offset=pending.offset,
            envelope=request.envelope if request else who_asked(pending.record.headers),
            transaction=request.transaction if request else None,
        )
        forming.newest = max(forming.newest, pending.number)
        forming.refusals.append(refusal)
        forming.refused.setdefault(refusal.uuid, []).append(refusal)

    async def _build(self, forming: _Forming, view: View, waiting: Sequence[Pending]) -> Draft:
        """Everything that the version will hold; `waiting` are the first records without an answer.

        Raises a `RequestError` when the content can't be built.
        """
        assert view.position is not None
        settled = forming.offsets()
        passable = waiting[: len(settled) + 1]  # one more than can be passed
        offsets = [pending.offset for pending in passable]
        position = advance(view.position, offsets, settled, fingerprints=Fingerprints(passable))
        now_ms, most = self._now_ms(), self.options.app_marks_max
        marks = kept_marks(forming.marks, now_ms=now_ms, most=most)
        transaction, members = self._transaction(forming, view, position, marks)
        group = Group(
            version=view.base + 1,
            transaction=transaction,
            members=members,
            refusals=forming.refusals,
            position=position,
            marks=marks,
        )
        judged = (
            replace(forming.judged[0], transaction=transaction) if forming.judged else Judged(transaction=transaction)
        )
        started = view.monotonic()
        prepared = await build_version(view.table, view.latest, judged, world=self.world, table_metadata=group.metadata)
        self.telemetry.commit_duration.observe(view.monotonic() - started, stage="build")
        own = Settled(
            version=prepared.version,
            uuid=transaction.uuid,
            operation=transaction.WhichOneof("operation") or "",
            ours=True,
            members=members,
            refusals=forming.refusals,
        )
        return Draft(
            group=group,
            prepared=prepared,
            own=Found(settled=own, position=position, marks=marks),
            newest=forming.newest,
        )

    def _transaction(
        self, forming: _Forming, view: View, position: Position, marks: Mapping[str, AppMark]
    ) -> tuple[Transaction, list[Member]]:
        """The transaction that the version stores, and its members."""
        uuid = str(self.world.new_uuid())
        if not forming.requests:
            only = position_only(position, marks, forming.refusals, read_version=view.base, uuid=uuid)
            return only, []
        if len(forming.requests) == 1:
            transaction = forming.judged[0].transaction
            latest = view.latest.outline if view.latest else None
            reserved = reserved_range(latest, transaction)
            members = [member_of(forming.requests[0], shared=False, reserved=reserved)]
            return sole(transaction, members, forming.refusals, topic_id=position.topic_id), members
        members = [member_of(r, shared=True) for r in forming.requests]
        transactions = [j.transaction for j in forming.judged]
        return merged(transactions, members, forming.refusals, uuid=uuid, topic_id=position.topic_id), members

    def _count_conflicts(self, request: Request, judged: Judged | Rejected) -> None:
        conflicts = judged.found.conflicts
        rebased = any(checked.verdict is Verdict.REBASABLE for checked in conflicts)
        if rebased and isinstance(judged, Judged):
            self.telemetry.rebases.add(operation=request.operation)
        for checked in conflicts:
            if checked.theirs is not None:
                self.telemetry.conflicts.add(
                    ours=request.operation,
                    theirs=checked.theirs.value,
                    verdict=checked.verdict.name.lower(),
                )

    def _now_ms(self) -> int:
        return int(self.world.wall_clock().timestamp() * 1000)


def _expired(envelope: Envelope, now_ms: int) -> Refused | None:
    deadline = envelope.deadline_ms
    if deadline is None or now_ms <= deadline:
        return None
    return Refused(
        status=Status.EXPIRED,
        reason="deadline_passed",
        message=f"its turn came {now_ms - deadline} ms after the deadline that its producer set",
    )


def _in_turn(
    view: View, waiting: Sequence[Pending], retries: Sequence[Pending], *, only_retries: bool
) -> Sequence[Pending]:
    """Waiting records in the order in which they are judged: re-executions first, else by offset."""
    assert view.position is not None
    first: list[Pending] = []
    for pending in retries:
        if goes_ahead(pending.retry_of, view.position, view.ledger, ahead=len(first)):
            first.append(pending)
    if only_retries:
        return first
    if not first:
        return waiting
    ahead = {p.offset for p in first}
    return [*first, *(p for p in waiting if p.offset not in ahead)]
