"""The real stores and clocks, for every command."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from committerd.settings.dataset import DatasetSettings
from committerd.settings.load import Settings, StorageSettings
from committerd.stores.clouds import cloud_settings
from committerd.stores.open import Stores
from committerd.stores.port import ObjectStore
from committerd.table.branches import require_branch
from committerd_common.branches import branch_uri

if TYPE_CHECKING:
    from committerd.telemetry import ProcessTelemetry


def wall_clock() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds on a monotonic clock."""
    return time.monotonic()


def stores_of(settings: Settings | StorageSettings, *, telemetry: ProcessTelemetry | None = None) -> Stores:
    """The stores that the settings describe; a context manager."""
    return Stores(
        settings.s3,
        settings.dynamodb,
        clouds=cloud_settings(settings),
        durable=settings.store.durable,
        telemetry=telemetry,
    )


async def open_place(stores: Stores, dataset: DatasetSettings) -> ObjectStore:
    """Open the table, or its branch. Raises `RefusedToRun` (`branch_missing`) if the table has no such branch."""
    return await open_branch(stores, dataset.uri, dataset.branch)


async def open_branch(stores: Stores, uri: str, branch: str) -> ObjectStore:
    """Open a branch of the table at `uri`, or the table if `branch` is empty. Raises as `open_place`."""
    if branch:
        await require_branch(stores.open(uri), branch)
    return stores.open(branch_uri(uri, branch))
