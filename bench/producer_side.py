"""Producers that commit through the queue: several share a process, an event loop and a client (see `workers`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from bench.pool import Pool
from bench.written import Written
from committerd_client import ClientError, CommitClient
from committerd_common.messages import Transaction

_TIMEOUT_SECONDS = 120.0


class Producers:
    """Producers that each keep several commits in flight, and take the next file after each outcome.

    The constructor commits the first file, which finds the topics and makes the connections.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        servers: str,
        dataset: str,
        uri: str,
        numbers: Sequence[int],
        producers: int,
        in_flight: int,
    ) -> None:
        self._ready = [(number, pool.staged(number)) for number in numbers]
        self._tasks = producers * in_flight
        self._runner = asyncio.Runner()
        self._client = CommitClient(servers, dataset=dataset, dataset_uri=uri, max_in_flight=self._tasks)
        self._runner.run(self._client.start())
        self._first = self._runner.run(self._commit_first())

    def produce(self, *, seconds: float | None = None) -> Written:
        """Commit all files but the first, or as many as can be submitted in the given time."""
        return self._runner.run(self._produce(seconds))

    def one_by_one(self) -> Written:
        """Commit them one at a time, each after the outcome of the previous one: nothing else is in the queue."""
        self._tasks = 1
        return self.produce()

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    async def _produce(self, seconds: float | None) -> Written:
        made = Written(began=time.monotonic(), committed=[self._first])
        until = float("inf") if seconds is None else made.began + seconds
        files = iter(self._ready[1:])
        async with asyncio.TaskGroup() as group:
            for _ in range(self._tasks):
                group.create_task(self._commit(files, until, made))
        made.ended = time.monotonic()
        return made

    async def _commit_first(self) -> int:
        number, transaction = self._ready[0]
        await self._client.commit(transaction, timeout=_TIMEOUT_SECONDS)
        return number

    async def _commit(self, files: Iterator[tuple[int, Transaction]], until: float, made: Written) -> None:
        for number, transaction in files:
            began = time.monotonic()
            if began >= until:
                return
            try:
                await self._client.commit(transaction, timeout=_TIMEOUT_SECONDS)
            except ClientError as error:
                made.note_failed(number, error)
                continue
            made.note_committed(number, began=began)
