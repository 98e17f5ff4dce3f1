"""The tables that one process of `committerd maintain` keeps: what fails for one of them is no other's matter."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
from prometheus_client import CollectorRegistry

from committerd.commands.maintain.loop import MaintenanceLoop
from committerd.commands.maintain.one_table import Shared, is_there, opened
from committerd.commands.maintain.reporter import Reporter
from committerd.commands.system import Accounts
from committerd.daemon.logs import lines_of
from committerd.errors import SettingsError, single_error
from committerd.settings.load import ServedDatasets, Settings
from committerd.telemetry import MaintenanceMetrics, MaintenanceTelemetry

_log = logging.getLogger(__name__)
_OPENING_SECONDS = (1.0, 60.0)
"""First and longest wait before a table that could not be opened is tried again; it doubles each time."""
_SHOWN_MAX = 20
"""Limit of tables in the text of /readyz."""


class Tables:
    """The tables of the settings."""

    def __init__(
        self,
        found: ServedDatasets,
        shared: Shared,
        metrics: MaintenanceMetrics,
        stack: AsyncExitStack,
        *,
        as_json: bool,
    ) -> None:
        """`stack`: closes the stores at its end."""
        self._found = found
        self._shared = shared
        self._metrics = metrics
        self._accounts = Accounts(stack)
        self._as_json = as_json
        self._doing: dict[str, Callable[[], str]] = {}

    async def say(self) -> bool:
        """Say what there is to do for each table, and do nothing; whether all of them could be looked at."""
        return await self._each(MaintenanceLoop.say, at_once=1, heading=True)

    async def once(self, tables: int) -> bool:
        """Do what there is to do now, for so many tables at the same time; whether all of it succeeded."""
        return await self._each(MaintenanceLoop.once, at_once=tables)

    async def forever(self, registry: CollectorRegistry) -> bool:
        """Do what there is to do until the process has to end, and serve the metrics."""
        # Imported here: --once and --dry-run serve nothing, and aiohttp takes a tenth of a second.
        from committerd.daemon.http import Health, serve

        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(
                serve(self._found.shared.http, registry, Health(live=lambda: (), ready=lambda: (True, self._text())))
            )
            _log.info("http.listening", extra={"url": address.url})
            async with anyio.create_task_group() as tasks:
                for configured in self._found.datasets.values():
                    tasks.start_soon(self._keep, configured)
        return True

    async def _each(
        self, work: Callable[[MaintenanceLoop], Awaitable[bool]], *, at_once: int, heading: bool = False
    ) -> bool:
        """Do this work on each table, open no longer than it takes; whether all of it succeeded."""
        limit, failed = anyio.CapacityLimiter(at_once), list[str]()

        async def one(configured: Settings) -> None:
            queue = configured.dataset.queue
            async with limit:
                if self._shared.stop.wanted:
                    return
                reporter = self._reporter(queue, logged=False)
                if heading and not self._found.is_one:
                    reporter.heading()
                if not await self._done(configured, reporter, work):
                    failed.append(queue)

        async with anyio.create_task_group() as tasks:
            for configured in self._found.datasets.values():
                tasks.start_soon(one, configured)
        if failed and not self._found.is_one:
            self._reporter("", logged=False).failed_tables(sorted(failed), len(self._found.datasets))
        return not failed

    async def _done(
        self, configured: Settings, reporter: Reporter, work: Callable[[MaintenanceLoop], Awaitable[bool]]
    ) -> bool:
        """Whether this work on a table succeeded. Raises its errors only if the process has no other table."""
        telemetry = self._metrics.of(configured.dataset.queue)
        try:
            stores = await self._accounts.stores_of(configured)
            if not await is_there(configured, stores):
                if self._found.is_one:
                    raise SettingsError(
                        f"there is no table at {configured.dataset.place}: maintenance begins when somebody has "
                        "created it. Or correct dataset.uri"
                    )
                reporter.waits_for_table()
                return True
            async with opened(configured, stores, reporter, telemetry, shared=self._shared) as loop:
                return await work(loop)
        except Exception as error:
            if self._found.is_one:
                raise
            reporter.failed("open", single_error(error))
            return False

    async def _keep(self, configured: Settings) -> None:
        """Keep a table until the process has to end."""
        queue, stop = configured.dataset.queue, self._shared.stop
        telemetry, reporter = self._metrics.of(queue), self._reporter(queue, logged=True)
        wait, longest = _OPENING_SECONDS
        with lines_of(queue):
            while not stop.wanted:
                self._doing[queue] = lambda: "it is being opened"
                try:
                    stores = await self._accounts.stores_of(configured)
                    async with opened(configured, stores, reporter, telemetry, shared=self._shared) as loop:
                        self._doing[queue], wait = loop.state, _OPENING_SECONDS[0]
                        await loop.forever()
                except Exception as error:
                    if self._found.is_one:
                        raise
                    self._not_opened(queue, single_error(error), reporter, telemetry)
                    await stop.wait(wait)
                    wait = min(wait * 2, longest)

    def _not_opened(self, queue: str, error: Exception, reporter: Reporter, telemetry: MaintenanceTelemetry) -> None:
        reporter.failed("open", error)
        telemetry.failures.add(step="open")
        text = f"it could not be opened: {error}"
        self._doing[queue] = lambda: text

    def _reporter(self, queue: str, *, logged: bool) -> Reporter:
        return Reporter(as_json=self._as_json, logged=logged, dataset="" if self._found.is_one else queue)

    def _text(self) -> str:
        """What is done now, for people."""
        if self._found.is_one:
            return "".join(doing() for doing in self._doing.values())
        shown = [f"{queue}: {doing()}" for queue, doing in list(self._doing.items())[:_SHOWN_MAX]]
        more = len(self._doing) - len(shown)
        return "; ".join([*shown, *([f"and {more} more"] if more else [])])
