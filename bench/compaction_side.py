"""A compaction, and writers that change rows of the fragments that it rewrites: through the queue, or with pylance.

Each object has a process of its own (see `workers`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import lance

from bench.pool import rows
from committerd_client import ClientError, CommitClient, staging

TARGET_ROWS = 1_000_000
"""Rows of a fragment after the compaction."""
UPSERTED = 1
"""The value that an upsert writes."""
_TIMEOUT_SECONDS = 300.0
_EXECUTED_AT_ONCE = 4


@dataclass(slots=True, kw_only=True)
class Changes:
    """What writers did; the times are of the monotonic clock."""

    began: float
    ended: float = 0.0
    deleted: list[int] = field(default_factory=list)
    upserted: list[int] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)
    """When each was committed."""
    again: int = 0
    """Changes that were refused, or that pylance gave up and that were repeated."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction that was committed, or was not committed in time (`attempts` all failed)."""

    committed: bool
    attempts: int
    seconds: float
    began: float
    """On the monotonic clock."""


def changes(deletes: Sequence[int], upserts: Sequence[int]) -> list[tuple[str, int]]:
    """(kind, key) of each change; the upserts spread evenly among the deletes."""
    each = max(1, len(deletes) // max(1, len(upserts)))
    parts = (deletes[start : start + each] for start in itertools.count(0, each))
    mixed: list[tuple[str, int]] = []
    for key, part in zip(upserts, parts, strict=False):
        mixed += [("delete", one) for one in part]
        mixed.append(("upsert", key))
    return mixed + [("delete", one) for one in deletes[len(mixed) - len(upserts) :]]


class QueuedChanges:
    """Changes that are executed beforehand on one version, and then submitted at a steady rate."""

    def __init__(self, *, servers: str, dataset: str, uri: str) -> None:
        self._uri = uri
        self._ready: list[tuple[str, int, Any]] = []
        self._runner = asyncio.Runner()
        self._client = CommitClient(servers, dataset=dataset, dataset_uri=uri)
        self._runner.run(self._client.start())

    def execute(self, *, deletes: Sequence[int], upserts: Sequence[int]) -> None:
        """Execute them on the latest version."""
        table, cache = lance.dataset(self._uri), staging.KeyCache()

        def one(change: tuple[str, int]) -> tuple[str, int, Any]:
            kind, key = change
            if kind == "delete":
                return kind, key, staging.delete(table, f"id = {key}", cache=cache)
            return kind, key, staging.merge_insert(table, rows([key], UPSERTED), on="id", cache=cache)

        with ThreadPoolExecutor(_EXECUTED_AT_ONCE) as threads:
            self._ready = list(threads.map(one, changes(deletes, upserts)))

    def run(self, *, per_second: float) -> Changes:
        """Submit them at this rate, and wait for all outcomes."""
        return self._runner.run(self._run(per_second))

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    async def _run(self, per_second: float) -> Changes:
        done = Changes(began=time.monotonic())

        async def commit(kind: str, key: int, work: Any) -> None:
            try:
                await self._client.commit(work, timeout=_TIMEOUT_SECONDS)
            except ClientError:
                done.again += 1
            else:
                (done.deleted if kind == "delete" else done.upserted).append(key)
                done.ended_at.append(time.monotonic())

        async with asyncio.TaskGroup() as group:
            for number, change in enumerate(self._ready):
                await asyncio.sleep(done.began + number / per_second - time.monotonic())
                group.create_task(commit(*change))
        done.ended = time.monotonic()
        return done


class DirectChanges:
    """Changes that pylance executes and commits, one after the other, at most at a given rate."""

    def __init__(self, *, uri: str, deletes: Sequence[int], upserts: Sequence[int]) -> None:
        self._table: Any = lance.dataset(uri)
        self._changes = changes(deletes, upserts)

    def run(self, *, per_second: float, seconds: float) -> Changes:
        """Make those that begin within the given time."""
        done = Changes(began=time.monotonic())
        for number, (kind, key) in enumerate(self._changes):
            time.sleep(max(0.0, done.began + number / per_second - time.monotonic()))
            if time.monotonic() > done.began + seconds:
                break
            done.again += _until_done(self._table, partial(self._change, kind, key), until=done.began + 2 * seconds)
            (done.deleted if kind == "delete" else done.upserted).append(key)
            done.ended_at.append(time.monotonic())
        done.ended = time.monotonic()
        return done

    def _change(self, kind: str, key: int) -> None:
        if kind == "delete":
            self._table.delete(f"id = {key}")
        else:
            builder = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            builder.execute(rows([key], UPSERTED))


def _until_done(table: Any, change: Callable[[], None], *, until: float) -> int:
    """Repeat a change until pylance commits it, and raise its error after `until`; return the number of repetitions."""
    for again in itertools.count():
        table.checkout_latest()
        try:
            change()
        except (OSError, RuntimeError):  # pylance has tried again ten times
            if time.monotonic() > until:
                raise
        else:
            return again
    raise AssertionError("unreachable")


class Compaction:
    """The compaction of the whole table, by either side."""

    def __init__(self, *, uri: str, servers: str = "", dataset: str = "") -> None:
        self._uri, self._servers, self._dataset = uri, servers, dataset

    def queued(self) -> Compacted:
        """Through the queue."""
        return asyncio.run(self._queued())

    def direct(self, *, seconds: float) -> Compacted:
        """With `optimize.compact_files()`, as often as it fails and the time allows."""
        began, attempts = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            attempts += 1
            try:
                lance.dataset(self._uri).optimize.compact_files(target_rows_per_fragment=TARGET_ROWS)
            except (OSError, RuntimeError):
                continue
            return Compacted(True, attempts, time.monotonic() - began, began)
        return Compacted(False, attempts, time.monotonic() - began, began)

    async def _queued(self) -> Compacted:
        async with CommitClient(self._servers, dataset=self._dataset, dataset_uri=self._uri) as client:
            began = time.monotonic()
            done = await client.compact(target_rows_per_fragment=TARGET_ROWS, timeout=_TIMEOUT_SECONDS)
            return Compacted(done.version is not None, done.attempts, time.monotonic() - began, began)
