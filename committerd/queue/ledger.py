"""The ledger: was this uuid, or this version of an application, settled before?

pylance never looks at the uuid and commits the same bytes twice. A queue that delivers at least once must look. The
ledger covers every uuid of the readable history, those of foreign versions too, because someone may commit a staged
file by hand.

The ledger stores the newest uuids in full. Of each older uuid it stores eight bytes: a hash and the version. A hash
that matches proves nothing, so the caller reads that version again before it decides. The memory is bounded: the ledger
drops the oldest versions first, and remembers the highest version that it has dropped. It never calls a uuid new that
a dropped version may hold.

A uuid is looked for in all versions that the ledger knows, also in those at or below the record's read version: a
producer that opens the table again may stage the same transaction at a newer one.

Start knows the newest versions first. Until all are read, the ledger says for which records it knows enough (`covers`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from committerd.queue.outcomes import Settled, Status
from committerd.queue.position import AppMark
from committerd_common.messages import DUPLICATE, Refusal
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import AppUnit

LEDGER_BYTES = 128 * 1024 * 1024
"""Enough for about 14 million records."""
KNOWN_VERSIONS = 1000
KNOWN_RECORDS = 100_000
"""No record is judged before Start knows the uuids of this many of the newest versions, or of as many versions as hold
this many records, or of all. That takes a second or two, also on a distant store.
"""

_REFUSED_SHARE = 8
"""Refusals get the ledger's memory divided by this number."""
_ENTRY_BYTES = 8
_HASH_BITS = 48
_VERSION_BITS = 64 - _HASH_BITS
_VERSIONS_MAX = 1 << _VERSION_BITS
_RUN_ENTRIES_MAX = 512 * 1024
"""Two runs of half this size are merged in 40 ms."""
_RUN_ENTRIES_MIN = 2048
"""A smaller run is always merged with the next one: that takes 0.1 ms, once for each version that refuses a record."""
_RECENT_MAX = 16 * 1024
"""The number of uuids that are stored in full, with their versions: about 150 bytes each."""
_UUID_BYTES = 150
"""Memory that a uuid stored in full takes, with its version."""
_RECENT_REFUSAL_BYTES = 2 * 1024 * 1024
"""Memory for refusals that are stored in full."""
_REFUSAL_LAYERS = 8
"""Refusals are dropped a layer at a time, so a merged layer takes at most their memory divided by this number."""
_REFUSAL_OVERHEAD_BYTES = 400
"""Memory that a refusal's message object and dictionary entry take, beyond its encoded size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The outcome of a record that is not committed. `reason` is stable snake case; `message` is for people."""

    status: Status
    reason: str
    message: str
    version: int = 0
    """DUPLICATE: the version that holds the transaction; 0 = unknown."""
    conflicting_version: int = 0
    conflicting_operation: str = ""


class _Run(NamedTuple):
    """The uuids of a range of versions, as hashes."""

    low: int
    high: int
    """The range of versions, both ends included: at most 65,536 versions."""
    entries: array[int]
    """One 64-bit number for each uuid and version, ascending: the hash in the upper 48 bits, the lower 16 bits of the
    version number in the rest.
    """


@dataclass(frozen=True, slots=True)
class _Index:
    """An index of the versions that may hold a uuid; eight bytes for each uuid and version.

    With 14 million uuids, about one look-up in 10 million matches the 48-bit hash of another uuid. The hash is Python's
    own, and its key is new in each process, so no producer can choose uuids whose hashes are equal.
    """

    bytes_max: int
    runs: tuple[_Run, ...] = ()
    """In order of their versions, the newest last."""
    entries: int = 0
    """The number of entries in all runs."""
    floor: int = 0
    """The highest version that was dropped: the index knows nothing of it and those below."""

    def versions(self, uuid: str) -> list[int]:
        """The versions that may hold this uuid, the newest first."""
        found: list[int] = []
        key = _key(uuid)
        for _, high, entries in self.runs:
            place = bisect_left(entries, key)
            while place < len(entries) and entries[place] - key < _VERSIONS_MAX:
                found.append(high - ((high - entries[place]) % _VERSIONS_MAX))
                place += 1
        return sorted(set(found), reverse=True)

    def with_newer(self, run: _Run) -> _Index:
        """This index with one more run, of versions above all others. It merges runs of similar size, to keep few."""
        runs = [*self.runs, run]
        while len(runs) > 1 and _join(runs[-2], runs[-1]):
            newer, older = runs.pop(), runs.pop()
            runs.append(_merged(older, newer))
        return self._bounded(runs, self.entries + len(run.entries))

    def with_older(self, run: _Run) -> _Index:
        """This index with one more run, of versions below all others."""
        return self._bounded([run, *self.runs], self.entries + len(run.entries))

    def on_top_of(self, older: _Index) -> _Index:
        """This index with the runs of another one, of versions below all of its own."""
        whole = replace(self, floor=max(self.floor, older.floor))
        return whole._bounded([*older.runs, *self.runs], older.entries + self.entries)

    def without(self, version: int) -> _Index:
        """This index with its floor raised to this version."""
        return replace(self, floor=max(self.floor, version))

    def is_full(self, entries: int) -> bool:
        """Whether the index has no room for this many more entries."""
        return (self.entries + entries) * _ENTRY_BYTES > self.bytes_max

    def what_is_left(self) -> _Index:
        """An empty index, for the memory that this one does not take."""
        return _Index(max(0, self.bytes_max - self.entries * _ENTRY_BYTES))

    def _bounded(self, runs: list[_Run], entries: int) -> _Index:
        floor = self.floor
        while runs and entries * _ENTRY_BYTES > self.bytes_max:
            dropped = runs.pop(0)
            entries -= len(dropped.entries)
            floor = max(floor, dropped.high)
        return _Index(self.bytes_max, tuple(runs), entries, floor)


