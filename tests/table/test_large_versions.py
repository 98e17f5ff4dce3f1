"""Versions with so many fragments that they are not copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from committerd.lance.format.manifest_file import decode
from committerd.queue.dedupe import Refused
from committerd.table.prepare import Prepared
from committerd.table.versions import History
from committerd_common.messages import Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.lance.operations import create_index
from tests.lance.samples import deletion_file, fragment, index, manifest, transaction
from tests.table.scene import Scene, append, built, verdict_on

MANY = 40_000


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path / "t")
    made.write_version(manifest(*(fragment(number) for number in range(MANY)), version=1))
    return made


async def test_an_append_shares_the_fragments_and_names_them_byte_for_byte(scene: Scene) -> None:
    table = scene.table()
    first = await table.latest()
    assert first is not None
    assert isinstance(await scene.commit(append(1), table=table), Prepared)
    second = await table.latest()
    assert second is not None
    assert set(first.fragments.chunks) <= set(second.fragments.chunks)
    body = scene.path(manifest_key(2, NamingScheme.V2)).read_bytes()
    again = decode(body)
    assert again.fragments == second.fragments
    assert again.manifest.SerializeToString(deterministic=True) in body


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
    judged = await verdict_on(History(table), before, staged)
    assert not isinstance(judged, Refused)
    prepared = await built(table, before, judged)
    shared = set(before.fragments.chunks) & set(prepared.file.fragments.chunks)
    assert len(before.fragments.chunks) - len(shared) == 1
    after = decode(bytes(prepared.body)).manifest
    assert [one.id for one in after.fragments] == [number for number in range(MANY) if number != 5]
    assert after.fragments[699].deletion_file == deletion_file(2)
    assert after.reader_feature_flags == after.writer_feature_flags == 1


async def test_a_change_on_an_old_version_is_judged_without_reading(scene: Scene) -> None:
    table = scene.table()
    behind = 300
    for number in range(behind):
        staged = append(1 + number, fragment(0, name=f"n{number}"))
        assert isinstance(await scene.commit(staged, table=table), Prepared)
    for path in (scene.root / "_versions").iterdir():
        path.unlink()
    latest = await table.read(1 + behind)
    staged = transaction(1, delete=Transaction.Delete(updated_fragments=[fragment(700)], deleted_fragment_ids=[5]))
    judged = await verdict_on(History(table), latest, staged)
    assert not isinstance(judged, Refused)
    assert len(judged.found.checked) == behind
