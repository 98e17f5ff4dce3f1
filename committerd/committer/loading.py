"""Reads a table's history for Start and for the operator's commands.

`load` reads the history contiguously from the latest version down, and keeps little of each version; Start leaves the
older part to `older_history`. `read_new` reads the versions above a known one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import anyio.lowlevel

from committerd.committer.head import Head, StartAgain
from committerd.committer.older_history import (
    BATCH_MAX,
    FIRST_BATCH,
    Brief,
    OlderHistory,
    SettledVersions,
    below,
    brief_of,
    read_briefs,
)
from committerd.concurrency import for_each
from committerd.errors import CommitterError, CorruptTable, RefusedToRun
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import require_supported
from committerd.queue.ledger import LEDGER_BYTES, Ledger, OlderVersions
from committerd.queue.outcomes import Settled, settled_by
from committerd.queue.position import AppMark, Position, decode_marks, decode_position, highest, merge_marks
from committerd.queue.race import VersionSummary
from committerd.table.history import History
from committerd.table.versions import Table, VersionState

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_WHOLE_AT_ONCE = 16
"""Versions to read concurrently with position and marks."""
_SMALL_BYTES = 1024 * 1024
"""Manifests up to this size are read several at once, with all their fragments."""
_KEPT_AT_START = 64
"""Newest versions whose queue entries stay cached: Start mostly publishes their outcomes again."""
_NEW_MAX = 1000
"""Maximum number of versions that `read_new` reads. If there are more, Start reads them and keeps little of each."""


def _nothing_is_owed(position: Position) -> int:
    return position.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Parameters of reading a table's history."""

    monotonic: Callable[[], float]
    """A clock in seconds that keeps counting while the machine sleeps."""
    ledger_bytes: int = LEDGER_BYTES
    """Maximum bytes of memory for the ledger."""
    report: Callable[[str], None] = lambda text: None
    """Called with a text about the progress."""
    owed_from: Callable[[Position], int] = _nothing_is_owed
    """Given the table's position, returns the first offset whose outcome the caller needs."""
    later: bool = False
    """Whether to leave unread what lies below position, marks and those outcomes; `Loaded.older` reads it later."""


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
    """The versions that settle records, newest first, as far as they are read."""
    older: OlderHistory | None = None
    """The versions that were left unread; None if there is no table."""

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

    found: Sequence[VersionSummary] = ()
    manifest: ManifestFile | None = None
    """The manifest of the last one; None when there is none."""


class _Read(NamedTuple):
    found: VersionSummary
    manifest: ManifestFile


async def load(table: Table, how: Loading) -> Loaded:
    """Read the readable history.

    Raises `StartAgain` when the latest version vanished during the read, `CorruptTable` or `UnsupportedTable` for the
    latest version, `RefusedToRun` for keys of a newer format, and `StoreUnavailable`.
    """
    read_at = how.monotonic()
    versions = await table.versions()
    if not versions:
        return Loaded(
            table=table,
            read_at=read_at,
            ledger=Ledger.empty(how.ledger_bytes),
            marks={},
            carried_marks={},
            settled_versions=SettledVersions(),
        )
    loaded = await _Downwards(table, how, read_at).read(versions)
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
    news = News()
    if newest > base:
        news = await _read_up_to(table, base, newest)
    # Checked last, so that all versions read above belong to the same table too.
    if base:
        require_same(base, await table.standing(base))
    return news


async def _read_up_to(table: Table, base: int, newest: int) -> News:
    """Read the versions above `base`, up to `newest`: the newest one first, and the others many at once."""
    found: dict[int, VersionSummary] = {}

    async def read(version: int) -> None:
        one = await _read_old(table, version, is_latest=True)
        if one is not None:
            found[version] = one.found

    latest = await _read(table, newest)
    if latest is None:
        raise StartAgain(f"version {newest} vanished while it was read")
    found[newest] = latest.found
    at_once = _WHOLE_AT_ONCE if latest.manifest.fragments.size <= _SMALL_BYTES else 1
    await for_each(range(base + 1, newest), read, at_once=at_once)
    versions = range(base + 1, newest + 1)
    for version in versions:
        if version not in found:
            raise StartAgain(f"version {version} can't be read, but {newest} is there")
    return News([found[version] for version in versions], latest.manifest)


async def position_of(table: Table, version: int) -> Position | None:
    """Return the position that an old version carries; None when it carries none, or is unreadable."""
    read = await _read_old(table, version)
    return read.found.position if read is not None else None


def require_same(base: int, standing: VersionState) -> None:
    """Raise `StartAgain` unless version `base` is unchanged."""
    if standing is VersionState.SAME:
        return
    what = "is gone" if standing is VersionState.GONE else "is another one now"
    raise StartAgain(f"version {base}, which was to be built on, {what}: was the table deleted or recreated?")


async def _read(table: Table, version: int, *, is_latest: bool = True) -> _Read | None:
    """Read one version; None when it has no manifest."""
    file = await table.read(version)
    if file is None:
        return None
    settled = settled_by(await table.transaction(file), version=version)
    position, marks = _carried(file, settled, is_latest=is_latest)
    return _Read(VersionSummary(settled=settled, position=position, marks=marks), file)