class Earlier(NamedTuple):
    """The history of a uuid, as far as the readable versions show it."""

    committed: int | None = None
    """The newest version that holds the uuid."""
    refusal: Refusal | None = None
    """The uuid's newest refusal."""
    unknown_at: int | None = None
    """A version that may hold the uuid, but that the ledger has dropped or that can't be read."""

    @property
    def found(self) -> str:
        """The result in one word: `committed`, `refused`, `new` or `unknown`."""
        if self.committed is not None:
            return "committed"
        if self.refusal is not None:
            return "refused"
        return "new" if self.unknown_at is None else "unknown"


NOT_SEEN = Earlier()


class _Committed(NamedTuple):
    """The uuids that a few consecutive versions have committed, each with its version."""

    low: int
    """The first of those versions; `high` is the last."""
    high: int
    versions: Mapping[str, int]


class _Refusals(NamedTuple):
    """The refusals of a few consecutive versions, by uuid."""

    refusals: Mapping[str, Refusal]
    bytes: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The uuids of the readable versions, in bounded memory. Immutable: `then` returns another ledger.

    Ledgers share the data that they have in common. The newest versions are stored in layers. Two layers of similar
    size are merged, so the cost of a version grows only with the logarithm of the number of versions.
    """

    _index: _Index
    """Committed uuids of all versions but the newest."""
    _refused: _Index
    """Refused uuids of all versions."""
    _committed: tuple[_Committed, ...] = ()
    """Committed uuids of the newest versions, which are not in the index yet; the newest layer last."""
    _refusals: tuple[_Refusals, ...] = ()
    """The newest refusals in full; the newest layer last."""
    _older: Ledger | None = None
    """While versions are unread: those that were read after the ledger began, which are below all others."""
    unread_below: int = 0
    """All readable versions below this one are still to be read; 0 = all are read."""
    _newest_at_start: int = 0
    """The newest version when the ledger began."""

    @classmethod
    def empty(cls, bytes_max: int = LEDGER_BYTES) -> Ledger:
        """A ledger that knows no version yet."""
        refused_max = bytes_max // _REFUSED_SHARE
        return cls(_Index(bytes_max - refused_max), _Index(refused_max))

    @property
    def floor(self) -> int:
        """The highest version that was dropped: the ledger knows nothing of it and those below. 0 = none was."""
        return max(self._index.floor, self._refused.floor)

    @property
    def unknown_up_to(self) -> int:
        """The highest version that was dropped or is still to be read. 0 = there is none."""
        return max(self.floor, self.unread_below - 1)

    @property
    def bytes(self) -> int:
        """The approximate size of the ledger in memory."""
        hashed = (self._index.entries + self._refused.entries) * _ENTRY_BYTES
        refusals = sum(layer.bytes for layer in self._refusals)
        older = self._older.bytes if self._older is not None else 0
        return hashed + refusals + older + _UUID_BYTES * sum(len(layer.versions) for layer in self._committed)

    def covers(self, after: int) -> bool:
        """Whether so many versions were read that a record with read version `after` can be judged.

        These are all readable versions above `after`: whoever committed or refused the same bytes did so above it. And
        they are the newest ones (`KNOWN_VERSIONS`, `KNOWN_RECORDS`), whatever the read version: its producer may have
        staged the same transaction before, at an older one.
        """
        if not self.unread_below:
            return True
        return self.unread_below <= after + 1 and self._knows_enough

    @property
    def _knows_enough(self) -> bool:
        if self._newest_at_start - self.unread_below + 1 >= KNOWN_VERSIONS:
            return True
        older = self._older._index.entries if self._older is not None else 0
        return self._index.entries + older >= KNOWN_RECORDS

    def with_unread(self, below: int, *, newest: int) -> Ledger:
        """This ledger of the versions up to `newest`, with the versions below `below` still to be read."""
        return replace(self, unread_below=below, _newest_at_start=newest)

    def with_older(self, older: Ledger, *, unread_below: int) -> Ledger:
        """This ledger with what was read of the versions that were unread when it began.

        `older` is the ledger of those alone. `unread_below`: as the attribute; 0 = all are read.
        """
        if not self.unread_below:
            return self
        if unread_below:
            return replace(self, _older=older, unread_below=unread_below)
        index, refused = self._index.on_top_of(older._index), self._refused.on_top_of(older._refused)
        return replace(self, _index=index, _refused=refused, _older=None, unread_below=0)

    def then(self, settled: Settled) -> Ledger:
        """This ledger with one more version, which is above all others."""
        version, index, layers = settled.version, self._index, self._committed
        bytes_max = index.bytes_max + self._refused.bytes_max
        recent_max = max(1, min(_RECENT_MAX, bytes_max // (64 * _ENTRY_BYTES)))
        many = sum(len(layer.versions) for layer in layers) > recent_max
        if many or (layers and version - layers[0].low >= _VERSIONS_MAX):
            newest: dict[str, int] = {}
            for layer in layers:
                newest |= layer.versions
            entries = [_entry(uuid, known) for uuid, known in newest.items()]
            index, layers = index.with_newer(_run(layers[0].low, layers[-1].high, entries)), ()
        layers = _with_committed(layers, _Committed(version, version, dict.fromkeys(_uuids(settled), version)))
        refusals = {one.uuid: one for one in settled.refusals if one.uuid and one.status != DUPLICATE}
        if not refusals:
            return replace(self, _index=index, _committed=layers)
        refused = self._refused.with_newer(_run(version, version, [_entry(uuid, version) for uuid in refusals]))
        newest_refusals = _Refusals(refusals, sum(map(_refusal_bytes, refusals.values())))
        in_full = _with_refusals(self._refusals, newest_refusals, min(_RECENT_REFUSAL_BYTES, bytes_max))
        return replace(self, _index=index, _refused=refused, _committed=layers, _refusals=in_full)

    def with_nothing_dropped(self) -> Ledger:
        """This ledger with floor 0, for when the versions that it dropped are no longer readable either."""
        return replace(self, _index=replace(self._index, floor=0), _refused=replace(self._refused, floor=0))

    def rules_out(self, uuid: str, after: int) -> bool:
        """Whether certainly no known version holds or has refused this uuid, and all versions above `after` are known.

        False proves nothing: the uuid may still be new.
        """
        for committed in self._committed:
            if uuid in committed.versions:
                return False
        for refused in self._refusals:
            if uuid in refused.refusals:
                return False
        return (
            (not self._index.entries or not self._index.versions(uuid))
            and (not self._refused.entries or not self._refused.versions(uuid))
            and after >= self.unknown_up_to
            and (self._older is None or self._older.rules_out(uuid, after))
        )

    def committed_at(self, uuid: str) -> tuple[int | None, Sequence[int]]:
        """The newest version that holds this uuid, or else the versions that may hold it, the newest first."""
        for layer in reversed(self._committed):
            version = layer.versions.get(uuid)
            if version is not None:
                return version, ()
        return None, self._maybe_committed(uuid)

    def refused_at(self, uuid: str) -> tuple[Refusal | None, Sequence[int]]:
        """The newest refusal of this uuid, or else the versions that may have refused it, the newest first."""
        for layer in reversed(self._refusals):
            known = layer.refusals.get(uuid)
            if known is not None:
                return known, ()
        return None, self._maybe_refused(uuid)

    def _maybe_committed(self, uuid: str) -> list[int]:
        older = self._older._maybe_committed(uuid) if self._older is not None else []
        return [*self._index.versions(uuid), *older]

    def _maybe_refused(self, uuid: str) -> list[int]:
        older = self._older._maybe_refused(uuid) if self._older is not None else []
        return [*self._refused.versions(uuid), *older]


def _with_committed(layers: tuple[_Committed, ...], newest: _Committed) -> tuple[_Committed, ...]:
    """These layers with one more. Merges layers of similar size."""
    low, high, versions = newest
    place = len(layers)
    while place and len(layers[place - 1].versions) <= 2 * len(versions):
        place -= 1
        low, versions = layers[place].low, {**layers[place].versions, **versions}
    return (*layers[:place], _Committed(low, high, versions))


def _with_refusals(layers: tuple[_Refusals, ...], newest: _Refusals, bytes_max: int) -> tuple[_Refusals, ...]:
    """These layers with one more. Merges layers of similar size, and drops the oldest if all take more than
    `bytes_max`; the index still has those.
    """
    refusals, size = newest
    place = len(layers)
    while (
        place
        and len(layers[place - 1].refusals) <= 2 * len(refusals)
        and layers[place - 1].bytes + size <= bytes_max // _REFUSAL_LAYERS
    ):
        place -= 1
        refusals = {**layers[place].refusals, **refusals}
        size = sum(map(_refusal_bytes, refusals.values()))
    some = (*layers[:place], _Refusals(refusals, size))
    total = sum(layer.bytes for layer in some)
    first = 0
    while total > bytes_max:
        total -= some[first].bytes
        first += 1
    return some[first:]


class VersionHashes(NamedTuple):
    """The uuids of one version, as hashes: eight bytes for each."""

    version: int
    committed: array[int]
    refused: array[int]


def hashes_of(settled: Settled) -> VersionHashes:
    """The uuids that a version commits and refuses, as `OlderVersions` takes them."""
    version = settled.version
    committed = array("Q", [_entry(uuid, version) for uuid in _uuids(settled)])
    refused = array("Q", [_entry(r.uuid, version) for r in settled.refusals if r.uuid and r.status != DUPLICATE])
    return VersionHashes(version, committed, refused)


class OlderVersions:
    """Builds a ledger at Start from the versions of the history, from the newest down.

    With `newer`, those below the versions of that ledger, in the memory that it leaves.
    """

    def __init__(self, *, bytes_max: int = LEDGER_BYTES, newer: Ledger | None = None) -> None:
        self._ledger = Ledger.empty(bytes_max)
        if newer is not None:
            self._ledger = Ledger(newer._index.what_is_left(), newer._refused.what_is_left())
        self._run = _Older()

    def add(self, hashes: VersionHashes) -> bool:
        """Add a version below all others.

        Returns False if the ledger is full. Then it adds nothing, and drops this version and those below it.
        """
        version, committed, refusals = hashes
        if version <= self._ledger.floor:
            return False
        if self._run.high - version >= _VERSIONS_MAX or self._run.is_full:
            self._end_run()
        run, index, refused = self._run, self._ledger._index, self._ledger._refused
        if index.is_full(len(run.committed) + len(committed)) or refused.is_full(len(run.refused) + len(refusals)):
            self._end_run()
            self._ledger = replace(self._ledger, _index=self._ledger._index.without(version))
            return False
        run.low = version
        run.high = run.high or version
        run.committed.extend(committed)
        run.refused.extend(refusals)
        return True

    def ledger(self) -> Ledger:
        """The ledger of all versions that were added."""
        self._end_run()
        return self._ledger

    def _end_run(self) -> None:
        run, index, refused = self._run, self._ledger._index, self._ledger._refused
        if run.committed:
            index = index.with_older(_run(run.low, run.high, run.committed))
        if run.refused:
            refused = refused.with_older(_run(run.low, run.high, run.refused))
        self._ledger, self._run = Ledger(index, refused), _Older()


class _Older:
    """A run that grows while Start reads the history, from its newest version down."""

    __slots__ = ("committed", "high", "low", "refused")

    def __init__(self) -> None:
        self.committed: array[int] = array("Q")
        self.refused: array[int] = array("Q")
        self.low = self.high = 0

    @property
    def is_full(self) -> bool:
        """Whether the run has as many entries as a run may have."""
        return max(len(self.committed), len(self.refused)) >= _RUN_ENTRIES_MAX


class Candidate(NamedTuple):
    """The parts of a record that `dedupe` looks at."""

    uuid: str
    read_version: int
    app: AppUnit | None = None
    is_replay: bool = False
    """Whether the record has header `replay-of`: then an earlier refusal of its uuid doesn't count."""


