"""Reads a table's history for Start and for the operator's commands.

`load` reads the history contiguously from the latest version down, and keeps little of each version. `read_new` reads
the versions above a known one.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import anyio.lowlevel

from committerd.committer.head import Head, StartAgain
from committerd.concurrency import for_each
from committerd.errors import CommitterError, CorruptTable, RefusedToRun
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import require_supported
from committerd.queue.ledger import LEDGER_BYTES, Ledger, OlderVersions, VersionHashes, hashes_of
from committerd.queue.outcomes import Settled, settled_by
from committerd.queue.position import AppMark, Position, decode_marks, decode_position, highest, merge_marks
from committerd.queue.race import Found
from committerd.table.history import History
from committerd.table.versions import Table, VersionState

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_FIRST_BATCH = 32
_BATCH_MAX = 256
"""Versions to read before the next decision whether to go on. The batches grow, so that the slowest read of each delays
the others little.
"""
_READ_AT_ONCE = 64
"""Versions to read concurrently, so that a distant store is kept busy. Each read takes 64 KiB of memory at least."""
_WHOLE_AT_ONCE = 16
_SMALL_BYTES = 1024 * 1024
"""Manifests up to this size are read several at once, with all their fragments."""
_KEPT_AT_START = 64
"""Newest versions whose queue entries stay cached: Start mostly publishes their outcomes again."""
_NEW_MAX = 1000
"""Most versions that `read_new` reads at once. If there are more, Start reads them and keeps little of each."""


class SettledVersions:
    """An index of the versions that settle offsets, from version to offset range: 24 bytes per version."""

    __slots__ = ("_first", "_last", "_versions")

    def __init__(self) -> None:
        self._versions = array("q")
        self._first = array("q")
        self._last = array("q")

    def add(self, version: int, first: int, last: int) -> None:
        """Add a version that settles offsets from `first` to `last` inclusive."""
        self._versions.append(version)
        self._first.append(first)
        self._last.append(last)

    @property
    def oldest(self) -> int:
        """The version that was added last; 0 = none."""
        return self._versions[-1] if self._versions else 0

    def between(self, first: int, last: int) -> Iterator[int]:
        """Yield the versions that may settle an offset from `first` to `last` inclusive, in the order of `add`."""
        for version, low, high in zip(self._versions, self._first, self._last, strict=True):
            if low <= last and first <= high:
                yield version


def _nothing_is_owed(position: Position) -> int:
    return position.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Parameters of reading a table's history."""

    monotonic: Callable[[], float]
    """A clock in seconds that keeps counting while the machine sleeps."""
    ledger_bytes: int = LEDGER_BYTES
    """Most bytes of memory for the ledger."""
    report: Callable[[str], None] = lambda text: None
    """Called with a text about the progress."""
    owed_from: Callable[[Position], int] = _nothing_is_owed
    """Given the table's position, returns the first offset whose outcome the caller needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The state of a table according to its readable history."""

    table: Table
    read_at: float
    """When the latest version was known to be the latest, in monotonic seconds."""
    version: int = 0
    """The latest version; 0 = there is no table."""
    manifest: ManifestFile | None = None
    """The manifest of that version."""
    ledger: Ledger
    position: Position | None = None
    """The highest position that any readable version carries; None = none carries one."""
    marks: Mapping[str, AppMark]
    carried: Position | None = None
    """The position that the latest version itself carries."""
    carried_marks: Mapping[str, AppMark]
    """The marks that the latest version itself carries."""
    newest_ours: int = 0
    """The newest readable version of the queue; 0 = none. Only this one may lack its transaction file."""
    settled_versions: SettledVersions
    """The versions that settle records, newest first."""

    def head(self, position: Position) -> Head:
        """Return the head from which a committer continues at this position."""
        return Head(
            version=self.version,
            manifest=self.manifest,
            history=History(self.table),
            ledger=self.ledger,
            position=position,
            marks=self.marks,
            is_carried=self.position is not None,
            carried=self.carried,
            carried_marks=self.carried_marks,
        )


class News(NamedTuple):
    """The versions above a known one, ascending."""

    found: Sequence[Found] = ()
    manifest: ManifestFile | None = None
    """The manifest of the last one; None when there is none."""


class _Read(NamedTuple):
    found: Found
    manifest: ManifestFile


