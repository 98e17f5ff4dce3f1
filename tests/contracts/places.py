"""Where the stores of the contract suite keep their objects.

A place is a string, so that a child process can open the same one. As a program: race for keys.

    python -m tests.contracts.places PLACE TAG KEY...

says "ready", waits for a line on stdin, puts `TAG KEY` under each key, and prints the keys that it
won as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from pathlib import Path

import anyio
from prometheus_client import CollectorRegistry

from committerd.edges.local import LocalStore
from committerd.edges.measured import MeasuredStore
from committerd.ports import Created, ObjectStore
from committerd.telemetry import Telemetry
from tests.simulation.store import Bucket, FakeStore

_BUCKETS: defaultdict[str, Bucket] = defaultdict(Bucket)
"""What is in memory is in this process only."""


def open_store(place: str) -> ObjectStore:
    """A store of its own at `KIND:WHERE`."""
    kind, _, where = place.partition(":")
    match kind:
        case "local":
            return LocalStore(Path(where))
        case "local-not-durable":
            return LocalStore(Path(where), durable=False)
        case "memory":
            return FakeStore(_BUCKETS[where])
        case "measured-local":
            return MeasuredStore(LocalStore(Path(where)), Telemetry(CollectorRegistry()))
        case _:
            raise ValueError(f"no such kind of store: {kind}")


async def race(place: str, tag: str, keys: list[str]) -> list[str]:
    """Put every key if absent, all at once and in an order of our own; the keys that were won."""
    store = open_store(place)
    won = []

    async def put(key: str) -> None:
        if await store.put_if_absent(key, f"{tag} {key}".encode()) == Created():
            won.append(key)

    async with anyio.create_task_group() as tasks:
        for key in random.Random(tag).sample(keys, len(keys)):
            tasks.start_soon(put, key)
    await store.aclose()
    return won


if __name__ == "__main__":
    place, tag, *keys = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(anyio.run(race, place, tag, keys)))