def dedupe(
    candidate: Candidate,
    earlier: Earlier,
    marks: Mapping[str, AppMark],
    *,
    version: int,
    members: Container[str] = (),
    refusals: Iterable[Refusal] = (),
) -> Refused | None:
    """The outcome of a record that was settled before; None for a new record.

    `earlier` is the history of the record's uuid. `members` (uuids) and `refusals` are those of the group being formed,
    which becomes `version`; `marks` include the group's marks.
    """
    seen = earlier.committed
    if seen is None and candidate.uuid in members:
        seen = version
    if seen is not None:
        return _duplicate("uuid_seen", f"transaction {candidate.uuid} is in the table at version {seen}", seen)
    marked = _marked(candidate.app, marks.get(candidate.app.app_id)) if candidate.app is not None else None
    if marked is not None and marked.status is Status.DUPLICATE:
        return marked
    refusal = None
    if not candidate.is_replay:
        refusal = earlier.refusal or next(
            (r for r in refusals if r.uuid == candidate.uuid and r.status != DUPLICATE), None
        )
    if refusal is not None:
        return again(refusal)
    if marked is not None:
        return marked
    if earlier.unknown_at is not None and candidate.app is None:
        return _undecided(candidate, earlier.unknown_at)
    return None


def looked_for_above(read_version: int, *, latest: int) -> int:
    """The version above which every version is searched where there is no ledger: of a table at `latest`."""
    return max(min(read_version, latest - KNOWN_VERSIONS), 0)