async def _read_old(table: Table, version: int, *, is_latest: bool = False) -> _Read | None:
    """As `_read`, for a version that is not the latest; also None when it is damaged."""
    try:
        return await _read(table, version, is_latest=is_latest)
    except CorruptTable as error:
        _log.warning("version.damaged", extra={"version": version, "code": error.code, "error": str(error)})
        return None


class _Downwards:
    """Reads the history from the latest version down, as far as Start must know it before it continues."""

    def __init__(self, table: Table, how: Loading, read_at: float) -> None:
        self._table = table
        self._how = how
        self._settled_versions = SettledVersions()
        self._read_at = read_at
        self._hashes = OlderVersions(how.ledger_bytes)
        self._reported_at = how.monotonic()

    async def read(self, versions: Sequence[int]) -> Loaded:
        """Read down to the newest version of ours, and to all outcomes that the caller needs; skips damaged versions.

        Unless the caller wants that later, reads on down to the first number without a version, or until the ledger is
        full. Returns an empty state when the latest version has vanished. Raises `CorruptTable` when it is damaged.
        """
        there, newest = set(versions), versions[-1]
        latest = await _read(self._table, newest)
        if latest is None:
            return Loaded(
                table=self._table,
                read_at=self._read_at,
                version=newest,
                ledger=self._hashes.ledger(),
                marks={},
                carried_marks={},
                settled_versions=self._settled_versions,
            )
        version, carrying, newest_ours = await self._read_carrying(there, latest)
        position = highest(one.position for one in carrying if one.position is not None)
        size = FIRST_BATCH
        while version in there and position is not None and not await self._reaches(position):
            some = below(there, version, size)
            for brief in await read_briefs(self._table, some, keep_above=newest - _KEPT_AT_START):
                if brief is not None:
                    self._take(brief)
            version, size = version - len(some), min(2 * size, BATCH_MAX)
            await self._report(newest - version, len(versions))
        marks: dict[str, AppMark] = {}
        for one in carrying:
            merge_marks(marks, one.marks)
        ledger = self._hashes.ledger()
        older = OlderHistory(self._table, there, version, known=self._hashes, settled_versions=self._settled_versions)
        size = FIRST_BATCH
        while not self._how.later and not older.is_read:
            await older.read(size)
            size = min(2 * size, BATCH_MAX)
            await self._report(len(versions) - older.unread_versions, len(versions))
        return Loaded(
            table=self._table,
            read_at=self._read_at,
            version=newest,
            manifest=latest.manifest,
            ledger=older.added_to(ledger.with_unread(version + 1, newest=newest)),
            position=position,
            marks=marks,
            carried=latest.found.position,
            carried_marks=latest.found.marks,
            newest_ours=newest_ours,
            settled_versions=self._settled_versions,
            older=older,
        )

    async def _read_carrying(self, there: Container[int], latest: _Read) -> tuple[int, Sequence[VersionSummary], int]:
        """Read the versions from which position and marks follow: down to the newest one of ours, which carries all.

        Returns the version below those that were read, those that count, and the newest version of ours (0 = none).
        """
        carrying, newest_ours, gap = list[VersionSummary](), 0, False
        newest = version = latest.found.settled.version
        size, size_max = 1, _WHOLE_AT_ONCE if latest.manifest.fragments.size <= _SMALL_BYTES else 1
        while version in there and not newest_ours:
            some = below(there, version, size)
            for found in await _read_whole(self._table, some, {newest: latest}):
                if found is not None:
                    self._take(brief_of(found.settled))
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
            version, size = version - len(some), min(2 * size, size_max)
            await self._report(newest - version, newest)
        return version, carrying, newest_ours

    async def _reaches(self, position: Position) -> bool:
        """Whether all outcomes that the caller needs are in the versions that were read.

        The position of the oldest version read decides. Offset ranges would not: a record that was settled ahead may be
        in a version far below those that settle the offsets around it.
        """
        owed = self._how.owed_from(position)
        if owed >= position.next_offset and not position.settled:
            return True
        version = self._settled_versions.oldest
        oldest = await position_of(self._table, version) if version else None
        return oldest is not None and oldest.next_offset <= owed and all(o < owed for o in oldest.settled)

    def _take(self, brief: Brief) -> None:
        self._hashes.add(brief.version, brief.hashes)
        self._settled_versions.add(brief)

    async def _report(self, read: int, of: int) -> None:
        how = self._how
        if how.monotonic() - self._reported_at > _PROGRESS_SECONDS:
            self._reported_at = how.monotonic()
            _log.info("start.reading", extra={"read": read, "of": of})
        how.report(f"has read {read} of {of} versions of the table's history")
        await anyio.lowlevel.checkpoint()


async def _read_whole(table: Table, versions: Sequence[int], known: Mapping[int, _Read]) -> list[VersionSummary | None]:
    """Read these versions with position and marks; None for an unreadable version. `known`: those read before."""
    found: dict[int, VersionSummary | None] = {}

    async def read(version: int) -> None:
        one = known.get(version) or await _read_old(table, version)
        found[version] = None if one is None else one.found

    await for_each(versions, read)
    return [found[version] for version in versions]


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
