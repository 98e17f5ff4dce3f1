"""Datasets that go and come back while they are still opened or drain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import lowlevel
from prometheus_client import CollectorRegistry

from committerd.daemon.dataset import Dependencies
from committerd.daemon.hosted import HostedDataset, Hosting
from committerd.settings.dataset import DatasetSettings
from committerd.settings.kafka import KafkaSettings
from committerd.settings.load import Settings
from committerd.telemetry import Metrics, Telemetry


def settings(*aliases: str) -> Settings:
    return Settings(
        dataset=DatasetSettings(name="events", uri="/lake/events", aliases=aliases),
        kafka=KafkaSettings(bootstrap_servers=("kafka:9092",)),
    )


class Openings:
    """Opens datasets as if a request to Kafka hung that can't be cancelled, until `released`."""

    def __init__(self) -> None:
        self.of: list[Settings] = []
        self.released = anyio.Event()

    @asynccontextmanager
    async def open(self, configured: Settings, telemetry: Telemetry) -> AsyncIterator[Dependencies]:
        self.of.append(configured)
        with anyio.CancelScope(shield=True):
            await self.released.wait()
        await anyio.sleep_forever()
        raise AssertionError
        yield

    async def until(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.of) < count:
                await lowlevel.checkpoint()


def hosting_of(openings: Openings) -> Hosting:
    metrics = Metrics(CollectorRegistry())
    return Hosting(openings.open, metrics, is_one=False, drain_seconds=600, now_ms=lambda: 0)


async def test_a_dataset_that_comes_back_while_it_drains_begins_anew_once() -> None:
    openings = Openings()
    hosting = hosting_of(openings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hosting.run, {"events": settings()})
        await openings.until(1)
        assert hosting.apply({})["removed"] == ["events"]
        assert hosting.conditions() == []
        for again in (settings(), settings("/mount/events")):
            hosting.apply({"events": again})
        await anyio.wait_all_tasks_blocked()
        assert len(openings.of) == 1, "the first still drains"
        openings.released.set()
        await openings.until(2)
        await anyio.wait_all_tasks_blocked()
        assert openings.of == [settings(), settings("/mount/events")]
        hosting.stop()


async def test_a_process_that_stops_shows_what_still_drains() -> None:
    openings = Openings()
    hosting = hosting_of(openings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hosting.run, {"events": settings()})
        await openings.until(1)
        hosting.stop()
        ((name, condition),) = hosting.conditions()
        assert (name, condition.well) == ("events", False)
        openings.released.set()
    assert hosting.conditions() == []


async def test_a_process_that_stops_hands_its_datasets_over_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next begin to drain when others have the first, or have not taken them in time."""
    monkeypatch.setattr(HostedDataset, "is_active", True)
    openings, first, second, taken = Openings(), anyio.Event(), anyio.Event(), anyio.Event()
    openings.released.set()

    async def handed_over() -> None:
        if not first.is_set():
            first.set()
            return
        second.set()
        await taken.wait()

    hosting = Hosting(
        openings.open,
        Metrics(CollectorRegistry()),
        is_one=False,
        drain_seconds=600,
        now_ms=lambda: 0,
        handed_over=handed_over,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hosting.run, {f"t{number}": settings() for number in range(20)})
        await openings.until(20)
        hosting.stop()
        with anyio.fail_after(60):
            await second.wait()
        assert len(hosting.datasets) == 4, "the others are served until the second have been taken"
        taken.set()
    assert len(hosting.datasets) == 0