def no_room_for(app: AppUnit, *, most: int) -> Refused:
    """The refusal of an application that has no mark, where the table has no room for one more.

    Doing the work again at once can't help, so it is INVALID and not RETRYABLE: the producer learns at once that an
    operator has to act, and the dead letter can be replayed when the operator has.
    """
    return Refused(
        status=Status.INVALID,
        reason="app_marks_full",
        message=f"application {app.app_id!r} is new, and the table has no room to remember it (commit.app_marks_max is "
        f"{most}). Let the operator release one that is given up (`committerd app release ID`) or raise the setting, "
        "and then run `committerd dead replay`",
    )


def again(earlier: Refusal) -> Refused:
    """The same outcome as in an earlier refusal."""
    return Refused(
        status=Status(StatusNumber.Name(earlier.status)),
        reason=earlier.reason,
        message=earlier.message,
        version=earlier.version,
        conflicting_version=earlier.conflicting_version,
        conflicting_operation=earlier.conflicting_operation,
    )


def names(settled: Settled, uuid: str) -> bool:
    """Whether this version holds the transaction with this uuid, alone or as a member."""
    return uuid == settled.uuid or any(member.uuid == uuid for member in settled.members)


def refusal_in(settled: Settled, uuid: str) -> Refusal | None:
    """This version's refusal of that uuid; None if it did not refuse it. A duplicate is not a refusal here."""
    return next((r for r in settled.refusals if r.uuid == uuid and r.status != DUPLICATE), None)


