"""The work of a producer, with whichever version of committerd is on the path: adds rows and upserts until SIGTERM.

    python tests/upgrades/work.py SERVERS DATASET URI NAME FIRST taken|refused|none [AGAIN]

Row FIRST + N is appended as unit N + 1 of the application NAME. With `taken`, row -1 then gets its id as value `v`, as
other producers do too; with `refused` that is tried once, and must be INVALID. AGAIN is the unit NAME/VERSION of
another producer, which must be a duplicate. Prints a JSON object for each id that was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time

import pytest

import committerd_client
from committerd_client import App, CommitClient, InvalidTransaction, KafkaUnavailable


async def _started(servers: str, dataset: str, uri: str, name: str) -> CommitClient:
    """A client that is connected. Release 0.1 asks a broker once, and waits 7 s: a busy machine may need longer."""
    until = time.monotonic() + 120
    while True:
        client = CommitClient(servers, dataset=dataset, dataset_uri=uri, producer=name, timeout=240)
        try:
            await client.start()
            return client
        except KafkaUnavailable:
            if time.monotonic() > until:
                raise


async def _work(servers: str, dataset: str, uri: str, name: str, first: int, upserts: str, again: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with contextlib.aclosing(await _started(servers, dataset, uri, name)) as client:
        if again:
            application, _, version = again.partition("/")
            repeated = await client.append([{"id": first, "v": 0}], app=App(application, int(version)))
            assert repeated.duplicate, repeated
        if upserts == "refused":
            with pytest.raises(InvalidTransaction, match=r"committerd\.key-hash"):
                await client.upsert([{"id": -1, "v": first}], on="id")
        count = 0
        while not stopped.is_set():
            number = first + count
            count += 1
            unit = App(name, count)
            added = await client.append([{"id": number, "v": 0}], app=unit)
            assert not added.duplicate, added
            repeated = await client.append([{"id": number, "v": 0}], app=unit)
            assert repeated.duplicate, repeated
            done: dict[str, object] = {"id": number, "unit": f"{name}/{count}"}
            if upserts == "taken":
                changed = await client.upsert([{"id": -1, "v": number}], on="id")
                assert (changed.num_updated_rows, changed.num_inserted_rows) == (1, 0), changed
                done["upsert"] = changed.version
            print(json.dumps(done), flush=True)


if __name__ == "__main__":
    print(json.dumps({"client": committerd_client.__file__}), flush=True)
    kafka, queue, place, producer, begin, mode, *repeats = sys.argv[1:]
    asyncio.run(_work(kafka, queue, place, producer, int(begin), mode, "".join(repeats)))
