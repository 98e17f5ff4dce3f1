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
from dataclasses import dataclass, replace
from typing import NamedTuple

from committerd.queue.outcomes import Settled, Status
from committerd.queue.position import AppMark
from committerd_common.messages import DUPLICATE, Refusal
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import AppUnit

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
_UUID_BYTES = 150
"""Of a uuid that is kept as it is, with its version."""
_RECENT_REFUSAL_BYTES = 2 * 1024 * 1024
_REFUSAL_LAYERS = 8
"""Refusals go a layer at a time, so none has more than one part in so many of what they may take together."""
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


@dataclass(frozen=True, slots=True)
class _Index:
    """Which versions may hold a uuid, for a range of versions; eight bytes for each uuid and version.

    About one question in 10 million meets the 48-bit hash of another uuid, with 14 million uuids. The hash is Python's
    own, and its key is new in each process: no producer can choose uuids whose hashes are equal.
    """

    bytes_max: int
    runs: tuple[_Run, ...] = ()
    """By version, the newest last."""
    entries: int = 0
    floor: int = 0
    """Nothing is known of versions at or below this one."""

    def versions(self, uuid: str, after: int) -> list[int]:
        """The versions above `after` that may hold it, the newest first."""
        found: list[int] = []
        key = _key(uuid)
        for _, high, entries in reversed(self.runs):
            if high <= after:
                break
            place = bisect_left(entries, key)
            while place < len(entries) and entries[place] - key < _VERSIONS_MAX:
                version = high - ((high - entries[place]) % _VERSIONS_MAX)
                if version > after:
                    found.append(version)
                place += 1
        return sorted(set(found), reverse=True)

    def with_newer(self, run: _Run) -> _Index:
        """This index and a run of versions above all others. Runs of similar size become one, so that there are few."""
        runs = [*self.runs, run]
        while len(runs) > 1 and _join(runs[-2], runs[-1]):
            newer, older = runs.pop(), runs.pop()
            runs.append(_merged(older, newer))
        return self._bounded(runs, self.entries + len(run.entries))

    def with_older(self, run: _Run) -> _Index:
        """This index and a run of versions below all others."""
        return self._bounded([run, *self.runs], self.entries + len(run.entries))

    def without(self, version: int) -> _Index:
        """This index, which knows that nothing is known of versions up to this one."""
        return replace(self, floor=max(self.floor, version))

    def is_full(self, entries: int) -> bool:
        """Whether so many more would not fit."""
        return (self.entries + entries) * _ENTRY_BYTES > self.bytes_max

    def _bounded(self, runs: list[_Run], entries: int) -> _Index:
        floor = self.floor
        while runs and entries * _ENTRY_BYTES > self.bytes_max:
            dropped = runs.pop(0)
            entries -= len(dropped.entries)
            floor = max(floor, dropped.high)
        return _Index(self.bytes_max, tuple(runs), entries, floor)


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


class _Committed(NamedTuple):
    """Uuids that some versions in a row have committed, each with its version."""

    low: int
    """The first of those versions."""
    high: int
    versions: Mapping[str, int]


