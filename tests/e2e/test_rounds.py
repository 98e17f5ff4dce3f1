"""Deletes, upserts, Appends and configuration that wait together become three versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd_client import staging
from committerd_common.messages import Status
from harness.child import Launch
from harness.dynamodb import DynamoDBEndpoint
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import ddb_place
from harness.s3 import S3Endpoint
from harness.scene import STAYS, Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

ROWS, IN_FILE = 60, 25


@pytest.fixture
def scene_with_entries(
    s3: S3Endpoint,
    dynamodb: DynamoDBEndpoint,
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> Iterator[Scene]:
    """A dataset in a bucket, with its versions in DynamoDB."""
    place = ddb_place(s3, dynamodb)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as made:
        yield made


@pytest.mark.parametrize("options", [{}, {"enable_stable_row_ids": True}, {"enable_v2_manifest_paths": False}], ids=str)
def test_what_waits_together_becomes_three_versions(scene: Scene, options: dict[str, bool]) -> None:
    expected = require_three_versions(scene, scene.table.create(ROWS, max_rows_per_file=IN_FILE, **options))
    assert sorted(scene.table.ids_in_4()) == sorted(expected)


def test_in_a_table_whose_files_lie_in_a_base_path(scene: Scene, tmp_path: Path) -> None:
    ids = scene.table.new_ids(ROWS)
    origin = lance.write_dataset(
        pa.table({"id": pa.array(ids, pa.int64())}),
        str(tmp_path / "origin"),
        max_rows_per_file=IN_FILE,
        data_storage_version="2.0",
    )
    # The first two fragments have deletion files there.
    origin.delete(f"id IN ({ids[-1]}, {ids[26]}, {ids[24]})")
    origin.shallow_clone(scene.table.uri, origin.version)
    ids = [one for one in ids if one not in (ids[-1], ids[26], ids[24])]
    require_three_versions(scene, ids)


@pytest.mark.s3
@pytest.mark.dynamodb
def test_in_a_table_whose_versions_are_in_dynamodb(scene_with_entries: Scene) -> None:
    ids = scene_with_entries.table.create(ROWS, max_rows_per_file=IN_FILE)
    require_three_versions(scene_with_entries, ids)


def require_three_versions(scene: Scene, ids: list[int]) -> set[int]:
    """Stage records of all parts of a round in a table with these ids; returns the ids that it has then."""
    daemon = scene.started(**STAYS, COMMIT__INTERVAL_SECONDS_MIN="2")
    table = scene.table.open()
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
    # While it stands still, however long the staging takes. The request for records that it has sent returns the first
    # one alone, whose version begins the interval that the others wait for. Without a request, all come together.
    daemon.freeze()
    first = scene.stage(staging.update_config(table, table_metadata={"begins": "the interval"}))
    offsets = scene.stage(*waiting)
    daemon.thaw()
    answers = scene.topics.wait_answers(offsets)
    assert {answer.status for answer in scene.topics.wait_answers(first)} == {Status.COMMITTED}
    by_uuid = {answer.uuid: answer for answer in answers}
    refused = by_uuid.pop(rival.uuid)
    before = min(answer.version for answer in by_uuid.values()) - 1
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
    return expected
