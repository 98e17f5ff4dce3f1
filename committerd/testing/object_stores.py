"""The contract of every object store (`committerd.stores.port.ObjectStore`)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress

import anyio
import pytest
import pytest_asyncio

from committerd.errors import InvalidRequest, PutUnknown
from committerd.stores.port import Created, Exists, ObjectStore, Tail
from committerd_common.paths import VERSION_HINT

OpenStore = Callable[[], AbstractAsyncContextManager[ObjectStore]]
"""Opens a store, inside the block."""


@pytest.mark.asyncio(loop_scope="function")
class ObjectStoreTests:
    """Subclass it with a name that begins with `Test`, and override the fixture `open_store`.

    A subclass may override `raced_keys` too.
    """

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens a store on the same folder at each call, as each process that shares a table does.

        The folder is empty when a test begins.
        """
        pytest.fail("override the fixture open_store: it returns a function that opens your store")

    @pytest.fixture
    def raced_keys(self) -> Sequence[str]:
        """The keys that 16 tasks try to create at once; fewer where a put takes several requests."""
        return [f"_versions/{number}.manifest" for number in range(30)]

    @pytest_asyncio.fixture(loop_scope="function")
    async def store(self, open_store: OpenStore) -> AsyncIterator[ObjectStore]:
        """A store on an empty folder."""
        async with open_store() as store:
            yield store

    async def test_an_object_is_read_as_it_was_put(self, store: ObjectStore) -> None:
        for body in (b"", b"manifest", bytes(range(256)) * 5000):
            await store.put("data/a.lance", body)
            assert await store.get("data/a.lance") == body
            assert await store.head("data/a.lance") == len(body)

    async def test_what_is_not_there_is_none(self, store: ObjectStore) -> None:
        for key in ("nothing", "no/such/folder/at all"):
            assert await store.get(key) is None
            assert await store.get_range(key, 0, 10) is None
            assert await store.get_tail(key, 10) is None
            assert await store.head(key) is None

    async def test_a_folder_is_no_object(self, store: ObjectStore) -> None:
        await store.put("data/a.lance", b"body")
        assert await store.get("data") is None
        assert await store.get_tail("data", 10) is None
        assert await store.head("data") is None
        assert await store.get("data/a.lance/below") is None

    async def test_a_key_that_is_no_path_below_the_root_is_refused(self, store: ObjectStore) -> None:
        requests: Sequence[Callable[[str], Awaitable[object]]] = (
            store.get,
            lambda key: store.get_range(key, 0, 10),
            lambda key: store.get_tail(key, 10),
            store.head,
            lambda key: store.put(key, b""),
            lambda key: store.put_if_absent(key, b""),
            store.delete,
        )
        for key in ("../x", "a/../../x", "/x", "a//b", "a/./b", "a/", "", "x\0"):
            for request in requests:
                with pytest.raises(InvalidRequest) as refused:
                    await request(key)
                assert refused.value.code == "path_invalid"

    @pytest.mark.parametrize(
        ("start", "end", "body"),
        [(0, 10, b"0123456789"), (3, 5, b"34"), (8, 99, b"89"), (10, 12, b""), (4, 4, b"")],
    )
    async def test_a_range_is_half_open_and_ends_with_the_object(
        self, store: ObjectStore, start: int, end: int, body: bytes
    ) -> None:
        await store.put("o", b"0123456789")
        assert await store.get_range("o", start, end) == body

    async def test_a_tail_tells_the_size_of_the_whole(self, store: ObjectStore) -> None:
        await store.put("o", b"0123456789")
        assert await store.get_tail("o", 4) == Tail(body=b"6789", size=10)
        assert await store.get_tail("o", 10) == Tail(body=b"0123456789", size=10)
        assert await store.get_tail("o", 4096) == Tail(body=b"0123456789", size=10)
        await store.put("o", b"")
        assert await store.get_tail("o", 4) == Tail(body=b"", size=0)

    async def test_put_replaces(self, store: ObjectStore) -> None:
        await store.put("o", b"a long first body")
        await store.put("o", b"second")
        assert await store.get("o") == b"second"

    async def test_put_if_absent_never_replaces(self, store: ObjectStore) -> None:
        assert await store.put_if_absent("_versions/1.manifest", b"first") == Created()
        for _ in range(2):
            assert await store.put_if_absent("_versions/1.manifest", b"second") == Exists()
        assert await store.get("_versions/1.manifest") == b"first"
        assert await _manifests(store) == ["_versions/1.manifest"]

    async def test_put_if_absent_respects_a_put(self, store: ObjectStore) -> None:
        await store.put("o", b"first")
        assert await store.put_if_absent("o", b"second") == Exists()
        assert await store.get("o") == b"first"

    async def test_put_if_absent_takes_parts(self, store: ObjectStore) -> None:
        many = [b"%d " % number for number in range(3_000)]
        for key, parts in (
            ("none", []),
            ("empty", [b""]),
            ("few", [b"", b"first", b"", b"second", b""]),
            ("many", many),
        ):
            assert await store.put_if_absent(key, parts) == Created()
            assert await store.get(key) == b"".join(parts)
            assert await store.put_if_absent(key, [b"another"]) == Exists()

    async def test_of_several_the_ends_are_those_of_each(self, store: ObjectStore) -> None:
        for key, body in (("a/1", b"12345"), ("a/2", b""), ("b/3", b"123")):
            await store.put(key, body)
        keys = ["a/1", "a/none", "b/3", "a/2", "a/1"]
        found = await store.get_tails(keys, size=3)
        assert list(found) == [await store.get_tail(key, 3) for key in keys]
        assert list(found)[:3] == [Tail(body=b"345", size=5), None, Tail(body=b"123", size=3)]

    async def test_of_several_an_invalid_key_spoils_no_other(self, store: ObjectStore) -> None:
        await store.put("a", b"12345")
        wrong, right = await store.get_tails(["../a", "a"], size=3)
        assert isinstance(wrong, InvalidRequest)
        assert right == Tail(body=b"345", size=5)

    async def test_list_gives_the_keys_directly_below_in_the_order_of_their_bytes(self, store: ObjectStore) -> None:
        names = ["b", "a", "a.b", "a b", "Z", "100%", "10", "9", "ä", "\U0001f600", "\uffee", ".hidden"]
        for name in names:
            await store.put(f"_versions/{name}", b"")
        for other in ("_versions2/x", "x", "_versions/below/x"):
            await store.put(other, b"")

        keys = [f"_versions/{name}" for name in sorted(names, key=str.encode)]
        assert await store.list("_versions/") == keys
        assert await store.list("_versions/", start_after=keys[3]) == keys[4:]
        assert await store.list("_versions/", start_after="_versions/a.", limit=2) == [
            "_versions/a.b",
            "_versions/b",
        ]
        assert await store.list("_versions/", limit=3) == keys[:3]
        assert await store.list("_versions/", start_after=keys[-1]) == []
        assert await store.list("_transactions/") == []
        assert await store.list("") == ["x"]

    async def test_copy_replaces_its_target(self, store: ObjectStore) -> None:
        body = bytes(3_000_000)
        await store.put("_versions/staged", body)
        await store.put("final/o", b"old")
        assert await store.copy("_versions/staged", "final/o")
        assert await store.get("final/o") == body
        assert await store.get("_versions/staged") == body

    async def test_copy_without_a_source_changes_nothing(self, store: ObjectStore) -> None:
        await store.put("final/o", b"old")
        assert not await store.copy("missing", "final/o")
        assert await store.get("final/o") == b"old"

    async def test_a_deleted_object_is_gone_and_its_key_free(self, store: ObjectStore) -> None:
        await store.put("o", b"first")
        await store.delete("o")
        await store.delete("o")
        assert await store.get("o") is None
        assert await store.list("") == []
        assert await store.put_if_absent("o", b"second") == Created()

    async def test_of_16_tasks_one_wins_each_key(self, open_store: OpenStore, raced_keys: Sequence[str]) -> None:
        winners: dict[str, Sequence[str]] = {}

        async def run(tag: str, store: ObjectStore) -> None:
            winners[tag] = await race(store, tag, raced_keys)

        async with AsyncExitStack() as opened:
            stores = [await opened.enter_async_context(open_store()) for _ in range(4)]
            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(run, f"task{number}", stores[number % len(stores)])
        await check_winners(open_store, raced_keys, winners)

    async def test_a_reader_sees_one_put_or_the_other_whole(self, open_store: OpenStore, store: ObjectStore) -> None:
        bodies = [b"a" * 300_000, b"b" * 700_001]
        await store.put("o", bodies[0])
        seen: list[bytes | None] = []

        async def replace() -> None:
            number = 0
            while number < 20 or len(seen) < 2:
                await store.put("o", bodies[number % 2])
                number += 1
            tasks.cancel_scope.cancel()

        async def read(reader: ObjectStore) -> None:
            while True:
                seen.append(await reader.get("o"))

        async with open_store() as reader, anyio.create_task_group() as tasks:
            tasks.start_soon(replace)
            tasks.start_soon(read, reader)
        assert all(body in bodies for body in seen)

    async def test_a_walk_finds_all_objects_below_a_folder(self, store: ObjectStore) -> None:
        bodies = {"data/a.lance": b"12345", "data/a/b.blob": b"1", "data/a/c/d.blob": b"", "database.lance": b"12"}
        before = time.time() * 1000
        for key, body in bodies.items():
            await store.put(key, body)
        found = {one.key: one for batch in [batch async for batch in store.walk("data/")] for one in batch}
        assert {key: one.size for key, one in found.items()} == {
            key: len(body) for key, body in bodies.items() if key.startswith("data/")
        }
        assert all(abs(one.modified_ms - before) < 60_000 for one in found.values())
        assert [one async for batch in store.walk("nothing/") for one in batch] == []


