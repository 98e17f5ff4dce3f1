"""The contract of every external manifest store (`committerd.stores.port.ManifestStore`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import anyio
import pytest
import pytest_asyncio

from committerd.stores.port import Created, Exists, ManifestEntry, ManifestStore

OpenManifests = Callable[[], AbstractAsyncContextManager[ManifestStore]]
"""Opens an external manifest store, inside the block."""


@pytest.mark.asyncio(loop_scope="function")
class ManifestStoreTests:
    """Subclass it with a name that begins with `Test`, and override the fixture `open_manifests`."""

    @pytest.fixture
    def open_manifests(self) -> OpenManifests:
        """Opens a store on the entries of the same table at each call, as each process that shares a table does.

        There are no entries when a test begins.
        """
        pytest.fail("override the fixture open_manifests: it returns a function that opens your store")

    @pytest_asyncio.fixture(loop_scope="function")
    async def store(self, open_manifests: OpenManifests) -> AsyncIterator[ManifestStore]:
        """A store without entries."""
        async with open_manifests() as store:
            yield store

    async def test_an_entry_is_read_as_it_was_put(self, store: ManifestStore) -> None:
        assert await store.get(1) is None
        for one in (_entry(1), _entry(2, size=None), _entry(2**63 - 1, size=2**40)):
            assert await store.put_if_absent(one) == Created()
            assert await store.get(one.version) == one

    async def test_the_first_entry_of_a_version_stays(self, store: ManifestStore) -> None:
        assert await store.put_if_absent(_entry(1, "first")) == Created()
        for name in ("first", "second"):
            assert await store.put_if_absent(_entry(1, name)) == Exists()
        assert await store.get(1) == _entry(1, "first")

    async def test_only_an_entry_that_is_there_is_replaced(self, store: ManifestStore) -> None:
        assert not await store.replace(_entry(1))
        assert await store.get(1) is None
        await store.put_if_absent(_entry(1, "first"))
        for _ in range(2):
            assert await store.replace(_entry(1, "second", size=None))
            assert await store.get(1) == _entry(1, "second", size=None)

    async def test_an_entry_is_deleted_only_if_it_names_the_key(self, store: ManifestStore) -> None:
        await store.put_if_absent(_entry(1, "first"))
        await store.put_if_absent(_entry(2, "second"))
        await store.delete(1, key=_entry(1, "other").key)
        assert await store.get(1) == _entry(1, "first")
        for _ in range(2):
            await store.delete(1, key=_entry(1, "first").key)
            assert (await store.get(1), await store.get(2)) == (None, _entry(2, "second"))

    async def test_the_latest_is_the_highest_number(self, store: ManifestStore) -> None:
        assert await store.latest() is None
        for version in (9, 10, 2, 101, 100):
            await store.put_if_absent(_entry(version))
        assert await store.latest() == _entry(101)

    async def test_detached_versions_are_not_the_latest(self, store: ManifestStore) -> None:
        detached = _entry(2**63 + 5, "d9223372036854775813")
        await store.put_if_absent(detached)
        assert await store.latest() is None
        await store.put_if_absent(_entry(2**63 - 1))
        assert await store.latest() == _entry(2**63 - 1)
        assert await store.get(2**63 + 5) == detached

    async def test_of_many_at_once_one_creates_the_entry(self, open_manifests: OpenManifests) -> None:
        won: dict[int, list[str]] = {version: [] for version in range(1, 11)}

        async def put(store: ManifestStore, version: int, name: str) -> None:
            if await store.put_if_absent(_entry(version, name)) == Created():
                won[version].append(name)

        async with AsyncExitStack() as opened:
            stores = [await opened.enter_async_context(open_manifests()) for _ in range(4)]
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    for version in won:
                        tasks.start_soon(put, stores[number % 4], version, f"by-{number}")
            assert {version: len(names) for version, names in won.items()} == dict.fromkeys(won, 1)
            for version, names in won.items():
                assert await stores[0].get(version) == _entry(version, names[0])


def _entry(version: int, name: str = "", *, size: int | None = 10) -> ManifestEntry:
    return ManifestEntry(version=version, key=f"_versions/{name or version}.manifest", size=size)
