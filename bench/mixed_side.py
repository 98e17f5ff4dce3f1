"""Writers that perform operations of several kinds in turn: directly with pylance, or through the queue."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import lance

from bench.pool import APPENDED_ID, Pool, rows
from committerd_client import CommitClient, Reexecution, staging
from committerd_client.staging.keys import name_keys

ROUND = ("append", "append", "upsert", "append", "append", "delete", "append", "append", "config", "append")
KEYS_EACH = 100
"""Rows that each writer has at the start, under keys of its own."""
ATTEMPTS = 50


@dataclass(slots=True, kw_only=True)
class Mixed:
    """The results of one process."""

    began: float
    ended: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By kind of operation: seconds from the first execution to the commit, re-executions included."""
    again: int = 0
    """The number of re-executions."""
    appended: list[int] = field(default_factory=list)
    upserted: dict[int, int] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)
    configured: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation of one writer."""

    kind: str
    file: int = 0
    keys: Sequence[int] = ()
    value: int = 0
    setting: str = ""


def steps(writer: int, rounds: int) -> Iterator[Step]:
    """All operations of a writer. No two writers touch the same file, key or setting."""
    first, appends = writer * KEYS_EACH, ROUND.count("append")
    files = iter(range(writer * rounds * appends, (writer + 1) * rounds * appends))
    for number in range(rounds):
        for kind in ROUND:
            match kind:
                case "append":
                    yield Step(kind=kind, file=next(files))
                case "upsert":  # one existing row, one new row
                    yield Step(kind=kind, keys=(first + number, 10**9 + first + number), value=number + 1)
                case "delete":
                    yield Step(kind=kind, keys=(first + KEYS_EACH - 1 - number,))
                case _:
                    yield Step(kind=kind, setting=f"bench.writer{writer}", value=number + 1)


def noted(mixed: Mixed, step: Step, began: float) -> None:
    """Note that an operation is committed."""
    mixed.seconds.setdefault(step.kind, []).append(time.monotonic() - began)
    match step.kind:
        case "append":
            mixed.appended.append(step.file)
        case "upsert":
            mixed.upserted |= dict.fromkeys(step.keys, step.value)
        case "delete":
            mixed.deleted += step.keys
        case _:
            mixed.configured[step.setting] = str(step.value)


class Direct:
    """One writer with pylance, as its users commit. It repeats an operation that pylance gives up.

    The constructor makes a first commit.
    """

    def __init__(
        self, *, pool: Pool, uri: str, steps: Sequence[Step], storage_options: dict[str, str] | None = None
    ) -> None:
        self._table: Any = lance.dataset(uri, storage_options=storage_options)
        self._steps = [(step, self._ready(pool, step)) for step in steps]
        self._until_done(Step(kind="config", setting=f"bench.first{os.getpid()}"), None)

    def run(self, *, seconds: float | None = None) -> Mixed:
        """Perform all operations, or those that begin within the given time."""
        mixed = Mixed(began=time.monotonic())
        until = float("inf") if seconds is None else mixed.began + seconds
        for step, operation in self._steps:
            began = time.monotonic()
            if began >= until:
                break
            mixed.again += self._until_done(step, operation)
            noted(mixed, step, began)
        mixed.ended = time.monotonic()
        return mixed

    def _until_done(self, step: Step, operation: Any) -> int:
        """Repeat an operation until it is committed; return the number of re-executions."""
        for attempt in range(ATTEMPTS):
            try:
                self._table.checkout_latest()
                self._do(step, operation)
            except Exception:  # pylance raises OSError, RuntimeError and others
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return attempt
        raise AssertionError("unreachable")

    def _ready(self, pool: Pool, step: Step) -> Any:
        return lance.LanceOperation.Append([pool.for_pylance(step.file)]) if step.kind == "append" else None

    def _do(self, step: Step, operation: Any) -> None:
        table = self._table
        match step.kind:
            case "append":
                self._table = lance.LanceDataset.commit(table, operation, read_version=table.version)
            case "upsert":
                builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                builder.execute(rows(step.keys, step.value))
            case "delete":
                table.delete(f"id = {step.keys[0]}")
            case _:
                table.update_config({step.setting: str(step.value)})


class Queued:
    """Some writers of one process; each waits for an outcome before it goes on.

    The constructor makes a first commit.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        servers: str,
        dataset: str,
        uri: str,
        writers: Sequence[Sequence[Step]],
        storage_options: dict[str, str] | None = None,
    ) -> None:
        """`writers`: the operations of each."""
        self._pool, self._steps = pool, writers
        self._tables: list[Any] = [lance.dataset(uri, storage_options=storage_options) for _ in writers]
        self._cache = staging.KeyCache()  # as one client has
        self._keys = staging.keys_of(self._tables[0], "id", rows([APPENDED_ID], 0))
        self._runner = asyncio.Runner()
        self._client = CommitClient(servers, dataset=dataset, dataset_uri=uri, storage_options=storage_options)
        self._runner.run(self._client.start())
        first = staging.update_config(self._tables[0], config={f"bench.first{os.getpid()}": "1"})
        self._runner.run(self._client.commit(first, timeout=60))

    def run(self) -> Mixed:
        """Perform all operations."""
        return self._runner.run(self._run())

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    async def _run(self) -> Mixed:
        mixed = Mixed(began=time.monotonic())
        async with asyncio.TaskGroup() as group:
            for own, table in zip(self._steps, self._tables, strict=True):
                group.create_task(self._write(own, table, mixed))
        mixed.ended = time.monotonic()
        return mixed

    async def _write(self, own: Sequence[Step], table: Any, mixed: Mixed) -> None:
        for step in own:
            began = time.monotonic()
            if step.kind == "append":
                staged = self._pool.staged(step.file)
                name_keys(staged, self._keys)
                result = await self._client.commit(staged, timeout=300)
            else:
                execute = self._execution(step, table)
                work = await asyncio.to_thread(execute, None)
                result = await self._client.commit(work, reexecute=execute, attempts=ATTEMPTS, timeout=300)
            mixed.again += result.attempts - 1
            noted(mixed, step, began)

    def _execution(self, step: Step, table: Any) -> Callable[[Reexecution | None], Any]:
        source = rows(step.keys, step.value)  # the same object each time, so that a merge can use its results again

        def execute(again: Reexecution | None) -> Any:
            table.checkout_latest()
            if step.kind == "upsert":
                return staging.merge_insert(table, source, on="id", again=again, cache=self._cache)
            if step.kind == "delete":
                return staging.delete(table, f"id = {step.keys[0]}", cache=self._cache)
            return staging.update_config(table, config={step.setting: str(step.value)})

        return execute
