"""Large files on a local file system: how much of them stays in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from committerd.stores.local import LocalStore
from committerd.stores.port import Created, Exists
from tests.stores.kernel import note_calls

LARGE = b"\1" * (3 << 19)
SMALL = b"\3" * (1 << 19)
SUPERSEDED_MAX = 6


def in_memory(path: Path) -> bool:
    """Whether the system can read the file's first bytes without the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system that can't tell, like one in memory
    finally:
        os.close(descriptor)


@pytest.fixture
def left(tmp_path: Path) -> bool:
    """The result of `in_memory` for a file that may be dropped: some file systems keep it all the same."""
    path = tmp_path / "probe"
    path.write_bytes(LARGE)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return in_memory(path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


async def test_the_newest_two_large_files_stay_in_memory(table: Path, left: bool) -> None:
    store = LocalStore(table)
    for number in range(5):
        await store.put_if_absent(f"v/{number}", LARGE)
    assert [in_memory(table / f"v/{number}") for number in range(5)] == [left, left, left, True, True]
    for number in range(5):
        assert (table / f"v/{number}").read_bytes() == LARGE


async def test_small_files_and_those_that_are_replaced_stay(table: Path) -> None:
    store = LocalStore(table)
    for number in range(4):
        await store.put_if_absent(f"v/{number}", SMALL)
        await store.put(f"data/{number}", LARGE)
    await store.put_if_absent("v/large", LARGE)
    await store.put_if_absent("v/larger", LARGE)
    assert all(in_memory(table / f"v/{number}") and in_memory(table / f"data/{number}") for number in range(4))


async def test_what_is_not_synced_is_told_to_the_system_often_enough_to_be_on_disk_once(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = note_calls(monkeypatch, table)
    store = LocalStore(table, durable=False)
    for number in range(20):
        await store.put_if_absent(str(number), LARGE)
    assert [calls.count(f"let go {number}") for number in range(20)] == [SUPERSEDED_MAX - 1] * 14 + [4, 3, 2, 1, 0, 0]


async def test_what_is_synced_is_told_to_the_system_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = note_calls(monkeypatch, table)
    store = LocalStore(table)
    for number in range(6):
        await store.put_if_absent(str(number), [SMALL] * 3)
        assert (table / str(number)).read_bytes() == SMALL * 3
    assert [calls.count(f"let go {number}") for number in range(6)] == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 100])
async def test_parts_are_written_whole_if_the_system_takes_fewer_bytes_at_once(
    table: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def some(descriptor: int, parts: Sequence[bytes]) -> int:
        return os.write(descriptor, b"".join(parts)[:most])

    monkeypatch.setattr(os, "writev", some)
    parts = [b"", b"one", b"", b"", b"two", b"3", b""]
    assert await LocalStore(table).put_if_absent("o", parts) == Created()
    assert (table / "o").read_bytes() == b"onetwo3"


async def test_a_file_that_was_removed_or_another_wrote_is_no_obstacle(table: Path) -> None:
    store = LocalStore(table)
    assert await store.put_if_absent("0", LARGE) == Created()
    (table / "1").write_bytes(b"another's")
    assert await store.put_if_absent("1", LARGE) == Exists()
    (table / "0").unlink()
    assert await store.put_if_absent("2", LARGE) == Created()
    assert (table / "1").read_bytes() == b"another's"


async def test_a_system_that_can_not_be_told_is_left_alone(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    store = LocalStore(table)
    for number in range(3):
        assert await store.put_if_absent(str(number), LARGE) == Created()