async def race(store: ObjectStore, tag: str, keys: Sequence[str]) -> Sequence[str]:
    """Put `TAG KEY` under every key that is free, all at once and in a random order; returns the keys that were won."""
    won = []

    async def put(key: str) -> None:
        body = f"{tag} {key}".encode()
        try:
            answer = await store.put_if_absent(key, body)
        except PutUnknown:  # such as S3's 409: another put was under way
            while await store.get(key) is None:
                with suppress(PutUnknown):
                    await store.put_if_absent(key, body)
            answer = Created() if await store.get(key) == body else Exists()
        if answer == Created():
            won.append(key)

    async with anyio.create_task_group() as tasks:
        for key in random.Random(tag).sample(list(keys), len(keys)):
            tasks.start_soon(put, key)
    return won


async def check_winners(open_store: OpenStore, keys: Sequence[str], winners: Mapping[str, Sequence[str]]) -> None:
    """Check that each key has one winner, whose body it holds. `winners`: by tag, what `race` has returned."""
    assert Counter(key for won in winners.values() for key in won) == Counter(keys)
    async with open_store() as store:
        for tag, won in winners.items():
            for key in won:
                assert await store.get(key) == f"{tag} {key}".encode()
        assert await _manifests(store) == sorted(keys)


async def _manifests(store: ObjectStore) -> list[str]:
    """The keys in the folder of versions, without the hint that a store may keep beside them."""
    return [key for key in await store.list("_versions/") if key != VERSION_HINT]
