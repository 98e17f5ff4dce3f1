"""Forms the next version from waiting records: judges each, groups those that fit together, and builds one version.

Records are judged in the order of their offsets, those of one part of a round (`queue.rounds`) together. The version
also holds the refusals of records that can't be committed. The group ends before the first record that can't share its
version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

import anyio
import anyio.lowlevel

from committerd.committer.containing import Containment, require_contained
from committerd.committer.decoding import Decoder
from committerd.committer.head import Head
from committerd.committer.intake import DECODED_BYTES_MAX, Fingerprints, Intake, Pending, decoded_together
from committerd.committer.putting import FormedVersion
from committerd.committer.stale_history import StaleHistory
from committerd.committer.verdicts import Verdicts
from committerd.concurrency import for_each
from committerd.errors import CommitterError, CorruptTable, RequestError
from committerd.lance.conflicts.grid import NOTHING_FOUND
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowsAndKeys
from committerd.lance.rows.group import RowGroup, rebased
from committerd.lance.transactions.transaction import reserved_range
from committerd.queue.grouping import (
    Group,
    GroupLimits,
    Weight,
    appends_together,
    configs_together,
    joins,
    mark_of,
    member_of,
    position_only,
    refusal_of,
    sole,
    with_members,
)
from committerd.queue.ledger import NOT_SEEN, Candidate, Earlier, Refused, dedupe, no_room_for
from committerd.queue.outcomes import Settled, Status
from committerd.queue.position import AHEAD_MAX, AppMark, MarkRoom, Position, advance, is_new_to, kept_marks
from committerd.queue.put_back import can_be_judged_without, lost_history, lost_refusal, may_be_lost, on_the_latest
from committerd.queue.race import Found
from committerd.queue.reservations import ROWS_BYTES_MAX, ROWS_LINE_MAX, ROWS_MAX, Reservations
from committerd.queue.rounds import Coalesce, Part, Round, part_of
from committerd.table.judge import can_not_follow, goes_later, places_of
from committerd.table.prepare import (
    Judged,
    Permissions,
    PrepareOptions,
    Rejected,
    World,
    build_version,
    create_options,
    judge,
)
from committerd.table.refusals import INTERNAL_ERROR
from committerd.table.row_groups import recorded
from committerd.table.staged_files import FileLimits, check_files_of_several
from committerd.table.versions import Table
from committerd.table.work import LIGHT_BYTES_MAX, Work
from committerd.telemetry import Telemetry
from committerd_common.index_details import MEM_WAL_INDEX
from committerd_common.messages import Member, Refusal
from committerd_common.request import Envelope, Request, who_asked

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Records to judge between two checkpoints of the event loop: a few milliseconds of work."""
_LOOK_UPS_AT_ONCE = 64
"""Versions to read concurrently for look-ups of uuids, so that a distant store is kept busy."""
_CULPRITS_MAX = 4
"""Maximum number of records that one attempt to form a version may refuse because a group with them can't be built."""
_TURNS = 4
"""Iterations of the event loop to wait for the file checker to begin with a record that has just arrived."""
_CHECKED_SECONDS_MAX = 300.0
"""How long the result of a file check is valid."""
STALE_MS = 5 * 24 * 3600 * 1000
"""Age in milliseconds from which a record is stale. Lance's cleanup deletes unreferenced files after 7 days."""


FileCheckTiming = Literal["early", "together"]
"""When the files of records are checked.

early: while the records wait (`FileChecker`), for a store with a round trip. together: all files of a version in one go
when it is formed, for a local store.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormingOptions:
    """The operator's settings for forming versions."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    verify_files: Literal["always", "stale", "never"] = "always"
    trusts_rewrites: bool = False
    """Whether the Rewrites of all writers count as in order."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    allowed: Permissions = field(default_factory=Permissions)
    app_marks_max: int = 1000

    def verifies(self, *, age_ms: int) -> bool:
        """Whether the files of a record of this age, in milliseconds, are checked."""
        return self.verify_files == "always" or (self.verify_files == "stale" and age_ms > STALE_MS)


_Asked = tuple[str, int]
"""A uuid that is looked up, and the version above which all versions must be known."""


@dataclass(slots=True)
class _Forming:
    """A group that is being formed."""

    marks: dict[str, AppMark]
    now_ms: int
    """When forming began, in Unix milliseconds."""
    reservations: Reservations = field(default_factory=Reservations)
    """What is reserved when forming begins."""
    requests: list[Request] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    refused: dict[str, list[Refusal]] = field(default_factory=dict)
    """The refusals by uuid."""
    rows_and_keys: dict[int, RowsAndKeys] = field(default_factory=dict)
    """As `FormedVersion.rows_and_keys`."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    uuids: set[str] = field(default_factory=set)
    """The uuids of the requests."""
    weight: Weight = field(default_factory=Weight)
    rows: RowGroup = field(default_factory=RowGroup)
    """What the requests delete, if they are of part `ROWS`."""
    newest: int = 0
    """`Pending.number` of the last record to arrive among those that the group settles."""
    round_end: int | None = None
    """As `FormedVersion.round_end`."""
    earlier: dict[_Asked, Earlier] = field(default_factory=dict)
    """What is known of the uuids of records that may have been settled before."""
    mark_room: MarkRoom | None = None
    """The room for marks of more applications; None = none has asked for it."""

    decoded_bytes: int = 0
    """The most memory of the transactions that were decoded for it."""

    def has_room(self, pending: Pending) -> bool:
        """Whether this record too may be decoded for it."""
        return self.decoded_bytes + pending.decoded_bytes_max <= DECODED_BYTES_MAX

    def offsets(self) -> list[int]:
        """Return the offsets of the records that the group settles."""
        return [*(r.offset for r in self.requests), *(r.offset for r in self.refusals)]