class _Refusals(NamedTuple):
    """What some versions in a row have refused, by uuid."""

    refusals: Mapping[str, Refusal]
    bytes: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The uuids of the readable versions, within a bound of memory. Immutable: `then` returns another one.

    Ledgers share what they have in common. The newest versions lie in layers, and two layers of similar size become
    one, so what a version costs grows only with the logarithm of their number.
    """

    _index: _Index
    """What was committed, but for the newest versions."""
    _refused: _Index
    """What was refused by any version."""
    _committed: tuple[_Committed, ...] = ()
    """The newest versions, which are not in the index yet; the newest layer last."""
    _refusals: tuple[_Refusals, ...] = ()
    """The newest refusals in full; the newest layer last."""

    @classmethod
    def empty(cls, bytes_max: int = LEDGER_BYTES) -> Ledger:
        """A ledger that knows no version yet."""
        refused_max = bytes_max // _REFUSED_SHARE
        return cls(_Index(bytes_max - refused_max), _Index(refused_max))

    @property
    def floor(self) -> int:
        """Nothing is known of versions at or below this one; 0 = all that was readable is known."""
        return max(self._index.floor, self._refused.floor)

    @property
    def bytes(self) -> int:
        """About how many bytes the ledger takes."""
        hashed = (self._index.entries + self._refused.entries) * _ENTRY_BYTES
        refusals = sum(layer.bytes for layer in self._refusals)
        return hashed + refusals + _UUID_BYTES * sum(len(layer.versions) for layer in self._committed)

    def then(self, settled: Settled) -> Ledger:
        """The ledger that also knows this version, which lies above all others."""
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
            return Ledger(index, self._refused, layers, self._refusals)
        refused = self._refused.with_newer(_run(version, version, [_entry(uuid, version) for uuid in refusals]))
        newest_refusals = _Refusals(refusals, sum(map(_refusal_bytes, refusals.values())))
        in_full = _with_refusals(self._refusals, newest_refusals, min(_RECENT_REFUSAL_BYTES, bytes_max))
        return Ledger(index, refused, layers, in_full)

    def with_nothing_dropped(self) -> Ledger:
        """This ledger once what it has dropped is not readable any more: nothing that can be read is unknown."""
        return replace(self, _index=replace(self._index, floor=0), _refused=replace(self._refused, floor=0))

    def rules_out(self, uuid: str, after: int) -> bool:
        """Whether no version above `after` holds this uuid, and none has refused it. False proves nothing."""
        for committed in self._committed:
            if committed.versions.get(uuid, 0) > after:
                return False
        for refused in self._refusals:
            if uuid in refused.refusals:
                return False
        return (
            (not self._index.entries or not self._index.versions(uuid, after))
            and (not self._refused.entries or not self._refused.versions(uuid, 0))
            and after >= self.floor
        )

    def committed_at(self, uuid: str, after: int) -> tuple[int | None, Sequence[int]]:
        """The version above `after` that holds this uuid, and those that may hold it, the newest first."""
        for layer in reversed(self._committed):
            version = layer.versions.get(uuid, 0)
            if version > after:
                return version, ()
        return None, self._index.versions(uuid, after)

    def refused_at(self, uuid: str) -> tuple[Refusal | None, Sequence[int]]:
        """How this uuid was refused, and the versions that may have refused it, the newest first.

        Of several refusals the newest counts.
        """
        for layer in reversed(self._refusals):
            known = layer.refusals.get(uuid)
            if known is not None:
                return known, ()
        return None, self._refused.versions(uuid, 0)


def _with_committed(layers: tuple[_Committed, ...], newest: _Committed) -> tuple[_Committed, ...]:
    """These layers and one more. Layers of similar size become one."""
    low, high, versions = newest
    place = len(layers)
    while place and len(layers[place - 1].versions) <= 2 * len(versions):
        place -= 1
        low, versions = layers[place].low, {**layers[place].versions, **versions}
    return (*layers[:place], _Committed(low, high, versions))


def _with_refusals(layers: tuple[_Refusals, ...], newest: _Refusals, bytes_max: int) -> tuple[_Refusals, ...]:
    """These layers and one more. The oldest ones go where they take more than `bytes_max`; the index has them too."""
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


class OlderVersions:
    """Versions as Start reads them, from the newest down, which become a ledger."""

    def __init__(self, *, bytes_max: int = LEDGER_BYTES) -> None:
        self._ledger = Ledger.empty(bytes_max)
        self._run = _Older()

    def add(self, settled: Settled) -> bool:
        """Take in what a version says that lies below all others.

        Returns False, and takes in nothing, where the bound is reached: then this version and those below it are
        dropped.
        """
        version = settled.version
        if version <= self._ledger.floor:
            return False
        if self._run.high - version >= _VERSIONS_MAX or self._run.is_full:
            self._end_run()
        run, index, refused = self._run, self._ledger._index, self._ledger._refused
        committed = [_entry(uuid, version) for uuid in _uuids(settled)]
        refusals = [_entry(r.uuid, version) for r in settled.refusals if r.uuid and r.status != DUPLICATE]
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
        """The ledger of all that was taken in."""
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
