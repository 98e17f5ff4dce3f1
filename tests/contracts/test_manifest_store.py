"""The contract of every external manifest store (`committerd.stores.port.ManifestStore`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.stores.measured import MeasuredManifests
from committerd.stores.port import Created, Exists, ManifestEntry, ManifestStore
from committerd.telemetry import Telemetry
from harness.dynamodb import DynamoDBEndpoint
from tests.contracts.entries import FakeManifests, Shelf
from tests.contracts.places import close, dynamo_store

Open = Callable[[], ManifestStore]


def entry(version: int, name: str = "", *, size: int | None = 10) -> ManifestEntry:
    return ManifestEntry(version=version, key=f"_versions/{name or version}.manifest", size=size)


@pytest.fixture(params=["memory", "measured", pytest.param("dynamodb", marks=pytest.mark.dynamodb)])
async def open_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Opens a store on the same entries at each call."""
    opened: list[ManifestStore] = []
    make: Open
    if request.param == "memory":
        shelf = Shelf()
        make = lambda: FakeManifests(shelf)  # noqa: E731
    elif request.param == "measured":
        shelf = Shelf()
        make = lambda: MeasuredManifests(FakeManifests(shelf), Telemetry(CollectorRegistry()))  # noqa: E731
    else:
        endpoint: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
        table = endpoint.make_table()
        make = lambda: dynamo_store(f"{endpoint.url}|{table}|some/a table.lance")  # noqa: E731

    def remembered() -> ManifestStore:
        opened.append(make())
        return opened[-1]

    yield remembered
    for store in opened:
        await close(store)


@pytest.fixture
def store(open_one: Open) -> ManifestStore:
    return open_one()


async def test_an_entry_is_read_as_it_was_put(store: ManifestStore) -> None:
    assert await store.get(1) is None
    for one in (entry(1), entry(2, size=None), entry(2**63 - 1, size=2**40)):
        assert await store.put_if_absent(one) == Created()
        assert await store.get(one.version) == one


async def test_the_first_entry_of_a_version_stays(store: ManifestStore) -> None:
    assert await store.put_if_absent(entry(1, "first")) == Created()
    for name in ("first", "second"):
        assert await store.put_if_absent(entry(1, name)) == Exists()
    assert await store.get(1) == entry(1, "first")


async def test_only_an_entry_that_is_there_is_replaced(store: ManifestStore) -> None:
    assert not await store.replace(entry(1))
    assert await store.get(1) is None
    await store.put_if_absent(entry(1, "first"))
    for _ in range(2):
        assert await store.replace(entry(1, "second", size=None))
        assert await store.get(1) == entry(1, "second", size=None)


async def test_an_entry_is_deleted_only_if_it_names_the_key(store: ManifestStore) -> None:
    await store.put_if_absent(entry(1, "first"))
    await store.put_if_absent(entry(2, "second"))
    await store.delete(1, key=entry(1, "other").key)
    assert await store.get(1) == entry(1, "first")
    for _ in range(2):
        await store.delete(1, key=entry(1, "first").key)
        assert (await store.get(1), await store.get(2)) == (None, entry(2, "second"))


async def test_the_latest_is_the_highest_number(store: ManifestStore) -> None:
    assert await store.latest() is None
    for version in (9, 10, 2, 101, 100):
        await store.put_if_absent(entry(version))
    assert await store.latest() == entry(101)


async def test_detached_versions_are_not_the_latest(store: ManifestStore) -> None:
    detached = entry(2**63 + 5, "d9223372036854775813")
    await store.put_if_absent(detached)
    assert await store.latest() is None
    await store.put_if_absent(entry(2**63 - 1))
    assert await store.latest() == entry(2**63 - 1)
    assert await store.get(2**63 + 5) == detached


async def test_of_many_at_once_one_creates_the_entry(open_one: Open) -> None:
    stores = [open_one() for _ in range(4)]
    won: dict[int, list[str]] = {version: [] for version in range(1, 11)}

    async def put(store: ManifestStore, version: int, name: str) -> None:
        if await store.put_if_absent(entry(version, name)) == Created():
            won[version].append(name)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            for version in won:
                tasks.start_soon(put, stores[number % 4], version, f"by-{number}")
    assert {version: len(names) for version, names in won.items()} == dict.fromkeys(won, 1)
    for version, names in won.items():
        assert await stores[0].get(version) == entry(version, names[0])
