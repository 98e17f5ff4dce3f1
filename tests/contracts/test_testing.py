"""`committerd.testing`: the store of docs/testing.md passes, and a store that breaks a promise does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.lowlevel
import pytest

from committerd.stores.port import Content, Created, Exists, ObjectEntry, ObjectStore, Tail, in_one_piece
from committerd.testing import ObjectStoreTests, OpenStore
from tests.simulation.store import Bucket, FakeStore

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def test_the_store_of_the_page_passes_all_tests(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_sqlite_store.py").write_text(program, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "files")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = set(re.findall(r"^PASSED test_sqlite_store\.py::TestSqliteStore::(\w+)", done.stdout, re.MULTILINE))
    assert passed == {name for name in dir(ObjectStoreTests) if name.startswith("test_")}


class Replaces(FakeStore):
    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        await self.put(key, in_one_piece(body))
        return Created()


class LooksFirst(FakeStore):
    """Two writers that look at the same time both put."""

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        if await self.head(key) is not None:
            return Exists()
        await anyio.lowlevel.checkpoint()
        await self.put(key, in_one_piece(body))
        return Created()


class ForgetsPuts(FakeStore):
    """Its conditional put knows its own objects only."""

    async def put(self, key: str, body: bytes) -> None:
        await super().put(key, body)
        self._plain = getattr(self, "_plain", set()) | {key}

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        if key in getattr(self, "_plain", ()):
            await self.delete(key)
        return await super().put_if_absent(key, body)


class WritesInTwoSteps(FakeStore):
    async def put(self, key: str, body: bytes) -> None:
        await super().put(key, body[: len(body) // 2])
        await anyio.lowlevel.checkpoint()
        await super().put(key, body)


class ListsBelow(FakeStore):
    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        keys = sorted(key for key in self._bucket.objects if key.startswith(prefix) and key > start_after)
        return keys[:limit]


class ListsInAnotherOrder(FakeStore):
    """By UTF-16, as Java and JavaScript compare texts."""

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        keys = await super().list(prefix, start_after=start_after)
        return sorted(keys, key=lambda key: key.encode("utf-16-be"))[:limit]


class StartsAtTheKey(FakeStore):
    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        keys = await super().list(prefix)
        return [key for key in keys if key >= start_after][:limit]


class HasFolders(FakeStore):
    async def head(self, key: str) -> int | None:
        found = any(one.startswith(f"{key}/") for one in self._bucket.objects)
        return 0 if found else await super().head(key)


class TellsTheSizeOfTheTail(FakeStore):
    async def get_tail(self, key: str, size: int) -> Tail | None:
        found = await super().get_tail(key, size)
        return None if found is None else Tail(body=found.body, size=len(found.body))


class ClosedRanges(FakeStore):
    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await super().get_range(key, start, end + 1)


class CopiesNothing(FakeStore):
    async def copy(self, source: str, target: str) -> bool:
        if not await super().copy(source, target):
            await self.delete(target)
            return False
        return True


class RefusesASecondDelete(FakeStore):
    async def delete(self, key: str) -> None:
        if await self.head(key) is None:
            raise KeyError(key)
        await super().delete(key)


class WalksInOneFolder(FakeStore):
    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        async for batch in super().walk(prefix):
            yield [one for one in batch if "/" not in one.key.removeprefix(prefix)]


TESTS = ObjectStoreTests()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Replaces, TESTS.test_put_if_absent_never_replaces),
        (ForgetsPuts, TESTS.test_put_if_absent_respects_a_put),
        (ListsBelow, TESTS.test_list_gives_the_keys_directly_below_in_the_order_of_their_bytes),
        (ListsInAnotherOrder, TESTS.test_list_gives_the_keys_directly_below_in_the_order_of_their_bytes),
        (StartsAtTheKey, TESTS.test_list_gives_the_keys_directly_below_in_the_order_of_their_bytes),
        (HasFolders, TESTS.test_a_folder_is_no_object),
        (TellsTheSizeOfTheTail, TESTS.test_a_tail_tells_the_size_of_the_whole),
        (CopiesNothing, TESTS.test_copy_without_a_source_changes_nothing),
        (RefusesASecondDelete, TESTS.test_a_deleted_object_is_gone_and_its_key_free),
        (WalksInOneFolder, TESTS.test_a_walk_finds_all_objects_below_a_folder),
    ],
)
async def test_a_store_that_breaks_a_promise_fails(
    broken: Callable[[Bucket], ObjectStore], test: Callable[[ObjectStore], Awaitable[None]]
) -> None:
    with pytest.raises((AssertionError, KeyError)):
        await test(broken(Bucket()))


async def test_a_range_that_is_closed_fails() -> None:
    with pytest.raises(AssertionError):
        await TESTS.test_a_range_is_half_open_and_ends_with_the_object(ClosedRanges(Bucket()), 3, 5, b"34")


def opens(store: Callable[[Bucket], ObjectStore]) -> OpenStore:
    bucket = Bucket()

    @asynccontextmanager
    async def opened() -> AsyncIterator[ObjectStore]:
        yield store(bucket)

    return opened


async def test_a_conditional_put_that_only_looks_first_fails() -> None:
    with pytest.raises(AssertionError):
        await TESTS.test_of_16_tasks_one_wins_each_key(opens(LooksFirst), ["_versions/1.manifest"])


async def test_a_put_that_shows_half_of_it_fails() -> None:
    open_store = opens(WritesInTwoSteps)
    async with open_store() as store:
        with pytest.raises(AssertionError):
            await TESTS.test_a_reader_sees_one_put_or_the_other_whole(open_store, store)
