"""Judging one transaction that was read 1,000 versions ago, by a committer that has written all of them.

The versions are committed in process to a local table. Only `judge` is timed: whether the transaction is valid, what
was committed since, how it has to change. Every read of the store meanwhile is counted. Judged are an Append, a Delete
and an upsert (Update); each has the version before the 1,000 as its read version. Whether it is refused does not matter
here.

pylance, on the same table and afterwards: `LanceDataset.commit` of the same work on a dataset object at the latest
version. It has no step of its own for judging, so the figure includes what follows if the commit is not refused: the
manifest, which is small.
"""

from __future__ import annotations

import statistics
import time
import uuid
from pathlib import Path

import anyio

from bench.bench import Bench
from bench.committerd_side import OneTable
from bench.pool import Pool
from bench.pylance_side import Late
from committerd.stores.local import LocalStore
from committerd.stores.port import Tail
from committerd_common.messages import Transaction

NAME = "judge"
OPERATIONS = ("append", "delete", "update")
_PYLANCE_TIMES = 5
_READ_VERSION = 2
"""It has one fragment: the Delete and the upsert are of its row."""


class CountingStore(LocalStore):
    """A store that counts all requests except writes."""

    reads = 0

    async def get(self, key: str) -> bytes | None:
        self.reads += 1
        return await super().get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self.reads += 1
        return await super().get_range(key, start, end)

    async def get_tail(self, key: str, size: int) -> Tail | None:
        self.reads += 1
        return await super().get_tail(key, size)

    async def head(self, key: str) -> int | None:
        self.reads += 1
        return await super().head(key)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        self.reads += 1
        return await super().list(prefix, start_after=start_after, limit=limit)


def run(bench: Bench) -> None:
    """Commit the versions, then judge each kind again and again."""
    uri = bench.new_table()
    anyio.run(_run, bench, uri)
    _measure_pylance(bench, uri)


async def _run(bench: Bench, uri: str) -> None:
    plan, store = bench.plan, CountingStore(Path(uri), durable=False)
    one = OneTable(store)
    await one.open()
    for number in range(plan.judged_versions + 1):
        await one.commit(bench.pool.staged(number, read_version=number + 1))
    assert one.latest is not None
    assert one.latest.version == _READ_VERSION + plan.judged_versions
    for operation in OPERATIONS:
        verdict = await one.judged(_transaction(bench.pool, operation))  # once, not counted
        for _ in range(plan.judged_times):
            transaction = _transaction(bench.pool, operation)
            store.reads = 0
            began = time.perf_counter()
            verdict = await one.judged(transaction)
            seconds = time.perf_counter() - began
            figures = {"seconds": (seconds, "s"), "reads": (float(store.reads), "reads")}
            bench.results.note(NAME, operation, "committerd", **figures)
        told = [bench.results.value(NAME, operation, "committerd", name) or 0 for name in ("seconds", "reads")]
        name = type(verdict).__name__.lower()
        bench.tell(f"{NAME}: {operation} is {name} in {told[0] * 1000:.2f} ms with {told[1]:.0f} reads of the store")


def _measure_pylance(bench: Bench, uri: str) -> None:
    worker = bench.workers(1)[0]
    for operation in OPERATIONS:
        worker.make(Late, pool=bench.pool, uri=uri, read_version=_READ_VERSION)
        taken = worker.call("commit", operation=operation, times=_PYLANCE_TIMES)
        for seconds in taken:
            bench.results.note(NAME, operation, "pylance", seconds=(seconds, "s"))
        bench.tell(f"{NAME}: pylance commits or refuses {operation} in {statistics.median(taken) * 1000:.1f} ms")


def _transaction(pool: Pool, operation: str) -> Transaction:
    """Return a new transaction, for which nothing is cached."""
    number = pool.count - 1
    made = Transaction(read_version=_READ_VERSION, uuid=str(uuid.uuid4()))
    match operation:
        case "append":
            made.append.fragments.add().ParseFromString(pool.message(number))
        case "delete":
            made.delete.deleted_fragment_ids.append(0)
            made.delete.predicate = "true"
        case _:
            made.update.removed_fragment_ids.append(0)
            made.update.new_fragments.add().ParseFromString(pool.message(number))
    return made
