"""The real world, put together from settings: store, queue, clocks, dice, ids."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from committerd.daemon import Serve
from committerd.edges.http import Health, Listen, serve
from committerd.edges.kafka_queue import KafkaQueue, open_kafka_queue
from committerd.edges.local import LocalStore, local_path
from committerd.edges.measured import MeasuredStore
from committerd.errors import SettingsError
from committerd.ports import ObjectStore
from committerd.prepare import World
from committerd.settings import Settings
from committerd.telemetry import Telemetry


def open_store(uri: str, *, durable: bool = True) -> ObjectStore:
    """The store that a table's URI names. Raises `SettingsError` for a scheme that is not served."""
    path = local_path(uri)
    if path is None:
        raise SettingsError(
            f"{uri!r}: tables of this scheme are not served; give a path or a file:// URI of a file system on this "
            "machine"
        )
    return LocalStore(path, durable=durable)


def world() -> World:
    """The real clock, dice and ids."""
    return World(wall_clock=wall_clock, random=random.SystemRandom(), new_uuid=uuid.uuid4, open_store=open_store)


def wall_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds on a clock that only goes forward."""
    return time.monotonic()


@asynccontextmanager
async def opened_store(settings: Settings, *, telemetry: Telemetry | None = None) -> AsyncIterator[ObjectStore]:
    """The table's store, measured where there is telemetry."""
    store = open_store(settings.dataset.uri, durable=settings.store.durable)
    if telemetry is not None:
        store = MeasuredStore(store, telemetry)
    try:
        yield store
    finally:
        await store.aclose()


def opened_queue(settings: Settings) -> AbstractAsyncContextManager[KafkaQueue]:
    """The dataset's queue, as a member of its group."""
    return open_kafka_queue(settings.kafka, settings.dataset.name)


@asynccontextmanager
async def looking(settings: Settings) -> AsyncIterator[tuple[ObjectStore, KafkaQueue]]:
    """Store and queue for a command that looks, without joining the group or making topics."""
    async with (
        opened_store(settings) as store,
        open_kafka_queue(settings.kafka, settings.dataset.name, join=False) as queue,
    ):
        yield store, queue


def listening(listen: Listen, registry: CollectorRegistry) -> Serve:
    """How the daemon serves metrics and probes."""

    @asynccontextmanager
    async def serving(live: Callable[[], list[str]], ready: Callable[[], tuple[bool, str]]) -> AsyncIterator[str]:
        async with serve(listen, registry, Health(live=live, ready=ready)) as address:
            yield address.url

    return serving
