"""The local store: what a kill leaves behind, what is synced, and how errors of the system are reported."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import hashlib
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import to_thread

from committerd.errors import InvalidRequest, ObjectUnreadable, PutUnknown, SettingsError, StoreUnavailable
from committerd.stores import local
from committerd.stores.local import LocalStore, local_path
from committerd.stores.port import Created, Exists, Tail
from tests.stores.kernel import failing, failing_at, note_calls

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = "_versions/1.manifest"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "table")


class TestLocalPath:
    @pytest.mark.parametrize(
        ("uri", "path"),
        [
            ("/data/t.lance", "/data/t.lance"),
            ("/data/t.lance/", "/data/t.lance"),
            ("/data/a%20b", "/data/a%20b"),
            ("file:///data/a%20b", "/data/a b"),
            ("file:/data/t", "/data/t"),
            ("FILE://localhost/data/t/", "/data/t"),
            ("file-object-store:///data/t", "/data/t"),
            ("file:///data/%C3%A4?#", "/data/ä?#"),
            ("file:///data/%FF", "/data/\udcff"),
            ("C:/odd", f"{os.getcwd()}/C:/odd"),
            ("relative/t", f"{os.getcwd()}/relative/t"),
        ],
    )
    def test_of_a_path_or_a_file_uri(self, uri: str, path: str) -> None:
        assert local_path(uri) == Path(path)

    @pytest.mark.parametrize("uri", ["s3://bucket/t", "s3+ddb://bucket/t", "memory://t", "gs://b"])
    def test_of_another_scheme_is_none(self, uri: str) -> None:
        assert local_path(uri) is None

    @pytest.mark.parametrize("uri", ["file://server/t", "file:relative", "file:///a%00b", "file:"])
    def test_of_a_file_uri_that_names_none_is_refused(self, uri: str) -> None:
        with pytest.raises(SettingsError, match=re.escape(repr(uri))):
            local_path(uri)


@pytest.mark.parametrize("key", ["../o", "a/../../o", "/etc/o", "", "a//b", "./a", "a/", "a\0b"])
async def test_a_key_that_could_leave_the_table_is_refused(store: LocalStore, key: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.put_if_absent(key, b"")
    assert refused.value.code == "path_invalid"
    with pytest.raises(InvalidRequest):
        await store.get(key)


async def test_a_name_too_long_to_exist_is_absent(store: LocalStore) -> None:
    assert await store.get("a" * 300) is None
    assert await store.head("a" * 300) is None


async def test_the_root_stays_where_it_was_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore(Path("table"))
    monkeypatch.chdir("/")
    await store.put("o", b"body")
    assert (tmp_path / "table" / "o").read_bytes() == b"body"


async def test_staging_files_of_any_writer_are_not_listed(store: LocalStore, tmp_path: Path) -> None:
    await store.put(MANIFEST, b"body")
    folder = tmp_path / "table" / "_versions"
    for name in (b".tmp-0011", b".tmpAbC123", b"2.manifest#1", b"no\xffutf8"):
        os.mknod(os.fsencode(folder) + b"/" + name)
    os.symlink("nowhere", folder / "dangling")
    assert await store.list("_versions/") == [MANIFEST]


async def test_a_folder_is_named_with_its_slash(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="slash"):
        await store.list("_versions")


class TestOnlyRegularFilesAreRead:
    """A record chooses which files are read. No link is followed, and no read blocks."""

    @pytest.fixture
    def secret(self, tmp_path: Path) -> Path:
        secret = tmp_path / "outside" / "secret"
        secret.parent.mkdir()
        secret.write_bytes(b"secret")
        return secret

    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        data = tmp_path / "table" / "data"
        data.mkdir(parents=True)
        return data

    @staticmethod
    async def refused(store: LocalStore, key: str, why: str) -> None:
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 3),
            lambda: store.get_tail(key, 3),
            lambda: store.head(key),
            lambda: store.copy(key, "copied"),
        ]
        for read in reads:
            with anyio.fail_after(60), pytest.raises(ObjectUnreadable, match=f"{key}.*{why}"):
                await read()

    async def test_links(self, store: LocalStore, data: Path, secret: Path) -> None:
        (data / "absolute").symlink_to(secret)
        (data / "relative").symlink_to("../../outside/secret")
        (data / "inside").symlink_to("own")
        (data / "own").write_bytes(b"own")
        (data / "nowhere").symlink_to("nothing")
        for name in ("absolute", "relative", "inside", "nowhere"):
            await self.refused(store, f"data/{name}", "symbolic link")

    async def test_folders_that_are_links(self, store: LocalStore, data: Path, secret: Path) -> None:
        (data / "folder").symlink_to(secret.parent)
        await self.refused(store, "data/folder/secret", "symbolic link")

    async def test_pipes_devices_and_sockets(self, store: LocalStore, data: Path, tmp_path: Path) -> None:
        os.mkfifo(data / "pipe")
        descriptor = os.open(data, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{descriptor}/socket")  # its own path is too long
        os.close(descriptor)
        for name in ("pipe", "socket"):
            await self.refused(store, f"data/{name}", "not a regular file")
        (tmp_path / "table" / "_versions").mkdir()
        (tmp_path / "table" / MANIFEST).symlink_to("/dev/zero")  # a link to a file would be followed
        with anyio.fail_after(60), pytest.raises(ObjectUnreadable, match="not a regular file"):
            await store.get(MANIFEST)

    async def test_what_became_a_link_when_it_was_opened(
        self, store: LocalStore, data: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.put("data/o", b"own")
        stat = os.stat

        def swapped(path: Any, **how: Any) -> os.stat_result:
            found = stat(path, **how)
            if path == "o":
                (data / "o").unlink()
                (data / "o").symlink_to(secret)
            return found

        monkeypatch.setattr(os, "stat", swapped)
        assert await store.get("data/o") is None

    async def test_files_that_may_not_be_read(
        self, store: LocalStore, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.put("data/o", b"own")
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing_at("o", errno.EACCES))
            with pytest.raises(ObjectUnreadable, match=r"data/o: Permission denied \(EACCES\)"):
                await store.get("data/o")
        monkeypatch.setattr(os, "open", failing_at("o", errno.EMFILE))
        with pytest.raises(StoreUnavailable, match="EMFILE") as ours:
            await store.get("data/o")
        assert not isinstance(ours.value, ObjectUnreadable)

    async def test_the_tables_own_folders_may_be_links(self, store: LocalStore, tmp_path: Path, secret: Path) -> None:
        (tmp_path / "table").mkdir()
        (tmp_path / "table" / "data").symlink_to(secret.parent)
        assert await store.get("data/secret") == b"secret"
        assert await store.head("data/secret") == 6

    async def test_a_manifest_may_be_a_link(self, store: LocalStore, tmp_path: Path, secret: Path) -> None:
        (tmp_path / "table" / "_versions").mkdir(parents=True)
        (tmp_path / "table" / MANIFEST).symlink_to(secret)
        assert await store.get(MANIFEST) == b"secret"
        assert await store.head(MANIFEST) == 6

    async def test_reads_that_return_less_than_was_asked_for(
        self, store: LocalStore, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (data / "o").write_bytes(b"own object")
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda file, size, start: pread(file, min(size, 3), start))
        assert await store.get_range("data/o", 1, 9) == b"wn objec"
        assert await store.get_range("data/o", 4, 99) == b"object"
        assert await store.get_tail("data/o", 7) == Tail(body=b" object", size=10)

    async def test_a_read_without_an_end_is_given_up(
        self, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, hangs = LocalStore(tmp_path / "table", read_seconds_max=0.05), threading.Event()
        (data / "o").write_bytes(b"own")
        monkeypatch.setattr(local, "_whole", lambda *_: hangs.wait(120))
        try:
            given_up = 0
            while given_up < 16:  # a busy machine may have no thread for a read in time: that blames no object
                with pytest.raises(StoreUnavailable, match=r"data/o: no response within 0\.05 s") as late:
                    await store.get("data/o")
                given_up += isinstance(late.value, ObjectUnreadable)
            with pytest.raises(StoreUnavailable, match="16 reads there have not ended") as hanging:
                await store.head("data/o")
            assert not isinstance(hanging.value, ObjectUnreadable)
        finally:
            hangs.set()
        monkeypatch.undo()
        with anyio.fail_after(60):
            while True:
                with suppress(StoreUnavailable):
                    assert await store.get("data/o") == b"own"
                    break
                await anyio.sleep(0.01)

    async def test_a_read_that_waited_for_its_turn_has_all_of_its_time_from_then_on(
        self, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waits for 40 seconds and takes 40 more, where 60 are allowed, by a clock that the test moves."""
        loop, moved = asyncio.get_running_loop(), 0.0
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + moved)

        async def pass_40_seconds() -> None:
            nonlocal moved
            await anyio.wait_all_tasks_blocked()
            moved += 40
            await anyio.sleep(0.1)  # what is over by now is given up

        store = LocalStore(tmp_path / "table", read_seconds_max=60)
        whole, began = local._whole, threading.Event()
        ends = {b"before": threading.Event(), b"own": threading.Event()}

        def read(descriptor: int, size: int) -> bytes:
            body = whole(descriptor, size)
            if body == b"own":
                began.set()
            ends[body].wait(120)
            return body

        monkeypatch.setattr(local, "_whole", read)
        for body in ends:
            (data / body.decode()).write_bytes(body)
        found: list[bytes | None] = []

        async def get() -> None:
            found.append(await store.get("data/own"))

        try:
            async with anyio.create_task_group() as tasks:
                async with anyio.create_task_group() as others:
                    for _ in range(8):
                        others.start_soon(store.get, "data/before")
                    await anyio.wait_all_tasks_blocked()
                    tasks.start_soon(get)
                    await pass_40_seconds()
                    assert not began.is_set()
                    ends[b"before"].set()
                assert await to_thread.run_sync(began.wait, 60)
                await pass_40_seconds()
                ends[b"own"].set()
        finally:
            for end in ends.values():
                end.set()
        assert found == [b"own"]

    async def test_a_read_that_gets_no_turn_blames_no_object(self, tmp_path: Path, data: Path) -> None:
        store = LocalStore(tmp_path / "table", read_seconds_max=0.2)
        (data / "o").write_bytes(b"own")
        others = [object() for _ in range(8)]
        for other in others:
            store._readers.acquire_on_behalf_of_nowait(other)
        with pytest.raises(StoreUnavailable, match=r"data/o: no response within 0\.2 s") as late:
            await store.get("data/o")
        assert not isinstance(late.value, ObjectUnreadable)


