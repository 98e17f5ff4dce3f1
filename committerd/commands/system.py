"""The real stores, clocks, random numbers and ids, for every command."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from committerd.commands.printing import tell_history
from committerd.settings.dataset import DatasetSettings
from committerd.settings.load import Settings, StorageSettings
from committerd.stores.clouds import cloud_settings
from committerd.stores.open import Stores
from committerd.stores.port import ObjectStore
from committerd.stretches import Stretches
from committerd.table.branches import require_branch
from committerd.table.versions import Table
from committerd_common.branches import branch_uri

if TYPE_CHECKING:
    from committerd.table.case import Sources
    from committerd.telemetry import ProcessTelemetry


def wall_clock() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds on a monotonic clock."""
    return time.monotonic()


def sources() -> Sources:
    """The real clock, random numbers and ids, for a command that commits."""
    # Imported here: commands that only read do not need it.
    from committerd.table.case import Sources

    return Sources(wall_clock=wall_clock, random=random.SystemRandom(), new_uuid=uuid.uuid4)


def stores_of(settings: Settings | StorageSettings, *, telemetry: ProcessTelemetry | None = None) -> Stores:
    """The stores that the settings describe; a context manager."""
    return Stores(
        settings.s3,
        settings.dynamodb,
        clouds=cloud_settings(settings),
        durable=settings.store.durable,
        telemetry=telemetry,
    )


class Accounts:
    """The stores of a process with many datasets: those with the same settings of the stores share their clients."""

    def __init__(self, stack: AsyncExitStack, telemetry: ProcessTelemetry | None = None) -> None:
        """`stack`: closes the clients at its end. `telemetry`: counts their requests."""
        self._stack = stack
        self._telemetry = telemetry
        self._opened: dict[tuple[object, ...], Stores] = {}

    async def stores_of(self, settings: Settings) -> Stores:
        """The stores that the settings describe. They stay open until the end of the stack."""
        key = (settings.s3, settings.dynamodb, settings.azure, settings.gcs, settings.store.durable)
        if key not in self._opened:
            made = stores_of(settings, telemetry=self._telemetry)
            self._opened[key] = made
            await self._stack.enter_async_context(made)
        return self._opened[key]


async def open_place(stores: Stores, dataset: DatasetSettings) -> ObjectStore:
    """Open the table, or its branch. Raises `RefusedToRun` (`branch_missing`) if the table has no such branch."""
    return await open_branch(stores, dataset.uri, dataset.branch)


async def open_history(stores: Stores, dataset: DatasetSettings, *, newest: int | None = None) -> Table:
    """Open the table, or its branch, for a command that reads its history; if that is long, say so first.

    `newest`: how many versions it reads, from the newest on; None = all that it needs.

    Raises as `open_place` and `Table.latest_version`.
    """
    table = Table(await open_place(stores, dataset), give_way=Stretches().of_one())
    latest = await table.latest_version() or 0
    tell_history(latest if newest is None else min(newest, latest))
    return table


async def open_branch(stores: Stores, uri: str, branch: str) -> ObjectStore:
    """Open a branch of the table at `uri`, or the table if `branch` is empty. Raises as `open_place`."""
    if branch:
        await require_branch(stores.open(uri), branch)
    return stores.open(branch_uri(uri, branch))
