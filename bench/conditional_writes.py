"""The lower limit of a commit: the store's conditional write, one after the other, with nothing around it."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import anyio

from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.local import LocalStore
from committerd.stores.open import Stores
from committerd.stores.port import Created, ObjectStore


def locally(folder: Path, size: int, count: int, *, durable: bool) -> list[float]:
    """Return how many seconds each `put_if_absent` of this many bytes takes."""
    return anyio.run(_timed, LocalStore(folder, durable=durable), secrets.token_bytes(size), count)


def in_bucket(uri: str, settings: S3Settings, size: int, count: int) -> list[float]:
    """As `locally`, below `uri`, on an open connection."""

    async def connect_and_time() -> list[float]:
        async with Stores(settings, DynamoDBSettings()) as stores:
            store, body = stores.open(uri), secrets.token_bytes(size)
            await timed_write(store, "first", body)
            return await _timed(store, body, count)

    return anyio.run(connect_and_time)


async def timed_write(store: ObjectStore, path: str, body: bytes) -> float:
    """Return how many seconds one write takes, to a path that does not exist."""
    began = time.perf_counter()
    answer = await store.put_if_absent(path, body)
    taken = time.perf_counter() - began
    assert isinstance(answer, Created)
    return taken


async def _timed(store: ObjectStore, body: bytes, count: int) -> list[float]:
    return [await timed_write(store, f"raw/{number}", body) for number in range(count)]
