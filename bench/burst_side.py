"""A writer that executes many upserts or deletes beforehand, and then submits all of them at once.

It shares a process with nobody (see `workers`). Executing them is not timed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

os.environ.setdefault("LANCE_LOG", "error")

import lance

from bench.pool import Pool, rows
from committerd_client import ClientError, CommitClient, staging

Kind = Literal["upsert", "delete"]
NEW = 10**9
"""An upsert of the key k changes its row, and adds a row with the key k + NEW."""
_TIMEOUT_SECONDS = 300.0
_EXECUTED_AT_ONCE = 4


@dataclass(slots=True, kw_only=True)
class Burst:
    """The result of one burst; the times are of the monotonic clock."""

    began: float
    ended: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Seconds from submit to outcome of each."""
    failed: list[str] = field(default_factory=list)
    """The errors of those that were not committed."""


class Burster:
    """One writer. The constructor makes a first commit."""

    def __init__(
        self,
        *,
        pool: Pool,
        servers: str,
        dataset: str,
        uri: str,
        in_flight: int,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        self._pool, self._uri, self._storage_options = pool, uri, storage_options
        self._in_flight = in_flight
        self._ready: list[Any] = []
        self._runner = asyncio.Runner()
        self._client = CommitClient(servers, dataset=dataset, dataset_uri=uri, storage_options=storage_options)
        self._runner.run(self._client.start())
        first = staging.update_config(self._open(), config={"bench.first": "1"})
        self._runner.run(self._client.commit(first, timeout=_TIMEOUT_SECONDS))

    def execute(self, *, kind: Kind, keys: Sequence[int]) -> int:
        """Execute an operation for each key on the latest version; return that version."""
        table = self._open()

        def one(key: int) -> Any:
            if kind == "upsert":
                return staging.merge_insert(table, rows([key, NEW + key], key + 1), on="id")
            return staging.delete(table, f"id = {key}")

        with ThreadPoolExecutor(_EXECUTED_AT_ONCE) as threads:
            self._ready = list(threads.map(one, keys))
        return int(table.version)

    def submit(self) -> Burst:
        """Submit all that were executed; wait for all outcomes."""
        return self._runner.run(self._submit())

    def submit_before(self, *, file: int) -> float:
        """Submit all that were executed, and the Append of a file when Kafka has acknowledged them.

        Returns the seconds from the Append's submit to its outcome, and waits for the others too.
        """
        return self._runner.run(self._submit_before(file))

    def version(self) -> int:
        """The latest version of the table."""
        return int(self._open().version)

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    def _open(self) -> Any:
        return lance.dataset(self._uri, storage_options=self._storage_options)

    async def _submit(self) -> Burst:
        burst, places = Burst(began=time.monotonic()), asyncio.Semaphore(self._in_flight)

        async def one(work: Any) -> None:
            async with places:
                began = time.monotonic()
                try:
                    await self._client.commit(work, timeout=_TIMEOUT_SECONDS)
                except ClientError as error:
                    burst.failed.append(str(error))
                else:
                    burst.seconds.append(time.monotonic() - began)

        await asyncio.gather(*map(one, self._ready))
        burst.ended = time.monotonic()
        return burst

    async def _submit_before(self, file: int) -> float:
        handles = await asyncio.gather(*(self._client.submit(work, timeout=_TIMEOUT_SECONDS) for work in self._ready))
        began = time.monotonic()
        await self._client.commit(self._pool.staged(file), timeout=_TIMEOUT_SECONDS)
        seconds = time.monotonic() - began
        await asyncio.gather(*(one.outcome(timeout=_TIMEOUT_SECONDS) for one in handles))
        return seconds
