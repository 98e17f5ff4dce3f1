"""Versions with so many fragments that they are not copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from committerd.lance.format.manifest_file import decode
from committerd.stores import local_files
from committerd.stores.local import LocalStore
from committerd.stores.measured import MeasuredStore
from committerd.stores.port import Created, Exists
from committerd.table.history import History
from committerd.table.prepare import Prepared, Rejected, build_version, judge
from committerd.table.versions import Table
from committerd.telemetry import Telemetry
from committerd_common.messages import Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.lance.operations import create_index
from tests.lance.samples import deletion_file, fragment, index, manifest, transaction
from tests.table.scene import ANY, Scene, append, world

MANY = 40_000


class NotingStore(LocalStore):
    """Records how bodies are passed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self.parts: list[int] = []

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        self.parts.append(1)
        return await super().put_if_absent(key, body)

    async def put_parts_if_absent(self, key: str, parts: Sequence[bytes]) -> Created | Exists:
        self.parts.append(len(parts))
        return await super().put_parts_if_absent(key, parts)


class OnlyWhole(LocalStore):
    """A store that takes whole bodies only, as S3 does."""

    put_parts_if_absent: None = None  # type: ignore[assignment]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path / "t")
    made.write_version(manifest(*(fragment(number) for number in range(MANY)), version=1))
    return made


async def test_an_append_shares_the_fragments_and_is_written_in_parts(scene: Scene) -> None:
    store = NotingStore(scene.root)
    table = Table(store)
    first = await table.latest()
    assert first is not None
    assert isinstance(await scene.commit(append(1), table=table), Prepared)
    second = await table.latest()
    assert second is not None
    assert set(first.fragments.chunks) <= set(second.fragments.chunks)
    assert store.parts == [len(second.fragments.chunks) + 6]
    body = scene.path(manifest_key(2, NamingScheme.V2)).read_bytes()
    again = decode(body)
    assert again.fragments == second.fragments
    assert again.manifest.SerializeToString(deterministic=True) in body


async def test_a_small_version_is_written_whole(tmp_path: Path) -> None:
    small = Scene(tmp_path / "small")
    small.write_versions(1)
    store = NotingStore(small.root)
    assert isinstance(await small.commit(append(1), table=Table(store)), Prepared)
    assert store.parts == [1]


async def test_indices_that_stay_are_shared(scene: Scene) -> None:
    scene.write_version(manifest(fragment(0), version=2), indices=[index(1), index(2)])
    table = scene.table()
    before = await table.latest()
    assert before is not None
    assert isinstance(await scene.commit(append(2), table=table), Prepared)
    after = await table.latest()
    assert after is not None
    assert after.index_section is before.index_section
    staged = create_index(index(3))
    staged.read_version = 3
    assert isinstance(await scene.commit(staged, table=table), Prepared)
    assert [one.name for one in (await scene.latest()).indices] == ["i1", "i2", "i3"]


async def test_a_change_opens_the_fragments_around_it_only(scene: Scene) -> None:
    table = scene.table()
    before = await table.latest()
    assert before is not None
    scene.write_files(changed := fragment(700, deleted=2))
    staged = transaction(1, delete=Transaction.Delete(updated_fragments=[changed], deleted_fragment_ids=[5]))
    judged = await judge(History(table), before, staged, options=ANY, world=world())
    assert not isinstance(judged, Rejected)
    prepared = await build_version(table, before, judged, world=world())
    shared = set(before.fragments.chunks) & set(prepared.file.fragments.chunks)
    assert len(before.fragments.chunks) - len(shared) == 1
    after = decode(bytes(prepared.body)).manifest
    assert [one.id for one in after.fragments] == [number for number in range(MANY) if number != 5]
    assert after.fragments[699].deletion_file == deletion_file(2)
    assert after.reader_feature_flags == after.writer_feature_flags == 1


async def test_a_change_on_an_old_version_is_judged_without_reading(scene: Scene) -> None:
    store = NotingStore(scene.root)
    table = Table(store)
    behind = 300
    for number in range(behind):
        staged = append(1 + number, fragment(0, name=f"n{number}"))
        assert isinstance(await scene.commit(staged, table=table), Prepared)
    for path in (scene.root / "_versions").iterdir():
        path.unlink()
    latest = await table.read(1 + behind)
    staged = transaction(1, delete=Transaction.Delete(updated_fragments=[fragment(700)], deleted_fragment_ids=[5]))
    judged = await judge(History(table), latest, staged, options=ANY, world=world())
    assert not isinstance(judged, Rejected)
    assert len(judged.found.checked) == behind


PARTS = [b"", *(bytes([number % 256]) * number for number in range(3000)), b""]
"""More than the system takes at once."""


@pytest.mark.parametrize("kind", [LocalStore, OnlyWhole])
async def test_parts_become_one_object(tmp_path: Path, kind: type[LocalStore]) -> None:
    registry = CollectorRegistry()
    store = MeasuredStore(kind(tmp_path, durable=False), Telemetry(registry))
    assert await store.put_parts_if_absent("o", PARTS) == Created()
    assert await store.put_parts_if_absent("o", [b"other"]) == Exists()
    assert (tmp_path / "o").read_bytes() == b"".join(PARTS)
    for status in ("ok", "exists"):
        labels = {"operation": "put_if_absent", "status": status}
        assert registry.get_sample_value("committerd_store_requests_total", labels) == 1


async def test_parts_are_written_on_where_the_system_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.writev

    def short(descriptor: int, parts: Sequence[memoryview]) -> int:
        return write(descriptor, [parts[0][:2]])

    monkeypatch.setattr(os, "writev", short)
    parts = [b"abcde", b"", b"f", b"ghi"]
    assert await LocalStore(tmp_path, durable=False).put_parts_if_absent("o", parts) == Created()
    assert (tmp_path / "o").read_bytes() == b"abcdefghi"


@pytest.mark.parametrize("allocate", [None, lambda *_: -1])
async def test_a_large_object_needs_no_reserved_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocate: Callable[..., int] | None
) -> None:
    monkeypatch.setattr(local_files, "_fallocate", lambda: allocate)
    large = os.urandom(3 << 20)
    assert await LocalStore(tmp_path, durable=False).put_if_absent("o", large) == Created()
    assert (tmp_path / "o").read_bytes() == large
