"""The table's half of an audit: what its versions say of the queue, and whether they contradict each other.

Versions are taken in ascending order, as far as they can be read. Where some are missing, what they settled is gone:
the next position tells how far that reaches.
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
    """One thing that does not fit."""

    code: str
    """Stable snake case."""
    message: str
    version: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class Findings:
    """All of them counted, the first kept."""

    KEPT_MAX: ClassVar[int] = 1000

    kept: list[Finding] = field(default_factory=list)
    by_code: Counter[str] = field(default_factory=Counter)

    def add(self, code: str, message: str, *, version: int | None = None, offset: int | None = None) -> None:
        self.by_code[code] += 1
        if len(self.kept) < self.KEPT_MAX:
            self.kept.append(Finding(code=code, message=message, version=version, offset=offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedVersion:
    """What an audit needs of one version."""

    settled: Settled
    position: Position | None
    """As the version carries it, its own or handed down."""
    marks: Mapping[str, AppMark] = field(default_factory=dict)
    misplaced: tuple[str, ...] = ()
    """Data files of its own Append that it does not hold exactly once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a version answers a record."""

    at: int
    """The version that says it."""
    era: int
    status: StatusNumber.ValueType
    version: int
    """As the outcome has it: where the transaction is; 0 = nowhere, or unknown."""
    reason: str
    uuid: str


class EntryMap(Protocol):
    """How versions answer records, by topic id and offset; of several eras the last."""

    def get(self, topic_id: str, offset: int) -> Entry | None:
        """The entry that was put last."""
        ...

    def put(self, topic_id: str, offset: int, entry: Entry) -> None:
        """Keep an entry in place of what was there."""
        ...

    def count_below(self, topic_id: str, offset: int) -> int:
        """How many entries there are below an offset."""
        ...


class NumberMap(Protocol[Key]):
    """A number for each key."""

    def get(self, key: Key, /) -> int | None:
        """The number that was put last."""
        ...

    def put(self, key: Key, value: int, /) -> None:
        """Keep a number in place of what was there."""
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
    """What the versions say together."""

    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    read: set[int] = field(default_factory=set)
    """Versions that could be read."""
    latest: int = 0
    position: Position | None = None
    """The highest that any of them carries."""
    entries: EntryMap = field(default_factory=EntriesInMemory)
    uuids: NumberMap[str] = field(default_factory=NumbersInMemory)
    """In which version each transaction is."""
    _apps: dict[tuple[str, int, str], tuple[int, int]] = field(default_factory=dict)
    """By application, life of its mark, and run: the last version of its work, and the table version with it."""
    _starts: list[Position] = field(default_factory=list)
    """Where an operator has set the position."""
    _gone: list[tuple[Position | None, Position]] = field(default_factory=list)
    """Positions before and after versions that can't be read."""
    _hole: bool = False
    """Versions were missing, and none of the queue was seen since."""

    @property
    def era(self) -> int:
        """Of the position."""
        return self.position.era if self.position is not None else 0

    def add(self, found: AuditedVersion) -> None:
        """The next version that could be read."""
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
                    "data_misplaced", f"data file {path} of its Append is not there exactly once", version=version
                )

    def unreadable(self, version: int, message: str) -> None:
        """A version whose manifest is there and can't be read."""
        self.findings.add("version_unreadable", message, version=version)

    def entry(self, topic_id: str, offset: int) -> Entry | None:
        """The answer that counts for a record; None when no version that was read has one."""
        entry = self.entries.get(topic_id, offset)
        if entry is None or entry.era < self._era_of(topic_id, offset):
            return None
        return entry

    def is_gone(self, topic_id: str, offset: int) -> bool:
        """Whether a version that can't be read may have settled it."""
        era = self._era_of(topic_id, offset)
        return any(
            after.topic_id == topic_id
            and after.era >= era
            and after.passes(offset)
            and not _had_passed(before, after, offset)
            for before, after in self._gone
        )

    def by_hand(self, topic_id: str, offset: int) -> bool:
        """Whether an operator has passed it by setting the position."""
        era = self._era_of(topic_id, offset)
        return any(s.topic_id == topic_id and s.era >= era and s.passes(offset) for s in self._starts)

    def count_below(self, topic_id: str, offset: int) -> int:
        """How many records below an offset have an answer."""
        return self.entries.count_below(topic_id, offset)

    def _era_of(self, topic_id: str, offset: int) -> int:
        """The era in which the record must have been answered, or later: the last that began below it."""
        return max((s.era for s in self._starts if s.topic_id == topic_id and not s.passes(offset)), default=0)

    def _learn_position(self, found: AuditedVersion) -> None:
        version, position, before = found.settled.version, found.position, self.position
        if position is None:
            if found.settled.ours:
                self.findings.add("position_missing", "it is of the queue and carries no position", version=version)
            return
        if self._hole:
            self._gone.append((before, position))
            # A foreign version may show less than was reached; only one of the queue tells.
            self._hole = not found.settled.ours
        if before is not None and not found.settled.ours:
            return  # handed down from before, or made up: versions of the queue don't go by it either
        if before is not None:
            if position.era > before.era:
                self._starts.append(position)
            self._check_position(version, before, position)
        self.position = highest(p for p in (before, position) if p is not None)

    def _check_position(self, version: int, before: Position, position: Position) -> None:
        """Our own versions never go back; foreign ones may show an older state."""
        if position.era > before.era:
            return
        if position.era < before.era:
            self.findings.add("position_went_back", f"its era is {position.era}, after {before.era}", version=version)
        elif position.identity != before.identity:
            self.findings.add(
                "position_of_another_topic",
                f"its position is of topic id {position.topic_id}, the one before of {before.topic_id}, in one era",
                version=version,
            )
        elif lost := [o for o in (before.next_offset - 1, *before.settled) if o >= 0 and not position.passes(o)]:
            self.findings.add(
                "position_went_back",
                f"its next offset is {position.next_offset}, and offset {max(lost)} was passed before",
                version=version,
            )

    def _check_entries(self, found: AuditedVersion, before: Position | None) -> None:
        """A version of the queue settles what its position newly passes, and each record once."""
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
        """What is called a duplicate must be there, or it is lost."""
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
        """Of a version of the queue its members count: the uuid of one that has several, or none, is nobody's."""
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
            self._apps[key] = member.app_version, found.settled.version