@dataclass(slots=True)
class _Caution:
    """A reduced limit of records per version, after a group could not be built.

    It keeps the search for the records at fault cheap, however many there are.
    """

    most: int | None = None
    """Maximum number of records in a version; None = as many as the settings allow."""

    def failed(self, buildable: int) -> None:
        """Reduce the limit: `buildable` records can share a version, one more can't."""
        self.most = max(1, buildable)

    def built(self, count: int, *, limit: int) -> None:
        """Raise the limit again after `count` records shared a version. `limit`: as many as the settings allow."""
        if self.most is not None and count >= self.most:
            self.most = None if self.most * 2 >= limit else self.most * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """Forms versions of one table without writing them.

    Methods may raise an `Unavailable`, `UnsupportedTable` or `CorruptTable`.
    """

    options: FormingOptions
    decoder: Decoder
    world: World
    telemetry: Telemetry
    containment: Containment
    stale_history: StaleHistory = field(default_factory=StaleHistory)
    caution: _Caution = field(default_factory=_Caution)
    before_table: dict[int, Refusal] = field(default_factory=dict)
    """The refusals that were published before there was a table, by offset; shared with the starter."""
    file_check_timing: FileCheckTiming = "together"
    """When the files of records are checked."""

    async def form(self, head: Head, intake: Intake, *, round_end: int | None = None) -> FormedVersion | None:
        """Form the next version; None when no record waits, or the first one waits for the table's older history.

        During a hold (`Reservations.hold`) only re-executions are judged, and only those that have reserved everything
        are committed. Others that conflict are refused, so that their next attempt comes in the hold.
        `round_end`: the last offset of the present round; None = a round begins. No record joins a round that has
        begun, so none waits for more than the versions of two rounds. If all that is left of it is refused, it is over,
        and the version is one of the next round.
        """
        limits, caution = self.options.limits, self.caution
        unbuildable: dict[int, Refused] = {}
        # A snapshot: while we read, more records may arrive, or the assignment may end.
        records = min(limits.records, _AT_ONCE) if limits.coalesce is Coalesce.NONE else limits.records
        waiting = intake.first(records + 1, behind=head.position)
        retries, reservations = intake.waiting_retries(), intake.reservations
        hold = reservations.hold
        retries.sort(key=lambda pending: pending.retry_of not in hold)  # a stable sort: the others by offset
        begun = [p for p in waiting if round_end is not None and not hold and p.offset <= round_end]
        ordered = _in_turn(head, waiting, retries, only_retries=bool(hold))
        if begun:
            of_round = {p.offset for p in begun}
            ordered = [*begun, *(p for p in ordered if p.offset not in of_round)]
        await self.decoder.decode_claims(ordered, head.table, room=DECODED_BYTES_MAX // 2)
        await self._check_files_of_all(ordered, head)
        while True:
            started = anyio.current_time()
            forming = await self._gather(
                head, ordered, reservations=reservations, begun=len(begun), unbuildable=unbuildable
            )
            if not forming.requests and not forming.refusals:
                return None
            self.telemetry.commit_duration.observe(anyio.current_time() - started, stage="judge")
            count = len(forming.requests)
            try:
                formed = await self._build(forming, head, waiting)
            except Exception as error:  # any error is the fault of one of the records
                require_contained(error)
                if not count:
                    raise _nothing_can_follow(head, error) from error
                if count == 1:
                    offset = forming.requests[0].offset
                    unbuildable[offset] = self.containment.refuse(error, stage="build", offset=offset)
                    if len(unbuildable) == _CULPRITS_MAX:
                        ordered = _up_to(ordered, offset)
                else:
                    # Each was accepted by itself, but they can't be built together: find the record at fault.
                    caution.failed(await self._buildable(forming, head))
            else:
                caution.built(count, limit=limits.records)
                return formed

    async def _buildable(self, forming: _Forming, head: Head) -> int:
        """Return how many of the requests, from the first on, can be built together; fewer than all, by bisection."""
        low, high = 0, len(forming.requests)
        while high - low > 1:
            middle = (low + high) // 2
            some = _Forming(
                marks=forming.marks,
                now_ms=forming.now_ms,
                requests=forming.requests[:middle],
                judged=forming.judged[:middle],
                weight=forming.weight,
                rows=_rows_of(forming.judged[:middle]),
            )
            try:
                judged, _ = await self._together(some, head, head.position, head.marks)
                await build_version(head.table, head.manifest, judged, world=self.world)
            except Exception as error:  # noqa: BLE001  # as in `form`
                require_contained(error)
                high = middle
            else:
                low = middle
            await anyio.lowlevel.checkpoint()
        return low

    async def form_create(self, head: Head, pending: Pending, *, is_first: bool) -> FormedVersion | Refused:
        """Form version 1 from a create, ahead of the waiting records, or say why it can't be committed now.

        `is_first`: no record waits before it.
        """
        forming = _Forming(marks={}, now_ms=self._now_ms())
        request = await self.decoder.decode(pending, head.table)
        if isinstance(request, Refused):
            return request
        try:
            decision = await self._judge(request, pending, forming, head)
            if isinstance(decision, Refused):
                return decision
            self._take(forming, pending, decision, head)
            return await self._build(forming, head, [pending] if is_first else [])
        except Exception as error:  # noqa: BLE001  # its refusal is stored once there is a table
            pending.decoded = self.containment.refuse(error, stage="create", offset=pending.offset)
            return pending.decoded

    async def form_keys(self, head: Head) -> FormedVersion:
        """Form a version that puts back position and marks, which a foreign version lowered or dropped."""
        return await self._build(_Forming(marks=dict(head.marks), now_ms=self._now_ms()), head, [])

    async def _gather(
        self,
        head: Head,
        ordered: Sequence[Pending],
        *,
        reservations: Reservations,
        begun: int,
        unbuildable: Mapping[int, Refused],
    ) -> _Forming:
        """Judge the records of the first part of the first round, until one can't join the group.

        Continues with the next part, and with the next round, while none can be committed. `begun`: the number of
        records, from the first on, that belong to a round that has begun.
        """
        forming = _Forming(
            marks=dict(head.marks),
            now_ms=self._now_ms(),
            reservations=reservations,
            rows=RowGroup(keeps_apart=_keeps_apart(head)),
        )
        left = ordered[: self.options.limits.records]
        while left and not forming.requests:
            parts = await self._round(forming, head, left[:begun] or left, full=len(left) < len(ordered))
            collected = [pending for some in parts.values() for pending in some]
            if not collected and begun:
                begun = 0  # all that is left of that round waits for what is unread
                continue
            if not collected:
                break
            await self._look_up(forming, collected, left, head)
            for part in (*Part, None):  # before a record that is a version of its own, only some that can't be decoded
                await self._gather_part(forming, part, parts.get(part, ()), head, unbuildable=unbuildable)
                if forming.requests:
                    break
            settled = set(forming.offsets())
            # A re-execution goes before the others, and its offset may be far behind those of the round.
            still_wait = [one.offset for one in collected if one.offset not in settled and one.retry_of is None]
            forming.round_end = max(still_wait, default=None)
            gone = {one.offset for one in collected}
            left, begun = [one for one in left if one.offset not in gone], max(begun - len(collected), 0)
        return forming

    async def _look_up(
        self, forming: _Forming, collected: Sequence[Pending], left: Sequence[Pending], head: Head
    ) -> None:
        """Look up the uuids of records that may have been settled before, for many at once: each may cost a read.

        If one of the records `collected` needs it, others that wait, `left`, are looked up too: after a restart a
        producer may stage all of its records again. Refuses nothing: an error shows again when the record is judged.
        """
        asked = _to_look_up(collected, head) and _to_look_up(left, head)
        if len(asked) <= 1:
            return
        groups: dict[tuple[int, ...], list[_Asked]] = {}
        for one in asked:
            # Those that are in one version are looked up one after the other, so that it is read once.
            (_, committed), (_, refused) = head.ledger.committed_at(one[0]), head.ledger.refused_at(one[0])
            groups.setdefault((*committed[:1], *refused[:1]), []).append(one)

        async def look_up(group: Sequence[_Asked]) -> None:
            for uuid, after in group:
                forming.earlier[uuid, after] = await head.earlier(uuid, after)

        try:
            await for_each(groups.values(), look_up, at_once=_LOOK_UPS_AT_ONCE)
        except Exception as error:  # noqa: BLE001  # judging the record raises it again
            _log.debug("uuids.not_looked_up", extra={"error": repr(error)})

    async def _gather_part(
        self,
        forming: _Forming,
        part: Part | None,
        records: Sequence[Pending],
        head: Head,
        *,
        unbuildable: Mapping[int, Refused],
    ) -> None:
        """Judge the records of one part of a round, until one can't join the group; the other arguments as `_gather`.

        `part`: None = the records, of which there is one, are versions of their own.
        """
        hold = forming.reservations.hold
        for number, pending in enumerate(records, start=1):
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()  # lets other tasks run
            request = pending.decoded
            if isinstance(request, Refused):
                self._refuse(forming, pending, request)
                continue
            assert request is not None
            full = len(forming.requests) == self.caution.most
            if full or not joins(request, forming.weight, self.options.limits):
                break
            try:
                tells = part is Part.ROWS and _tells_rows_and_keys(request, pending, forming)
                decision = unbuildable.get(pending.offset) or await self._judge(
                    request, pending, forming, head, as_member=part is Part.ROWS, tells_rows_and_keys=tells
                )
                if part is Part.ROWS and not isinstance(decision, Refused):
                    if not _records_alike(decision, forming):
                        break
                    decision = _after_members(decision, forming, version=head.version + 1, tells_rows_and_keys=tells)
                    if isinstance(decision, Judged) and pending.retry_of is None:
                        decision = _after_reserved(decision, forming, tells_rows_and_keys=tells)
                if not isinstance(decision, Refused) and (not hold or pending.retry_of in hold):
                    self._take(forming, pending, decision, head)
            except Exception as error:  # noqa: BLE001  # any error refuses this record
                decision = self.containment.refuse(error, stage="judge", offset=pending.offset)
            if isinstance(decision, Refused):
                self._refuse(forming, pending, decision)

    async def _round(
        self, forming: _Forming, head: Head, ordered: Sequence[Pending], *, full: bool
    ) -> Mapping[Part | None, Sequence[Pending]]:
        """Collect the records of one round, by part, in this order; None = a record that is a version of its own.

        They are the first of `ordered`, and are decoded, as far as the memory for one version allows. `full`: as for
        `_are_files_checked`.
        """
        limits = self.options.limits
        first = sum(1 for _ in takewhile(lambda pending: pending.retry_of is not None, ordered))
        lowest = min(pending.offset for pending in ordered)
        passing = sum(refusal.offset > lowest for refusal in forming.refusals)
        round_ = Round(ahead=len(head.position.settled) + passing + first)
        parts: dict[Part | None, list[Pending]] = {}
        for number, pending in enumerate(ordered, start=1):
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()  # lets other tasks run
            alone = not forming.refusals and not parts
            if self.file_check_timing == "early" and not await self._are_files_checked(
                # The files of a claim check are checked when it is judged, so it waits for records that are taken, and
                # not for refusals.
                pending,
                is_first=alone or (pending.is_claim and not forming.decoded_bytes),
                full=full,
            ):
                break
            if not alone and not forming.has_room(pending):
                break
            request = await self.decoder.decode(pending, head.table)
            if isinstance(request, Refused):
                refusing = round_.refuses()
                if refusing is None:
                    break
                parts.setdefault(refusing, []).append(pending)
                continue
            if not head.ledger.covers(head.version):
                break  # all records wait until the newest versions are read
            envelope = request.envelope
            app_id = envelope.app.app_id if envelope.app is not None else ""
            if not head.ledger.covers(_known_from(request, head)) or self.stale_history.is_unread(request, head):
                # It waits until the versions since its read version are read, and those behind it go on.
                round_.leaves(app_id=app_id, producer=envelope.producer)
                continue
            part = part_of(request.transaction, limits.coalesce)
            if not round_.takes(part, app_id=app_id, producer=envelope.producer):
                break
            parts.setdefault(part, []).append(pending)
            forming.decoded_bytes += pending.decoded_bytes_max
        return parts

    async def _check_files_of_all(self, ordered: Sequence[Pending], head: Head) -> None:
        """Check the files of the records that may join the version, in one go: of all, or only of those of which files
        were missing.

        Refuses nothing: an error shows again when its record is judged.
        """
        wanted = [
            one
            for one in ordered
            if (one.checked_files.lacks if one.checked_files is not None else one.is_claim and one.decoded is not None)
        ]
        if self.file_check_timing == "together":
            wanted += [one for one in decoded_together(ordered) if one.checked_files is None and not one.is_claim]
        if not wanted:
            return
        try:
            await check_files(
                wanted,
                head.table,
                decoder=self.decoder,
                options=self.options,
                now_ms=self._now_ms(),
                is_final=True,
                work=self.world.work,
            )
        except Exception as error:  # noqa: BLE001  # judging the record raises it again
            _log.debug("files.not_checked", extra={"error": repr(error)})

    async def _are_files_checked(self, pending: Pending, *, is_first: bool, full: bool) -> bool:
        """Whether a record can be judged now: its files were checked, or won't be. False: it joins a later version.

        Waits for the check only if the version would otherwise be empty, or is going to be full.
        """
        for _ in range(_TURNS):
            if pending.file_check is not None or not is_first:
                break
            await anyio.lowlevel.checkpoint()  # it has just arrived: lets the file checker begin with it
        if pending.file_check is None:
            return is_first or pending.checked_files is not None or isinstance(pending.decoded, Refused)
        if not pending.file_check.is_set():
            if not is_first and not full:
                return False
            await pending.file_check.wait()
        return True

    async def _judge(
        self,
        request: Request,
        pending: Pending,
        forming: _Forming,
        head: Head,
        *,
        as_member: bool = False,
        tells_rows_and_keys: bool = False,
    ) -> Judged | Refused:
        """Judge one request against the latest version and the group that it may join: duplicate, expired, conflict.

        `as_member`, `tells_rows_and_keys`: as in `PrepareOptions`.
        """
        published = self.before_table.get(pending.offset)
        if published is not None:
            return Refused(
                status=Status.of_number(published.status), reason=published.reason, message=published.message
            )
        envelope, version = request.envelope, head.version + 1
        lost = await _is_read_at_lost(request, head)
        candidate = Candidate(
            uuid=request.uuid,
            read_version=_known_from(request, head) if lost else request.transaction.read_version,
            app=envelope.app,
            is_replay=envelope.replay_of is not None,
        )
        earlier = NOT_SEEN
        if not head.ledger.rules_out(candidate.uuid, candidate.read_version):
            known = forming.earlier.get((candidate.uuid, candidate.read_version))
            earlier = known or await head.earlier(candidate.uuid, candidate.read_version)
            self.telemetry.ledger_lookups.add(found=earlier.found)
        decision = dedupe(
            candidate,
            earlier,
            forming.marks,
            version=version,
            members=forming.uuids,
            refusals=forming.refused.get(request.uuid, ()),
        )
        decision = decision or _expired(envelope, forming.now_ms) or self._no_room(request, pending, forming)
        if decision is None and lost:
            decision = None if can_be_judged_without(request) else lost_refusal(request)
        elif decision is None and envelope.read_uuid is not None:
            decision = await self._recreated(request, envelope.read_uuid, head)
        if decision is not None:
            return decision
        options = self._prepare_options(
            request, pending, forming.now_ms, as_member=as_member, tells_rows_and_keys=tells_rows_and_keys
        )
        transaction = request.transaction
        if lost:
            # Its files may be gone, and the schema that they were written for, too.
            transaction, options = on_the_latest(transaction), replace(options, verify_files=True, compares_types=True)
        return await judge(head.history, head.manifest, transaction, options=options, world=self.world)

    def _no_room(self, request: Request, pending: Pending, forming: _Forming) -> Refused | None:
        """Refuse a unit of an application that the table does not know, if the table has no room for its mark."""
        app, most = request.envelope.app, self.options.app_marks_max
        if app is None or not is_new_to(forming.marks, app.app_id):
            return None
        if forming.mark_room is None:
            forming.mark_room = MarkRoom.left_by(forming.marks, most=most, now_ms=pending.record.timestamp_ms)
        return None if forming.mark_room.takes(app.app_id, app.run) else no_room_for(app, most=most)

    def _prepare_options(
        self, request: Request, pending: Pending, now_ms: int, *, as_member: bool, tells_rows_and_keys: bool
    ) -> PrepareOptions:
        options, envelope = self.options, request.envelope
        if pending.checked_files is not None and anyio.current_time() - pending.checked_files.at > _CHECKED_SECONDS_MAX:
            pending.checked_files = None
        return PrepareOptions(
            allowed=options.allowed,
            verify_files=options.verifies(age_ms=now_ms - pending.record.timestamp_ms),
            file_limits=options.file_limits,
            checked_files=pending.checked_files,
            rules_out_duplicate=envelope.app is not None,
            create=create_options(envelope.create_options),
            create_only=envelope.create_only,
            trusts_rewrites=options.trusts_rewrites,
            lists_checked=False,
            as_member=as_member,
            tells_rows_and_keys=tells_rows_and_keys,
        )

    async def _recreated(self, request: Request, uuid: str, head: Head) -> Refused | None:
        """Refuse a request whose read version this table does not have: transaction `uuid` did not create it.

        None when it did, or when the creator of that version is unknown.
        """
        version = request.transaction.read_version
        if not 0 < version <= head.version:
            is_ahead = version > head.version and may_be_lost(request, head.position)
            return lost_refusal(request) if is_ahead else None
        made = await head.history.committed(version)
        if made is None or made.uuid in ("", uuid):
            return None
        if may_be_lost(request, head.position):
            return lost_refusal(request)
        return Refused(
            status=Status.INVALID,
            reason="table_recreated",
            message=f"it was read at version {version} made by transaction {uuid}, but that version of this table was "
            f"made by {made.uuid}: the table was deleted and recreated. Do the work again on the new table",
        )

    def _take(self, forming: _Forming, pending: Pending, judged: Judged, head: Head) -> None:
        request = pending.decoded
        assert isinstance(request, Request)
        marks: Mapping[str, AppMark] = {}
        app = request.envelope.app
        if app is not None:
            used_ms = pending.record.timestamp_ms
            marks = mark_of(request, forming.marks, version=head.version + 1, used_ms=used_ms, era=head.position.era)
        change = judged.change
        shares = change is not None or part_of(request.transaction) is not Part.ROWS
        # All that may raise is done above, so a request is taken as a whole or not at all.
        forming.weight.add(request, self.options.limits, shares=shares, more_bytes=change.bytes if change else 0)
        if change is not None:
            forming.rows.add(change)
        forming.newest = max(forming.newest, pending.number)
        forming.requests.append(request)
        forming.verdicts.add(request.operation, judged)
        # Of thousands of versions since its read version, there may be a conflict with each.
        forming.judged.append(replace(judged, found=NOTHING_FOUND))
        forming.uuids.add(request.uuid)
        if app is not None and forming.mark_room is not None and is_new_to(forming.marks, app.app_id):
            forming.mark_room.add(app.app_id, app.run)
        forming.marks |= marks

    def refusal(self, pending: Pending, refused: Refused) -> Refusal:
        """The refusal of a record as a version holds it; what was published before there was a table stays."""
        request = pending.decoded if isinstance(pending.decoded, Request) else None
        try:
            refusal = refusal_of(
                refused,
                offset=pending.offset,
                envelope=request.envelope if request else who_asked(pending.record.headers),
                transaction=request.transaction if request else None,
            )
        except Exception as error:  # noqa: BLE001  # not even its headers can be copied into the refusal
            refused = self.containment.refuse(error, stage="judge", offset=pending.offset)
            refusal = refusal_of(refused, offset=pending.offset, envelope=Envelope(), transaction=None)
        published = self.before_table.get(pending.offset)
        if published is None:
            return refusal
        made = Refusal(outcome_partition=refusal.outcome_partition, traceparent=refusal.traceparent)
        made.MergeFrom(published)
        return made

    def _refuse(self, forming: _Forming, pending: Pending, refused: Refused) -> None:
        request = pending.decoded if isinstance(pending.decoded, Request) else None
        refusal = self.refusal(pending, refused)
        forming.newest = max(forming.newest, pending.number)
        forming.refusals.append(refusal)
        if request is not None and isinstance(refused, Rejected):
            forming.verdicts.add(request.operation, refused)
        rows_and_keys = refused.rows_and_keys if isinstance(refused, Rejected) else None
        if (
            rows_and_keys is not None
            and rows_and_keys.bytes <= ROWS_BYTES_MAX
            and len(forming.rows_and_keys) < ROWS_MAX + ROWS_LINE_MAX
        ):
            forming.rows_and_keys[pending.offset] = rows_and_keys
        forming.refused.setdefault(refusal.uuid, []).append(refusal)

    async def _build(self, forming: _Forming, head: Head, waiting: Sequence[Pending]) -> FormedVersion:
        """Build the version that holds this group. `waiting`: the first records without an outcome.

        Raises a `RequestError` when the content can't be built.
        """
        settled = forming.offsets()
        passable = waiting[: len(settled) + 1]  # one more than the position can pass
        offsets = [pending.offset for pending in passable]
        position = advance(head.position, offsets, settled, fingerprints=Fingerprints(passable))
        marks = kept_marks(forming.marks)
        judged, members = await self._together(forming, head, position, marks)
        transaction = judged.transaction
        group = Group(
            version=head.version + 1,
            transaction=transaction,
            members=members,
            refusals=forming.refusals,
            position=position,
            marks=marks,
        )
        started = anyio.current_time()
        prepared = await build_version(
            head.table,
            head.manifest,
            judged,
            world=self.world,
            table_metadata=group.metadata,
            holds_records=bool(forming.requests),
        )
        self.telemetry.commit_duration.observe(anyio.current_time() - started, stage="build")
        own = Settled(
            version=prepared.version,
            uuid=transaction.uuid,
            operation=transaction.WhichOneof("operation") or "",
            ours=True,
            members=members,
            refusals=forming.refusals,
        )
        found = Found(settled=own, position=position, marks=marks)
        return FormedVersion(
            group=group,
            prepared=prepared,
            own=found,
            after=head.then([found], prepared.file, formed=prepared.committed, unwritten=prepared.deletion_vectors),
            newest=forming.newest,
            round_end=forming.round_end,
            rows_and_keys=forming.rows_and_keys,
            verdicts=forming.verdicts,
            unused_marks=len(forming.marks) - len(marks),
        )

    async def _together(
        self, forming: _Forming, head: Head, position: Position, marks: Mapping[str, AppMark]
    ) -> tuple[Judged, list[Member]]:
        """Return the transaction that the version stores, with all that building it needs, and its members."""
        uuid, topic_id = str(self.world.new_uuid()), position.topic_id
        if not forming.requests:
            only = position_only(position, marks, forming.refusals, read_version=head.version, uuid=uuid)
            return Judged(transaction=only), []
        judged, transactions = forming.judged[0], [one.transaction for one in forming.judged]
        is_shared = len(transactions) > 1
        if judged.change is not None:
            assert head.manifest is not None
            latest, rows = head.manifest.part(forming.rows.fragments), forming.rows
            places = places_of(head.history, head.manifest.outline.base_paths, self.world)
            file_ids = iter(lambda: self.world.random.getrandbits(64), None)
            done = await recorded(rows, latest, places, file_ids=file_ids)
            judged = replace(
                judged, files=done.files, deletion_vectors=done.rows, moves=rows.moves if is_shared else ()
            )
            if is_shared:
                together = rows.transaction(transactions, done)
            else:
                together = rebased(transactions[0], done, latest_version=head.version)
        elif is_shared:
            is_config = forming.weight.part is Part.CONFIG
            together = (configs_together if is_config else appends_together)(transactions)
        else:
            together = transactions[0]
        reserved = (0, 0) if is_shared else reserved_range(head.manifest.outline if head.manifest else None, together)
        members = [
            member_of(one, shared=is_shared, reserved=reserved, note=judged_one.note)
            for one, judged_one in zip(forming.requests, forming.judged, strict=True)
        ]
        if is_shared:
            stored = with_members(together, members, forming.refusals, uuid=uuid, topic_id=topic_id)
        else:
            stored = sole(together, members, forming.refusals, topic_id=topic_id)
        return replace(judged, transaction=stored), members

    def _now_ms(self) -> int:
        return int(self.world.wall_clock().timestamp() * 1000)


def _keeps_apart(head: Head) -> bool:
    """Whether Deletes and Updates may not share a version of this table (`RowGroup.keeps_apart`)."""
    return head.manifest is not None and any(index.name == MEM_WAL_INDEX for index in head.manifest.indices)


def _rows_of(judged: Sequence[Judged]) -> RowGroup:
    """Return what these members of a version, which go together, do to the rows of the table."""
    rows = RowGroup()
    for one in judged:
        if one.change is not None:
            rows.add(one.change)
    return rows


def _records_alike(judged: Judged, forming: _Forming) -> bool:
    """Whether the version can record this Delete or Update together with its members; False: it starts another one."""
    if judged.change is None:
        return not forming.requests
    return forming.rows.takes(judged.change)


def _after_members(judged: Judged, forming: _Forming, *, version: int, tells_rows_and_keys: bool) -> Judged | Rejected:
    """Judge a Delete or Update against the members of the version: it must not conflict with those before it."""
    found = forming.rows.conflict(judged.change) if judged.change is not None else None
    if found is None:
        return judged
    return can_not_follow(found, judged, version=version, tells_rows_and_keys=tells_rows_and_keys)


def _after_reserved(judged: Judged, forming: _Forming, *, tells_rows_and_keys: bool) -> Judged | Rejected:
    """Judge a Delete or Update against the rows and keys that are reserved."""
    if judged.change is None or not forming.reservations.reserved:
        return judged
    rows_and_keys = judged.change.rows_and_keys()
    first = forming.reservations.conflict_of(rows_and_keys)
    if first is None:
        return judged
    return goes_later(first, judged, rows_and_keys=rows_and_keys if tells_rows_and_keys else None)


def _tells_rows_and_keys(request: Request, pending: Pending, forming: _Forming) -> bool:
    """Whether rows may be reserved if this request is refused. One with a deadline can't wait in line."""
    envelope = request.envelope
    if not envelope.will_retry or envelope.deadline_ms is not None:
        return False
    return forming.reservations.takes_rows(pending.attempt)


def _to_look_up(records: Iterable[Pending], head: Head) -> list[_Asked]:
    """Return what is looked up of the records that are decoded: those that the ledger can't call new."""
    requests = (pending.decoded for pending in records)
    asked = [(one.uuid, one.transaction.read_version) for one in requests if isinstance(one, Request)]
    return [one for one in dict.fromkeys(asked) if not head.ledger.rules_out(*one)]


def _read_at(request: Request) -> int:
    """Return the version of this table that the request was read at; 0 for a Clone, which names one of its source."""
    return 0 if request.operation == Kind.CLONE else request.transaction.read_version


def _known_from(request: Request, head: Head) -> int:
    """Return the version above which the history must be known to judge the request: its read version.

    If the table may have lost that one, it is the last version that the table has certainly kept: whoever committed the
    same record did so later.
    """
    lost = lost_history(request, head.position)
    return _read_at(request) if lost is None else lost.kept


async def _is_read_at_lost(request: Request, head: Head) -> bool:
    """Whether the request was read at a version that the table has lost; also if that can't be ruled out."""
    lost, version = lost_history(request, head.position), request.transaction.read_version
    if lost is None or request.envelope.read_uuid is None or not lost.may_have_kept(version):
        return lost is not None
    made = await head.history.committed(version)
    return made is None or made.uuid != request.envelope.read_uuid


def _nothing_can_follow(head: Head, error: Exception) -> Exception:
    """Return the error to raise when not even a version without transactions can be built: the table is at fault."""
    if isinstance(error, RequestError) or not isinstance(error, CommitterError):
        return CorruptTable(
            f"nothing can be built upon version {head.version}: {error}",
            code=error.code if isinstance(error, RequestError) else INTERNAL_ERROR,
        )
    return error


def _up_to(ordered: Sequence[Pending], offset: int) -> Sequence[Pending]:
    """Return the records up to and including the one at this offset."""
    place = next(place for place, pending in enumerate(ordered, start=1) if pending.offset == offset)
    return ordered[:place]


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
    head: Head, waiting: Sequence[Pending], retries: Sequence[Pending], *, only_retries: bool
) -> Sequence[Pending]:
    """Return the waiting records in the order in which they are judged: re-executions first, then by offset.

    As many re-executions go first as the position can carry offsets that are settled ahead.
    """
    room = AHEAD_MAX - len(head.position.settled)
    first = [pending for pending in retries if not head.position.passes(pending.offset)][: max(room, 0)]
    if only_retries:
        return first
    if not first:
        return waiting
    ahead = {p.offset for p in first}
    return [*first, *(p for p in waiting if p.offset not in ahead)]


async def check_files(
    records: Sequence[Pending],
    table: Table,
    *,
    decoder: Decoder,
    options: FormingOptions,
    now_ms: int,
    is_final: bool = False,
    work: Work,
) -> None:
    """Check the files of records, all at once, and keep the result with each record.

    Of records whose files are not verified, only what judging them needs is read. `is_final`: as in `CheckedFiles`.
    Raises as `check_files_of_several`.
    """
    requests: list[tuple[Pending, Request]] = []
    for number, pending in enumerate(records, start=1):
        if number % _AT_ONCE == 0 or pending.size > LIGHT_BYTES_MAX:
            await anyio.lowlevel.checkpoint()  # lets other tasks run
        request = await decoder.decode(pending, table)
        if isinstance(request, Request):
            requests.append((pending, request))
    found = await check_files_of_several(
        table.store,
        [request.transaction for _, request in requests],
        options.file_limits,
        verifies=[options.verifies(age_ms=now_ms - pending.record.timestamp_ms) for pending, _ in requests],
        is_final=is_final,
        deletion_vectors=table.deletion_vectors,
        work=work,
    )
    for (pending, _), checked_files in zip(requests, found, strict=True):
        pending.checked_files = checked_files
