"""Every external manifest store keeps the contract, `committerd.testing.ManifestStoreTests`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from committerd.stores.measured import MeasuredManifests
from committerd.stores.port import ManifestStore
from committerd.telemetry import Metrics
from committerd.testing import ManifestStoreTests, OpenManifests
from harness.dynamodb import DynamoDBEndpoint
from tests.contracts.entries import FakeManifests, Shelf
from tests.contracts.places import close, dynamo_store


class TestManifestStore(ManifestStoreTests):
    @pytest.fixture(params=["memory", "measured", pytest.param("dynamodb", marks=pytest.mark.dynamodb)])
    def open_manifests(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenManifests:
        make: Callable[[], ManifestStore]
        if request.param == "memory":
            shelf = Shelf()
            make = lambda: FakeManifests(shelf)  # noqa: E731
        elif request.param == "measured":
            shelf = Shelf()
            make = lambda: MeasuredManifests(FakeManifests(shelf), Metrics(CollectorRegistry()).of("events"))  # noqa: E731
        else:
            endpoint: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
            table = endpoint.make_table()
            make = lambda: dynamo_store(f"{endpoint.url}|{table}|some/a table.lance")  # noqa: E731

        @asynccontextmanager
        async def opened() -> AsyncIterator[ManifestStore]:
            store = make()
            yield store
            await close(store)

        return opened
