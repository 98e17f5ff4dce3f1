"""Cleanups of tables and records with a feature that committerd does not know: nothing that they need is deleted."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from committerd.errors import UnsupportedTable
from tests.committer.test_by_pylance import detached, staged_by
from tests.maintenance.scene import Scene
from tests.oracle.feature_tables import OVERLAYS, UNKNOWN, Feature, overlay, rows

pytestmark = pytest.mark.pylance


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv(OVERLAYS, "1")
    return Scene(tmp_path)


@pytest.mark.parametrize("feature", UNKNOWN, ids=lambda feature: str(feature.flag))
async def test_a_table_with_such_a_flag_is_left_alone(feature: Feature, scene: Scene) -> None:
    """Though all but the latest version are old, and a file in it belongs to nobody."""
    root = Path(scene.uri)
    feature.make(root)
    scene.put("data/nobodys.lance")
    table = lance.dataset(scene.uri)
    lance.write_dataset(rows(500).cast(table.schema), scene.uri, mode="append")
    before, files, scene.hours = scene.read_all(), scene.files(""), 100.0
    with pytest.raises(UnsupportedTable, match=f"it needs feature flag {feature.flag}") as error:
        await scene.clean()
    assert error.value.code == "unknown_to_maintenance"
    assert not scene.deleted
    assert scene.files("") >= files
    assert scene.read_all() == before


async def test_a_waiting_record_with_an_unknown_operation_keeps_its_files(scene: Scene) -> None:
    root = Path(scene.uri)
    lance.write_dataset(rows(0), scene.uri)
    operation = overlay(root)
    staged = staged_by(root, detached(operation))
    scene.topic.add(staged)
    scene.put("data/nobodys.lance")
    files, scene.hours = scene.files("data"), 100.0
    await scene.clean()
    assert files - scene.files("data") == {"nobodys.lance"}
    lance.LanceDataset.commit(scene.uri, operation, read_version=1)
    assert scene.read_all()[2] == 100
