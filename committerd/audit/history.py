"""The table's half of an audit: the records that its versions settle, and contradictions between versions.

The readable versions are added in ascending order. If some are missing, the records that they settled are unknown; the
next position tells which records those can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from committerd.errors import CorruptTable
from committerd.queue.outcomes import Settled, decode_settled
from committerd.queue.position import AppMark, Position, decode_marks, decode_position, highest
from committerd_common.messages import Manifest, Member, Refusal, Transaction
from committerd_common.messages import Status as StatusNumber

Key = TypeVar("Key", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One contradiction that an audit found."""

    code: str
    """In snake case; it never changes."""
    message: str
    version: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class Findings:
    """The findings of an audit: it counts all, and keeps the first `KEPT_MAX`."""

    KEPT_MAX: ClassVar[int] = 1000

    kept: list[Finding] = field(default_factory=list)
    by_code: Counter[str] = field(default_factory=Counter)

    def add(self, code: str, message: str, *, version: int | None = None, offset: int | None = None) -> None:
        self.by_code[code] += 1
        if len(self.kept) < self.KEPT_MAX:
            self.kept.append(Finding(code=code, message=message, version=version, offset=offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedVersion:
    """The parts of one version that an audit needs."""

    settled: Settled
    position: Position | None
    """The position that the version carries, its own or one that a foreign version has copied."""
    marks: Mapping[str, AppMark] = field(default_factory=dict)
    misplaced: tuple[str, ...] = ()
    """The paths of the data files of its own Append that it does not hold exactly once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The outcome of a record, as a version has it."""

    at: int
    """The version that settles the record."""
    era: int
    status: StatusNumber.ValueType
    version: int
    """The version that holds the transaction, as in the outcome; 0 = none, or unknown."""
    reason: str
    uuid: str


class EntryMap(Protocol):
    """The entries of records, by topic id and offset; each has the entry that was put last."""

    def get(self, topic_id: str, offset: int) -> Entry | None:
        """The record's entry; None if it has none."""
        ...

    def put(self, topic_id: str, offset: int, entry: Entry) -> None:
        """Set the record's entry, in place of an earlier one."""
        ...

    def count_below(self, topic_id: str, offset: int) -> int:
        """The number of entries below an offset of a topic."""
        ...


class NumberMap(Protocol[Key]):
    """A number for each key."""

    def get(self, key: Key, /) -> int | None:
        """The number of this key; None if it has none."""
        ...

    def put(self, key: Key, value: int, /) -> None:
        """Set the number of this key, in place of an earlier one."""
        ...


class EntriesInMemory:
    """An `EntryMap` for few records."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[int, Entry]] = {}

    def get(self, topic_id: str, offset: int) -> Entry | None:
        return self._entries.get(topic_id, {}).get(offset)

    def put(self, topic_id: str, offset: int, entry: Entry) -> None:
        self._entries.setdefault(topic_id, {})[offset] = entry

    def count_below(self, topic_id: str, offset: int) -> int:
        return sum(1 for found in self._entries.get(topic_id, ()) if found < offset)


class NumbersInMemory(Generic[Key]):
    """A `NumberMap` for few records."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def get(self, key: Key, /) -> int | None:
        return self._numbers.get(key)

    def put(self, key: Key, value: int, /) -> None:
        self._numbers[key] = value


@dataclass(slots=True)
class AuditedHistory:
    """The history of a table, as far as its versions can be read."""

    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    read: set[int] = field(default_factory=set)
    """The versions that were read."""
    latest: int = 0
    position: Position | None = None
    """The position that the versions of the queue have reached; None if no version carries one."""
    entries: EntryMap = field(default_factory=EntriesInMemory)
    uuids: NumberMap[str] = field(default_factory=NumbersInMemory)
    """The version that holds each transaction, by uuid."""
    _apps: dict[tuple[str, int, str], tuple[int, int]] = field(default_factory=dict)
    """The last unit of work and its table version, by (app-id, life of the mark, run)."""
    _starts: list[Position] = field(default_factory=list)
    """The positions that an operator has set."""
    _gone: list[tuple[Position | None, Position]] = field(default_factory=list)
    """The positions before and after each gap in the readable versions."""
    _hole: bool = False
    """Whether there is a gap with no version of the queue behind it yet."""

    @property
    def era(self) -> int:
        """The era of the position."""
        return self.position.era if self.position is not None else 0

    def add(self, found: AuditedVersion) -> None:
        """Add the next version, in ascending order."""
        version = found.settled.version
        if version != self.latest + 1:
            self._hole = True
            self.unchecked["versions that were not read (cleaned up, or not asked for)"] += version - self.latest - 1
        self.read.add(version)
        self.latest = version
        self.counts["versions"] += 1
        before = self.position
        self._learn_position(found)
        self._commit_uuids(found.settled)
        if found.settled.ours:
            self.counts["versions of the queue"] += 1
            self._check_entries(found, before)
            self._check_apps(found)
            for path in found.misplaced:
                self.findings.add(
                    "data_misplaced",
                    f"data file {path} of its Append is not in the version exactly once",
                    version=version,
                )

    def unreadable(self, version: int, message: str) -> None:
        """Note a version whose manifest exists but can't be read."""
        self.findings.add("version_unreadable", message, version=version)

    def entry(self, topic_id: str, offset: int) -> Entry | None:
        """The entry that counts for a record; None if no version that was read has one."""
        entry = self.entries.get(topic_id, offset)
        if entry is None or entry.era < self._era_of(topic_id, offset):
            return None
        return entry

    def is_gone(self, topic_id: str, offset: int) -> bool:
        """Whether a version that was not read may have settled the record."""
        era = self._era_of(topic_id, offset)
        return any(
            after.topic_id == topic_id
            and after.era >= era
            and after.passes(offset)
            and not _had_passed(before, after, offset)
            for before, after in self._gone
        )

    def by_hand(self, topic_id: str, offset: int) -> bool:
        """Whether an operator has passed the record by setting the position."""
        era = self._era_of(topic_id, offset)
        return any(s.topic_id == topic_id and s.era >= era and s.passes(offset) for s in self._starts)

    def count_below(self, topic_id: str, offset: int) -> int:
        """The number of records below an offset that have an entry."""
        return self.entries.count_below(topic_id, offset)

    def _era_of(self, topic_id: str, offset: int) -> int:
        """The lowest era that counts for a record: the last one that began with a position that did not pass it."""
        return max((s.era for s in self._starts if s.topic_id == topic_id and not s.passes(offset)), default=0)

    def _learn_position(self, found: AuditedVersion) -> None:
        version, position, before = found.settled.version, found.position, self.position
        if position is None:
            if found.settled.ours:
                self.findings.add(
                    "position_missing", "it comes from the queue and carries no position", version=version
                )
            return
        if before is None and position.era and not self._hole:
            self._starts.append(position)  # of a table that was made anew, or of one that no queue had committed to
        if self._hole:
            self._gone.append((before, position))
            # A foreign version may carry a lower position than was reached; a version of the queue never does.
            self._hole = not found.settled.ours
        if before is not None and not found.settled.ours:
            return  # inherited or made up: versions of the queue ignore it too
        if before is not None:
            if position.era > before.era:
                self._starts.append(position)
            self._check_position(version, before, position)
        self.position = highest(p for p in (before, position) if p is not None)

    def _check_position(self, version: int, before: Position, position: Position) -> None:
        """Check that the position of a version of the queue does not go back."""
        if position.era > before.era:
            return
        if position.era < before.era:
            self.findings.add("position_went_back", f"its era is {position.era}, after {before.era}", version=version)
        elif position.identity != before.identity:
            self.findings.add(
                "position_of_another_topic",
                f"its position is of topic id {position.topic_id}, the position before it of {before.topic_id}, in the "
                "same era",
                version=version,
            )
        elif (lost := position.lacks(before)) is not None:
            self.findings.add(
                "position_went_back",
                f"its next offset is {position.next_offset}, and offset {lost} was passed before",
                version=version,
            )

    def _check_entries(self, found: AuditedVersion, before: Position | None) -> None:
        """Check that a version of the queue settles only records that its position newly passes, and each once."""
        settled, position = found.settled, found.position
        if position is None:
            return
        version = settled.version
        here: set[int] = set()
        for one in settled.entries():
            entry = _entry(one, version=version, era=position.era)
            self.counts["transactions committed" if isinstance(one, Member) else "transactions refused"] += 1
            if not position.passes(one.offset):
                self.findings.add(
                    "entry_beyond_position",
                    f"it names the record at offset {one.offset}, which its position does not pass",
                    version=version,
                    offset=one.offset,
                )
            if one.offset in here or (
                before is not None
                and (before.era, before.identity) == (position.era, position.identity)
                and before.passes(one.offset)
            ):
                self._settled_again(self.entries.get(settled.topic_id, one.offset), one.offset, version)
            here.add(one.offset)
            self.entries.put(settled.topic_id, one.offset, entry)
            if isinstance(one, Refusal):
                self._check_duplicate(one, version)

    def _settled_again(self, earlier: Entry | None, offset: int, version: int) -> None:
        where = f"version {earlier.at} has settled" if earlier else "the position had passed"
        text = f"it settles the record at offset {offset}, which {where} already"
        self.findings.add("settled_twice", text, version=version, offset=offset)

    def _check_duplicate(self, refusal: Refusal, version: int) -> None:
        """Check that the version that a duplicate names holds the transaction; otherwise its data is lost."""
        if refusal.status != StatusNumber.DUPLICATE or refusal.reason != "uuid_seen":
            return
        if refusal.version not in self.read:
            self.unchecked["duplicates of versions that were not read"] += 1
        elif self.uuids.get(refusal.uuid) != refusal.version:
            self.findings.add(
                "duplicate_false",
                f"it calls transaction {refusal.uuid} a duplicate of version {refusal.version}, which does not have it",
                version=version,
                offset=refusal.offset,
            )

    def _commit_uuids(self, settled: Settled) -> None:
        """Note the uuids that a version commits: those of its members, or its own if it is foreign.

        A version of the queue with several members, or none, has a uuid that no record has.
        """
        uuids = [member.uuid for member in settled.members] if settled.ours else [settled.uuid]
        for uuid in filter(None, uuids):
            before = self.uuids.get(uuid)
            if before is not None:
                self.findings.add(
                    "committed_twice",
                    f"transaction {uuid} was committed in version {before} and again here",
                    version=settled.version,
                )
            self.uuids.put(uuid, settled.version)

    def _check_apps(self, found: AuditedVersion) -> None:
        for member in found.settled.members:
            if not member.app_id:
                continue
            mark = found.marks.get(member.app_id)
            key = member.app_id, mark.life if mark is not None else 0, member.app_run
            before = self._apps.get(key)
            if before is not None and member.app_version <= before[0]:
                self.findings.add(
                    "app_version_twice",
                    f"application {member.app_id} commits its version {member.app_version}, after version "
                    f"{before[0]} of its work in version {before[1]}",
                    version=found.settled.version,
                    offset=member.offset,
                )
            elif before is not None and member.HasField("app_after") and member.app_after != before[0]:
                self.findings.add(
                    "app_version_missing",
                    f"application {member.app_id} commits its version {member.app_version}, which must follow its "
                    f"version {member.app_after}, after version {before[0]} of its work in version {before[1]}",
                    version=found.settled.version,
                    offset=member.offset,
                )
            self._apps[key] = member.app_version, found.settled.version


def audited_version(
    outline: Manifest, transaction: Transaction | None, misplaced: tuple[str, ...] = ()
) -> AuditedVersion:
    """The parts of a version that an audit needs. `transaction` made the version; None = it can't be read.

    Raises `CorruptTable` if a version of the queue has queue keys that can't be read, `RefusedToRun` for keys of a
    newer format. Keys that a foreign version has damaged count as missing: the next version of the queue restores them.
    """
    settled = decode_settled(transaction, version=outline.version)
    try:
        position = decode_position(outline.table_metadata, branch=outline.branch)
        marks = decode_marks(outline.table_metadata, branch=outline.branch)
    except CorruptTable:
        if settled.ours:
            raise
        return AuditedVersion(settled=settled, position=None)
    return AuditedVersion(settled=settled, position=position, marks=marks, misplaced=misplaced if settled.ours else ())


def _entry(one: Member | Refusal, *, version: int, era: int) -> Entry:
    if isinstance(one, Member):
        return Entry(at=version, era=era, status=StatusNumber.COMMITTED, version=version, reason="", uuid=one.uuid)
    return Entry(at=version, era=era, status=one.status, version=one.version, reason=one.reason, uuid=one.uuid)


def _had_passed(before: Position | None, after: Position, offset: int) -> bool:
    """Whether the position before a gap, if it is of the same era and topic, had passed the offset already."""
    return before is not None and (before.era, before.identity) == (after.era, after.identity) and before.passes(offset)
