"""Appends at a steady rate, as a process of its own.

    python -m harness.turns.appending DATASET LOAD

Each brings one row in a file of its own, with a key that no other has. Files are written ahead, so that the rate does
not hang on them. Prints `ready` when `Load.ahead` of them are there, begins at the first line of its input, ends with
the input, and prints [first key, count, keys that were not committed] in JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from committerd_client import ClientError, CommitClient, staging
from committerd_client.staging.keys import KeyHashes, key_columns
from harness.turns.load import Dataset, Load, from_arguments

FIRST_KEY = 1_000_000_000
SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.int64(), nullable=False)])
_TICK_SECONDS = 0.02
_WRITTEN_AT_ONCE = 500
_WRITERS = 2


def table(rows: dict[int, int]) -> pa.Table:
    return pa.table({"key": list(rows), "value": list(rows.values())}, schema=SCHEMA)


class Appends:
    """One client, with as many Appends in flight as the rate needs."""

    def __init__(self, client: CommitClient, uri: str, *, timeout: float, names_keys: bool) -> None:
        self._client, self._uri, self._timeout = client, uri, timeout
        self._key_columns = key_columns(lance.dataset(uri), "key") if names_keys else None
        self._written: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._next_key = FIRST_KEY
        self._room = asyncio.Event()
        self._pending: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.failed: dict[int, str] = {}

    async def write_ahead(self, count: int, ready: asyncio.Event) -> None:
        """Write this many files; when they are used up, it writes a few more."""
        while True:
            while self._written.qsize() < count:
                for written in await asyncio.gather(*(self._write() for _ in range(_WRITERS))):
                    for one in written:
                        self._written.put_nowait(one)
            ready.set()
            count = min(count, 2 * _WRITTEN_AT_ONCE)
            self._room.clear()
            await self._room.wait()

    async def _write(self) -> list[tuple[int, Any]]:
        """Write files for the next keys."""
        first = self._next_key
        self._next_key += _WRITTEN_AT_ONCE
        rows = table(dict.fromkeys(range(first, self._next_key), 0))
        fragments = await asyncio.to_thread(write_fragments, rows, self._uri, mode="append", max_rows_per_file=1)
        return list(enumerate(fragments, start=first))

    async def append(self, a_second: int) -> None:
        """Append at the given rate, a few at each tick, and catch up when late."""
        started = time.monotonic()
        while True:
            due = int((time.monotonic() - started) * a_second)
            while self.sent < due:
                key, fragment = await self._written.get()
                self._room.set()
                task = asyncio.create_task(self._append(key, fragment))
                self._pending.add(task)
                task.add_done_callback(self._pending.discard)
                self.sent += 1
            await asyncio.sleep(_TICK_SECONDS)

    async def answered(self) -> None:
        """Wait until every Append has an outcome."""
        await asyncio.gather(*self._pending)

    async def _append(self, key: int, fragment: Any) -> None:
        try:
            keys = None
            if self._key_columns is not None:
                hashes = KeyHashes(self._key_columns, most=1)
                hashes.add_all(table({key: 0}))
                keys = hashes.filter()
            await self._client.commit(staging.append([fragment], keys=keys), timeout=self._timeout)
        except ClientError as error:
            self.failed[key] = str(error)


async def _run(dataset: Dataset, load: Load) -> None:
    async with dataset.client(max_in_flight=50_000) as client:
        appends = Appends(client, dataset.uri, timeout=load.timeout, names_keys=load.names_keys)
        ready = asyncio.Event()
        writing = asyncio.create_task(appends.write_ahead(load.ahead, ready))
        await ready.wait()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        appending = asyncio.create_task(appends.append(load.appends_per_second))
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([ended, writing, appending], return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, appending):
            if task.done():
                task.result()  # it never ends by itself: this raises
            task.cancel()
        await appends.answered()
        print(json.dumps([FIRST_KEY, appends.sent, appends.failed]), flush=True)


if __name__ == "__main__":
    asyncio.run(_run(*from_arguments()))
