"""Decides what the next version commits and refuses, and builds it: a decision that asks for facts (`table.needs`).

    the round      which of the waiting records are taken together (`queue.rounds`)
    each record    settled before? (`queue.dedupe`) -> judged (`table.judge`) -> may it join those before it?
    the group      position, marks and members, and every byte of the version (`table.prepare`)

Records are judged in the order of their offsets, those of one part of a round together. The version also holds the
refusals of records that can't be committed. The group ends before the first record that can't share its version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from committerd.committer.containing import Containment, nothing_can_follow, require_contained
from committerd.committer.head import Head
from committerd.committer.intake import Pending
from committerd.committer.members import FormedVersion, Members, built_group
from committerd.committer.prefetching import Prefetched
from committerd.committer.record_history import AskedUuid, is_read_at_lost, known_from, look_up, recreated
from committerd.committer.stale_history import StaleHistory
from committerd.lance.format.kind import Kind
from committerd.lance.operations.permissions import Permissions
from committerd.queue.dedupe import Refused, again, dedupe, no_room_for
from committerd.queue.grouping import GroupLimits, joins, refusal_of
from committerd.queue.ledger import NOT_SEEN
from committerd.queue.outcomes import Status
from committerd.queue.position import MarkRoom, is_new_to
from committerd.queue.put_back import lost_refusal, on_the_latest
from committerd.queue.reservations import Reservations
from committerd.queue.rounds import Coalesce, Part, Round, part_of
from committerd.queue.turns import count_beyond
from committerd.table.case import PrepareOptions, Sources
from committerd.table.judge import Judged, judge
from committerd.table.needs import Checkpoint, Enough, Stage, Steps
from committerd.table.prepare import create_options
from committerd.table.refusals import can_not_follow, goes_later
from committerd.table.staged_files import FileLimits
from committerd_common.messages import Refusal
from committerd_common.request import Envelope, Request, who_asked

_AT_ONCE = 64
"""The most records to look at for a version that holds a single record."""
_IN_A_STRETCH = 4
"""Work (`work_of`) to do before the stretch may end: less than a millisecond. A larger record takes longer."""
_LOOK_EVERY = 32
"""Work to do before the decision asks again whether others wait for the version. A smaller version never asks."""
STALE_MS = 5 * 24 * 3600 * 1000
"""Age in milliseconds from which a record is stale. Lance's cleanup deletes unreferenced files after 7 days."""
_CULPRITS_MAX = 4
"""Maximum number of records that one attempt to form a version may refuse because a group with them can't be built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideOptions:
    """The operator's settings for deciding about records."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    verify_files: Literal["always", "stale", "never"] = "always"
    trusts_rewrites: bool = False
    """Whether the Rewrites of all writers count as in order."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    allowed: Permissions = field(default_factory=Permissions)
    app_marks_max: int = 1000

    def verifies(self, age_ms: int) -> bool:
        """Whether the files of a record of this age, in milliseconds, are checked."""
        return self.verify_files == "always" or (self.verify_files == "stale" and age_ms > STALE_MS)

    @property
    def most(self) -> int:
        """The most records to look at for one version."""
        return min(self.limits.records, _AT_ONCE) if self.limits.coalesce is Coalesce.NONE else self.limits.records


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The records to decide about."""

    ordered: Sequence[Prefetched]
    """Those whose facts are there, in the order in which they are judged."""
    waiting: Sequence[Pending]
    """The first records without an outcome, by offset."""
    begun: int = 0
    """The number of records, from the first on, that belong to a round that has begun."""
    reservations: Reservations = field(default_factory=Reservations)
    """What is reserved for refused transactions that come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider:
    """Decides about the records of one table."""

    options: DecideOptions
    sources: Sources
    containment: Containment
    stale_history: StaleHistory = field(default_factory=StaleHistory)
    before_table: dict[int, Refusal] = field(default_factory=dict)
    """The refusals that were published before there was a table, by offset; shared with the starter."""

    def decide(self, head: Head, queued: Queued, *, most: int | None = None) -> Steps[FormedVersion | int | None]:
        """Decide about the first records, and build the version that settles them.

        Returns the version; None when there is nothing to settle yet; or, if the records can't all be built together,
        how many can: the caller passes that as `most`. `most`: maximum number of records in the version; None = as many
        as the settings allow. Raises `CorruptTable` when nothing can be built upon the head.
        """
        limits = self.options.limits if most is None else replace(self.options.limits, records=most)
        unbuildable: dict[int, Refused] = {}
        ordered = queued.ordered
        while True:
            yield Stage("judge")
            group = Members(
                head=head,
                now_ms=self.now_ms(),
                limits=limits,
                reservations=queued.reservations,
                unbuildable=unbuildable,
            )
            yield from self._gather(group, ordered, queued)
            if not group.requests and not group.refusals:
                return None
            yield Stage("build")
            try:
                formed = yield from built_group(group, queued.waiting, self.sources)
            except Exception as error:  # any error is the fault of one of the records
                require_contained(error)
                if not group.requests:
                    raise nothing_can_follow(head, error) from error
                if len(group.requests) > 1:
                    # Each was accepted by itself, but they can't be built together: find the record at fault.
                    return (yield from self._buildable(group))
                offset = group.requests[0].offset
                unbuildable[offset] = self.containment.refuse(error, stage="build", offset=offset)
                if len(unbuildable) == _CULPRITS_MAX:
                    ordered = ordered[: [one.pending.offset for one in ordered].index(offset) + 1]
            else:
                yield Stage("")
                return formed

    def decide_create(self, head: Head, known: Prefetched, *, is_first: bool) -> Steps[FormedVersion | Refused]:
        """Build version 1 from a create, ahead of the waiting records, or say why it can't be committed now.

        `is_first`: no record waits before it.
        """
        group, request = Members(head=head, now_ms=self.now_ms(), limits=self.options.limits), known.decoded
        if isinstance(request, Refused):
            return request
        try:
            decision = yield from self._judge(request, known, group)
            if isinstance(decision, Refused):
                return decision
            group.take(request, decision, known.pending)
            return (yield from built_group(group, [known.pending] if is_first else [], self.sources))
        except Exception as error:  # noqa: BLE001  # its refusal is stored once there is a table
            return self.containment.refuse(error, stage="create", offset=request.offset)

    def decide_keys(self, head: Head) -> Steps[FormedVersion]:
        """Build a version that puts back position, marks and pause, which a foreign version changed or dropped."""
        return (yield from built_group(Members(head=head, now_ms=self.now_ms()), [], self.sources))

    def _buildable(self, group: Members) -> Steps[int]:
        """Return how many of the requests, from the first on, can be built together; fewer than all, by bisection."""
        low, high = 0, len(group.requests)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                yield from built_group(group.first(middle), None, self.sources)
            except Exception as error:  # noqa: BLE001  # as in `decide`
                require_contained(error)
                high = middle
            else:
                low = middle
            yield Checkpoint()
        return max(1, low)

    def _gather(self, group: Members, ordered: Sequence[Prefetched], queued: Queued) -> Steps[None]:
        """Judge the records of the first part of the first round, until one can't join the group.

        Continues with the next part, and with the next round, while none can be committed. `ordered`: the first records
        of `Queued.ordered`, or all.
        """
        begun = queued.begun
        left = list(ordered[: self.options.limits.records])
        while left and not group.requests:
            parts = self._round(group, left[:begun] or left, queued.waiting)
            collected = [one for some in parts.values() for one in some]
            if not collected and begun:
                begun = 0  # all that is left of that round waits for what is unread
                continue
            if not collected:
                break
            yield from self._look_up(group, collected, left)
            # Records of a later part may have waited for longer: a version does not end before their turn has come.
            may_end, has_ended = len(parts) == 1, False
            for part in (*Part, None):  # before a record that is a version of its own, only those that can't be decoded
                has_ended = yield from self._gather_part(group, part, parts.get(part, ()), may_end=may_end)
                if group.requests:
                    break
            settled = set(group.offsets())
            # A re-execution goes before the others, and its offset may be far behind those of the round.
            group.round_left = frozenset(
                one.pending.offset
                for one in (() if has_ended else collected)
                if one.pending.offset not in settled and one.pending.retry_of is None
            )
            gone = {one.pending.offset for one in collected}
            left, begun = [one for one in left if one.pending.offset not in gone], max(begun - len(collected), 0)

    def _round(
        self, group: Members, ordered: Sequence[Prefetched], waiting: Sequence[Pending]
    ) -> Mapping[Part | None, Sequence[Prefetched]]:
        """Collect the records of one round, by part, in this order; None = a record that is a version of its own.

        `waiting`: as `Queued.waiting`. Records that were chosen in turn (`queue.turns`) may pass some of these.
        """
        head = group.head
        first = sum(1 for _ in takewhile(lambda one: one.pending.retry_of is not None, ordered))
        lowest = min(one.pending.offset for one in ordered)
        passing = sum(refusal.offset > lowest for refusal in group.refusals)
        taken = {one.pending.offset for one in ordered[first:]}.union(refusal.offset for refusal in group.refusals)
        beyond = count_beyond(taken, (pending.offset for pending in waiting))
        round_ = Round(room=head.position.room - passing - first - beyond)
        parts: dict[Part | None, list[Prefetched]] = {}
        for one in ordered:
            request = one.decoded
            if isinstance(request, Refused):
                refusing = round_.refuses()
                if refusing is None:
                    break
                parts.setdefault(refusing, []).append(one)
                continue
            if not head.ledger.covers(head.version):
                break  # all records wait until the newest versions are read
            envelope = request.envelope
            app_id = envelope.app.app_id if envelope.app is not None else ""
            if not head.ledger.covers(known_from(request, head)) or self.stale_history.is_unread(request, head):
                # It waits until the versions since its read version are read, and those behind it go on.
                round_.leaves(app_id=app_id, producer=envelope.producer)
                continue
            part = part_of(request.transaction, self.options.limits.coalesce)
            if not round_.takes(part, app_id=app_id, producer=envelope.producer):
                break
            parts.setdefault(part, []).append(one)
        return parts

    def _look_up(self, group: Members, collected: Sequence[Prefetched], left: Sequence[Prefetched]) -> Steps[None]:
        """Look up the uuids of records that may have been settled before, for many at once: each may cost a read.

        If one of the records `collected` needs it, others that wait, `left`, are looked up too: after a restart a
        producer may stage all of its records again.
        """
        ledger, asked = group.head.ledger, _asked(collected)
        group.ruled_out.update(one for one in asked if ledger.rules_out(*one))
        if group.ruled_out.issuperset(asked):
            return
        asked = [one for one in _asked(left) if one not in group.ruled_out and not ledger.rules_out(*one)]
        with suppress(Exception):  # judging the record looks it up again, and shows whose fault it is
            group.earlier |= yield from look_up(asked, ledger, created=group.head.history.created)

    def _gather_part(
        self, group: Members, part: Part | None, records: Sequence[Prefetched], *, may_end: bool
    ) -> Steps[bool]:
        """Judge the records of one part of a round, until one can't join the group.

        Returns whether the version ends before the other records of the part, because records that are not in the round
        wait for it. Then the round is over.

        `part`: None = the records, of which there is one, are versions of their own. `may_end`: whether it may.
        """
        hold = group.reservations.hold
        done, pause_at, look_at = 0, 0, _LOOK_EVERY
        for one in records:
            if done >= pause_at:
                pause_at = done + _IN_A_STRETCH
                yield Checkpoint()
            if may_end and group.requests and done >= look_at:
                look_at = done + _LOOK_EVERY
                if (yield Enough(group.weight.work)):
                    return True
            done += one.work
            pending, request = one.pending, one.decoded
            if isinstance(request, Refused):
                self._refuse(group, one, request)
                continue
            if not joins(request, group.weight, group.limits):
                break
            try:
                decision: Judged | Refused | None = group.unbuildable.get(pending.offset)
                if decision is None:
                    tells = part is Part.ROWS and _tells_rows_and_keys(request, pending, group.reservations)
                    decision = yield from self._judge(
                        request, one, group, as_member=part is Part.ROWS, tells_rows_and_keys=tells
                    )
                    if part is Part.ROWS and isinstance(decision, Judged):
                        if not group.can_record_with(decision):
                            break
                        decision = _among_others(decision, group, pending, tells_rows_and_keys=tells)
                if isinstance(decision, Judged) and decision.by_pylance and group.requests:
                    break  # what pylance builds is a version of its own
                if isinstance(decision, Judged) and (not hold or pending.retry_of in hold):
                    group.take(request, decision, pending)
            except Exception as error:  # noqa: BLE001  # any error refuses this record
                decision = self.containment.refuse(error, stage="judge", offset=pending.offset)
            if isinstance(decision, Refused):
                self._refuse(group, one, decision)
        return False

    def _judge(
        self,
        request: Request,
        known: Prefetched,
        group: Members,
        *,
        as_member: bool = False,
        tells_rows_and_keys: bool = False,
    ) -> Steps[Judged | Refused]:
        """Judge one request against the latest version and the group that it may join: duplicate, expired, conflict.

        `as_member`, `tells_rows_and_keys`: as in `PrepareOptions`.
        """
        head, envelope = group.head, request.envelope
        published = self.before_table.get(known.pending.offset)
        if published is not None:
            return again(published)
        is_lost = yield from is_read_at_lost(request, head)
        decision = yield from self._settled_before(request, group, is_lost=is_lost)
        decision = decision or _expired(envelope, group.now_ms) or self._no_room(request, group)
        if decision is None and is_lost:
            decision = None if request.operation == Kind.APPEND else lost_refusal(request)
        elif decision is None and envelope.read_uuid is not None:
            decision = yield from recreated(request, envelope.read_uuid, head)
        if decision is not None:
            return decision
        options = self._prepare_options(request, group, as_member=as_member, tells_rows_and_keys=tells_rows_and_keys)
        transaction = request.transaction
        if is_lost:
            # Its files may be gone, and the schema that they were written for, too.
            transaction, options = on_the_latest(transaction), replace(options, verify_files=True, compares_types=True)
        return (
            yield from judge(
                head.history,
                head.manifest,
                transaction,
                schema=group.schema,
                facts=known.facts,
                options=options,
                sources=self.sources,
            )
        )

    def _settled_before(self, request: Request, group: Members, *, is_lost: bool) -> Steps[Refused | None]:
        """The outcome of a record that was settled before; None for a new record."""
        head = group.head
        after = known_from(request, head) if is_lost else request.transaction.read_version
        asked, known = (request.uuid, after), NOT_SEEN
        if asked not in group.ruled_out and not head.ledger.rules_out(*asked):
            if asked not in group.earlier:
                group.earlier |= yield from look_up([asked], head.ledger, created=head.history.created)
            known = group.earlier[asked]
            group.verdicts.looked_up(known)
        return dedupe(
            request,
            known,
            group.marks,
            version=head.version + 1,
            members=group.uuids,
            refusals=group.refused.get(request.uuid, ()),
        )

    def _no_room(self, request: Request, group: Members) -> Refused | None:
        """Refuse a unit of an application that the table does not know, if the table has no room for its mark."""
        app, most = request.envelope.app, self.options.app_marks_max
        if app is None or not is_new_to(group.marks, app.app_id):
            return None
        if group.mark_room is None:
            group.mark_room = MarkRoom.left_by(group.marks, most=most, now_ms=request.timestamp_ms)
        return None if group.mark_room.takes(app.app_id, app.run) else no_room_for(app, most=most)

    def _prepare_options(
        self, request: Request, group: Members, *, as_member: bool, tells_rows_and_keys: bool
    ) -> PrepareOptions:
        options, envelope, own = self.options, request.envelope, request.operations
        return PrepareOptions(
            allowed=options.allowed if own is None else options.allowed.of(envelope.producer, own),
            verify_files=options.verifies(group.now_ms - request.timestamp_ms),
            file_limits=options.file_limits,
            rules_out_duplicate=envelope.app is not None,
            create=create_options(envelope.create_options),
            create_only=envelope.create_only,
            trusts_rewrites=options.trusts_rewrites,
            lists_checked=False,
            as_member=as_member,
            tells_rows_and_keys=tells_rows_and_keys,
        )

    def refusal(self, pending: Pending, request: Request | None, refused: Refused) -> Refusal:
        """The refusal of a record as a version holds it; what was published before there was a table stays."""
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

    def _refuse(self, group: Members, one: Prefetched, refused: Refused) -> None:
        request = one.decoded if isinstance(one.decoded, Request) else None
        group.refuse(self.refusal(one.pending, request, refused), refused, one.pending, request)

    def now_ms(self) -> int:
        """The time by which deadlines pass, in Unix milliseconds."""
        return int(self.sources.wall_clock().timestamp() * 1000)


def _among_others(judged: Judged, group: Members, pending: Pending, *, tells_rows_and_keys: bool) -> Judged | Refused:
    """Judge a Delete or Update against the members of the version, and against the rows and keys that are reserved."""
    change = judged.change
    if change is None:
        return judged
    found = group.rows.conflict(change)
    if found is not None:
        rows_and_keys = change.rows_and_keys() if tells_rows_and_keys else None
        return can_not_follow(found, judged.found, version=group.head.version + 1, rows_and_keys=rows_and_keys)
    if pending.retry_of is not None or not group.reservations.reserved:
        return judged
    rows_and_keys = change.rows_and_keys()
    first = group.reservations.conflict_of(rows_and_keys)
    if first is None:
        return judged
    return goes_later(first.kind, judged.found, rows_and_keys=rows_and_keys if tells_rows_and_keys else None)


def _tells_rows_and_keys(request: Request, pending: Pending, reservations: Reservations) -> bool:
    """Whether rows may be reserved if this request is refused. One with a deadline can't wait in line."""
    envelope = request.envelope
    if not envelope.will_retry or envelope.deadline_ms is not None:
        return False
    return reservations.takes_rows(pending.attempt)


def _asked(records: Sequence[Prefetched]) -> list[AskedUuid]:
    """The uuid and the read version of each of these records, without repetitions."""
    requests = (one.decoded for one in records)
    asked = ((one.uuid, one.transaction.read_version) for one in requests if isinstance(one, Request))
    return list(dict.fromkeys(asked))


def _expired(envelope: Envelope, now_ms: int) -> Refused | None:
    deadline = envelope.deadline_ms
    if deadline is None or now_ms <= deadline:
        return None
    return Refused(
        status=Status.EXPIRED,
        reason="deadline_passed",
        message=f"its turn came {now_ms - deadline} ms after the deadline that its producer set",
    )
