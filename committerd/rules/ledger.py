"""What the readable history says of a uuid or an application's version: has this record been settled before?

pylance never looks at the uuid and commits the same bytes twice; a queue that delivers at least once must look. The
ledger covers every uuid of the readable history, of foreign versions too, because someone may commit a staged file by
hand.

The ledger holds the newest uuids as they are, and of all others eight bytes each: a hash, and in which version it was.
A hash that is found proves nothing, so that version is read again before anything is concluded from it. The memory is
bounded: the oldest versions are dropped first, and the ledger remembers up to which version it has dropped them. It
never claims that a uuid is new when a dropped version may hold it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from committerd.format.messages import DUPLICATE, Refusal
from committerd.format.messages import Status as StatusNumber
from committerd.format.request import AppUnit
from committerd.rules.answers import Settled, Status
from committerd.rules.position import AppMark

LEDGER_BYTES = 128 * 1024 * 1024
"""Enough for about 14 million records."""

_REFUSED_SHARE = 8
"""One part in so many is for refusals."""
_ENTRY_BYTES = 8
_HASH_BITS = 48
_VERSION_BITS = 64 - _HASH_BITS
_VERSIONS_MAX = 1 << _VERSION_BITS
_RUN_ENTRIES_MAX = 512 * 1024
"""Two runs of half this size are merged in 40 ms."""
_RUN_ENTRIES_MIN = 2048
"""Smaller runs are merged with whatever follows: that takes 0.1 ms, once for each version that refuses something."""
_RECENT_MAX = 16 * 1024
"""Uuids that are kept as they are, with their versions: about 150 bytes each."""
_RECENT_REFUSAL_BYTES = 2 * 1024 * 1024
_REFUSAL_OVERHEAD_BYTES = 400
"""Of a message and the dictionary entry, beside what the message says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record is passed without being committed, and why; the reason is stable snake case."""

    status: Status
    reason: str
    message: str
    version: int = 0
    """DUPLICATE: where it was committed; 0 = unknown."""
    conflicting_version: int = 0
    conflicting_operation: str = ""


class _Run(NamedTuple):
    """Hashes of uuids, ascending, each with its version, of a range of versions."""

    low: int
    high: int
    """The range of versions, both included: fewer than 65,536."""
    entries: array[int]
    """The hash in the upper 48 bits, the lower 16 bits of the version below."""


class _Index:
    """Which versions may hold a uuid, for a range of versions; eight bytes for each uuid and version.

    A hash of 48 bits is taken for that of another uuid once in about 10 million questions, with 14 million uuids. The
    hash is Python's own, whose key is new in each process: no producer can choose uuids that meet.
    """

    __slots__ = ("_bytes_max", "_runs", "entries", "floor")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._runs: list[_Run] = []
        """By version, the newest last."""
        self.entries = 0
        self.floor = 0
        """Nothing is known of versions at or below this one."""

    def versions(self, uuid: str, after: int) -> list[int]:
        """The versions above `after` that may hold it, the newest first."""
        found: list[int] = []
        key = _key(uuid)
        for _, high, entries in reversed(self._runs):
            if high <= after:
                break
            place = bisect_left(entries, key)
            while place < len(entries) and entries[place] - key < _VERSIONS_MAX:
                version = high - ((high - entries[place]) % _VERSIONS_MAX)
                if version > after:
                    found.append(version)
                place += 1
        return sorted(set(found), reverse=True)

    def add_newer(self, run: _Run) -> None:
        """Add a run of versions above all others. Runs of similar size become one, so that there are few."""
        runs = self._runs
        runs.append(run)
        self.entries += len(run.entries)
        while len(runs) > 1 and _join(runs[-2], runs[-1]):
            newer, older = runs.pop(), runs.pop()
            runs.append(_merged(older, newer))
        self._bound()

    def add_older(self, run: _Run) -> None:
        """Add a run of versions below all others."""
        self._runs.insert(0, run)
        self.entries += len(run.entries)
        self._bound()

    def is_full(self, entries: int) -> bool:
        """Whether so many more would not fit."""
        return (self.entries + entries) * _ENTRY_BYTES > self._bytes_max

    def _bound(self) -> None:
        while self._runs and self.is_full(0):
            dropped = self._runs.pop(0)
            self.entries -= len(dropped.entries)
            self.floor = max(self.floor, dropped.high)


class Earlier(NamedTuple):
    """What is known of a uuid from versions that are there."""

    committed: int | None = None
    """The newest version above the read version that holds it."""
    refusal: Refusal | None = None
    """How it was refused."""
    unknown_at: int | None = None
    """A version that may hold it and about which nothing is known: dropped by the ledger, or it can't be read."""

    @property
    def found(self) -> str:
        """In one word."""
        if self.committed is not None:
            return "committed"
        if self.refusal is not None:
            return "refused"
        return "new" if self.unknown_at is None else "unknown"