class TestDurability:
    @pytest.fixture
    def calls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return note_calls(monkeypatch, tmp_path)

    async def test_of_a_new_version_in_a_new_table(self, store: LocalStore, calls: list[str]) -> None:
        await store.put_if_absent(MANIFEST, b"body")
        assert calls == [
            "sync .",
            "sync table",
            "sync table/_versions/*",
            f"link table/_versions/* table/{MANIFEST}",
            "sync table/_versions",
        ]

    async def test_of_a_replaced_object(self, store: LocalStore, calls: list[str]) -> None:
        await store.put("o", b"body")
        calls.clear()
        await store.put("o", b"other")
        assert calls == ["sync table/*", "rename table/* table/o", "sync table"]

    async def test_of_a_version_that_a_killed_writer_left_unsynced(self, store: LocalStore, calls: list[str]) -> None:
        await store.put_if_absent(MANIFEST, b"body")
        calls.clear()
        assert await store.put_if_absent(MANIFEST, b"body") == Exists()
        assert calls[-1] == "sync table/_versions"
        calls.clear()
        await store.list("_versions/")
        assert calls == ["sync table/_versions"]

    async def test_switched_off_syncs_nothing(self, tmp_path: Path, calls: list[str]) -> None:
        store = LocalStore(tmp_path / "table", durable=False)
        await store.put_if_absent(MANIFEST, b"body")
        await store.put("o", b"body")
        await store.copy("o", "p")
        await store.list("_versions/")
        assert not [call for call in calls if call.startswith("sync")]


