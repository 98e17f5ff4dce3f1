"""Reads the history in which duplicates are looked for: a part at Start, the rest while the committer commits.

A record waits until the newest versions, and all above its read version, are read (`Ledger.covers`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import anyio.lowlevel

from committerd.committer.ledgers import LedgerPart
from committerd.concurrency import map_each
from committerd.errors import Unavailable
from committerd.queue.ledger import KNOWN_VERSIONS, Ledger, OlderVersions, hashes_of
from committerd.queue.outcomes import Settled
from committerd.table.backoff import Backoff
from committerd.table.versions import Table

_log = logging.getLogger(__name__)

FIRST_BATCH = 32
BATCH_MAX = 256
"""Versions to read before the next decision. The batches grow, so that the slowest read of each delays the others
little.
"""
_READ_AT_ONCE = 64
"""Versions to read concurrently, so that a distant store is kept busy. Each read takes 64 KiB of memory at least."""
_CACHED = 64
"""Newest versions whose queue entries stay cached: Start mostly publishes their outcomes again."""
_SHARE = 4
"""What was read reaches the committer's ledger when it has grown by a quarter, and at once while records wait for it.
Each addition makes look-ups slower.
"""


class Brief(NamedTuple):
    """The queue entries of a version, as briefly as they are kept."""

    version: int
    hashes: array[int]
    """As `hashes_of` returns them."""
    offsets: tuple[int, int] | None
    """The lowest and the highest offset that the version settles; None when it settles none."""


def brief_of(settled: Settled) -> Brief:
    """The queue entries of a version, briefly."""
    offsets = [entry.offset for entry in settled.entries()] if settled.ours else []
    return Brief(settled.version, hashes_of(settled), (min(offsets), max(offsets)) if offsets else None)


class OutcomeVersions:
    """An index of the versions that settle offsets, from version to offset range: 24 bytes per version."""

    __slots__ = ("_first", "_last", "_versions")

    def __init__(self) -> None:
        self._versions = array("q")
        self._first = array("q")
        self._last = array("q")

    def add(self, brief: Brief) -> None:
        """Add a version; ignores versions that settle nothing."""
        if brief.offsets is not None:
            self._versions.append(brief.version)
            self._first.append(brief.offsets[0])
            self._last.append(brief.offsets[1])

    @property
    def oldest(self) -> int:
        """The version that was added last; 0 = none."""
        return self._versions[-1] if self._versions else 0

    def between(self, first: int, last: int) -> Iterator[int]:
        """Yield the versions that may settle an offset from `first` to `last` inclusive, in the order of `add`."""
        for version, low, high in zip(self._versions, self._first, self._last, strict=True):
            if low <= last and first <= high:
                yield version


class OlderHistory:
    """What was read of a table's versions, from the newest down. Start reads the first ones, and leaves the others."""

    def __init__(self, table: Table, versions: Sequence[int], *, part: LedgerPart) -> None:
        """`versions`: all that have a manifest, ascending. `part`: bounds the ledger."""
        self._table = table
        self._versions = frozenset(versions)
        self._newest = self._next = versions[-1] if versions else 0
        self._part = part
        self._hashes = OlderVersions(part.bound(0))
        self.outcome_versions = OutcomeVersions()
        """The versions that settle records, newest first, as far as they are read."""
        self._is_full = False
        self._read = self._shown = 0
        self._known: tuple[Ledger, int]
        """What was last shown: the ledger, and below which version all are unread; 0 = none is."""
        self._show()

    @property
    def has_next(self) -> bool:
        """Whether the number below those that were read has a version."""
        return self._next in self._versions

    @property
    def is_read(self) -> bool:
        """Whether all versions are read that can be, or that the ledger has room for."""
        return self._is_full or not self.has_next

    @property
    def unread_versions(self) -> int:
        """The number of versions that are still to be read, if all can be."""
        return 0 if self.is_read else self.versions - self._read

    @property
    def read_versions(self) -> int:
        """The number of versions that were read."""
        return self._read

    @property
    def bytes(self) -> int:
        """The memory of the hashes that were read."""
        return self._hashes.bytes

    @property
    def versions(self) -> int:
        """The number of versions that have a manifest."""
        return len(self._versions)

    def ledger(self) -> Ledger:
        """Return the ledger of all versions that were read."""
        self._show()
        return self.added_to(Ledger(self._part.bound(self.bytes)).with_unread(self._newest + 1, newest=self._newest))

    def added_to(self, ledger: Ledger) -> Ledger:
        """Return a ledger of newer versions with what was known of the older ones when that was last shown."""
        older, unread_below = self._known
        return ledger.with_older(older, unread_below=unread_below)

    def keep_within(self, bytes_max: int) -> None:
        """Drop the oldest versions that were read beyond this bound."""
        self._hashes.keep_within(bytes_max)
        older, unread_below = self._known
        self._known = older.within(bytes_max), unread_below

    def next(self, size: int) -> list[int]:
        """The versions to read next, from the newest down to the first number without one; at most `size`."""
        return list(takewhile(self._versions.__contains__, range(self._next, self._next - size, -1)))

    def add(self, briefs: Sequence[Brief | None]) -> None:
        """Add the next versions; None for an unreadable one."""
        self._hashes.keep_within(self._part.bound(self.bytes))
        for brief in briefs:
            if brief is not None:
                self.outcome_versions.add(brief)
                self._is_full = not self._hashes.add(brief.version, brief.hashes) or self._is_full
        self._next -= len(briefs)
        self._read += len(briefs)

    async def read(self, size: int) -> None:
        """Read the next versions, at most `size`. Raises `StoreUnavailable`, and then has read none of them."""
        self.add(await map_each(self.next(size), self._brief, at_once=_READ_AT_ONCE))
        few = self._shown < KNOWN_VERSIONS
        if self.is_read or few or (self._read - self._shown) * _SHARE >= self._read:
            self._show()

    async def read_beside(self, *, backoff: Callable[[], Backoff], progressed: Callable[[], None]) -> None:
        """Read all, and call `progressed` as more is known. Tries again for as long as the store is unavailable."""
        size, waiting = FIRST_BATCH, backoff()
        while not self.is_read:
            shown = self._shown
            try:
                await self.read(size)
            except Unavailable as error:
                _log.warning("history.unavailable", extra={"code": error.code, "error": str(error)})
                await waiting.wait()
                continue
            size, waiting = min(2 * size, BATCH_MAX), backoff()
            if self._shown != shown:
                progressed()
            await anyio.lowlevel.checkpoint()
        _log.info("history.read", extra={"versions": self._read, "down_to": self._next + 1})

    async def _brief(self, version: int) -> Brief | None:
        settled = await self._table.settled(version, keep=version > self._newest - _CACHED)
        return None if settled is None else brief_of(settled)

    def _show(self) -> None:
        self._known = self._hashes.ledger(), 0 if self.is_read else self._next + 1
        self._shown = self._read
