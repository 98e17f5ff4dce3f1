"""Reads a table's history, from its newest version down, as far as Start needs it.

The newest version of the queue carries the position and the marks, so the committer can start before it has read what
lies below (`OlderHistory`). It needs the rest for duplicates alone: a record waits until the newest versions, and all
above its read version, are read (`Ledger.covers`). `read_new` reads the versions above a known one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import anyio.lowlevel

from committerd.committer.head import Head, StartAgain
from committerd.committer.ledgers import LedgerPart, lone_part
from committerd.committer.older_history import BATCH_MAX, FIRST_BATCH, OlderHistory, brief_of
from committerd.concurrency import map_each
from committerd.errors import CommitterError, CorruptTable, UnsupportedTable
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import require_supported
from committerd.queue.ledger import LEDGER_BYTES, Ledger
from committerd.queue.outcomes import settled_by
from committerd.queue.position import AppMark, Pause, Position
from committerd.queue.race import VersionSummary
from committerd.table.carrying import Carrying, summaries_of, summary
from committerd.table.many_versions import read_in_order
from committerd.table.versions import History, Table, VersionState

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_WHOLE_AT_ONCE = 16
_WHOLE_MAX = 30
"""Versions below the latest that are read as a whole, and so stay in the table's cache: the next records are often
judged against these. Of those below, only what they say of the queue is read.
"""
_SMALL_BYTES = 1024 * 1024
"""Manifests up to this size are read several at once, with all their fragments."""
_NEW_MAX = 1000
"""Maximum number of versions that `read_new` reads. If there are more, Start reads them and keeps little of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Parameters of reading a table's history."""

    monotonic: Callable[[], float]
    """A clock in seconds that keeps counting while the machine sleeps."""
    part: LedgerPart = field(default_factory=partial(lone_part, LEDGER_BYTES))
    """Bounds the memory of the ledger."""
    report: Callable[[str], None] = lambda text: None
    """Called with a text about the progress."""
    owed_from: Callable[[Position], int] = lambda position: position.next_offset
    """Given the table's position, returns the first offset whose outcome the caller needs."""
    builds_unknown: bool = False
    """Whether a latest version on which committerd can't build is no error: the caller asks pylance."""
    later: bool = False
    """Whether to leave unread what lies below position, marks and those outcomes; `Loaded.older` reads it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The state of a table according to its readable history. Fields that `Head` has too mean the same here."""

    table: Table
    read_at: float
    """When the latest version was known to be the latest, in monotonic seconds."""
    version: int = 0
    manifest: ManifestFile | None = None
    ledger: Ledger
    position: Position | None = None
    """The highest position that any readable version carries; None = none carries one."""
    marks: Mapping[str, AppMark] = field(default_factory=dict)
    carried: Position | None = None
    carried_marks: Mapping[str, AppMark] = field(default_factory=dict)
    pause: Pause | None = None
    carried_pause: Pause | None = None
    newest_ours: int = 0
    """The newest readable version of the queue; 0 = none. Only this one may lack its transaction file."""
    older: OlderHistory
    """What was read of the versions; it reads those that were left unread."""

    @property
    def branch(self) -> str:
        """The branch whose versions these are; empty for the main branch, and if there is no version."""
        return self.manifest.outline.branch if self.manifest is not None else ""

    def head(self, position: Position) -> Head:
        """Return the head from which a committer continues at this position."""
        return Head(
            version=self.version,
            manifest=self.manifest,
            history=History(self.table),
            ledger=self.ledger,
            position=replace(position, branch=self.branch),
            marks=self.marks,
            is_carried=self.position is not None,
            carried=self.carried,
            carried_marks=self.carried_marks,
            pause=self.pause,
            carried_pause=self.carried_pause,
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
    """Read the readable history: down to the newest version of ours and to all outcomes that the caller needs.

    Unless the caller wants that later, reads on down to the first number without a version, or until the ledger is
    full. Skips damaged versions.

    Raises `StartAgain` when the latest version vanished during the read, `CorruptTable` or `UnsupportedTable` for the
    latest version, `RefusedToRun` for keys of a newer format, and `StoreUnavailable`.
    """
    read_at = how.monotonic()
    versions = await table.versions()
    older = OlderHistory(table, versions, part=how.part)
    if not versions:
        return Loaded(table=table, read_at=read_at, ledger=older.ledger(), older=older)
    newest = versions[-1]
    latest = await _read(table, newest)
    if latest is None:
        raise StartAgain(f"version {newest} vanished while it was read")
    downwards = _Downwards(table, how, older)
    carrying = await downwards.read_carrying(latest)
    position = carrying.position
    await downwards.read_rest(position)
    _require_supported(latest.manifest, how)
    return Loaded(
        table=table,
        read_at=read_at,
        version=newest,
        manifest=latest.manifest,
        ledger=older.ledger(),
        position=position,
        marks=carrying.marks,
        carried=latest.found.position,
        carried_marks=latest.found.marks,
        pause=carrying.pause,
        carried_pause=latest.found.pause,
        newest_ours=carrying.newest_ours,
        older=older,
    )


def _require_supported(latest: ManifestFile, how: Loading) -> None:
    try:
        require_supported(latest)
    except UnsupportedTable:
        if not how.builds_unknown:
            raise


async def read_new(table: Table, base: int, newest: int) -> News:
    """Read the versions above `base` up to `newest`, the latest (0 = there is no table), ascending.

    Raises `StartAgain` when one of them is unreadable, when there are too many, when a table appeared that did not
    exist (`base` 0), or when the table went back or is another one. Raises `CorruptTable` only for the latest version.
    """
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
    latest = await _read(table, newest)
    if latest is None:
        raise StartAgain(f"version {newest} vanished while it was read")
    at_once = _WHOLE_AT_ONCE if latest.manifest.fragments.size <= _SMALL_BYTES else 1
    others = range(base + 1, newest)
    read = await map_each(others, partial(_read_old, table, is_latest=True), at_once=at_once)
    found = [one.found for one in read if one is not None]
    if len(found) < len(others):
        raise StartAgain(f"version {others[read.index(None)]} can't be read, but {newest} is there")
    return News([*found, latest.found], latest.manifest)


async def after(loaded: Loaded, version: int) -> Loaded | None:
    """Return the state after a later version of the queue, from that version alone; None if it is not such a version.

    It carries all that counts of the versions before it. Without the history: `ledger` and `older` stay as they were.
    """
    read = await _read_old(loaded.table, version)
    if read is None or not read.found.settled.ours or read.found.position is None:
        return None
    found = read.found
    return replace(
        loaded,
        version=version,
        manifest=read.manifest,
        position=found.position,
        marks=found.marks,
        pause=found.pause,
        newest_ours=version,
        carried=found.position,
        carried_marks=found.marks,
        carried_pause=found.pause,
    )


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
    return _Read(summary(file.outline, settled, is_latest=is_latest), file)


async def _read_old(table: Table, version: int, *, is_latest: bool = False) -> _Read | None:
    """As `_read`, for a version that is not the latest; also None when it is damaged."""
    try:
        return await _read(table, version, is_latest=is_latest)
    except CorruptTable as error:
        _log_damaged(version, error)
        return None


def _log_damaged(version: int, error: CorruptTable) -> None:
    _log.warning("version.damaged", extra={"version": version, "code": error.code, "error": str(error)})


class _Downwards:
    """Reads the history from the latest version down, as far as Start must know it before it continues."""

    def __init__(self, table: Table, how: Loading, older: OlderHistory) -> None:
        self._table = table
        self._how = how
        self._older = older
        self._reported_at = how.monotonic()

    async def read_carrying(self, latest: _Read) -> Carrying:
        """Read the versions from which position, marks and pause follow: down to the newest of ours, which has all."""
        carrying = Carrying()
        self._take(carrying, latest.found)
        size, size_max = 1, _WHOLE_AT_ONCE if latest.manifest.fragments.size <= _SMALL_BYTES else 1
        while not carrying.newest_ours and self._older.has_next and self._older.read_versions <= _WHOLE_MAX:
            size = min(2 * size, size_max)
            for read in await map_each(self._older.next(size), partial(_read_old, self._table)):
                self._take(carrying, read.found if read is not None else None)
            await self._report()
        if not carrying.newest_ours:
            await self._read_carrying_briefly(carrying)
        return carrying

    async def _read_carrying_briefly(self, carrying: Carrying) -> None:
        async def take(versions: Sequence[int], found: Sequence[VersionSummary | CommitterError | None]) -> bool:
            for version, one in zip(versions, found, strict=True):
                if isinstance(one, CorruptTable):
                    _log_damaged(version, one)
                elif isinstance(one, CommitterError):
                    raise one
                self._take(carrying, one if isinstance(one, VersionSummary) else None)
            await self._report()
            return not carrying.newest_ours

        await read_in_order(self._older.next(self._older.versions), partial(summaries_of, self._table), take)

    def _take(self, carrying: Carrying, found: VersionSummary | None) -> None:
        self._older.add([brief_of(found.settled) if found is not None else None])
        if not carrying.newest_ours:
            carrying.add(found)

    async def read_rest(self, position: Position | None) -> None:
        """Read on to all outcomes that the caller needs, and all else unless the caller wants that later."""
        older, size = self._older, FIRST_BATCH
        while (not self._how.later and not older.is_read) or (
            older.has_next and position is not None and not await self._reaches(position)
        ):
            await older.read(size)
            size = min(2 * size, BATCH_MAX)
            await self._report()

    async def _reaches(self, position: Position) -> bool:
        """Whether all outcomes that the caller needs are in the versions that were read.

        The position of the oldest version read decides. Offset ranges would not: a record that was settled ahead may be
        in a version far below those that settle the offsets around it.
        """
        owed = self._how.owed_from(position)
        if owed >= position.next_offset and not position.settled:
            return True
        version = self._older.outcome_versions.oldest
        oldest = await position_of(self._table, version) if version else None
        return oldest is not None and oldest.next_offset <= owed and max(oldest.settled.bounds, default=0) <= owed

    async def _report(self) -> None:
        how, of = self._how, self._older.versions
        read = of - self._older.unread_versions
        if how.monotonic() - self._reported_at > _PROGRESS_SECONDS:
            self._reported_at = how.monotonic()
            _log.info("start.reading", extra={"read": read, "of": of})
        how.report(f"has read {read} of {of} versions of the table's history")
        await anyio.lowlevel.checkpoint()
