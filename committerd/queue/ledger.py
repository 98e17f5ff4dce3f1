"""The ledger: which version has committed or refused this uuid?

pylance never looks at the uuid and commits the same bytes twice. A queue that delivers at least once must look. The
ledger covers every uuid of the readable history, those of foreign versions too, because someone may commit a staged
file by hand. A uuid is looked for in all versions that the ledger knows, also in those at or below the record's read
version: a producer that opens the table again may stage the same transaction at a newer one.

The ledger stores the newest uuids in full. Of each older uuid, committed or refused, it stores eight bytes: a hash and
the version. A hash that matches proves nothing, so the caller reads that version again before it decides. The memory is
bounded: the ledger drops the oldest versions first, and remembers the highest version that it has dropped. It never
calls a uuid new that a dropped version may hold.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from committerd.queue.outcomes import Settled
from committerd_common.messages import DUPLICATE, Refusal

LEDGER_BYTES = 128 * 1024 * 1024
"""Enough for about 14 million records."""
KNOWN_VERSIONS = 1000
KNOWN_RECORDS = 100_000
"""No record is judged before Start knows the uuids of this many of the newest versions, or of as many versions as hold
this many records, or of all. That takes a second or two, also on a distant store.
"""

_ENTRY_BYTES = 8
_HASH_BITS = 48
_VERSION_BITS = 64 - _HASH_BITS
_VERSIONS_MAX = 1 << _VERSION_BITS
_RUN_ENTRIES_MAX = 512 * 1024
"""Two runs of half this size are merged in 40 ms."""
_SPARE = 8
"""A run is cut where it takes more than this share of the bound, and then this share stays free: to cut 4 MiB takes a
fifth of a second.
"""
_RECENT_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of what is stored in full, without the newest version."""
_UUID_BYTES = 150
"""Memory that a uuid stored in full takes, with its version."""
_REFUSAL_BYTES = 400
"""Memory that a refusal stored in full takes beyond its encoded size: the message object and the dictionary entry."""


class _Run(NamedTuple):
    """The uuids of a range of versions, as hashes."""

    low: int
    high: int
    """The range of versions, both ends included: at most 65,536 versions."""
    entries: array[int]
    """One 64-bit number for each uuid and version, ascending: the hash in the upper 48 bits, the lower 16 bits of the
    version number in the rest.
    """


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


class Known(NamedTuple):
    """What the ledger itself knows of a uuid."""

    committed: int | None
    """The version that holds the uuid, if it is one of the newest."""
    refusal: Refusal | None
    """The uuid's newest refusal, if one of the newest versions holds it."""
    maybe: Sequence[int]
    """The other versions that may hold or have refused the uuid, the newest first; empty if `committed` is known."""


