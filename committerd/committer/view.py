"""The table as this committer knows it: its latest version, and what the readable history says of the queue.

`load` reads the readable history (contiguous from the latest version down) and keeps little of it; `reload` adds what
came since. The position and the marks never go down here, whatever a foreign version carries.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import anyio.lowlevel

from committerd.concurrency import for_each
from committerd.errors import CommitterError, CorruptTable, RefusedToRun
from committerd.format.manifest_file import ManifestFile
from committerd.format.support import require_supported
from committerd.rules.answers import Settled, settled_by
from committerd.rules.ledger import NOT_SEEN, Earlier, Ledger, names, refusal_in
from committerd.rules.position import (
    AppMark,
    Position,
    decode_marks,
    decode_position,
    highest,
    kept_marks,
    merge_marks,
)
from committerd.rules.settle import Found
from committerd.table import Standing, Table

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_READ_AT_ONCE = 32
"""Versions that are asked for together; so many that the slowest of them delays the others little."""
_KEPT_AT_START = 64
"""Versions whose answers stay in memory while those below are read: Start mostly publishes the newest again."""
_NEW_MAX = 1000
"""Versions that are read in one piece. Where there are more, Start reads them, which keeps little of each."""


class StartAgain(Exception):
    """What this committer knows no longer holds together: read group offset, outcomes and table anew."""


def _nothing_is_owed(position: Position) -> int:
    return position.next_offset


class Answered:
    """Which versions of the queue answer which offsets: 24 bytes for each of them."""

    __slots__ = ("_first", "_last", "_versions")

    def __init__(self) -> None:
        self._versions = array("q")
        self._first = array("q")
        self._last = array("q")

    def add(self, settled: Settled) -> None:
        """Note a version; those of other writers answer nothing."""
        offsets = [entry.offset for entry in settled.entries()]
        if settled.ours and offsets:
            self._versions.append(settled.version)
            self._first.append(min(offsets))
            self._last.append(max(offsets))

    @property
    def oldest(self) -> int:
        """The last version that was added; 0 = there is none."""
        return self._versions[-1] if self._versions else 0

    def between(self, first: int, last: int) -> Iterator[int]:
        """The versions that may answer an offset from `first` to `last`, as they were added."""
        for version, low, high in zip(self._versions, self._first, self._last, strict=True):
            if low <= last and first <= high:
                yield version


@dataclass(slots=True)
class View:
    """What is known of the table. Changed only by its owner, the committer's loop."""

    table: Table
    monotonic: Callable[[], float]
    base: int = 0
    """Latest version known; 0 = there is no table."""
    latest: ManifestFile | None = None
    position: Position | None = None
    """The highest that any readable version carries; None = none carries one."""
    marks: dict[str, AppMark] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    ever_carried: bool = False
    """Whether any version that was read carries a position."""
    carried: Position | None = None
    """What the latest version itself carries."""
    carried_marks: dict[str, AppMark] = field(default_factory=dict)
    newest_ours: int = 0
    """The newest readable version of the queue; 0 = there is none. It alone may lack its transaction file."""
    read_at: float = 0.0
    """When the latest version was last known to be the latest (monotonic seconds)."""
    confirmed_at: float = 0.0
    """When `base` was last known to be there and the version that it was (monotonic seconds)."""
    report: Callable[[str], None] = lambda text: None
    """Is told how far `load` is, in words."""

    async def load(self, owed_from: Callable[[Position], int] = _nothing_is_owed) -> Answered:
        """Read the readable history; returns which of its versions answer which records, newest first.

        `owed_from`: the first offset whose answer is asked for, given the table's position.
        """
        read_at = self.monotonic()
        versions = await self.table.versions()
        self.read_at = self.confirmed_at = read_at
        answered = Answered()
        if not versions:
            return answered
        self.base = versions[-1]
        await self._read_down(versions, answered, owed_from)
        if self.latest is None:
            raise StartAgain(f"version {self.base} vanished while it was read")
        require_supported(self.latest)
        return answered

    async def earlier(self, uuid: str, after: int) -> Earlier:
        """What is known of a uuid in the versions above `after`. Versions that may hold it are read again."""
        ledger = self.ledger
        if ledger.rules_out(uuid, after):
            return NOT_SEEN
        unknown_at = ledger.floor if after < ledger.floor and await self._dropped_is_there() else None
        committed, maybe = ledger.committed_at(uuid, after)
        for version in maybe:
            settled = await self.table.settled(version)
            if settled is None:
                unknown_at = version
            elif names(settled, uuid):
                committed = version
                break
        refusal, maybe = ledger.refused_at(uuid)
        for version in maybe:
            settled = await self.table.settled(version)
            refusal = refusal_in(settled, uuid) if settled is not None else None
            if refusal is not None:
                break
            if settled is None:
                unknown_at = version
        return Earlier(committed=committed, refusal=refusal, unknown_at=unknown_at)

    async def _dropped_is_there(self) -> bool:
        """Whether the newest version that the ledger has dropped can still be read.

        The readable history goes from the latest version down to the first number that is missing. Once a cleanup has
        removed that version, neither it nor those below it belong to the history, as after a restart.
        """
        if await self.table.standing(self.ledger.floor) is not Standing.GONE:
            return True
        self.ledger.nothing_is_dropped()
        return False

    async def reload(self) -> list[Found]:
        """Read the versions above `base` and take them in; returns them ascending. Raises as `peek` and `learn` do."""
        found = await self.peek()
        if found:
            self.learn(found)
        return found

    async def peek(self) -> list[Found]:
        """Read the versions above `base`, ascending; what they say of the queue is not taken in yet.

        Raises `StartAgain` when one of them can't be read, when the first table appeared, or when the table went back
        or is another one. `CorruptTable` is of the latest version alone.
        """
        read_at = self.monotonic()
        newest = await self.table.latest_version() or 0
        if newest < self.base:
            raise StartAgain(f"the table went back from version {self.base} to {newest}")
        if self.base == 0 and newest:
            raise StartAgain("the table appeared")
        if newest - self.base > _NEW_MAX:
            raise StartAgain(f"{newest - self.base} versions are new since version {self.base}")
        found, known = [], (self.latest, self.carried, self.carried_marks)
        try:
            for number in range(self.base + 1, newest + 1):
                one = await self._read(number) if number == newest else await self._read_old(number)
                if one is None:
                    raise StartAgain(f"version {number} can't be read, but {newest} is there")
                found.append(one)
            # Last: then all that was read above it is of the same table, too.
            await self.confirm()
        except BaseException:
            # All of it or nothing: the next version must not be built on one that `learn` never saw.
            self.latest, self.carried, self.carried_marks = known
            raise
        self.read_at = read_at
        return found

    async def confirm(self) -> None:
        """See that `base` is still there and the version that it was. Raises `StartAgain` when it is not."""
        if not self.base:
            return
        asked_at = self.monotonic()
        self.require_same(await self.table.standing(self.base))
        self.confirmed_at = asked_at

    def require_same(self, standing: Standing) -> None:
        """Raises `StartAgain` unless `base` is what it was."""
        if standing is Standing.SAME:
            return
        what = "is gone" if standing is Standing.GONE else "is another one now"
        raise StartAgain(f"version {self.base}, which was to be built on, {what}: was the table deleted or made again?")

    def learn(self, found: Sequence[Found]) -> None:
        """Take in versions that follow `base`, ascending. Raises `StartAgain` when an operator set the position."""
        for one in found:
            self.ledger.add(one.settled)
            if one.settled.ours:
                self.newest_ours = one.settled.version
                # It carries what counts of all before it. A mark that it has dropped is gone, as after a restart.
                self.marks = dict(one.marks)
            elif not self.ever_carried:
                merge_marks(self.marks, one.marks)
            # Other writers hand down what they found, or less. What is more was made up.
            if one.position is not None and (one.settled.ours or not self.ever_carried):
                if self.position is not None and one.position.era != self.position.era:
                    raise StartAgain(f"version {one.settled.version} sets the position by hand")
                self.position = highest(p for p in (self.position, one.position) if p is not None)
                self.ever_carried = True
        self.base = found[-1].settled.version

    def learn_own(self, file: ManifestFile, own: Found, *, read_at: float) -> None:
        """Take in the version that we have just created, with a put that was sent at `read_at`."""
        self.latest, self.carried, self.carried_marks = file, own.position, dict(own.marks)
        self.read_at = self.confirmed_at = read_at
        self.learn([own])

    def ahead(self, file: ManifestFile, own: Sequence[Found]) -> View:
        """What this will be once it has taken in versions that we are about to create; `file` is the last of them."""
        last = own[-1]
        assert last.position is not None
        return replace(
            self,
            base=last.settled.version,
            latest=file,
            position=last.position,
            marks=dict(last.marks),
            ledger=self.ledger.ahead(one.settled for one in own),
            carried=last.position,
            carried_marks=dict(last.marks),
        )

    def lacks_ours(self, *, marks_max: int) -> bool:
        """Whether the latest version carries less than an earlier one did: our keys have to be put back."""
        if not self.ever_carried:
            return False
        if self.carried != self.position:
            return True
        kept = kept_marks(self.marks, most=marks_max)
        return any(self.carried_marks.get(app_id) != mark for app_id, mark in kept.items())

    def acknowledgeable(self) -> tuple[Position, int] | None:
        """Position and version that may be acknowledged; None before any version carries a position.

        A group offset that no version stands behind would look like a table that went back.
        """
        return (self.position, self.base) if self.position is not None and self.ever_carried else None

    async def _read(self, version: int) -> Found | None:
        """One version; remembers it when it is the latest so far."""
        file = await self.table.read(version)
        if file is None:
            return None
        settled = settled_by(await self.table.transaction(file), version=version)
        is_latest = self.latest is None or version > self.latest.version
        position, marks = _carried(file, settled, is_latest=is_latest)
        if is_latest:
            self.latest, self.carried, self.carried_marks = file, position, marks
        return Found(settled=settled, position=position, marks=marks)

    async def _read_old(self, version: int) -> Found | None:
        """As `_read`, of a version that is not the latest: None also when it is damaged."""
        try:
            return await self._read(version)
        except CorruptTable as error:
            _log.warning("version.damaged", extra={"version": version, "code": error.code, "error": str(error)})
            return None

    async def _read_settled(self, versions: Sequence[int], *, keep: bool) -> list[Found | None]:
        """What each of these versions says of the queue, without what it carries; None where it can't be read."""
        found: dict[int, Found | None] = {}

        async def read(version: int) -> None:
            settled = await self.table.settled(version, keep=keep)
            found[version] = None if settled is None else Found(settled=settled, position=None)

        await for_each(versions, read)
        return [found[version] for version in versions]

    async def _read_down(
        self, versions: Sequence[int], answered: Answered, owed_from: Callable[[Position], int]
    ) -> None:
        """Take in the versions from the latest down to the first number that no version has; damaged ones are left out.

        Nothing is taken in when the latest has vanished. Raises `CorruptTable` when the latest is damaged. Once the
        ledger is full it ends as soon as position and marks are found, and all answers that are owed.
        """
        there = set(versions)
        reported, read = self.monotonic(), 0
        version, carries, full, gap, told = self.base, True, False, False, list[Found]()
        while version in there:
            # The newest of ours carries the highest position and marks of all before it: of those below it only what
            # they say of the queue is read, several at once.
            if carries:
                batch = [await (self._read(version) if version == self.base else self._read_old(version))]
            else:
                below = takewhile(there.__contains__, range(version, version - _READ_AT_ONCE, -1))
                batch = await self._read_settled(list(below), keep=read < _KEPT_AT_START)
            for one in filter(None, batch):
                full = not self.ledger.add_older(one.settled)
                answered.add(one.settled)
                if carries:
                    # Other writers hand down what they found, or less. What is more was made up, unless one of ours
                    # between them can't be read.
                    if one.settled.ours and one.position is not None and not gap:
                        told.clear()
                    if one.position is not None or one.marks:
                        told.append(one)
                if one.settled.ours and carries:
                    self.newest_ours, carries = one.settled.version, False
            gap = gap or batch[0] is None
            version, read = version - len(batch), read + len(batch)
            position = highest(one.position for one in told if one.position is not None)
            if self.latest is None:
                break
            if full and not carries and (position is None or await self._reaches(answered.oldest, owed_from(position))):
                break
            if self.monotonic() - reported > _PROGRESS_SECONDS:
                reported = self.monotonic()
                _log.info("start.reading", extra={"read": read, "of": len(versions), "version": version})
            self.report(f"has read {read} of {len(versions)} versions of the table's history")
            await anyio.lowlevel.checkpoint()
        self.ledger.end_older()
        self.position = highest(one.position for one in told if one.position is not None)
        for one in told:
            merge_marks(self.marks, one.marks)
        self.ever_carried = self.position is not None

    async def _reaches(self, version: int, owed: int) -> bool:
        """Whether neither this version nor one below it answers a record from offset `owed` on.

        Its own position tells: what was settled ahead may stand in a version far below those of the offsets around it.
        """
        found = await self._read_old(version) if version else None
        position = found.position if found is not None else None
        return position is not None and position.next_offset <= owed and all(o < owed for o in position.settled)


def _carried(file: ManifestFile, settled: Settled, *, is_latest: bool) -> tuple[Position | None, dict[str, AppMark]]:
    """What a version carries. What a foreign writer made unreadable counts as dropped, and is put back."""
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