async def load(table: Table, how: Loading) -> Loaded:
    """Read the readable history.

    Raises `StartAgain` when the latest version vanished during the read, `CorruptTable` or `UnsupportedTable` for the
    latest version, `RefusedToRun` for keys of a newer format, and `StoreUnavailable`.
    """
    read_at = how.monotonic()
    versions = await table.versions()
    settled_versions = SettledVersions()
    if not versions:
        ledger = Ledger.empty(how.ledger_bytes)
        return Loaded(
            table=table, read_at=read_at, ledger=ledger, marks={}, carried_marks={}, settled_versions=settled_versions
        )
    loaded = await _Downwards(table, how, settled_versions, read_at).read(versions)
    if loaded.manifest is None:
        raise StartAgain(f"version {loaded.version} vanished while it was read")
    require_supported(loaded.manifest)
    return loaded


async def read_new(table: Table, base: int) -> News:
    """Read the versions above `base`, ascending.

    Raises `StartAgain` when one of them is unreadable, when there are too many, when a table appeared that did not
    exist (`base` 0), or when the table went back or is another one. Raises `CorruptTable` only for the latest version.
    """
    newest = await table.latest_version() or 0
    if newest < base:
        raise StartAgain(f"the table went back from version {base} to {newest}")
    if base == 0 and newest:
        raise StartAgain("the table appeared")
    if newest - base > _NEW_MAX:
        raise StartAgain(f"{newest - base} versions are new since version {base}")
    found, manifest = list[Found](), None
    for number in range(base + 1, newest + 1):
        one = await (_read(table, number) if number == newest else _read_old(table, number, is_latest=True))
        if one is None:
            raise StartAgain(f"version {number} can't be read, but {newest} is there")
        found.append(one.found)
        manifest = one.manifest
    # Checked last, so that all versions read above belong to the same table too.
    if base:
        require_same(base, await table.standing(base))
    return News(found, manifest)


async def position_of(table: Table, version: int) -> Position | None:
    """Return the position that an old version carries; None when it carries none, or is unreadable."""
    read = await _read_old(table, version)
    return read.found.position if read is not None else None


def require_same(base: int, standing: VersionState) -> None:
    """Raise `StartAgain` unless version `base` is unchanged."""
    if standing is VersionState.SAME:
        return
    what = "is gone" if standing is VersionState.GONE else "is another one now"
    raise StartAgain(f"version {base}, which was to be built on, {what}: was the table deleted or made again?")


async def _read(table: Table, version: int, *, is_latest: bool = True) -> _Read | None:
    """Read one version; None when it has no manifest."""
    file = await table.read(version)
    if file is None:
        return None
    settled = settled_by(await table.transaction(file), version=version)
    position, marks = _carried(file, settled, is_latest=is_latest)
    return _Read(Found(settled=settled, position=position, marks=marks), file)


async def _read_old(table: Table, version: int, *, is_latest: bool = False) -> _Read | None:
    """As `_read`, for a version that is not the latest; also None when it is damaged."""
    try:
        return await _read(table, version, is_latest=is_latest)
    except CorruptTable as error:
        _log.warning("version.damaged", extra={"version": version, "code": error.code, "error": str(error)})
        return None


class _Brief(NamedTuple):
    """The queue entries of a version, as briefly as Start keeps them."""

    hashes: VersionHashes
    offsets: tuple[int, int] | None
    """The lowest and the highest offset that the version settles; None when it settles none."""