class _Layer(NamedTuple):
    """What a few consecutive versions commit and refuse, in full."""

    low: int
    """The first of those versions; `high` is the last."""
    high: int
    committed: Mapping[str, int]
    """The newest version of each uuid."""
    refused: Mapping[str, tuple[int, Refusal]]
    """The newest refusal of each uuid, with its version."""
    bytes: int
    """The approximate memory of all this."""

    def merged(self, newer: _Layer) -> _Layer:
        """This layer and the one above it in one."""
        return _Layer(
            self.low,
            newer.high,
            {**self.committed, **newer.committed},
            {**self.refused, **newer.refused},
            self.bytes + newer.bytes,
        )

    def entries(self) -> Iterator[int]:
        """Yield what a run stores of this layer."""
        for uuid, version in self.committed.items():
            yield _entry(uuid, version)
        for uuid, (version, _) in self.refused.items():
            yield _entry(uuid, version)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The uuids of the readable versions, in bounded memory. Immutable: `then` returns another ledger.

    Ledgers share the data that they have in common. The newest versions are stored in layers, the others in runs. Two
    neighbours of similar size are merged, so the cost of a version grows only with the logarithm of the number of
    versions.

    With 14 million uuids, about one look-up in 10 million matches the 48-bit hash of another uuid. The hash is Python's
    own, and its key is new in each process, so no producer can choose uuids whose hashes are equal.
    """

    bytes_max: int = LEDGER_BYTES
    """Maximum bytes of the runs."""
    floor: int = 0
    """The highest version that was dropped: the ledger knows nothing of it and those below. 0 = none was."""
    unread_below: int = 0
    """All readable versions below this one are still to be read; 0 = all are read."""
    _newest_at_start: int = 0
    """The newest version when the ledger began."""
    _runs: tuple[_Run, ...] = ()
    """In order of their versions, the newest last."""
    _layers: tuple[_Layer, ...] = ()
    """The newest versions, which are in no run yet; the newest layer last."""

    @property
    def unknown_up_to(self) -> int:
        """The highest version that was dropped or is still to be read. 0 = there is none."""
        return max(self.floor, self.unread_below - 1)

    @property
    def bytes(self) -> int:
        """The approximate size of the ledger in memory."""
        return _entries(self._runs) * _ENTRY_BYTES + sum(layer.bytes for layer in self._layers)

    def is_full(self, entries: int) -> bool:
        """Whether there is no room for this many more entries of runs."""
        return (_entries(self._runs) + entries) * _ENTRY_BYTES > self.bytes_max

    def covers(self, after: int) -> bool:
        """Whether so many versions were read that a record with read version `after` can be judged.

        These are all readable versions above `after`: whoever committed or refused the same bytes did so above it. And
        they are the newest ones (`KNOWN_VERSIONS`, `KNOWN_RECORDS`), whatever the read version: its producer may have
        staged the same transaction before, at an older one.
        """
        if not self.unread_below:
            return True
        many = self._newest_at_start - self.unread_below + 1 >= KNOWN_VERSIONS or _entries(self._runs) >= KNOWN_RECORDS
        return many and self.unread_below <= after + 1

    def with_unread(self, below: int, *, newest: int) -> Ledger:
        """This ledger of the versions up to `newest`, with the versions below `below` still to be read."""
        return replace(self, unread_below=below, _newest_at_start=newest)

    def with_older(self, older: Ledger, *, unread_below: int) -> Ledger:
        """This ledger with what `older`, which `OlderVersions` has built, knows of the versions that it lacks.

        `unread_below`: as the attribute; 0 = all are read.
        """
        if not self.unread_below:
            return self
        floor = max(self.floor, older.floor)
        unread = [run for run in older._runs if floor < run.high < self.unread_below]
        return replace(self, floor=floor, unread_below=unread_below).with_runs([*unread, *self._runs])

    def then(self, settled: Settled) -> Ledger:
        """This ledger with one more version, which is above all others."""
        ledger, newest = self, _layer_of(settled)
        is_full = sum(layer.bytes for layer in self._layers) > min(_RECENT_BYTES_MAX, self.bytes_max // 4)
        if self._layers and (is_full or newest.high - self._layers[0].low >= _VERSIONS_MAX):
            entries = [entry for layer in self._layers for entry in layer.entries()]
            runs = [*self._runs, _run(self._layers[0].low, self._layers[-1].high, entries)]
            while len(runs) > 1 and _join(runs[-2], runs[-1]):
                newer, older = runs.pop(), runs.pop()
                runs.append(_run(older.low, newer.high, older.entries + newer.entries))
            ledger = replace(self, _layers=()).with_runs(runs)
        layers = list(ledger._layers)
        while layers and layers[-1].bytes <= 2 * newest.bytes:
            newest = layers.pop().merged(newest)
        return replace(ledger, _layers=(*layers, newest))

    def with_runs(self, runs: list[_Run]) -> Ledger:
        """This ledger with these runs instead of its own. It drops the oldest versions beyond `bytes_max`."""
        floor, most = self.floor, self.bytes_max // _ENTRY_BYTES
        while (excess := _entries(runs) - most) > 0:
            oldest, spare = runs.pop(0), most // _SPARE
            floor = max(floor, oldest.high)
            if len(oldest.entries) > spare and (newest := _newest(oldest, len(oldest.entries) - excess - spare)):
                floor = max(self.floor, newest.low - 1)
                runs.insert(0, newest)
        return replace(self, floor=floor, _runs=tuple(runs))

    def within(self, bytes_max: int) -> Ledger:
        """This ledger with another bound. It drops the oldest runs beyond it."""
        return self if bytes_max == self.bytes_max else replace(self, bytes_max=bytes_max).with_runs(list(self._runs))

    def rules_out(self, uuid: str, after: int) -> bool:
        """Whether certainly no known version holds or has refused this uuid, and all versions above `after` are known.

        False proves nothing: the uuid may still be new.
        """
        if after < self.unknown_up_to or self._versions(uuid):
            return False
        return not any(uuid in layer.committed or uuid in layer.refused for layer in self._layers)

    def known(self, uuid: str) -> Known:
        """What the ledger itself knows of this uuid, and which versions decide."""
        refusal = None
        for layer in reversed(self._layers):
            committed = layer.committed.get(uuid)
            if committed is not None:
                return Known(committed, refusal, ())
            if refusal is None and uuid in layer.refused:
                _, refusal = layer.refused[uuid]
        return Known(None, refusal, self._versions(uuid))

    def _versions(self, uuid: str) -> list[int]:
        """The versions of the runs that may hold this uuid, the newest first."""
        found = set[int]()
        key = _key(uuid)
        for _, high, entries in self._runs:
            place = bisect_left(entries, key)
            while place < len(entries) and entries[place] - key < _VERSIONS_MAX:
                found.add(high - ((high - entries[place]) % _VERSIONS_MAX))
                place += 1
        return sorted(found, reverse=True)


def hashes_of(settled: Settled) -> array[int]:
    """The uuids that a version commits and refuses, as `OlderVersions` takes them: eight bytes for each."""
    return array("Q", _layer_of(settled).entries())


class OlderVersions:
    """Builds a ledger from the versions of the history, from the newest down, as Start reads them."""

    def __init__(self, bytes_max: int = LEDGER_BYTES) -> None:
        self._ledger = Ledger(bytes_max)
        self._hashes = array("Q")
        """Those of the run that grows, unsorted; `_low` and `_high` are its range of versions, 0 while it is empty."""
        self._low = self._high = 0

    @property
    def bytes(self) -> int:
        """The memory of the hashes that were added."""
        return self._ledger.bytes + len(self._hashes) * _ENTRY_BYTES

    def keep_within(self, bytes_max: int) -> None:
        """Take another bound, and drop the oldest runs beyond it."""
        self._ledger = self._ledger.within(bytes_max)

    def add(self, version: int, hashes: array[int]) -> bool:
        """Add a version below all others, with what `hashes_of` returns for it.

        Returns False if the ledger is full. Then it adds nothing, and drops this version and those below it.
        """
        if version <= self._ledger.floor:
            return False
        if self._high - version >= _VERSIONS_MAX or len(self._hashes) >= _RUN_ENTRIES_MAX:
            self._end_run()
        if self._ledger.is_full(len(self._hashes) + len(hashes)):
            self._end_run()
            self._ledger = replace(self._ledger, floor=version)
            return False
        self._low, self._high = version, self._high or version
        self._hashes.extend(hashes)
        return True

    def ledger(self) -> Ledger:
        """The ledger of all versions that were added."""
        self._end_run()
        return self._ledger

    def _end_run(self) -> None:
        if self._hashes:
            self._ledger = self._ledger.with_runs([_run(self._low, self._high, self._hashes), *self._ledger._runs])
        self._hashes, self._low, self._high = array("Q"), 0, 0


def names(settled: Settled, uuid: str) -> bool:
    """Whether this version holds the transaction with this uuid, alone or as a member."""
    return uuid == settled.uuid or any(member.uuid == uuid for member in settled.members)


def refusal_in(settled: Settled, uuid: str) -> Refusal | None:
    """This version's refusal of that uuid; None if it did not refuse it. A duplicate is not a refusal here."""
    return next((r for r in settled.refusals if r.uuid == uuid and r.status != DUPLICATE), None)


