"""Reads what records with an old read version are compared with, while the records behind them are committed.

A record is compared with every version since its read version. What the rules need of a recent version is in memory;
that of older ones has to be read, and thousands of versions from a distant store take many seconds. So such a record is
left waiting. As many records behind it are settled ahead of it meanwhile as the position can carry, but none of the
same producer or application, so that these keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from committerd.committer.head import Head
from committerd.errors import CommitterError
from committerd.lance.format.kind import Kind
from committerd.table.versions import Gap, Table
from committerd_common.request import Request

_log = logging.getLogger(__name__)

_FEW_VERSIONS = 256
"""So many versions are read at once when the record is judged: that takes a second at most."""
_READ_MAX = 10_000
"""The most read versions that are remembered as read."""


class StaleHistory:
    """The footprints that waiting records need, of versions that are not in memory."""

    def __init__(self) -> None:
        self._table: Table | None = None
        self._wanted: set[int] = set()
        """The read versions of the records that wait."""
        self._read: set[int] = set()
        """Read versions whose footprints were read. They may be too many to be kept: then judging reads them again."""
        self._latest = 0
        self._changed = anyio.Event()

    def is_unread(self, request: Request, head: Head) -> bool:
        """Whether this record has to wait until the footprints since its read version are read; asks for them then."""
        after = 0 if request.operation == Kind.CLONE else request.transaction.read_version
        if self._table is not head.table or not after or head.version - after <= _FEW_VERSIONS or after in self._read:
            return False
        if request.operation == Kind.APPEND:
            after = max(after, head.history.compared_appends(after).through)
        if head.version - after <= _FEW_VERSIONS or self._table.known(after + 1) is not None:
            return False
        if not head.ledger.rules_out(request.uuid, request.transaction.read_version):
            return False  # it may be a duplicate, which is compared with nothing
        self._wanted.add(request.transaction.read_version)
        ahead = head.history.ahead
        self._latest = max(self._latest, ahead[0].version - 1 if ahead else head.version)
        self._changed.set()
        return True

    async def run(self, table: Table, notify: Callable[[], None]) -> None:
        """Read for the records of this table until cancelled. `notify`: called when records need no longer wait."""
        # Its own caches: the committer's table is used by one task at a time.
        reader = Table(table.store, manifests_max=1, footprint_bytes_max=1)
        self._table, self._latest = table, 0
        self._wanted.clear()
        self._read.clear()
        try:
            while True:
                if not self._wanted:
                    self._changed = anyio.Event()
                    await self._changed.wait()
                lowest = min(self._wanted)
                try:
                    await self._read_since(lowest, reader, table)
                except CommitterError as error:  # judging the records raises it again
                    _log.warning("footprints.unavailable", extra={"code": error.code, "error": str(error)})
                if len(self._read) + len(self._wanted) > _READ_MAX:
                    self._read.clear()
                self._read.update(after for after in self._wanted if after >= lowest)
                self._wanted -= self._read
                notify()
        finally:
            self._table = None

    async def _read_since(self, after: int, reader: Table, table: Table) -> None:
        reader.scheme = table.scheme
        largest = 0
        while after < self._latest:
            some = await reader.some_after(after, self._latest, largest=largest)
            if isinstance(some, Gap):
                return
            for one in some:
                table.learn(one)
            after, largest = some[-1].version, max(largest, *(one.bytes for one in some))