class TestFailure:
    """A write that failed leaves nothing behind, and the error says what and where."""

    @pytest.fixture(autouse=True)
    def nothing_left_behind(self, tmp_path: Path) -> Iterator[None]:
        yield
        assert not list(tmp_path.rglob(".tmp*"))

    @pytest.fixture
    def files_of_10_kb_at_most(self) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    @pytest.mark.usefixtures("files_of_10_kb_at_most")
    async def test_of_a_write_that_stops_half_way(self, store: LocalStore) -> None:
        for put in (store.put, store.put_if_absent):
            with pytest.raises(StoreUnavailable, match=rf"{MANIFEST}: .* \(EFBIG\)"):
                await put(MANIFEST, bytes(20_000))
        assert await store.get(MANIFEST) is None

    async def test_of_a_file_in_the_way(self, store: LocalStore) -> None:
        await store.put("data", b"no folder")
        with pytest.raises(StoreUnavailable, match="ENOTDIR"):
            await store.put_if_absent("data/below/o", b"")
        assert await store.put_if_absent("o", b"") == Created()

    async def test_of_a_folder_in_the_way(self, store: LocalStore) -> None:
        await store.put("folder/o", b"")
        assert await store.put_if_absent("folder", b"") == Exists()
        with pytest.raises(StoreUnavailable, match="EISDIR"):
            await store.put("folder", b"")

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            (errno.ENOSPC, StoreUnavailable),
            (errno.EROFS, StoreUnavailable),
            (errno.EIO, PutUnknown),
            (errno.ESTALE, PutUnknown),
        ],
    )
    async def test_of_the_link_is_unknown_unless_the_kernel_refused_before_it(
        self,
        store: LocalStore,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        error: type[Exception],
    ) -> None:
        monkeypatch.setattr(os, "link", failing(code))
        with pytest.raises(error, match=errno.errorcode[code]):
            await store.put_if_absent(MANIFEST, b"body")

    async def test_of_the_folders_sync_after_the_link_is_unknown(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.put("_versions/0.manifest", b"")
        fsync, synced = os.fsync, []

        def fail_second(descriptor: int) -> None:
            synced.append(descriptor)
            if len(synced) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fail_second)
        with pytest.raises(PutUnknown, match="was created"):
            await store.put_if_absent(MANIFEST, b"body")
        assert await store.get(MANIFEST) == b"body"

    async def test_of_the_files_sync_is_before_the_link(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.put("_versions/0.manifest", b"")
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(StoreUnavailable, match="EIO"):
            await store.put_if_absent(MANIFEST, b"body")
        assert await store.get(MANIFEST) is None

    async def test_of_a_read_says_so(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        await store.put(MANIFEST, b"body")
        monkeypatch.setattr(os, "scandir", failing(errno.EACCES))
        with pytest.raises(StoreUnavailable, match=r"_versions: Permission denied \(EACCES\)"):
            await store.list("_versions/")


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True)
    def no_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "link", failing(errno.EPERM))

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="renameat2 is Linux's")
    async def test_a_rename_that_never_replaces_stands_in(self, store: LocalStore, tmp_path: Path) -> None:
        assert await store.put_if_absent(MANIFEST, b"first") == Created()
        assert await store.put_if_absent(MANIFEST, b"second") == Exists()
        assert await store.get(MANIFEST) == b"first"
        assert os.listdir(tmp_path / "table" / "_versions") == ["1.manifest"]

    @pytest.mark.parametrize("library", ["without renameat2", "file system refuses"])
    async def test_nor_that_rename_the_store_refuses(
        self,
        store: LocalStore,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        library: str,
    ) -> None:
        def refuse(*_: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

        found = SimpleNamespace() if library == "without renameat2" else SimpleNamespace(renameat2=refuse)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: found)
        with pytest.raises(SettingsError, match="hard links") as refused:
            await store.put_if_absent(MANIFEST, b"first")
        assert refused.value.code == "no_atomic_create"
        assert not os.listdir(tmp_path / "table" / "_versions")