NOT_SEEN = Earlier()


class Ledger:
    """Uuids of the readable versions, within a bound of memory."""

    __slots__ = (
        "_below",
        "_committed",
        "_hashed",
        "_high",
        "_low",
        "_older",
        "_recent_max",
        "_refusal_bytes",
        "_refusal_bytes_max",
        "_refusals",
        "_refused",
    )

    def __init__(self, *, bytes_max: int = LEDGER_BYTES, below: Ledger | None = None) -> None:
        refused_max = bytes_max // _REFUSED_SHARE
        self._hashed = _Index(bytes_max - refused_max)
        self._refused = _Index(refused_max)
        self._recent_max = max(1, min(_RECENT_MAX, bytes_max // (64 * _ENTRY_BYTES)))
        self._refusal_bytes_max = min(_RECENT_REFUSAL_BYTES, bytes_max)
        self._committed: dict[str, int] = {}
        """The newest, not in the index yet."""
        self._refusals: dict[str, tuple[Refusal, int]] = {}
        """Of the newest refusals all that was said, and the version; the index has them too."""
        self._refusal_bytes = 0
        self._low = self._high = 0
        """The range of versions in `_committed`; 0 = there is none."""
        self._older = _Older()
        self._below = below

    @property
    def floor(self) -> int:
        """Nothing is known of versions at or below this one; 0 = all that was readable is known."""
        own = max(self._hashed.floor, self._refused.floor)
        return own if self._below is None else self._below.floor

    def nothing_is_dropped(self) -> None:
        """What was dropped is not readable any more: nothing that can be read is unknown."""
        if self._below is not None:
            self._below.nothing_is_dropped()
            return
        self._hashed.floor = self._refused.floor = 0

    @property
    def bytes(self) -> int:
        """What the ledger takes, about."""
        own = (self._hashed.entries + self._refused.entries) * _ENTRY_BYTES + self._refusal_bytes
        return own + 150 * len(self._committed) + (0 if self._below is None else self._below.bytes)

    def ahead(self, versions: Iterable[Settled]) -> Ledger:
        """What this one will be once it has learned of these versions; itself it does not change."""
        ahead = Ledger(below=self)
        for settled in versions:
            ahead._take(settled)
        return ahead

    def add(self, settled: Settled) -> None:
        """Learn what the next version says: they come in ascending order."""
        version = settled.version
        if len(self._committed) > self._recent_max or (self._low and version - self._low >= _VERSIONS_MAX):
            entries = [_entry(uuid, known) for uuid, known in self._committed.items()]
            self._hashed.add_newer(_run(self._low, self._high, entries))
            self._committed.clear()
            self._low = 0
        self._take(settled)
        self._low, self._high = self._low or version, version
        refused = [_entry(r.uuid, version) for r in settled.refusals if r.uuid and r.status != DUPLICATE]
        if refused:
            self._refused.add_newer(_run(version, version, refused))

    def add_older(self, settled: Settled) -> bool:
        """Learn what a version says that lies below all others: they come in descending order, and `end_older` ends it.

        Returns False, and learns nothing, where the bound is reached: then this version and those below it are dropped.
        """
        version = settled.version
        if version <= self._hashed.floor:
            return False
        if self._older.high - version >= _VERSIONS_MAX or self._older.is_full:
            self.end_older()
        older = self._older
        committed = [_entry(uuid, version) for uuid in _uuids(settled)]
        refused = [_entry(r.uuid, version) for r in settled.refusals if r.uuid and r.status != DUPLICATE]
        if self._hashed.is_full(len(older.committed) + len(committed)) or self._refused.is_full(
            len(older.refused) + len(refused)
        ):
            self.end_older()
            self._hashed.floor = max(self._hashed.floor, version)
            return False
        older.low = version
        older.high = older.high or version
        older.committed.extend(committed)
        older.refused.extend(refused)
        return True

    def end_older(self) -> None:
        """No further version is added below."""
        older = self._older
        if older.committed:
            self._hashed.add_older(_run(older.low, older.high, older.committed))
        if older.refused:
            self._refused.add_older(_run(older.low, older.high, older.refused))
        self._older = _Older()

    def rules_out(self, uuid: str, after: int) -> bool:
        """Whether no version above `after` holds this uuid, and none has refused it. False proves nothing."""
        return (
            self._committed.get(uuid, 0) <= after
            and uuid not in self._refusals
            and (not self._hashed.entries or not self._hashed.versions(uuid, after))
            and (not self._refused.entries or not self._refused.versions(uuid, 0))
            and (after >= self.floor if self._below is None else self._below.rules_out(uuid, after))
        )

    def committed_at(self, uuid: str, after: int) -> tuple[int | None, Sequence[int]]:
        """The version above `after` that holds this uuid, and those that may hold it, the newest first."""
        version = self._committed.get(uuid)
        if version is not None and version > after:
            return version, ()
        if self._below is not None:
            return self._below.committed_at(uuid, after)
        return None, self._hashed.versions(uuid, after)

    def refused_at(self, uuid: str) -> tuple[Refusal | None, Sequence[int]]:
        """How this uuid was refused, and the versions that may have refused it, the newest first.

        Of several refusals the newest counts.
        """
        known = self._refusals.get(uuid)
        if known is not None:
            return known[0], ()
        if self._below is not None:
            return self._below.refused_at(uuid)
        return None, self._refused.versions(uuid, 0)

    def _take(self, settled: Settled) -> None:
        for uuid in _uuids(settled):
            self._committed[uuid] = settled.version
        for refusal in settled.refusals:
            if refusal.uuid and refusal.status != DUPLICATE:
                self._keep(refusal, settled.version)

    def _keep(self, refusal: Refusal, version: int) -> None:
        """Keep what a refusal says, and drop the oldest where there are too many."""
        known = self._refusals
        before = known.pop(refusal.uuid, None)
        if before is not None:
            self._refusal_bytes -= _refusal_bytes(before[0])
        known[refusal.uuid] = refusal, version
        self._refusal_bytes += _refusal_bytes(refusal)
        while self._below is None and self._refusal_bytes > self._refusal_bytes_max:
            dropped, _ = known.pop(next(iter(known)))
            self._refusal_bytes -= _refusal_bytes(dropped)


class _Older:
    """A run while it is read, from its newest version down."""

    __slots__ = ("committed", "high", "low", "refused")

    def __init__(self) -> None:
        self.committed: array[int] = array("Q")
        self.refused: array[int] = array("Q")
        self.low = self.high = 0

    @property
    def is_full(self) -> bool:
        """Whether it has as many entries as a run may have."""
        return max(len(self.committed), len(self.refused)) >= _RUN_ENTRIES_MAX


class Asked(NamedTuple):
    """What dedupe looks at."""

    uuid: str
    read_version: int
    app: AppUnit | None = None
    is_replay: bool = False
    """Header `replay-of`: an earlier refusal of this uuid doesn't count."""


def dedupe(
    asked: Asked,
    earlier: Earlier,
    marks: Mapping[str, AppMark],
    *,
    version: int,
    members: Container[str] = (),
    refusals: Iterable[Refusal] = (),
) -> Refused | None:
    """The answer to a record that was settled before, None for a new one.

    `earlier` is what the history says of its uuid. `members` (their uuids) and `refusals` are those of the group being
    formed, which will be `version`; `marks` include its own.
    """
    seen = earlier.committed
    if seen is None and asked.uuid in members:
        seen = version
    if seen is not None:
        return _duplicate("uuid_seen", f"transaction {asked.uuid} is in the table at version {seen}", seen)
    marked = _marked(asked.app, marks.get(asked.app.app_id)) if asked.app is not None else None
    if marked is not None and marked.status is Status.DUPLICATE:
        return marked
    refusal = None
    if not asked.is_replay:
        refusal = earlier.refusal or next((r for r in refusals if r.uuid == asked.uuid and r.status != DUPLICATE), None)
    if refusal is not None:
        return again(refusal)
    if marked is not None:
        return marked
    if earlier.unknown_at is not None and asked.app is None:
        return _undecided(asked, earlier.unknown_at)
    return None


def again(earlier: Refusal) -> Refused:
    """The same answer as before."""
    return Refused(
        status=Status(StatusNumber.Name(earlier.status)),
        reason=earlier.reason,
        message=earlier.message,
        version=earlier.version,
        conflicting_version=earlier.conflicting_version,
        conflicting_operation=earlier.conflicting_operation,
    )


def names(settled: Settled, uuid: str) -> bool:
    """Whether this version holds the transaction of that uuid, alone or as a member."""
    return uuid == settled.uuid or any(member.uuid == uuid for member in settled.members)


def refusal_in(settled: Settled, uuid: str) -> Refusal | None:
    """How this version refused that uuid."""
    return next((r for r in settled.refusals if r.uuid == uuid and r.status != DUPLICATE), None)


def _undecided(asked: Asked, version: int) -> Refused:
    return Refused(
        status=Status.UNDECIDED,
        reason="history_gap",
        message=f"version {version}, after read_version {asked.read_version}, may hold this transaction: the committer "
        "has dropped that version from memory, or can't read it. Check whether the data is in the table. To avoid "
        "this, stage with the version that you have read, or with an app-id, or raise memory.ledger_bytes",
        conflicting_version=version,
    )


def _marked(app: AppUnit, mark: AppMark | None) -> Refused | None:
    if mark is None or mark.released:
        return None
    if app.run != mark.run:
        return Refused(
            status=Status.INVALID,
            reason="app_id_in_use",
            message=f"application {app.app_id!r} counts its versions in run {mark.run!r}, this record is of run "
            f"{app.run!r}: a lost checkpoint counts from 0 again and its data would silently vanish as duplicates. "
            "Restore the checkpoint, or use another app-id, or let the operator run `committerd app release "
            f"{app.app_id}`",
        )
    if app.version <= mark.version:
        known = mark.table_version if app.version == mark.version else 0
        return _duplicate(
            "app_version_seen",
            f"application {app.app_id!r} has committed version {mark.version}, this record is its version "
            f"{app.version}",
            known,
        )
    return None


def _duplicate(reason: str, message: str, version: int) -> Refused:
    return Refused(status=Status.DUPLICATE, reason=reason, message=message, version=version)


def _uuids(settled: Settled) -> list[str]:
    """Of what a version commits: its own, and those of its members."""
    uuids = [uuid for member in settled.members if (uuid := member.uuid)]
    if settled.uuid:
        uuids.append(settled.uuid)
    return uuids


def _key(uuid: str) -> int:
    """The lowest entry that a uuid can have."""
    return (hash(uuid) & ((1 << _HASH_BITS) - 1)) << _VERSION_BITS


def _entry(uuid: str, version: int) -> int:
    return _key(uuid) | version & (_VERSIONS_MAX - 1)


def _run(low: int, high: int, entries: Iterable[int]) -> _Run:
    return _Run(low, high, array("Q", sorted(entries)))


def _join(older: _Run, newer: _Run) -> bool:
    """Whether two runs are to become one."""
    entries = len(older.entries) + len(newer.entries)
    similar = len(older.entries) <= max(_RUN_ENTRIES_MIN, 2 * len(newer.entries))
    return similar and entries <= _RUN_ENTRIES_MAX and newer.high - older.low < _VERSIONS_MAX


def _merged(older: _Run, newer: _Run) -> _Run:
    return _run(older.low, newer.high, older.entries + newer.entries)


def _refusal_bytes(refusal: Refusal) -> int:
    return refusal.ByteSize() + _REFUSAL_OVERHEAD_BYTES