class _Downwards:
    """Reads the history from the latest version down."""

    def __init__(self, table: Table, how: Loading, settled_versions: SettledVersions, read_at: float) -> None:
        self._table = table
        self._how = how
        self._settled_versions = settled_versions
        self._read_at = read_at
        self._older = OlderVersions(bytes_max=how.ledger_bytes)
        self._full = False

    async def read(self, versions: Sequence[int]) -> Loaded:
        """Read down to the first number without a version; skips damaged versions.

        Returns an empty state when the latest version has vanished. Raises `CorruptTable` when it is damaged. Once the
        ledger is full, reading ends as soon as position, marks and all outcomes that the caller needs are found.
        """
        there, how, version = set(versions), self._how, versions[-1]
        latest = await _read(self._table, version)
        if latest is None:
            return self._loaded(versions[-1], None, [], 0)
        carrying, newest_ours, position = list[Found](), 0, None
        reported, read, gap = how.monotonic(), 0, False
        size, size_max = 1, _WHOLE_AT_ONCE if latest.manifest.fragments.size <= _SMALL_BYTES else 1
        while version in there:
            # The newest version of ours carries the highest position and all marks so far. Of the versions below it
            # only the queue entries are read, many at once.
            below = list(takewhile(there.__contains__, range(version, version - size, -1)))
            if newest_ours:
                for brief in await _read_briefs(self._table, below, keep_above=versions[-1] - _KEPT_AT_START):
                    if brief is not None:
                        self._take(brief)
            else:
                known = {latest.found.settled.version: latest}
                for found in await _read_whole(self._table, below, known):
                    if found is not None:
                        self._take(_brief(found.settled))
                    if newest_ours:
                        continue
                    if found is None:
                        gap = True
                        continue
                    # Other writers copy the keys that they found, or drop them. Higher ones are made up, unless an
                    # unreadable version between may be ours.
                    if found.settled.ours and found.position is not None and not gap:
                        carrying.clear()
                    if found.position is not None or found.marks:
                        carrying.append(found)
                    if found.settled.ours:
                        newest_ours = found.settled.version
                        size, size_max = _FIRST_BATCH // 2, _BATCH_MAX
            version, read, size = version - len(below), read + len(below), min(2 * size, size_max)
            position = highest(one.position for one in carrying if one.position is not None)
            if self._full and newest_ours and (position is None or await self._reaches(how.owed_from(position))):
                break
            if how.monotonic() - reported > _PROGRESS_SECONDS:
                reported = how.monotonic()
                _log.info("start.reading", extra={"read": read, "of": len(versions), "version": version})
            how.report(f"has read {read} of {len(versions)} versions of the table's history")
            await anyio.lowlevel.checkpoint()
        return self._loaded(versions[-1], latest, carrying, newest_ours)

    async def _reaches(self, owed: int) -> bool:
        """Whether neither the oldest version read nor any below it settles a record at offset `owed` or above.

        The position of that version decides. Offset ranges would not: a record that was settled ahead may be in a
        version far below those that settle the offsets around it.
        """
        version = self._settled_versions.oldest
        position = await position_of(self._table, version) if version else None
        return position is not None and position.next_offset <= owed and all(o < owed for o in position.settled)

    def _take(self, brief: _Brief) -> None:
        self._full = not self._older.add(brief.hashes)
        if brief.offsets is not None:
            self._settled_versions.add(brief.hashes.version, *brief.offsets)

    def _loaded(self, version: int, latest: _Read | None, carrying: Sequence[Found], newest_ours: int) -> Loaded:
        marks: dict[str, AppMark] = {}
        for one in carrying:
            merge_marks(marks, one.marks)
        return Loaded(
            table=self._table,
            read_at=self._read_at,
            version=version,
            manifest=latest.manifest if latest is not None else None,
            ledger=self._older.ledger(),
            position=highest(one.position for one in carrying if one.position is not None),
            marks=marks,
            carried=latest.found.position if latest is not None else None,
            carried_marks=latest.found.marks if latest is not None else {},
            newest_ours=newest_ours,
            settled_versions=self._settled_versions,
        )


async def _read_whole(table: Table, versions: Sequence[int], known: Mapping[int, _Read]) -> list[Found | None]:
    """Read these versions with position and marks; None for an unreadable version. `known`: those read before."""
    found: dict[int, Found | None] = {}

    async def read(version: int) -> None:
        one = known.get(version) or await _read_old(table, version)
        found[version] = None if one is None else one.found

    await for_each(versions, read)
    return [found[version] for version in versions]


async def _read_briefs(table: Table, versions: Sequence[int], *, keep_above: int) -> list[_Brief | None]:
    """Read the queue entries of these versions, without position and marks; None for an unreadable version.

    Caches those of the versions above `keep_above`.
    """
    found: dict[int, _Brief | None] = {}

    async def read(version: int) -> None:
        settled = await table.settled(version, keep=version > keep_above)
        found[version] = None if settled is None else _brief(settled)

    await for_each(versions, read, at_once=_READ_AT_ONCE)
    return [found[version] for version in versions]


def _brief(settled: Settled) -> _Brief:
    offsets = [entry.offset for entry in settled.entries()] if settled.ours else []
    return _Brief(hashes_of(settled), (min(offsets), max(offsets)) if offsets else None)


def _carried(file: ManifestFile, settled: Settled, *, is_latest: bool) -> tuple[Position | None, dict[str, AppMark]]:
    """Decode the position and marks that a version carries.

    Those that a foreign writer made unreadable count as dropped, so the committer puts them back.
    """
    metadata = file.outline.table_metadata
    problem: CommitterError
    try:
        return decode_position(metadata), decode_marks(metadata)
    except CorruptTable as error:
        if settled.ours:
            raise
        problem = error
    except RefusedToRun as error:
        if settled.ours or is_latest:
            raise
        problem = error
    _log.warning("keys.unreadable", extra={"version": settled.version, "error": str(problem)})
    return None, {}
