"""Watches table and topics, and checks every promise at the moment when it could be broken.

It believes only what is stored and published. It remembers versions that were cleaned up, so it knows more than any
committer does.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from committerd.errors import CorruptTable, RequestError
from committerd.lance.format.bounds import FRAGMENT_ID_MAX
from committerd.lance.format.manifest_file import ManifestFile, decode
from committerd.lance.versions.fragments import live_rows
from committerd.queue import position as positions
from committerd.queue.outcomes import REASON_KEY, Settled, decode_settled
from committerd.queue.port import Acknowledged, Publication, Record
from committerd.queue.position import AppMark, Pause, Position, decode_marks, decode_pause, decode_position
from committerd.table.refusals import INTERNAL_ERROR
from committerd_common.messages import DataFragment, Member, Outcome, Refusal, Transaction
from committerd_common.messages import Status as StatusNumber
from committerd_common.own_properties import CHANGES, KEYS, MERGE
from committerd_common.paths import DATA, VERSIONS, data_key, deletion_key, parse_manifest_name, transaction_key
from committerd_common.request import AppUnit, Envelope, decode_envelope, decode_transaction
from tests.simulation.queue import FakeBroker
from tests.simulation.store import Bucket, Change

Place = tuple[str, int]
"""Topic id and offset."""
Row = tuple[int, int]
"""Id of a fragment, and the row's offset in it."""
_BYTES_MAX = 64 * 1024 * 1024
_AHEAD_MS_MAX = 5 * 60 * 1000
_LATE_MS_MAX = 10 * 60_000
"""The longest time between being judged and being in a version, while no process stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A version, whether it still exists or not."""

    file: ManifestFile
    settled: Settled
    position: Position | None

    @property
    def paths(self) -> list[str]:
        return [file.path for fragment in self.file.manifest.fragments for file in fragment.files]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A staged record, as far as it can be decoded."""

    envelope: Envelope | None
    transaction: Transaction | None
    staged_ms: int

    @property
    def app(self) -> AppUnit | None:
        return self.envelope.app if self.envelope else None

    @property
    def line(self) -> tuple[str, str]:
        """The producer, or else the application."""
        producer = self.envelope.producer if self.envelope else ""
        return producer, "" if producer or self.app is None else self.app.app_id


@dataclass(slots=True)
class Auditor:
    """Collects violations; the first one counts."""

    bucket: Bucket
    broker: FakeBroker
    note: Callable[[str], None]
    verifies_files: bool = True
    """Whether committers check that the files of a record exist."""
    sleepless: bool = True
    """Whether no process stands still, so that a late record was judged late."""
    violations: list[str] = field(default_factory=list)
    versions: dict[int, Seen] = field(default_factory=dict)
    entries: dict[Place, tuple[int, Member | Refusal]] = field(default_factory=dict)
    """What the table says about each record, and in which version."""
    answers: dict[Place, Outcome] = field(default_factory=dict)
    """The first published outcome of each record; UNDECIDED counts only until there is another one."""
    asked: dict[Place, Candidate] = field(default_factory=dict)
    position: Position | None = None
    """The highest position that any version carried."""
    taken_from: int = 0
    """The offset in the present topic from which on every record must get an outcome."""
    paused: Pause | None = None
    """The pause that the newest version of the queue carries."""
    acknowledged: int = 0
    """The highest offset that the group ever had in the present topic."""
    dead: set[Place] = field(default_factory=set)
    may_have_dropped: bool = False
    """Whether committers have so little memory that they may have forgotten earlier outcomes."""
    may_fail_inside: bool = False
    """Whether a test makes committers fail on records in unforeseen ways."""
    only_retries_pass: bool = False
    """Whether nothing but re-executions may be settled ahead of records with lower offsets."""
    _tickets: dict[str, str] = field(default_factory=dict)
    """The producers of the refused transactions that may be re-executed ahead of others, by uuid."""
    rows_of: dict[str, set[Row]] = field(default_factory=dict)
    """The rows that a transaction deletes, by its uuid; of those that delete rows of fragments that they keep."""
    _moved: dict[Row, Row] = field(default_factory=dict)
    """Where Rewrites have moved rows."""
    _keys: dict[int, int] = field(default_factory=dict)
    """The version that last inserted each key."""
    _unnamed: int = 0
    """The version that last may have inserted any key."""
    _brought: int = 0
    """The version that last added rows other than an upsert's."""
    _uuids: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, tuple[int, Refusal]] = field(default_factory=dict)
    _there: set[int] = field(default_factory=set)
    """Versions that can be read."""
    _marks: dict[str, AppMark] = field(default_factory=dict)
    _units: dict[str, int] = field(default_factory=dict)
    """The last unit of each application that a version commits."""
    _answered_below: int = 0
    _swapped: bool = False
    """Whether the table is another one, for which the operator has not adopted the queue yet."""
    _astray: dict[int, str] = field(default_factory=dict)
    """Versions that a committer has created in that table meanwhile, and their keys."""
    _crossed: set[int] = field(default_factory=set)
    """Those that can't be noticed: sent before the table was swapped or cleaned up, or given up before they arrived."""
    _made_up: set[int] = field(default_factory=set)
    """Versions of other writers with a position that no version of the queue ever had."""
    beyond: str = ""
    """What is wrong because of one of these. Noticing it is not promised, so the run ends here."""
    _rolled_back: bool = False
    """Whether the log has lost records that a committer may have read before."""
    _has_outcome: set[tuple[Place, str]] = field(default_factory=set)
    """The records that have a published outcome: place and uuid."""
    _settled: set[tuple[Place, str]] = field(default_factory=set)
    """The records that versions of the queue settled: place and uuid."""
    _of_dead: set[Place] = field(default_factory=set)
    """Entries of a table that was deleted since."""
    _before_table: dict[Place, Outcome] = field(default_factory=dict)
    """The refusals that were published while there was no table."""
    _passed_by_hand: set[Place] = field(default_factory=set)
    """Places without an outcome that an operator's position passes: they become UNDECIDED."""
    _given_up: set[tuple[Place, str]] = field(default_factory=set)
    """The records without an outcome that an operator has decided to pass, with their uuids."""
    _letters_seen: int = 0
    _damaged: bool = False
    """Whether some version can't be read any more."""
    _gone_ms: dict[str, int] = field(default_factory=dict)
    """When each missing data file was deleted, on Kafka's clock."""

    def watch(self) -> None:
        """Begin to watch."""
        self.bucket.watchers.append(self._stored)
        self.broker.watch_outcome = self._published
        self.broker.watch_acknowledged = self._acknowledged

    def staged(self, record: Record) -> None:
        """Note a staged record."""
        envelope = transaction = None
        try:
            envelope = decode_envelope(record.headers)
            transaction = decode_transaction(record.value, bytes_max=_BYTES_MAX)
        except RequestError:
            pass
        assert self.broker.topic_id is not None
        self.asked[self.broker.topic_id, record.offset] = Candidate(
            envelope=envelope, transaction=transaction, staged_ms=record.timestamp_ms
        )

    def new_topic(self, taken_from: int = 0) -> None:
        """Note that the topic was recreated, or that an operator has set the position."""
        topic_id = self.broker.topic_id or ""
        self._passed_by_hand |= {(topic_id, offset) for offset in range(taken_from)} - self.entries.keys()
        self.taken_from = self._answered_below = self.acknowledged = taken_from

    def adopted(self, position: Position, *, by_cause: bool) -> None:
        """Note that an operator has set the position. If it was proposed, it passes no record without an outcome."""
        topic_id = position.topic_id
        there = (record.offset for record in self.broker.log if position.passes(record.offset))
        places = [place for offset in there if not self._is_settled(place := (topic_id, offset))]
        skipped = {(place, self._uuid_of(place)) for place in places} - self._given_up
        if by_cause and skipped:
            offsets = sorted(offset for (_, offset), _ in skipped)
            self.fail(f"the operator is told to go on at {position.next_offset}, and {offsets} have no answer")
        self._given_up |= skipped
        self.new_topic(position.next_offset)

    def _is_settled(self, place: Place) -> bool:
        if self._rolled_back:
            return (place, self._uuid_of(place)) in self._settled
        return place in self.answers or (place in self.entries and place not in self._of_dead)

    def table_is_swapped(self) -> None:
        """Note that the table is about to be deleted and recreated. Its earlier outcomes stay true; the next table
        owes nothing to them.
        """
        self.paused = None
        self.versions.clear()
        self._made_up.clear()
        self._uuids.clear()
        self._refused.clear()
        self._there.clear()
        self._marks.clear()
        self._units.clear()
        self._keys.clear()
        self._moved.clear()
        self._unnamed = self._brought = 0
        self._of_dead = set(self.entries)
        self._swapped = True

    def remove_astray(self) -> None:
        """Delete the versions that landed in a table that they were not built on, as the operator does."""
        for key in list(self._astray.values()):
            self.bucket.delete(key)

    def version_is_damaged(self, key: str) -> None:
        """Note a damaged version. It counts as cleaned up: nobody can tell what it said, nor rule out that it committed
        a record.
        """
        name = parse_manifest_name(key.removeprefix(VERSIONS))
        assert name is not None
        self._there.discard(name.version)
        self.may_have_dropped = self._damaged = True

    def log_is_rolled_back(self, end: int) -> None:
        """Note that the records from `end` on are gone, and that others will have their offsets.

        From now on, each record of the log must have its own outcome, and none may be committed twice.
        """
        topic_id = self.broker.topic_id
        for place in [place for place in self.asked if place[0] == topic_id and place[1] >= end]:
            del self.asked[place]
        self._rolled_back = True

    def are_aborted(self, offsets: Iterable[int]) -> None:
        """Note that the Kafka transaction of these records is aborted: nobody may settle them."""
        for offset in offsets:
            self.asked.pop((self.broker.topic_id or "", offset), None)

    def unanswered(self) -> list[int]:
        """Offsets of the present topic that must get an outcome."""
        topic_id = self.broker.topic_id
        return [
            r.offset
            for r in self.broker.log
            if r.offset >= self.taken_from and not self._has_own_answer((topic_id or "", r.offset))
        ]

    def _has_own_answer(self, place: Place) -> bool:
        if not self._rolled_back:
            return place in self.answers
        return (place, self._uuid_of(place)) in self._has_outcome

    def _uuid_of(self, place: Place) -> str:
        asked = self.asked[place].transaction
        return asked.uuid if asked is not None else ""

    @property
    def is_over(self) -> bool:
        """Whether the run can end."""
        return bool(self.violations or self.beyond)

    @property
    def latest(self) -> int:
        return next(reversed(self.versions), 0)

    def fail(self, what: str) -> None:
        if self.beyond or self._crossed or self._is_believed():
            self.note(f"BEYOND {what}")
            self.beyond = self.beyond or what
            return
        self.note(f"VIOLATION {what}")
        self.violations.append(what)

    def _is_believed(self) -> bool:
        """Whether a made-up position is readable, and no version of the queue is there to prove it wrong."""
        ours = any(self.versions[version].settled.ours for version in self._there)
        return bool(self._made_up & self._there) and not ours

    # The table

    def _stored(self, change: Change, key: str, body: bytes) -> None:
        if change == "deleted" and key.startswith(DATA):
            self._gone_ms[key] = self.broker.now_ms()
        name = parse_manifest_name(key.removeprefix(VERSIONS)) if key.startswith(VERSIONS) else None
        if name is None:
            return
        if change == "deleted":
            self._there.discard(name.version)
            self._astray.pop(name.version, None)
            self._crossed.discard(name.version)
            return
        if change == "replaced":
            self.fail(f"version {name.version} was replaced")
        if self._swapped and self._strays(name.version, key, body):
            return
        if name.version != self.latest + 1:
            if self.bucket.crossing:
                self._crossed.add(name.version)
            self.fail(f"version {name.version} was made on top of version {self.latest}")
        file = decode(body, len(body))
        settled = decode_settled(file.transaction, version=name.version)
        seen = Seen(file=file, settled=settled, position=self._handed_down(file, ours=settled.ours))
        if settled.ours:
            self._keeps_the_pause(file)
        if settled.ours and seen.position is not None:
            topic_id = seen.position.topic_id
            self._settled |= {((topic_id, entry.offset), entry.uuid) for entry in settled.entries()}
        if settled.ours and self._rolled_back:
            for member in settled.members:
                self._commit(member.uuid, name.version)
        elif settled.ours:
            self._committed(seen)
            self._turns(seen)
            self._changed_rows(seen)
            self._rewritten(seen)
        elif settled.uuid and self._damaged:
            # A commit outside of the queue looks back to the first unreadable version.
            self._uuids.setdefault(settled.uuid, settled.version)
        elif settled.uuid:
            self._commit(settled.uuid, settled.version)
        if not self._rolled_back:
            self._learn_marks(seen)
        self.versions[name.version] = seen
        self._there.add(name.version)

    def _passes_its_line(self, offset: int, position: Position) -> bool:
        """Whether a record before this one of the same producer, or else of the same application, still waits."""
        line = self.asked[position.topic_id, offset].line
        before = (self.asked.get((position.topic_id, one)) for one in range(position.next_offset, offset))
        waiting = (
            one for number, one in enumerate(before, start=position.next_offset) if number not in position.settled
        )
        return any(one is not None and one.line == line for one in waiting)

    def _keeps_the_pause(self, file: ManifestFile) -> None:
        """Check that only an operator commits to a paused queue, and that nobody else pauses it."""
        properties = file.transaction.transaction_properties if file.transaction is not None else {}
        pause = decode_pause(file.manifest.table_metadata, branch=file.manifest.branch)
        if REASON_KEY not in properties and (self.paused or pause):
            self.fail(f"version {file.version} is a committer's, although the queue is {pause or self.paused}")
        self.paused = pause

    def _turns(self, seen: Seen) -> None:
        """Check that only re-executions pass others of their line: one for each refused transaction, of its producer.

        Other lines may be passed, because versions take from them in turn (`committerd.queue.turns`).
        """
        position, version = seen.position, seen.settled.version
        if position is None or not self.only_retries_pass:
            return
        for entry in seen.settled.entries():
            envelope = self.asked[position.topic_id, entry.offset].envelope
            retry_of = envelope.retry_of if envelope is not None else None
            is_of = envelope is not None and retry_of is not None and self._tickets.get(retry_of) == envelope.producer
            if entry.offset in position.settled and not is_of and self._passes_its_line(entry.offset, position):
                self.fail(f"version {version}: offset {entry.offset} passes others, and has no ticket of {retry_of}")
            if is_of and retry_of is not None:
                del self._tickets[retry_of]
        for refusal in seen.settled.refusals:
            if refusal.status == StatusNumber.RETRYABLE:
                self._tickets[refusal.uuid] = refusal.producer

    def live_fragments(self, file: ManifestFile) -> list[tuple[DataFragment, set[int]]]:
        """The fragments of a version, each with the offsets of its live rows."""
        found = []
        for fragment in file.fragments:
            deleted = BitMap()
            if fragment.HasField("deletion_file"):
                body = self.bucket.objects.get(deletion_key(fragment.id, fragment.deletion_file, staged=False))
                if body is None and not self.verifies_files:
                    continue
                if body is None:
                    self.fail(f"version {file.version}: the deletion file of fragment {fragment.id} is not there")
                    continue
                deleted = BitMap.deserialize(body)
            found.append((fragment, set(range(fragment.physical_rows)) - set(deleted)))
        return found

    def _live(self, file: ManifestFile) -> set[Row]:
        return {(one.id, row) for one, rows in self.live_fragments(file) for row in rows}

    def _followed(self, row: Row, file: ManifestFile) -> Row:
        """Where a version has a row, which Rewrites may have moved."""
        there = {one.id for one in file.fragments}
        while row[0] not in there and row in self._moved:
            row = self._moved[row]
        return row

    def _rewritten(self, seen: Seen) -> None:
        transaction = seen.file.transaction
        for group in transaction.rewrite.groups if transaction is not None else ():
            places = [(one.id, row) for one in group.new_fragments for row in range(one.physical_rows)]
            rows = [(one.id, row) for one in group.old_fragments for row in range(one.physical_rows)]
            self._moved |= dict(zip(rows, places, strict=False))

    def _appended(self, seen: Seen) -> None:
        """Note the keys of the rows that a version appends."""
        self._brought = seen.settled.version
        members = [self.asked.get((seen.settled.topic_id, one.offset)) for one in seen.settled.members]
        for asked in members or [None]:
            transaction = asked.transaction if asked is not None else None
            named = transaction.transaction_properties.get(KEYS) if transaction is not None else None
            if named is None:
                self._unnamed = seen.settled.version
                continue
            keys = Transaction.KeyExistenceFilter.FromString(b64decode(named)).exact.key_hashes
            self._keys |= dict.fromkeys(keys, seen.settled.version)

    def _inserted(self, transaction: Transaction, read: int, version: int) -> None:
        """Check that nobody has inserted one of the keys that an Update inserts, since it was read."""
        if not transaction.HasField("update"):
            return
        properties = transaction.transaction_properties
        if not transaction.update.HasField("inserted_rows"):
            changes = properties.get(CHANGES)
            if changes is None or "0" in changes.split(","):
                self._unnamed = version
            self._brought = version
            return
        others = self._unnamed if MERGE in properties else max(self._unnamed, self._brought)
        if others > read:
            self.fail(f"version {version}: {transaction.uuid} inserts keys that version {others} may have inserted")
        for key in transaction.update.inserted_rows.exact.key_hashes:
            if self._keys.get(key, 0) > read:
                self.fail(f"version {version}: {transaction.uuid} inserts key {key}, as version {self._keys[key]} did")
            self._keys[key] = version

    def _changed_rows(self, seen: Seen) -> None:
        """Check a Delete or Update: its members delete live rows, no two the same, and nothing else is deleted."""
        version, before = seen.settled.version, self.versions.get(seen.settled.version - 1)
        if seen.settled.operation == "append":
            self._appended(seen)
        if before is None or seen.settled.operation not in ("delete", "update") or not self.verifies_files:
            return
        live, gone = self._live(before.file), set[Row]()
        for member in seen.settled.members:
            asked = self.asked.get((seen.settled.topic_id, member.offset))
            if asked is None or asked.transaction is None:
                return
            delete, update = asked.transaction.delete, asked.transaction.update
            whole = {*delete.deleted_fragment_ids, *update.removed_fragment_ids}
            read = self.versions.get(member.read_version, before).file
            removed = {(id, row) for id, row in self._live(read) if id in whole}
            mine = {self._followed(one, before.file) for one in (*self.rows_of.get(member.uuid, ()), *removed)}
            if mine & gone or not mine <= live:
                self.fail(f"version {version}: {member.uuid} deletes rows {sorted(mine & gone or mine - live)} again")
            gone |= mine
            self._inserted(asked.transaction, member.read_version, version)
        # What it adds is checked with the content.
        there = {one.id for one in before.file.fragments}
        left = {(id, row) for id, row in self._live(seen.file) if id in there}
        if left != live - gone:
            self.fail(f"version {version}: of its rows {sorted(left ^ (live - gone))[:5]} are wrong")

    def _handed_down(self, file: ManifestFile, *, ours: bool) -> Position | None:
        """The position that a version carries; None if another writer has made one up."""
        try:
            position = decode_position(file.manifest.table_metadata, branch=file.manifest.branch)
        except CorruptTable:
            if ours:
                raise
            return None
        if ours or position is None or self.position is None:
            return position
        higher = (position.era, position.next_offset) > (self.position.era, self.position.next_offset)
        if higher:
            self._made_up.add(file.manifest.version)
        return None if higher else position

    def _strays(self, version: int, key: str, body: bytes) -> bool:
        """Whether a committer creates a version in a table that it does not know. It must not publish its outcomes."""
        transaction = decode(body, len(body)).transaction
        settled = decode_settled(transaction, version=version)
        if not settled.ours:
            return False
        assert transaction is not None
        if REASON_KEY in transaction.transaction_properties:
            self._swapped = False
            return False
        self.note(f"version {version} goes astray")
        self._astray[version] = key
        if self.bucket.crossing:
            self._crossed.add(version)
        return True

    def _committed(self, seen: Seen) -> None:
        """Check a version of the queue: it settles exactly the records that its position newly passes."""
        version, position, before = seen.settled.version, seen.position, self.position
        if position is None:
            self.fail(f"version {version} carries no position")
            return
        self._dated(seen)
        # An operator chooses an era that nobody knows of; a deleted table may have had the same one.
        by_hand = seen.file.transaction is not None and REASON_KEY in seen.file.transaction.transaction_properties
        new_life = before is None or position.era > before.era or by_hand
        if before is not None and position.era < before.era:
            self.fail(f"version {version}: the era went down from {before.era} to {position.era}")
        if not new_life and before is not None:
            if position.identity != before.identity:
                self.fail(f"version {version}: the position is of another topic, in the same era")
            lost = [o for o in (*before.settled, before.next_offset - 1) if not position.passes(o)]
            if lost:
                self.fail(f"version {version}: the position went down, {lost} were passed before")
        settles = sorted(entry.offset for entry in seen.settled.entries())
        passed = [] if new_life and before is not None else self._newly_passed(position, before)
        if settles != passed:
            self.fail(f"version {version} settles {settles}, and its position newly passes {passed}")
        readable_end = self.broker.readable_end if position.topic_id == self.broker.topic_id else None
        if settles and readable_end is not None and settles[-1] >= readable_end:
            self.fail(f"version {version} settles {settles}; an open Kafka transaction begins at {readable_end}")
        self.position = position
        uuids = [member.uuid for member in seen.settled.members]
        if len(set(uuids)) < len(uuids):
            self.fail(f"version {version} commits a transaction twice: {sorted(uuids)}")
        for member in seen.settled.members:
            self._member(member, position, version)
        for refusal in seen.settled.refusals:
            self._refusal(refusal, position, version)
        self._leaves_room(seen)
        self._in_order(seen, position)
        self._content(seen)

    def _in_order(self, seen: Seen, position: Position) -> None:
        """Check that no record passes an earlier one of its application, and that few enough pass others."""
        version = seen.settled.version
        if position.settled.range_count > positions.RANGES_MAX:
            self.fail(f"version {version} has {position.settled.range_count} ranges settled ahead")
        waiting = {
            asked.app.app_id: offset
            for (topic_id, offset), asked in reversed(self.asked.items())
            if topic_id == position.topic_id and asked.app is not None and not position.passes(offset)
        }
        for entry in seen.settled.entries():
            app = self.asked[position.topic_id, entry.offset].app
            if app is not None and waiting.get(app.app_id, entry.offset) < entry.offset:
                self.fail(
                    f"version {version} settles offset {entry.offset} before {waiting[app.app_id]} of {app.app_id}"
                )

    def _dated(self, seen: Seen) -> None:
        """Check timestamps by Kafka's clock, whatever the clocks of machines say."""
        version, now_ms = seen.settled.version, self.broker.now_ms()
        dated_ms = seen.file.manifest.timestamp.ToMilliseconds()
        if dated_ms > now_ms + _AHEAD_MS_MAX:
            self.fail(f"version {version} is dated {(dated_ms - now_ms) / 1000:g} s ahead")
        for refusal in seen.settled.refusals:
            asked = self.asked[seen.position.topic_id if seen.position else "", refusal.offset]
            deadline = asked.envelope.deadline_ms if asked.envelope else None
            if refusal.status == StatusNumber.EXPIRED and deadline is not None and deadline > now_ms:
                self.fail(f"version {version} calls offset {refusal.offset} expired, {deadline - now_ms} ms too early")
        for member in seen.settled.members:
            asked, latest = self.asked[seen.position.topic_id if seen.position else "", member.offset], now_ms
            deadline = asked.envelope.deadline_ms if asked.envelope else None
            if self.sleepless and deadline is not None and deadline < latest - _LATE_MS_MAX:
                self.fail(f"version {version} commits offset {member.offset}, {latest - deadline} ms too late")

    def _newly_passed(self, position: Position, before: Position | None) -> list[int]:
        offsets = [o for topic_id, o in self.asked if topic_id == position.topic_id and position.passes(o)]
        return sorted(o for o in offsets if before is None or not before.passes(o))

    def _member(self, member: Member, position: Position, version: int) -> None:
        place = (position.topic_id, member.offset)
        asked = self.asked[place]
        if asked.transaction is None or asked.transaction.uuid != member.uuid:
            self.fail(f"version {version} commits {member.uuid}, which is not what lies at offset {member.offset}")
        if self._refused_before(member.uuid) and not (asked.envelope and asked.envelope.replay_of):
            self.fail(f"version {version} commits {member.uuid}, which was refused before")
        self._brings(asked, member, version)
        self._commit(member.uuid, version)
        self.entries[place] = (version, member)
        self._holds_what_was_answered(place)
        self._of_dead.discard(place)
        mark = self._marks.get(member.app_id)
        if member.app_id and mark is not None and member.app_version <= mark.version:
            self.fail(f"version {version} commits app {member.app_id} version {member.app_version} twice")
        if asked.app is not None:
            last = self._units.get(asked.app.app_id, 0)
            if asked.app.after not in (None, last):
                self.fail(f"version {version} commits a unit that must follow {asked.app.after}, and it follows {last}")
            self._units[asked.app.app_id] = asked.app.version

    def _brings(self, asked: Candidate, member: Member, version: int) -> None:
        """Check that each file of the transaction existed at some time since it was staged."""
        if asked.transaction is None or not self.verifies_files:
            return
        below = self.versions.get(version - 1)
        known = set(below.paths) if below is not None else set()
        for fragment in (*asked.transaction.append.fragments, *asked.transaction.overwrite.fragments):
            for path in (file.path for file in fragment.files if file.path not in known):
                key = data_key(path)
                if key not in self.bucket.objects and self._gone_ms.get(key, -1) < asked.staged_ms:
                    self.fail(f"version {version} commits offset {member.offset}, and {key} was not there")

    def _leaves_room(self, seen: Seen) -> None:
        """Check that operations other than Append leave a fragment id for the next one."""
        transaction, below = seen.file.transaction, self.versions.get(seen.settled.version - 1)
        if transaction is None or transaction.HasField("append") or below is None:
            return
        before, after = (one.file.manifest.max_fragment_id for one in (below, seen))
        if before < FRAGMENT_ID_MAX <= after:
            self.fail(f"version {seen.settled.version} leaves no fragment id, so that nothing can be appended to it")

    def _commit(self, uuid: str, version: int) -> None:
        before = self._uuids.setdefault(uuid, version)
        if not self._known(before):
            self._uuids[uuid] = version
        elif before != version:
            self.fail(f"transaction {uuid} is committed twice, in versions {before} and {version}")

    def _refusal(self, refusal: Refusal, position: Position, version: int) -> None:
        place = (position.topic_id, refusal.offset)
        self.entries[place] = (version, refusal)
        self._holds_what_was_answered(place)
        self._of_dead.discard(place)
        asked, uuid = self.asked[place], refusal.uuid
        if refusal.reason == INTERNAL_ERROR and not self.may_fail_inside:
            self.fail(f"version {version}: the committer fails on offset {refusal.offset}: {refusal.message}")
        if refusal.status == StatusNumber.DUPLICATE:
            mark = self._marks.get(asked.app.app_id) if asked.app else None
            by_app = asked.app is not None and mark is not None and asked.app.version <= mark.version
            if by_app and mark is not None and position.era == mark.era and mark.offset > refusal.offset:
                self.fail(f"version {version}: the unit at offset {refusal.offset} was overtaken by a later one")
            # Also of the group that the version itself commits.
            if uuid not in self._uuids and not by_app and not self._in_group(asked, version):
                self.fail(f"version {version} calls {uuid} a duplicate, and it was never committed")
            return
        if self.may_have_dropped and (refusal.status, refusal.reason) == (StatusNumber.UNDECIDED, "history_gap"):
            return
        if uuid in self._uuids and self._known(self._uuids[uuid]):
            self.fail(f"version {version} refuses {uuid}, which version {self._uuids[uuid]} commits")
        earlier = self._refused_before(uuid)
        if earlier is None:
            self._refused[uuid] = (version, refusal)
        elif (earlier.status, earlier.reason) != (refusal.status, refusal.reason):
            self.fail(f"version {version} refuses {uuid} as {refusal.reason}, before as {earlier.reason}")

    def _refused_before(self, uuid: str) -> Refusal | None:
        version, refusal = self._refused.get(uuid, (0, None))
        return refusal if uuid and self._known(version) else None

    def _in_group(self, asked: Candidate, version: int) -> bool:
        members = [entry for at, entry in self.entries.values() if at == version and isinstance(entry, Member)]
        app = asked.app
        return app is not None and any(m.app_id == app.app_id and m.app_version >= app.version for m in members)

    def _content(self, seen: Seen) -> None:
        """Check that the table holds what the members bring, in addition to its earlier content."""
        before = self.versions.get(seen.settled.version - 1)
        wanted = before.paths if before else []
        transaction = seen.file.transaction
        assert transaction is not None
        match transaction.WhichOneof("operation"):
            case "append":
                places = [(seen.position.topic_id if seen.position else "", m.offset) for m in seen.settled.members]
                wanted = wanted + [path for place in places for path in self._staged_paths(place)]
            case "overwrite":
                wanted = [file.path for fragment in transaction.overwrite.fragments for file in fragment.files]
            case "delete" | "update":
                gone = {*transaction.delete.deleted_fragment_ids, *transaction.update.removed_fragment_ids}
                there = before.file.manifest.fragments if before else []
                wanted = [file.path for fragment in there if fragment.id not in gone for file in fragment.files]
                places = [(seen.position.topic_id if seen.position else "", m.offset) for m in seen.settled.members]
                wanted = wanted + [path for place in places for path in self._staged_paths(place)]
            case "rewrite":
                groups = transaction.rewrite.groups
                old = {one.id for group in groups for one in group.old_fragments}
                there = [one for one in before.file.manifest.fragments if one.id not in old] if before else []
                there += [one for group in groups for one in group.new_fragments if live_rows(one)]
                wanted = [file.path for one in sorted(there, key=lambda one: one.id) for file in one.files]
            case "restore":
                wanted = self.versions[transaction.restore.version].paths
            case _:
                pass
        if seen.paths != wanted:
            self.fail(f"version {seen.settled.version} holds {seen.paths}, not {wanted}")

    def _staged_paths(self, place: Place) -> Sequence[str]:
        transaction = self.asked[place].transaction
        if transaction is None:
            return []
        fragments = [*transaction.append.fragments, *transaction.update.new_fragments]
        return [file.path for fragment in fragments for file in fragment.files]

    def unit_of(self, app_id: str) -> int:
        """The last unit of an application that is in the table; 0 = none."""
        return self._units.get(app_id, 0)

    def _learn_marks(self, seen: Seen) -> None:
        if not seen.settled.ours:
            return
        marks = decode_marks(seen.file.manifest.table_metadata, branch=seen.file.manifest.branch)
        for app_id, mark in self._marks.items():
            found = marks.get(app_id)
            if found is None or (found.life, found.version) < (mark.life, mark.version):
                self.fail(f"version {seen.settled.version}: the mark of {app_id} went down from {mark} to {found}")
        self._marks = marks

    # The topics

    def _published(self, publication: Publication) -> None:
        outcome = Outcome.FromString(publication.value)
        place = (outcome.topic_id, outcome.offset)
        self._has_outcome.add((place, outcome.uuid))
        if self._rolled_back:
            return
        if place not in self.asked:
            self.fail(f"an answer to {place}, where nothing was staged")
            return
        said = f"{StatusNumber.Name(outcome.status)} {outcome.reason or '-'} at version {outcome.version}"
        self.note(f"answer {outcome.offset}: {said}")
        entry = self.entries.get(place)
        if entry is not None and place in self._of_dead:
            if self._says(entry, outcome) or outcome.reason == "version_cleaned_up":
                self.answers.setdefault(place, outcome)
            else:
                self.fail(f"offset {outcome.offset} is answered {said}, but the deleted table says {entry[1]}")
            return
        if outcome.status == StatusNumber.UNDECIDED and outcome.reason == "version_cleaned_up":
            if (entry is None and place not in self._passed_by_hand) or (entry is not None and entry[0] in self._there):
                self.fail(f"offset {outcome.offset} is called cleaned up, and its version is there or never was")
            self.answers.setdefault(place, outcome)
            return
        if entry is None and outcome.before_table:
            self._before_table.setdefault(place, outcome)
            self.answers.setdefault(place, outcome)
            return
        if entry is None:
            self.fail(f"offset {outcome.offset} is answered {said}, and no version says so")
            return
        if not self._says(entry, outcome):
            self.fail(f"offset {outcome.offset} is answered {said}, but version {entry[0]} says {entry[1]}")
        if isinstance(entry[1], Member):
            self._has_transaction_file(entry[0])
        before = self.answers.get(place)
        if before is None or before.status == StatusNumber.UNDECIDED:
            self.answers[place] = outcome
        elif (before.status, before.version, before.reason) != (outcome.status, outcome.version, outcome.reason):
            self.fail(f"offset {outcome.offset} is answered {said}, and was answered {before.reason} before")
        if outcome.status in (StatusNumber.INVALID, StatusNumber.UNSUPPORTED):
            self._letter_of(place)

    def _has_transaction_file(self, version: int) -> None:
        """Check that the transaction file exists and is of this transaction. Its queue entries may be of a group that
        lost.
        """
        file = self.versions[version].file
        body = self.bucket.objects.get(transaction_key(file.manifest.transaction_file))
        found = Transaction.FromString(body) if body is not None else Transaction()
        ours = file.transaction
        assert ours is not None
        if (found.uuid, found.WhichOneof("operation")) != (ours.uuid, ours.WhichOneof("operation")):
            self.fail(f"version {version} is answered, and its transaction file is not there")

    def _says(self, entry: tuple[int, Member | Refusal], outcome: Outcome) -> bool:
        version, said = entry
        if isinstance(said, Member):
            reserved = (said.reserved_first, said.reserved_count)
            told = (outcome.status, outcome.version, outcome.uuid)
            return told == (StatusNumber.COMMITTED, version, said.uuid) and (
                (outcome.reserved_first, outcome.reserved_count) == reserved
            )
        return (said.status, said.version, said.reason, said.uuid) == (
            outcome.status,
            outcome.version,
            outcome.reason,
            outcome.uuid,
        )

    def _holds_what_was_answered(self, place: Place) -> None:
        """Check that a version says of a record what was published of it before there was a table."""
        answered, entry = self._before_table.get(place), self.entries[place]
        if answered is not None and not self._says(entry, answered):
            self.fail(f"offset {place[1]} was answered {answered.reason}, but version {entry[0]} says otherwise")

    def _letter_of(self, place: Place) -> None:
        """Check that a refused record is in the dead letter topic before its outcome is published."""
        for letter in self.broker.dead[self._letters_seen :]:
            offset = dict(letter.headers)["committerd-offset"]
            topic_id = self.broker.topic_id
            assert topic_id is not None
            self.dead.add((topic_id, int(offset)))
        self._letters_seen = len(self.broker.dead)
        if place not in self.dead and place[0] == self.broker.topic_id:
            self.fail(f"offset {place[1]} is answered, and is no dead letter yet")

    def _acknowledged(self, acknowledged: Acknowledged) -> None:
        self.note(f"acknowledged {acknowledged.offset}")
        if self._rolled_back:
            self.acknowledged = acknowledged.offset
            return
        position = self.position
        if position is not None and position.topic_id != self.broker.topic_id:
            return  # of the earlier topic with this name
        if position is not None and json.loads(acknowledged.metadata)["era"] < position.era:
            return  # the same, or of a position that an operator has replaced: Start also compares the era
        self.acknowledged = max(self.acknowledged, acknowledged.offset)
        while self._answered_below < acknowledged.offset:
            place = (self.broker.topic_id or "", self._answered_below)
            if place in self.asked and place not in self.answers:
                self.fail(f"offset {acknowledged.offset} is acknowledged, and {place[1]} has no answer")
                return
            self._answered_below += 1

    def _known(self, version: int) -> bool:
        """Whether a committer can know a version; what was cleaned up may be committed once more."""
        return version == self.latest + 1 or version in self._there
