"""A single object that can't be read or deleted is one line of a cleanup, and does not end it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.errors import CorruptTable, ObjectUnreadable
from committerd.lance.format.manifest_file import decode, encode
from committerd.maintenance.cleaning import Cleanup, Policy
from committerd.maintenance.versions import KeepReason
from committerd.settings.s3 import S3Settings
from committerd.stores.s3 import S3Store, s3_client
from committerd.stores.s3 import s3_place as place_of
from committerd.table.versions import Table
from committerd_common.messages import DataFile, DataFragment, Manifest, Transaction
from harness.places import s3_place
from harness.s3 import S3Endpoint
from tests.maintenance.scene import HOUR_MS, Scene, ShiftedStore, StagedRecords
from tests.queue.letters import LETTER

pytestmark = pytest.mark.pylance

LONG = "x" * 300
SHA = {"transaction-sha256": hashlib.sha256(b"").hexdigest()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.write(0)
    made.write(10, mode="append")
    made.hours = 2
    return made


class Choosy(ShiftedStore):
    """Refuses to read and to delete objects, as a store does for the objects of another user."""

    unreadable: tuple[str, ...] = ()
    undeletable: tuple[str, ...] = ()

    async def get(self, key: str) -> bytes | None:
        self._refuse(key, self.unreadable)
        return await super().get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self._refuse(key, self.unreadable)
        return await super().get_range(key, start, end)

    async def delete(self, key: str) -> None:
        self._refuse(key, self.undeletable)
        await super().delete(key)

    def _refuse(self, key: str, refused: tuple[str, ...]) -> None:
        if key.startswith(refused):
            raise ObjectUnreadable(f"403 {key}")


def choosy(
    scene: Scene, *, unreadable: tuple[str, ...] = (), undeletable: tuple[str, ...] = ()
) -> tuple[Cleanup, list[str]]:
    said: list[str] = []
    cleaning = scene.cleaning(passes_over=lambda key, _: said.append(key))
    store: Any = Choosy(Path(scene.uri), durable=False)
    store.hours, store.unreadable, store.undeletable = scene.hours, unreadable, undeletable
    cleaning._table, cleaning._store = Table(store), store
    return cleaning, said


async def cleaned(cleaning: Cleanup) -> Any:
    return await cleaning.clean(await cleaning.look())


def claim(name: str) -> dict[str, str]:
    return {"transaction-file": name, **SHA}


@pytest.mark.parametrize("letter", [False, True], ids=["waiting record", "dead letter"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.symlink_to("/etc/hostname"), id="link"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="link to a device"),
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(lambda path: path.write_bytes(b"?"), id="another user's file"),
    ],
)
async def test_a_claim_check_that_cannot_be_read(scene: Scene, make: Callable[[Path], object], letter: bool) -> None:
    make(Path(scene.uri, "_transactions/claimed.txn"))
    if letter:
        scene.write_letter(b"", hours_ago=1, headers=claim("claimed.txn"))
    else:
        scene.topic.add(b"", claim("claimed.txn"))
    cleaning, said = choosy(scene, unreadable=("_transactions/claimed",))
    done = await cleaned(cleaning)
    assert (done.versions, said, cleaning.passed_over.count) == (1, ["_transactions/claimed.txn"], 1)
    assert json.loads(scene.get("_maintenance/latest.json"))["passed_over"] == 1
    assert (await cleaning.waiting_records()).records == (0 if letter else 1)


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"{}", b'{"version": "x"}', b'{"version": null}', b'{"branch": "main", "version": [1]}', None],
)
@pytest.mark.parametrize("folder", ["tags", "branches"])
async def test_a_tag_or_branch_that_cannot_be_read_keeps_all_versions(
    scene: Scene, folder: str, body: bytes | None
) -> None:
    key = f"_refs/{folder}/release.json"
    scene.put(key, b"{}" if body is None else body)
    scene.put("data/0123.lance")
    scene.hours = 24 * 10
    cleaning, said = choosy(scene, unreadable=(key,) if body is None else ())
    found = await cleaning.look()
    assert found.choice.kept == {1: KeepReason.UNKNOWN, 2: KeepReason.COUNT}
    done = await cleaning.clean(found)
    assert (done.by_reason, said) == ({"unnamed": 1}, [key])
    assert scene.read_all() == {1: 10, 2: 20}


async def test_a_tag_that_cannot_be_read_since_the_look_keeps_what_was_to_go(scene: Scene) -> None:
    cleaning, _ = choosy(scene)
    found = await cleaning.look()
    assert found.choice.removable == (1,)
    scene.put("_refs/tags/late.json", b"{")
    assert (await cleaning.clean(found)).files == 0
    assert scene.read_all() == {1: 10, 2: 20}


async def test_the_transaction_file_of_another_writers_version(scene: Scene) -> None:
    """Older writers have the transaction in its file alone."""
    key = f"_versions/{2**64 - 1 - 1}.manifest"
    file = decode(scene.get(key))
    manifest = file.manifest
    manifest.ClearField("transaction_section")
    manifest.ClearField("transaction_section_v14")
    body = manifest.SerializeToString()
    scene.put(key, len(body).to_bytes(4, "little") + body + bytes(8) + scene.get(key)[-8:])
    cleaning, said = choosy(scene, unreadable=("_transactions/",))
    assert (await cleaned(cleaning)).versions == 1
    assert said == [f"_transactions/{file.outline.transaction_file}"]


async def test_files_that_cannot_be_deleted_stay_and_the_others_go(scene: Scene) -> None:
    scene.put("data/0001.lance")
    scene.put("data/0002.lance")
    scene.hours = 24 * 10
    cleaning, said = choosy(scene, undeletable=("data/0001",))
    done = await cleaned(cleaning)
    assert (done.versions, done.by_reason["unnamed"], said) == (1, 1, ["data/0001.lance"])
    again, said = choosy(scene, undeletable=("data/0001",))
    assert ((await cleaned(again)).files, said) == (0, ["data/0001.lance"])


async def test_a_manifest_that_cannot_be_deleted_keeps_its_version(scene: Scene) -> None:
    scene.write(20, mode="overwrite")
    scene.hours = 2
    first = f"_versions/{2**64 - 1 - 1}.manifest"
    cleaning, said = choosy(scene, undeletable=(first,))
    done = await cleaned(cleaning)
    assert (done.versions, said) == (1, [first])
    assert scene.read_all() == {1: 10, 3: 10}


async def test_a_store_that_deletes_nothing_is_an_error(scene: Scene) -> None:
    cleaning, _ = choosy(scene, undeletable=("",))
    with pytest.raises(ObjectUnreadable, match="403 _versions/"):
        await cleaned(cleaning)
    assert scene.read_all() == {1: 10, 2: 20}


async def test_what_maintenance_has_written_and_can_no_longer_read(scene: Scene) -> None:
    scene.put("_maintenance/000000000000001-0000.jsonl", b"{}")
    scene.put("_maintenance/latest.json", b"{}")
    cleaning, said = choosy(scene, unreadable=("_maintenance/0", "_maintenance/latest"))
    assert (await cleaned(cleaning)).versions == 1
    assert "_maintenance/000000000000001-0000.jsonl" in said


async def test_a_folder_that_cannot_be_listed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.put("_indices/7d2f7a8e-7b7c-4d57-9c39-4b4f8b4f6d11/page.lance")
    scene.put("_indices/7d2f7a8e-7b7c-4d57-9c39-4b4f8b4f6d12/page.lance")
    scene.hours = 24 * 10
    scandir = os.scandir

    def refused(path: Any) -> Any:
        if isinstance(path, str) and path.endswith("6d11"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    cleaning, _ = choosy(scene)
    assert (await cleaned(cleaning)).by_reason["unnamed"] == 1
    assert len(scene.files("_indices")) == 1


_FRAGMENT = DataFragment(files=[DataFile(path="a")])


@pytest.mark.parametrize(
    "body",
    [
        b"damaged",
        encode(Manifest(version=1, fragments=[_FRAGMENT]), [], Transaction(uuid="u")).replace(b"\x01a", b"\x02a"),
    ],
    ids=["all of it", "a fragment"],
)
async def test_a_manifest_that_is_none_is_named(scene: Scene, body: bytes) -> None:
    """What it names is not known, so nothing may be deleted."""
    key = f"_versions/{2**64 - 1 - 1}.manifest"
    scene.put(key, body)
    with pytest.raises(CorruptTable, match=rf"{key} can't be read as a manifest .* move it away"):
        await cleaned(choosy(scene)[0])


async def test_only_the_first_hundred_are_named(scene: Scene) -> None:
    for number in range(150):
        scene.topic.add(b"", claim(f"{number}.txn"))
    cleaning, said = choosy(scene, unreadable=("_transactions/",))
    await cleaned(cleaning)
    assert (len(said), cleaning.passed_over.count, len(cleaning.passed_over.keys)) == (100, 150, 100)


@pytest.fixture(params=["s3", "minio"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    made: S3Endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made.secret_key)
    return made


@asynccontextmanager
async def cleaning_on(server: S3Endpoint, topic: StagedRecords, said: list[str]) -> AsyncIterator[Cleanup]:
    place = s3_place(server)
    for first in (0, 10):
        rows = pa.table({"id": range(first, first + 10)})
        lance.write_dataset(rows, place.uri, mode="append", storage_options=dict(place.storage_options))
    settings = S3Settings(endpoint_url=server.url, region="us-east-1", addressing_style="path")
    client = s3_client(settings)
    where = place_of(place.uri)
    assert where is not None
    policy = Policy(
        keep_ms=-HOUR_MS, keep_versions=1, reclaim_ms=HOUR_MS, republish_max=0, transaction_bytes_max=8 << 20
    )
    cleaning = Cleanup(
        Table(S3Store(client, where)),
        topic,
        policy,
        wall_clock=lambda: datetime.now(UTC),
        open_branch=lambda _: S3Store(client, where),
        passes_over=lambda key, _: said.append(key),
    )
    try:
        yield cleaning
    finally:
        cleaning.close()
        await client.aclose()


@pytest.mark.s3
@pytest.mark.parametrize("name", [LONG, "é" * 300, "a b%2F\x01"])
async def test_a_claim_check_with_a_name_that_a_server_refuses(server: S3Endpoint, name: str) -> None:
    topic, said = StagedRecords(), list[str]()
    topic.add(b"", claim(name))
    topic.add(b"", claim(f"y{name}"))
    letter_time = int(datetime.now(UTC).timestamp() * 1000)
    headers = [(key, text.encode()) for key, text in claim(f"z{name}").items()]
    topic.dead.append(replace(LETTER, offset=0, timestamp_ms=letter_time, value=b"", headers=headers))
    async with cleaning_on(server, topic, said) as cleaning:
        found = await cleaning.look()
        done = await cleaning.clean(found)
    assert (found.waiting_records, done.versions) == (2, 1)
    refused = {f"_transactions/{one}{name}" for one in ("", "y", "z")} if len(name) == 300 else set()
    assert set(said) == refused