WRITER = """
import hashlib, os, sys
from pathlib import Path
import anyio
from committerd.stores.local import LocalStore

async def write(store):
    number, parent = int(sys.argv[3]), os.getppid()
    while os.getppid() == parent:
        number += 1
        await store.put_if_absent(f"_versions/{number}.manifest", signed())
        await store.put("_latest.manifest", signed())

def signed():
    body = os.urandom(60_000)
    return hashlib.sha256(body).digest() + body

async def main():
    store = LocalStore(Path(sys.argv[1]), durable=sys.argv[2] == "durable")
    print("ready", flush=True)
    await write(store)

anyio.run(main)
"""


@pytest.mark.parametrize("durable", ["durable", "not durable"])
def test_kill_9_leaves_no_partial_object_and_replaces_none(tmp_path: Path, durable: str) -> None:
    rng = random.Random(8)
    versions: dict[str, bytes] = {}
    for number in range(12):
        known = max(len(versions) - 2, 0)  # it tries these again, and must not replace them
        left = temporary_files(tmp_path)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), durable, str(known)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            wait_for_versions(tmp_path, len(versions) + 1)
            time.sleep(rng.uniform(0, 0.1))
            if number % 2:
                pause_while_it_writes(writer, tmp_path, left)
            writer.kill()
        assert number % 2 == 0 or temporary_files(tmp_path) - left, "a kill while a file was written left nothing"
        found = {key: read_whole(tmp_path, key) for key in anyio.run(manifests, tmp_path)}
        assert found | versions == found, "a version was replaced or is gone"
        assert len(found) > len(versions)
        versions = found
        if (tmp_path / "_latest.manifest").exists():  # unless the kill came before the first
            read_whole(tmp_path, "_latest.manifest")