def _undecided(candidate: Candidate, version: int) -> Refused:
    return Refused(
        status=Status.UNDECIDED,
        reason="history_gap",
        message=f"version {version} may hold this transaction (its read_version is {candidate.read_version}): the "
        "committer has dropped that version from memory, or can't read it. Check whether the data is in the table. To "
        "avoid this, stage with the version that you have read, or with an app-id, or raise memory.ledger_bytes",
        conflicting_version=version,
    )


def _marked(app: AppUnit, mark: AppMark | None) -> Refused | None:
    if mark is None or mark.released:
        return None
    if app.run != mark.run:
        return Refused(
            status=Status.INVALID,
            reason="app_id_in_use",
            message=f"application {app.app_id!r} counts its versions in run {mark.run!r}, but this record is of run "
            f"{app.run!r}: after a lost checkpoint it counts from 0 again, and its data would vanish as duplicates. "
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
    """The uuids that a version commits: its own, and those of its members."""
    uuids = [uuid for member in settled.members if (uuid := member.uuid)]
    if settled.uuid:
        uuids.append(settled.uuid)
    return uuids


def _key(uuid: str) -> int:
    """The lowest entry that a uuid can have in a run: its hash, with zeros for the version."""
    return (hash(uuid) & ((1 << _HASH_BITS) - 1)) << _VERSION_BITS


def _entry(uuid: str, version: int) -> int:
    return _key(uuid) | version & (_VERSIONS_MAX - 1)


def _run(low: int, high: int, entries: Iterable[int]) -> _Run:
    return _Run(low, high, array("Q", sorted(entries)))


def _join(older: _Run, newer: _Run) -> bool:
    """Whether to merge two runs."""
    entries = len(older.entries) + len(newer.entries)
    similar = len(older.entries) <= max(_RUN_ENTRIES_MIN, 2 * len(newer.entries))
    return similar and entries <= _RUN_ENTRIES_MAX and newer.high - older.low < _VERSIONS_MAX


def _merged(older: _Run, newer: _Run) -> _Run:
    return _run(older.low, newer.high, older.entries + newer.entries)


def _refusal_bytes(refusal: Refusal) -> int:
    return refusal.ByteSize() + _REFUSAL_OVERHEAD_BYTES
