"""Reads the older history of a table, while the committer commits.

The newest version of the queue carries the position and the marks, so the committer can start before it has read what
lies below. It needs the rest for duplicates alone: a record waits until the newest versions, and all above its read
version, are read (`Ledger.covers`). So the history is read from its newest version down.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import anyio.lowlevel

from committerd.concurrency import for_each
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


class SettledVersions:
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
    """The versions that Start has left unread, and what was read of them since."""

    def __init__(
        self,
        table: Table,
        versions: Collection[int],
        newest: int,
        *,
        known: OlderVersions,
        settled_versions: SettledVersions,
    ) -> None:
        """`versions`: those that have a manifest. `newest`: the highest unread one. `known`: has those above it."""
        self._table = table
        self._versions = versions
        self._next = newest
        self._hashes = known
        self._settled_versions = settled_versions
        self._count = sum(version <= newest for version in versions)
        self._read = self._shown = 0
        ledger = known.ledger()
        self._is_read = ledger.floor > 0 or newest not in versions
        self._known = ledger, self._unread_below

    @property
    def is_read(self) -> bool:
        """Whether all versions are read that can be, or that the ledger has room for."""
        return self._is_read

    @property
    def unread_versions(self) -> int:
        """The number of versions that are still to be read, if all can be."""
        return 0 if self._is_read else self._count - self._read

    def added_to(self, ledger: Ledger) -> Ledger:
        """Return a ledger of newer versions with what is known of the older ones by now."""
        older, unread_below = self._known
        return ledger.with_older(older, unread_below=unread_below)

    async def read(self, size: int) -> None:
        """Read the next versions, at most `size`. Raises `StoreUnavailable`, and then has read none of them."""
        versions = below(self._versions, self._next, size)
        for brief in await read_briefs(self._table, versions):
            if brief is not None:
                self._settled_versions.add(brief)
                self._is_read = not self._hashes.add(brief.version, brief.hashes) or self._is_read
        self._next -= len(versions)
        self._read += len(versions)
        self._is_read = self._is_read or self._next not in self._versions
        few = self._shown < KNOWN_VERSIONS
        if self._is_read or few or (self._read - self._shown) * _SHARE >= self._read:
            self._known, self._shown = (self._hashes.ledger(), self._unread_below), self._read

    async def read_beside(self, *, backoff: Callable[[], Backoff], progressed: Callable[[], None]) -> None:
        """Read all, and call `progressed` as more is known. Tries again for as long as the store is unavailable."""
        size, waiting = FIRST_BATCH, backoff()
        while not self._is_read:
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

    @property
    def _unread_below(self) -> int:
        return 0 if self._is_read else self._next + 1


def below(versions: Container[int], newest: int, size: int) -> list[int]:
    """The versions from `newest` down to the first number without one; at most `size`."""
    return list(takewhile(versions.__contains__, range(newest, newest - size, -1)))


async def read_briefs(
    table: Table, versions: Sequence[int], *, at_once: int = _READ_AT_ONCE, keep_above: int | None = None
) -> list[Brief | None]:
    """Read the queue entries of these versions, without position and marks; None for an unreadable version.

    The table caches those of the versions above `keep_above`; None = of no version.
    """
    found: dict[int, Brief | None] = {}

    async def read(version: int) -> None:
        settled = await table.settled(version, keep=keep_above is not None and version > keep_above)
        found[version] = None if settled is None else brief_of(settled)

    await for_each(versions, read, at_once=at_once)
    return [found[version] for version in versions]
