"""`committerd recreate` drops a table and makes it anew under the same queue, and loses no record in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd_client import SyncCommitClient, staging
from committerd_common.messages import Status
from harness.daemon import Daemon
from harness.dynamodb import DynamoDBEndpoint
from harness.places import StorePlace, ddb_place, s3_place
from harness.s3 import S3Endpoint
from harness.scene import STAYS, Scene
from tests.commands.running import answered, printed, run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

DO = ("recreate", "--reason", "a new format", "--apply")


def _client(scene: Scene) -> SyncCommitClient:
    return SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri)


def _with_rows(scene: Scene) -> Daemon:
    """A table with rows, an index, a tag, configuration, and marks of an application and a job."""
    daemon = scene.daemon(**STAYS)
    with _client(scene) as client:
        client.create(
            pa.schema([("id", pa.int64()), pa.field("name", pa.string(), metadata={"unit": "none"})]),
            data_storage_version="2.1",
            enable_stable_row_ids=True,
        )
        client.append([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}], app=("nightly", 7))
        client.create_index("id", "BTREE")
        client.delete("id = 2")
    table = lance.dataset(scene.table.uri)
    table.tags.create("kept", 2)
    table.update_config({"owner": "us"})
    return daemon


def test_a_dry_run_changes_nothing_and_says_what_would_go(scene: Scene) -> None:
    _with_rows(scene)
    before = _all_files(scene)
    said = answered(scene, "recreate")
    assert (said["applied"], said["waiting"], said["committers"], said["columns"]) == (False, 0, 1, 2)
    assert said["files"] == len(before)
    assert "Nothing was changed. Add --apply and --reason to do it." in printed(scene, "recreate")
    assert "needs --reason" in run(scene, "recreate", "--apply").err
    ran = run(scene, *DO)
    assert (ran.code, "has committers that run (1)" in ran.err) == (1, True)
    assert _all_files(scene) == before


def _all_files(scene: Scene) -> set[Path]:
    return {one for one in Path(scene.table.uri).rglob("*") if one.is_file()}


def test_the_new_table_is_empty_and_its_committer_goes_on(scene: Scene, tmp_path: Path) -> None:
    daemon = _with_rows(scene)
    stranger = Path(scene.table.uri, "README.txt")
    stranger.write_text("not of the table")
    daemon.stop()
    old = lance.dataset(scene.table.uri)
    era, offset = scene.position()["era"], scene.position()["next"]
    printed(scene, *DO)
    new = lance.dataset(scene.table.uri)
    assert (new.version, new.count_rows(), new.schema) == (1, 0, old.schema)
    assert new.schema.field("name").metadata == {b"unit": b"none"}
    assert (new.data_storage_version, new.has_stable_row_ids) == ("2.1", True)
    assert new.config()["owner"] == "us"
    assert (new.tags.list(), new.describe_indices()) == ({}, [])
    assert not any("app.nightly" in key for key in new.metadata)
    assert (scene.position()["era"], scene.position()["next"]) == (era + 1, offset)
    assert stranger.exists()
    daemon = scene.started()
    with _client(scene) as client:
        # The application counts anew: its rows went with the table.
        assert client.append([{"id": 3, "name": "Cid"}], app=("nightly", 7)).num_inserted_rows == 1
        client.upsert([{"id": 3, "name": "Dan"}, {"id": 4, "name": "Eve"}], on="id")
    assert lance.dataset(scene.table.uri).to_table().sort_by("id").to_pydict() == {"id": [3, 4], "name": ["Dan", "Eve"]}
    daemon.stop()
    assert run(scene, "audit").code == 0
    scene.started()  # a committer starts again on it


def test_records_that_wait_are_never_dropped_in_silence(scene: Scene) -> None:
    daemon = _with_rows(scene)
    daemon.stop()
    table = lance.dataset(scene.table.uri)
    fragments = lance.fragment.write_fragments(pa.table({"id": [9], "name": ["Ida"]}), table, mode="append")
    offsets = scene.stage(staging.append(fragments, dataset=table))
    assert answered(scene, "recreate")["waiting"] == 1
    ran = run(scene, *DO)
    assert (ran.code, "the queue has records without an outcome (1)" in ran.err) == (1, True)
    assert lance.dataset(scene.table.uri).version > 1
    printed(scene, *DO, "--discard-waiting")
    scene.started()
    (outcome,) = scene.topics.wait_answers(offsets)
    assert outcome.status == Status.INVALID
    assert outcome.reason in printed(scene, "dead", "list")


def test_a_table_that_is_gone_already_gets_the_columns_of_a_file(scene: Scene, tmp_path: Path) -> None:
    daemon = _with_rows(scene)
    daemon.stop()
    shutil.rmtree(scene.table.uri)
    ran = run(scene, *DO)
    assert (ran.code, "give its columns with --like FILE" in ran.err) == (2, True)
    (tmp_path / "like.csv").write_text("key,value\n1,x\n")
    printed(scene, *DO, "--like", str(tmp_path / "like.csv"), "--data-storage-version", "2.0")
    new = lance.dataset(scene.table.uri)
    assert new.schema == pa.schema([("key", pa.int64()), ("value", pa.string())])
    assert (new.version, new.data_storage_version) == (1, "2.0")
    scene.started()
    with _client(scene) as client:
        assert client.append([{"key": 1, "value": "x"}]).version == 2


def test_what_was_interrupted_is_repeated(scene: Scene) -> None:
    """All but the last manifest is gone."""
    daemon = _with_rows(scene)
    daemon.stop()
    latest = min(Path(scene.table.uri, "_versions").glob("*.manifest"))  # names of the second scheme count down
    offset = scene.position()["next"]
    for one in _all_files(scene) - {latest}:
        one.unlink()
    printed(scene, *DO)
    assert (lance.dataset(scene.table.uri).count_rows(), scene.position()["next"]) == (0, offset)
    scene.started()


@pytest.mark.s3
@pytest.mark.parametrize("store", ["s3", pytest.param("s3+ddb", marks=pytest.mark.dynamodb)])
def test_on_other_stores(
    store: str, scene: Scene, s3: S3Endpoint, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place: StorePlace
    if store == "s3":
        place = s3_place(s3)
    else:
        dynamodb: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
        place = ddb_place(s3, dynamodb)
    with Scene(kafka=scene.topics.servers, name=scene.name, folder=tmp_path, place=place) as remote:
        daemon = remote.daemon()
        remote.table.create(3)
        remote.committed(2)
        daemon.stop()
        assert run(remote, *DO, **dict(place.settings)).code == 0
        assert (remote.table.version, remote.table.ids()) == (1, [])
        remote.started()
        remote.committed(2)
        assert len(remote.table.ids()) == 2
