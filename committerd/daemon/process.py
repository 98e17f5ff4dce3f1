"""The process: its datasets, their probes, and its graceful shutdown.

On SIGTERM and SIGINT all datasets drain, some at a time: each ends the commit in flight, publishes and acknowledges
its outcomes, and leaves the group, so a standby takes over at once. Any other end of the process is safe too, because
only the tables count.
"""

from __future__ import annotations

import importlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import anyio
import anyio.lowlevel
from anyio import to_thread

from committerd import __version__
from committerd.daemon.certificates import ends_of
from committerd.daemon.hosted import Hosting, OpenDataset
from committerd.daemon.probes import SILENT_SECONDS, Beat, readiness, stuck_parts
from committerd.daemon.watching import DatasetsWatch
from committerd.errors import single_error
from committerd.memory import limit_bytes
from committerd.page.site import Page, pages
from committerd.page.views import Process
from committerd.parts import Parts
from committerd.settings.load import ServedDatasets, SharedSettings
from committerd.telemetry import Metrics, ProcessTelemetry

_log = logging.getLogger(__name__)

_LOAD_AHEAD_SECONDS = 1.0
"""How often the committers' states are looked at, until one has started."""

_WATCH_SECONDS = 1.0
"""How exactly the status page says since when a dataset is in its state."""

Serve = Callable[
    [Callable[[], list[str]], Callable[[], tuple[bool, str]], Mapping[str, Page]], AbstractAsyncContextManager[str]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the process uses of the world."""

    open_dataset: OpenDataset
    metrics: Metrics
    serve: Serve
    """Makes a context manager that serves metrics, probes and the status page, and yields the URL."""
    wall_clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    parts: Parts = field(default_factory=Parts)
    handed_over: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    """Waits until other processes of the group have the datasets that are not served here any more."""
    drained: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    """Awaited once all datasets have drained, and cancelled when the time to drain is over."""


async def run(served: ServedDatasets, around: Surroundings) -> None:
    """Commit until SIGTERM or SIGINT, then drain. Raises what ended the only dataset of a process for one."""
    try:
        await _run(served, around)
    except ExceptionGroup as error:
        raise single_error(error) from None


async def _run(served: ServedDatasets, around: Surroundings) -> None:
    seconds = served.shared.daemon.drain_seconds

    def now_ms() -> int:
        return int(around.wall_clock().timestamp() * 1000)

    hosting = Hosting(
        around.open_dataset,
        around.metrics,
        is_one=served.is_one,
        drain_seconds=seconds,
        now_ms=now_ms,
        handed_over=around.handed_over,
    )
    shown = Process(host=socket.gethostname(), now_ms=now_ms, started_ms=now_ms(), datasets=hosting.views)
    beat = Beat(around.monotonic)
    track_process(served.shared, around.metrics.process)
    around.metrics.process.kafka_connected.track(lambda: _is_connected(hosting))
    watch = None
    if served.file is not None:
        watch = DatasetsWatch(served.file, served.content, hosting, around.metrics.process)
    names = sorted(served.datasets)
    _log.info("daemon.start", extra={"version": __version__, "datasets": names})

    def live() -> list[str]:
        return stuck_parts(beat, (one.owner_turned_at for one in hosting.members()))

    def ready() -> tuple[bool, str]:
        is_ready, text = readiness(hosting.conditions())
        trouble = watch.trouble if watch is not None else ""
        return is_ready, f"{text}; as before, because {trouble}" if trouble else text

    async with around.serve(live, ready, pages(shown)) as url, anyio.create_task_group() as tasks:
        _log.info("http.listening", extra={"url": url})
        tasks.start_soon(beat.run)
        tasks.start_soon(_load_ahead, hosting)
        tasks.start_soon(around.parts.keep, "status", partial(_watch, shown))
        if watch is not None:
            tasks.start_soon(around.parts.keep, "datasets_file", watch.run)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            tasks.start_soon(_stop_at, signals, hosting, tasks.cancel_scope, seconds)
            await hosting.run(served.datasets)
            await around.drained()
        tasks.cancel_scope.cancel()
    _log.info("daemon.end")


def track_process(settings: SharedSettings, telemetry: ProcessTelemetry) -> None:
    """Let the metrics show the limits of this process: its memory, and how long its certificates are valid."""
    telemetry.memory_limit.track(limit_bytes)
    for certificate, end in ends_of(settings).items():
        telemetry.certificate_expiry.track(end, certificate=certificate)


def _is_connected(hosting: Hosting) -> float:
    members = hosting.members()
    return float(bool(members) and all(one.silent_seconds() < SILENT_SECONDS for one in members))


async def _watch(shown: Process) -> None:
    while True:
        shown.watch()
        await anyio.sleep(_WATCH_SECONDS)


async def _load_ahead(hosting: Hosting) -> None:
    """Load the library that reads deletion files, so that the first Delete does not wait for it: 0.1 s, 35 MiB.

    Not before a committer has started, so that the start does not wait for it either.
    """
    while all(one.is_loading for one in hosting.datasets.values()):  # noqa: ASYNC110  # the states are values, and no event
        await anyio.sleep(_LOAD_AHEAD_SECONDS)
    try:
        await to_thread.run_sync(importlib.import_module, "pyarrow")
    except Exception as error:  # noqa: BLE001  # whoever needs it meets the error too, and says so
        _log.warning("daemon.not_loaded_ahead", extra={"error": repr(error)})


async def _stop_at(
    signals: AsyncIterator[signal.Signals],
    hosting: Hosting,
    scope: anyio.CancelScope,
    drain_seconds: float,
) -> None:
    """Drain at the first signal; stop at once at the second signal, or when the time to drain is over."""
    async for number in signals:
        _log.info("daemon.draining", extra={"signal": number.name, "seconds": drain_seconds})
        hosting.stop()
        break
    with anyio.move_on_after(drain_seconds):
        async for _ in signals:
            break
    _log.warning("daemon.drain_cut_short", extra={"seconds": drain_seconds})
    scope.cancel()
