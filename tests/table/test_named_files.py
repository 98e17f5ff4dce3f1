"""Unreadable files that a record names: the record's fault, unless the table can't be read either."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from committerd.committer.decoding import Decoder
from committerd.errors import InvalidRequest, ObjectUnreadable, StoreUnavailable
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.queue.port import Record
from committerd.stores.local import LocalStore
from committerd.stores.port import ObjectStore, Tail
from committerd.table.reading import read_named
from committerd.table.versions import Table
from committerd_common.request import Request
from tests.lance.operations import create_index, delete
from tests.lance.samples import external_details, fragment, reuse_index
from tests.table.scene import Scene, append, read_at, rejected


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    return scene


@dataclass
class Choosy(LocalStore):
    """A store that refuses to read some objects."""

    root: Path
    refused: list[str] = field(default_factory=list)
    """The beginnings of the keys; each refusal counts down `times`."""
    times: int = 100
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.root, durable=False)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self._refuse(key)
        return await super().get_range(key, start, end)

    async def get_tail(self, key: str, size: int) -> Tail | None:
        self._refuse(key)
        return await super().get_tail(key, size)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        self._refuse(prefix)
        return await super().list(prefix, start_after=start_after, limit=limit)

    def _refuse(self, key: str) -> None:
        self.asked.append(key)
        if self.times and any(key.startswith(one) for one in self.refused):
            self.times -= 1
            raise ObjectUnreadable(f"403 {key}")


def record(name: str, body: bytes = b"", **headers: str) -> Record:
    said = {"transaction-file": name, "transaction-sha256": hashlib.sha256(body).hexdigest(), **headers}
    return Record(offset=7, value=b"", headers=[(key, value.encode()) for key, value in said.items()])


async def claimed(store: ObjectStore, name: str, body: bytes = b"") -> Request | Refused:
    with anyio.fail_after(60):
        return await Decoder(transaction_bytes_max=2000).decode(record(name, body), Table(store))


def reason(answer: Request | Refused) -> str:
    assert isinstance(answer, Refused)
    assert answer.status is Status.INVALID
    return answer.reason


class TestAClaimCheck:
    BODY = append(1).SerializeToString()

    async def test_is_read_once(self, scene: Scene) -> None:
        scene.path("_transactions/a.txn").write_bytes(self.BODY)
        store = Choosy(scene.root)
        assert isinstance(await claimed(store, "a.txn", self.BODY), Request)
        assert store.asked == ["_transactions/a.txn"]

    async def test_that_is_missing(self, scene: Scene) -> None:
        assert reason(await claimed(scene.store, "a.txn")) == "claim_missing"

    async def test_whose_name_is_too_long(self, scene: Scene) -> None:
        assert reason(await claimed(scene.store, "x" * 1000)) == "claim_missing"
        assert reason(await claimed(scene.store, "x" * 5000)) == "header_invalid"

    async def test_that_is_too_large(self, scene: Scene) -> None:
        scene.path("_transactions/a.txn").write_bytes(bytes(3000))
        assert reason(await claimed(scene.store, "a.txn")) == "record_too_large"

    async def test_that_is_another_file(self, scene: Scene) -> None:
        scene.path("_transactions/a.txn").write_bytes(self.BODY + b"x")
        assert reason(await claimed(scene.store, "a.txn", self.BODY)) == "claim_mismatch"

    @pytest.mark.parametrize(
        "make",
        [
            lambda path: path.symlink_to("/dev/zero"),
            lambda path: path.symlink_to("/etc/hostname"),
            lambda path: path.symlink_to("own.txn"),
            os.mkfifo,
        ],
        ids=["link to a device", "link out of the table", "link inside the table", "pipe"],
    )
    async def test_that_is_no_regular_file(self, scene: Scene, make: Callable[[Path], object]) -> None:
        scene.path("_transactions/own.txn").write_bytes(self.BODY)
        make(scene.path("_transactions/a.txn"))
        assert reason(await claimed(scene.store, "a.txn", self.BODY)) == "claim_unreadable"

    async def test_that_may_not_be_read(self, scene: Scene) -> None:
        store = Choosy(scene.root, refused=["_transactions/"])
        assert reason(await claimed(store, "a.txn")) == "claim_unreadable"
        assert [key.partition("/")[0] for key in store.asked] == [
            "_transactions",
            "_versions",
            "_versions",
            "_transactions",
        ]

    async def test_before_there_is_a_table(self, tmp_path: Path) -> None:
        store = Choosy(tmp_path / "none", refused=["_transactions/"])
        assert reason(await claimed(store, "a.txn")) == "claim_unreadable"

    @pytest.mark.parametrize("refused", [["_"], ["_transactions/", "_versions/1"], ["_transactions/", "_versions/"]])
    async def test_where_nothing_can_be_read_waits(self, scene: Scene, refused: list[str]) -> None:
        store = Choosy(scene.root, refused=[*refused, "_versions/18"])
        with pytest.raises(StoreUnavailable, match="403"):
            await claimed(store, "a.txn")

    async def test_beside_a_manifest_that_may_not_be_read_either(self, scene: Scene) -> None:
        scene.write_versions(2)
        newest = sorted(scene.versions())[0]
        store = Choosy(scene.root, refused=["_transactions/", f"_versions/{newest}"])
        assert reason(await claimed(store, "a.txn")) == "claim_unreadable"

    async def test_that_can_be_read_at_the_second_try(self, scene: Scene) -> None:
        scene.path("_transactions/a.txn").write_bytes(self.BODY)
        store = Choosy(scene.root, refused=["_transactions/"], times=1)
        assert isinstance(await claimed(store, "a.txn", self.BODY), Request)


class TestOtherFiles:
    async def test_a_deletion_file_that_is_a_link(self, scene: Scene) -> None:
        staged = scene.write_deletions(fragment(0, deleted=2), 0, 1)
        folder = scene.root / "_deletions"
        (file,) = folder.iterdir()
        staged.deletion_file.num_deleted_rows = 0
        file.rename(folder / "other")
        file.symlink_to("other")
        assert await rejected(scene, read_at(delete(staged), 1)) == (Status.INVALID, "file_unreadable")

    async def test_the_content_of_a_reuse_index_that_is_a_pipe(self, scene: Scene) -> None:
        made = reuse_index(1, ([0], [9]))
        made.index_details.CopyFrom(external_details("details", 10))
        path = scene.path(f"_indices/{'0' * 8}-0000-0000-0000-{'0' * 11}1/details")
        os.mkfifo(path)
        assert await rejected(scene, read_at(create_index(made), 1)) == (Status.INVALID, "file_unreadable")

    async def test_a_data_file_that_is_a_link_is_not_measured(self, scene: Scene) -> None:
        made = fragment(0, name="new")
        made.files[0].file_size_bytes = 0
        scene.path("data/new.lance").symlink_to("/etc/hostname")
        assert await rejected(scene, append(1, made)) == (Status.INVALID, "file_unreadable")


async def test_other_errors_are_left_alone(scene: Scene) -> None:
    async def fails() -> bytes:
        raise StoreUnavailable("503")

    with pytest.raises(StoreUnavailable, match="503"):
        await read_named(scene.store, "o", fails)


async def test_a_refusal_says_which_object_and_what_to_do(scene: Scene) -> None:
    async def fails() -> bytes:
        raise ObjectUnreadable("403 AccessDenied")

    with pytest.raises(InvalidRequest, match=r"'data/o'.*403 AccessDenied.*stage a new transaction") as refused:
        await read_named(scene.store, "data/o", fails)
    assert refused.value.code == "file_unreadable"
