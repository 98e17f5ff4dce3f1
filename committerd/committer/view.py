"""The table as this committer knows it: its latest version, and what the readable history says of the queue.

`load` reads the whole readable history (contiguous from the latest version down); `reload` adds what came since. The
position and the marks never go down here, whatever a foreign version carries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import anyio.lowlevel

from committerd.errors import CorruptTable
from committerd.format.manifest_file import ManifestFile
from committerd.format.support import require_supported
from committerd.rules.answers import Settled, decode_settled
from committerd.rules.ledger import Ledger
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
from committerd.several import for_each
from committerd.table import Table

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_READ_AT_ONCE = 64
"""Versions that are asked for together; so many that the slowest of them delays the others little."""


class StartAgain(Exception):
    """What this committer knows no longer holds together: read group offset, outcomes and table anew."""


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

    async def load(self) -> list[Found]:
        """Read the readable history; returns it, newest first."""
        read_at = self.monotonic()
        versions = await self.table.versions()
        self.read_at = read_at
        if not versions:
            return []
        self.base = versions[-1]
        found = await self._read_down(versions)
        if not found:
            raise StartAgain(f"version {self.base} vanished while it was read")
        for version in found:
            self.ledger.add(version.settled)
        self.newest_ours = max((one.settled.version for one in found if one.settled.ours), default=0)
        self.position = highest(f.position for f in found if f.position is not None)
        self.ever_carried = self.position is not None
        for version in found:
            merge_marks(self.marks, version.marks)
        assert self.latest is not None
        require_supported(self.latest)
        return found

    async def reload(self) -> list[Found]:
        """Read the versions above `base` and take them in; returns them ascending. Raises as `peek` and `learn` do."""
        found = await self.peek()
        if found:
            self.learn(found)
        return found

    async def peek(self) -> list[Found]:
        """Read the versions above `base`, ascending; what they say of the queue is not taken in yet.

        Raises `StartAgain` when one of them can't be read, when the first table appeared, or when the table went back.
        """
        read_at = self.monotonic()
        newest = await self.table.latest_version() or 0
        if newest < self.base:
            raise StartAgain(f"the table went back from version {self.base} to {newest}")
        if self.base == 0 and newest:
            raise StartAgain("the table appeared")
        found, known = [], (self.latest, self.carried, self.carried_marks)
        try:
            for number in range(self.base + 1, newest + 1):
                one = await self._read(number)
                if one is None:
                    raise StartAgain(f"version {number} can't be read, but {newest} is there")
                found.append(one)
        except BaseException:
            # All of it or nothing: the next version must not be built on one that `learn` never saw.
            self.latest, self.carried, self.carried_marks = known
            raise
        self.read_at = read_at
        return found

    def learn(self, found: Sequence[Found]) -> None:
        """Take in versions that follow `base`, ascending. Raises `StartAgain` when an operator set the position."""
        for one in found:
            self.ledger.add(one.settled)
            if one.settled.ours:
                self.newest_ours = one.settled.version
            merge_marks(self.marks, one.marks)
            if one.position is not None:
                if self.position is not None and one.position.era != self.position.era:
                    raise StartAgain(f"version {one.settled.version} sets the position by hand")
                self.position = highest(p for p in (self.position, one.position) if p is not None)
                self.ever_carried = True
        self.base = found[-1].settled.version

    def learn_own(self, file: ManifestFile, own: Found, *, read_at: float) -> None:
        """Take in the version that we have just created, with a put that was sent at `read_at`."""
        self.latest, self.carried, self.carried_marks = file, own.position, dict(own.marks)
        self.read_at = read_at
        self.learn([own])

    def ahead(self, file: ManifestFile, own: Sequence[Found]) -> View:
        """What this will be once it has taken in versions that we are about to create; `file` is the last of them."""
        last = own[-1]
        assert last.position is not None
        marks = dict(self.marks)
        for one in own:
            merge_marks(marks, one.marks)
        return replace(
            self,
            base=last.settled.version,
            latest=file,
            position=last.position,
            marks=marks,
            ledger=self.ledger.ahead(one.settled for one in own),
            carried=last.position,
            carried_marks=dict(last.marks),
        )

    def lacks_ours(self, *, now_ms: int, marks_max: int) -> bool:
        """Whether the latest version carries less than an earlier one did: our keys have to be put back."""
        if not self.ever_carried:
            return False
        if self.carried != self.position:
            return True
        kept = kept_marks(self.marks, now_ms=now_ms, most=marks_max)
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
        settled = decode_settled(await self.table.transaction(file), version=version)
        position, marks = _carried(file, settled)
        if self.latest is None or version > self.latest.version:
            self.latest, self.carried, self.carried_marks = file, position, marks
        return Found(settled=settled, position=position, marks=marks)

    async def _read_settled(self, versions: Sequence[int]) -> list[Found | None]:
        """What each of these versions says of the queue, without what it carries; None where it can't be read."""
        found: dict[int, Found | None] = {}

        async def read(version: int) -> None:
            settled = await self.table.settled(version)
            found[version] = None if settled is None else Found(settled=settled, position=None)

        await for_each(versions, read)
        return [found[version] for version in versions]

    async def _read_down(self, versions: Sequence[int]) -> list[Found]:
        """The readable versions from the latest down to the first gap."""
        there, found = set(versions), []
        said = self.monotonic()
        version, carries = self.base, True
        while version in there:
            # The newest of ours carries the highest position and marks of all before it: of those below it only what
            # they say of the queue is read, several at once.
            if carries:
                batch = [await self._read(version)]
            else:
                below = range(version, version - _READ_AT_ONCE, -1)
                batch = await self._read_settled(list(takewhile(there.__contains__, below)))
            readable = list(takewhile(lambda one: one is not None, batch))
            found += [one for one in readable if one is not None]
            if len(readable) < len(batch):
                break
            carries = carries and not found[-1].settled.ours
            version -= len(batch)
            if self.monotonic() - said > _PROGRESS_SECONDS:
                said = self.monotonic()
                _log.info(
                    "start.reading",
                    extra={"read": len(found), "of": len(versions), "version": version},
                )
                await anyio.lowlevel.checkpoint()
        return found


def _carried(file: ManifestFile, settled: Settled) -> tuple[Position | None, dict[str, AppMark]]:
    """What a version carries. What a foreign writer made unreadable counts as dropped, and is put back."""
    metadata = file.outline.table_metadata
    try:
        return decode_position(metadata), decode_marks(metadata)
    except CorruptTable as error:
        if settled.ours:
            raise
        _log.warning("keys.unreadable", extra={"version": settled.version, "error": str(error)})
        return None, {}