def pause_while_it_writes(writer: subprocess.Popen[str], table: Path, left: set[Path]) -> None:
    """Stop a process while it writes a file. `left`: the temporary files of others."""
    until = time.monotonic() + 60
    while True:
        writer.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        if temporary_files(table) - left:
            return
        assert time.monotonic() < until, "no file was being written whenever it was stopped, for 60 s"
        writer.send_signal(signal.SIGCONT)
        time.sleep(0.001)


def temporary_files(table: Path) -> set[Path]:
    return set(table.rglob(".tmp*"))


def wait_for_versions(table: Path, count: int) -> None:
    until = time.monotonic() + 60
    while len(anyio.run(manifests, table)) < count:
        assert time.monotonic() < until, f"there are no {count} versions after 60 s"
        time.sleep(0.001)


async def manifests(table: Path) -> list[str]:
    return await LocalStore(table).list("_versions/")


def read_whole(table: Path, key: str) -> bytes:
    """The object's digest, which must be that of the rest of its body."""
    stored = (table / key).read_bytes()
    digest, body = stored[:32], stored[32:]
    assert hashlib.sha256(body).digest() == digest, f"{key} is partial"
    return digest


@pytest.mark.pylance
async def test_pylance_takes_no_leftover_for_a_version(tmp_path: Path) -> None:
    import lance
    import pyarrow as pa

    table = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), str(table))
    (table / "_versions" / ".tmp-0123456789abcdef").write_bytes(b"half a manifest")
    lance.write_dataset(pa.table({"a": [4]}), str(table), mode="append")

    dataset = lance.dataset(str(table))
    assert dataset.count_rows() == 4
    assert [version["version"] for version in dataset.versions()] == [1, 2]
    listed = await LocalStore(table).list("_versions/")
    assert len([key for key in listed if key.endswith(".manifest")]) == 2
    assert not [key for key in listed if ".tmp" in key]
