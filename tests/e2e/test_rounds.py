"""Deletes, upserts, Appends and configuration that wait together become three versions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from committerd_client import staging
from committerd_common.messages import Status
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


@pytest.mark.parametrize("stable", [True, False])
def test_what_waits_together_becomes_three_versions(scene: Scene, stable: bool) -> None:
    ids = scene.table.create(60, max_rows_per_file=25, enable_stable_row_ids=stable)
    scene.started(COMMIT__INTERVAL_SECONDS_MIN="2")
    ids += scene.committed()  # the others wait for the interval
    table = scene.table.open()
    before = scene.table.version
    appends = [scene.table.append() for _ in range(5)]
    deletes = [staging.delete(table, f"id = {gone}").transaction for gone in ids[:25]]
    upserts = []
    for changed in ids[30:50]:
        new = scene.table.new_ids(1)
        upserts.append(staging.merge_insert(table, pa.table({"id": [changed, *new]}), on="id").transaction)
        scene.table.brought[upserts[-1].uuid] = new
    rival = staging.delete(table, f"id = {ids[30]}").transaction
    configs = [staging.update_config(table, table_metadata={f"key.{n}": "x"}).transaction for n in range(5)]
    waiting = [appends[0], *deletes[:10], configs[0], *upserts, rival, *appends[1:], *deletes[10:], *configs[1:]]
    answers = scene.topics.wait_answers(scene.stage(*waiting), timeout=60)
    by_uuid = {answer.uuid: answer for answer in answers}
    refused = by_uuid.pop(rival.uuid)
    assert (refused.status, refused.reason, refused.conflicting_version) == (
        Status.RETRYABLE,
        "row_conflict",
        before + 1,
    )
    assert {answer.status for answer in by_uuid.values()} == {Status.COMMITTED}, [a.message for a in answers]
    assert {(a.operation, a.version - before) for a in by_uuid.values()} == {
        ("delete", 1),
        ("update", 1),
        ("append", 2),
        ("update_config", 3),
    }
    assert [one.operation for one in scene.table.versions()[-3:]] == ["Update", "Append", "UpdateConfig"]
    assert {scene.table.metadata()[f"key.{n}"] for n in range(5)} == {"x"}
    expected = (set(ids) | {i for uuid in by_uuid for i in scene.table.brought.get(uuid, ())}) - set(ids[:25])
    scene.audit(expected)
    assert sorted(scene.table.ids_in_4()) == sorted(expected)
