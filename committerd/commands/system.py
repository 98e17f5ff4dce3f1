"""The real stores and clocks, for every command."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from committerd.settings.load import Settings, StorageSettings
from committerd.stores.clouds import cloud_settings
from committerd.stores.open import Stores

if TYPE_CHECKING:
    from committerd.telemetry import Telemetry


def wall_clock() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds on a monotonic clock."""
    return time.monotonic()


def stores_of(settings: Settings | StorageSettings, *, telemetry: Telemetry | None = None) -> Stores:
    """The stores that the settings describe; a context manager."""
    return Stores(
        settings.s3,
        settings.dynamodb,
        clouds=cloud_settings(settings),
        durable=settings.store.durable,
        telemetry=telemetry,
    )