def _layer_of(settled: Settled) -> _Layer:
    """The layer of one version: its own uuid, those of its members, and its refusals without the duplicates."""
    version = settled.version
    uuids = (settled.uuid, *(member.uuid for member in settled.members))
    committed = {uuid: version for uuid in uuids if uuid}
    refused = {one.uuid: (version, one) for one in settled.refusals if one.uuid and one.status != DUPLICATE}
    size = sum(one.ByteSize() + _REFUSAL_BYTES for _, one in refused.values()) + _UUID_BYTES * len(committed)
    return _Layer(version, version, committed, refused, size)


def _entries(runs: Iterable[_Run]) -> int:
    return sum(len(run.entries) for run in runs)


def _key(uuid: str) -> int:
    """The lowest entry that a uuid can have in a run: its hash, with zeros for the version."""
    return (hash(uuid) & ((1 << _HASH_BITS) - 1)) << _VERSION_BITS


def _entry(uuid: str, version: int) -> int:
    return _key(uuid) | version & (_VERSIONS_MAX - 1)


def _run(low: int, high: int, entries: Iterable[int]) -> _Run:
    return _Run(low, high, array("Q", sorted(entries)))


def _newest(run: _Run, most: int) -> _Run | None:
    """The newest versions of a run that have at most so many entries, which are not all; None if there is none."""
    counts = Counter(entry % _VERSIONS_MAX for entry in run.entries)
    lowest, left = run.high + 1, most
    while counts[(lowest - 1) % _VERSIONS_MAX] <= left:
        lowest -= 1
        left -= counts[lowest % _VERSIONS_MAX]
    if lowest > run.high:
        return None
    kept = (one for one in run.entries if run.high - (run.high - one) % _VERSIONS_MAX >= lowest)
    return _Run(lowest, run.high, array("Q", kept))


def _join(older: _Run, newer: _Run) -> bool:
    """Whether to merge two runs."""
    entries = len(older.entries) + len(newer.entries)
    similar = len(older.entries) <= 2 * len(newer.entries)
    return similar and entries <= _RUN_ENTRIES_MAX and newer.high - older.low < _VERSIONS_MAX
