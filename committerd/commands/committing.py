"""The parts of a command that commits, or that reads table and queue as a committer does.

Other commands don't import this module, because its imports take memory, and time at each start.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from committerd.commands.system import stores_of
from committerd.daemon.process import Serve
from committerd.daemon.pylance_process import PylanceProcess
from committerd.errors import SettingsError
from committerd.kafka.member import KafkaMember, open_kafka_queue, opened_member
from committerd.kafka.options import topics_of
from committerd.kafka.queue import KafkaQueue
from committerd.parts import Parts
from committerd.settings.load import ServedDatasets, Settings
from committerd.stores.open import Stores
from committerd_common.extras import install_line

if TYPE_CHECKING:
    from committerd.daemon.http import Listen
    from committerd.page.site import Page


def pylance_for(uri: str, unknown: str) -> AbstractAsyncContextManager[PylanceProcess | None]:
    """What builds versions of the table at `uri` with pylance, if `unknown` (as `commit.unknown`) is `pylance`.

    Raises `SettingsError` if pylance is not installed.
    """
    if unknown != "pylance":
        return nullcontext()
    if importlib.util.find_spec("lance") is None:
        raise SettingsError(f"commit.unknown = pylance needs pylance: {install_line('lance')}")
    return PylanceProcess([sys.executable, "-m", "committerd.commands.build_with_pylance", uri])


def opened_kafka(served: ServedDatasets, parts: Parts) -> AbstractAsyncContextManager[KafkaMember]:
    """The clients of Kafka of a process that serves these datasets, as a member of their group."""
    kafka, name = served.shared.kafka, served.name
    return opened_member(kafka, topics_of(kafka, name).group, name=name, parts=parts)


@asynccontextmanager
async def stores_and_queue(settings: Settings) -> AsyncIterator[tuple[Stores, KafkaQueue]]:
    """Stores and queue for a command that only reads: it neither joins the group nor creates topics."""
    async with (
        stores_of(settings) as stores,
        open_kafka_queue(settings.kafka, settings.dataset.queue, join=False) as queue,
    ):
        yield stores, queue


def listening(listen: Listen, registry: CollectorRegistry) -> Serve:
    """A function that serves metrics, probes and the status page."""
    # Imported here: other commands need no aiohttp, which takes 7 MiB.
    from committerd.daemon.http import Health, serve

    @asynccontextmanager
    async def serving(
        live: Callable[[], list[str]], ready: Callable[[], tuple[bool, str]], pages: Mapping[str, Page]
    ) -> AsyncIterator[str]:
        async with serve(listen, registry, Health(live=live, ready=ready), pages) as address:
            yield address.url

    return serving