def audited_version(
    outline: Manifest, transaction: Transaction | None, misplaced: tuple[str, ...] = ()
) -> AuditedVersion:
    """What an audit needs of a version that was made by `transaction` (None = that can't be read).

    Raises `CorruptTable` for keys of the queue that can't be read in a version of the queue, `RefusedToRun` for those
    of a newer format. What a foreign writer has spoilt counts as dropped: the next version of the queue puts it back.
    """
    settled, metadata = decode_settled(transaction, version=outline.version), outline.table_metadata
    if settled.ours:
        return AuditedVersion(
            settled=settled, position=decode_position(metadata), marks=decode_marks(metadata), misplaced=misplaced
        )
    try:
        return AuditedVersion(settled=settled, position=decode_position(metadata), marks=decode_marks(metadata))
    except CorruptTable:
        return AuditedVersion(settled=settled, position=None)


def _entry(one: Member | Refusal, *, version: int, era: int) -> Entry:
    if isinstance(one, Member):
        return Entry(at=version, era=era, status=StatusNumber.COMMITTED, version=version, reason="", uuid=one.uuid)
    return Entry(at=version, era=era, status=one.status, version=one.version, reason=one.reason, uuid=one.uuid)


def _had_passed(before: Position | None, after: Position, offset: int) -> bool:
    """Whether the position before a hole, of the same era, had passed it already."""
    return before is not None and (before.era, before.identity) == (after.era, after.identity) and before.passes(offset)
