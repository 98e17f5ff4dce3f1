"""Several objects at once on a local file system: what is synced when, and what a failure leaves behind."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from committerd.errors import InvalidRequest, ObjectUnreadable, PutUnknown, StoreUnavailable
from committerd.stores.local import LocalStore
from committerd.stores.port import Created
from tests.stores.kernel import note_calls

OBJECTS = [(f"_versions/{number}.manifest", [b"version ", b"%d" % number]) for number in range(1, 7)]


def going() -> bool:
    return True


@pytest.fixture
async def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "table")
    await store.put("_versions/0.manifest", b"")
    return store


@pytest.fixture
def calls(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return note_calls(monkeypatch, tmp_path)


LINKS = [f"link table/_versions/* table/{key}" for key, _ in OBJECTS]


async def test_a_name_is_given_in_turn_when_all_is_synced_and_the_folder_is_synced_last(
    store: LocalStore, calls: list[str]
) -> None:
    assert await store.put_in_turn_if_absent(OBJECTS, as_long_as=going) == (Created(),) * 6
    assert calls == [*["sync table/_versions/*"] * 6, *LINKS, "sync table/_versions"]


async def test_files_that_replace_others_are_synced_each_and_their_folder_after_them(
    store: LocalStore, calls: list[str]
) -> None:
    await store.put_several([(f"_transactions/{number}.txn", b"body") for number in range(6)])
    assert calls.count("sync table/_transactions/*") == 6
    assert calls[-1] == "sync table/_transactions"


async def test_switched_off_syncs_nothing(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path / "table", durable=False)
    await store.put_in_turn_if_absent(OBJECTS, as_long_as=going)
    await store.put_several([("a/b", b"body")])
    assert calls == [*LINKS, "rename table/a/* table/a/b"]


async def test_nothing_is_named_when_one_can_not_be_written(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, synced = os.fsync, []

    def fail_third(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_third)
    (answer,) = await store.put_in_turn_if_absent(OBJECTS, as_long_as=going)
    assert isinstance(answer, StoreUnavailable)
    assert "ENOSPC" in str(answer)
    monkeypatch.undo()
    assert await store.list("_versions/") == ["_versions/0.manifest"]
    assert os.listdir(Path(store.uri, "_versions")) == ["0.manifest"], "a temporary file is left"


async def test_those_before_a_link_that_fails_are_there(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def fail_third(source: str, target: str) -> None:
        if target.endswith("3.manifest"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        link(source, target)

    monkeypatch.setattr(os, "link", fail_third)
    *created, last = await store.put_in_turn_if_absent(OBJECTS, as_long_as=going)
    assert created == [Created(), Created()]
    assert isinstance(last, PutUnknown)
    assert sorted(os.listdir(Path(store.uri, "_versions"))) == [f"{number}.manifest" for number in range(3)]


async def test_nothing_is_known_of_any_when_the_folder_can_not_be_synced(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("_versions/2.manifest", b"theirs")
    fsync = os.fsync

    def fail_folder(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_folder)
    (answer,) = await store.put_in_turn_if_absent(OBJECTS, as_long_as=going)
    assert isinstance(answer, PutUnknown)
    assert "1.manifest was created" in str(answer)
    assert "2.manifest was there" in str(answer)
    assert isinstance(answer.__cause__, OSError)


async def test_several_are_read_as_each_alone(store: LocalStore) -> None:
    await store.put("_deletions/long", b"0123456789")
    await store.put("_deletions/short", b"01")
    os.symlink("long", Path(store.uri, "_deletions/link"))
    os.mkdir(Path(store.uri, "_deletions/folder"))
    keys = [f"_deletions/{name}" for name in ("long", "nothing", "short", "link", "folder", "../out", "long")]
    long, nothing, short, link, folder, out, again = await store.get_several(keys, most=4)
    assert (long, nothing, short, folder, again) == (b"0123", None, b"01", None, b"0123")
    assert isinstance(link, ObjectUnreadable)
    assert isinstance(out, InvalidRequest)
    assert await store.get_several([], most=4) == []
