"""committerd's own functions on one local table, in a process of its own, called as the committer calls them.

This is the cost of a commit without Kafka: judge, build, put the manifest and write the transaction file. The module
loads neither pylance nor Kafka's client, because the memory of its process is measured too.
"""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio.from_thread

from bench.machine import peak_memory_bytes
from bench.pool import Pool
from committerd.concurrency import Concurrently
from committerd.lance.format.manifest_file import ManifestFile
from committerd.queue.dedupe import Refused
from committerd.stores.local import LocalStore
from committerd.stores.port import Created, ObjectStore
from committerd.table.case import PrepareOptions, Sources
from committerd.table.fetching import Fetcher, run
from committerd.table.judge import Judged, judge, require_buildable
from committerd.table.prepare import build_version
from committerd.table.versions import History, Table
from committerd.table.writing import put, write_referenced, write_transaction
from committerd_common.messages import Transaction

SOURCES = Sources(wall_clock=lambda: datetime.now(UTC), random=random.Random(0), new_uuid=uuid.uuid4)
OPTIONS = PrepareOptions()


class OneTable:
    """A table, and its latest version as the committer holds it."""

    def __init__(self, store: ObjectStore) -> None:
        self.table = Table(store)
        self.latest: ManifestFile | None = None

    async def open(self) -> None:
        """Read the latest version."""
        self.latest = await self.table.latest()
        require_buildable(self.latest)

    async def judged(self, transaction: Transaction) -> Judged | Refused:
        """Judge a transaction against the latest version."""
        steps = judge(History(self.table), self.latest, transaction, options=OPTIONS, sources=SOURCES)
        return await run(steps, Fetcher(self.table))

    async def commit(self, transaction: Transaction) -> None:
        """Perform a whole commit."""
        judged = await self.judged(transaction)
        assert isinstance(judged, Judged), f"refused: {judged}"
        steps = build_version(self.latest, judged, scheme=self.table.scheme, sources=SOURCES)
        prepared = await run(steps, Fetcher(self.table))
        await write_referenced(self.table, prepared)
        written = Concurrently(partial(write_transaction, self.table, prepared))
        answer = await written.of(partial(put, self.table, prepared))
        assert written.done, f"the transaction file was not written: {written.failed}"
        assert isinstance(answer, Created), "another has written to this table"
        self.latest = prepared.file


class InProcess:
    """For a worker: commits, and returns the seconds that each commit took."""

    def __init__(self, *, pool: Pool, uri: str, durable: bool) -> None:
        self._pool, self._uri = pool, uri
        self._one = OneTable(LocalStore(Path(uri), durable=durable))
        self._stack = anyio.from_thread.start_blocking_portal()
        self._portal = self._stack.__enter__()
        self._portal.call(self._one.open)

    def commit(self, *, number: int) -> float:
        """Commit an Append of one file to the latest version."""
        return float(self._portal.call(self._timed, self._pool.staged(number, read_version=number + 1)))

    def peak(self) -> int:
        """The peak memory of this process, in bytes."""
        return peak_memory_bytes()

    def close(self) -> None:
        """Close the event loop."""
        self._stack.__exit__(None, None, None)

    async def _timed(self, transaction: Transaction) -> float:
        began = time.perf_counter()
        await self._one.commit(transaction)
        return time.perf_counter() - began
