"""What pylance can't rewrite is left alone, named and counted; the table stays readable, and the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.commands.maintain import rewriting
from committerd_client import StagingError, SyncCommitClient, staging
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.commands.running import Ran, printed, run
from tests.producers.test_panics import without_fields

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

SMALL: Any = {"MAINTAIN__FRAGMENTS_MAX": "1", "MAINTAIN__UNINDEXED_ROWS_MAX": "0"}


def append_dictionary(uri: str, first: int) -> None:
    values = pa.array([f"v{one}" for one in range(first, first + 100)])
    column = pa.DictionaryArray.from_arrays(pa.array([*range(100)], pa.int8()), values)
    lance.write_dataset(pa.table({"c": column}), uri, mode="append")


def once(scene: Scene, *, code: int = 0, **settings: str) -> list[dict[str, Any]]:
    done: Ran = run(scene, "maintain", "--once", "--json", **SMALL, **settings)
    assert done.code == code, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_small_dictionaries(scene: Scene) -> None:
    for first in (0, 100):
        append_dictionary(scene.table.uri, first)
    scene.started()
    before = lance.dataset(scene.table.uri).to_table().to_pylist()
    said = once(scene)
    assert [one["event"] for one in said] == ["left_alone", "cleaned"]
    assert said[0]["fragments"] == [0, 1]
    assert "dictionary indices use 32 bits but the declared Int8 key type uses 8 bits" in said[0]["error"]
    assert lance.dataset(scene.table.uri).to_table().to_pylist() == before
    data = Path(scene.table.uri, "data")
    assert len(list(data.iterdir())) == 2

    # The next run tries nothing, and rewrites what came since.
    version = scene.table.version
    assert [one["event"] for one in once(scene)] == ["cleaned"]
    assert scene.table.version == version
    plan, _ = (json.loads(line) for line in printed(scene, "maintain", "--dry-run", "--json", **SMALL).splitlines())
    assert (plan["groups"], [one["fragments"] for one in plan["left_alone"]]) == ([], [[0, 1]])
    assert "Left alone: 2 fragments (0, 1): what was written can't be read" in printed(
        scene, "maintain", "--dry-run", **SMALL
    )
    status = json.loads(printed(scene, "status", "--json"))["table"]
    assert [(one["fragments"], one["times"]) for one in status["left_alone"]] == [([0, 1], 1)]
    assert (status["maintenance"]["left_alone_fragments"], status["maintenance"]["left_alone_indices"]) == (2, 0)
    assert "left alone:" in printed(scene, "status")
    for _ in range(2):
        lance.write_dataset(
            pa.table({"c": lance.dataset(scene.table.uri).take([0])["c"].combine_chunks()}),
            scene.table.uri,
            mode="append",
        )
    assert [one["event"] for one in once(scene)] == ["rewritten", "cleaned"]
    assert lance.dataset(scene.table.uri).count_rows() == 202


def test_a_task_that_fails_for_an_unknown_reason_is_left_alone_after_the_third_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.write_dataset(pa.table({"id": range(20)}), scene.table.uri, max_rows_per_file=10)
    scene.started()

    def fails(*_: Any) -> Any:
        raise OSError("LanceError(IO): no space left")

    monkeypatch.setattr(rewriting, "execute_task", fails)
    for _ in range(3):
        assert [one["event"] for one in once(scene, code=1)] == ["failed", "cleaned"]
    assert [one["event"] for one in once(scene)] == ["cleaned"]
    assert [one["times"] for one in json.loads(printed(scene, "status", "--json"))["table"]["left_alone"]] == [3]


def test_an_append_at_which_pylance_panics_is_an_error_and_the_client_goes_on(
    scene: Scene, kafka: KafkaBroker | RunningKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.table.create(rows=10)
    scene.started()
    panics: Any = pa.table({"c": pa.array([["a", "b", "c"]], pa.list_(pa.string(), 3))})

    def panic(*_: Any, **__: Any) -> None:
        lance.write_dataset(panics, scene.folder / "other.lance", data_storage_version="2.1")

    given: Any = {"dataset": scene.name, "dataset_uri": scene.table.uri}
    with SyncCommitClient(kafka.bootstrap_servers, **given) as client:
        with monkeypatch.context() as patch:
            patch.setattr(lance.fragment, "write_fragments", panic)
            with pytest.raises(StagingError, match="pylance panicked") as raised:
                client.append(pa.table({"id": [11]}))
        assert raised.value.code == "pylance_panic"
        assert client.append(pa.table({"id": [11]})).num_inserted_rows == 1


def test_an_index_on_a_nested_column_that_covers_no_live_fragment_is_built_anew(scene: Scene) -> None:
    def rows(first: int) -> pa.Table:
        return pa.table(
            {"id": range(first, first + 100), "s": pa.array([{"x": one} for one in range(first, first + 100)])}
        )

    lance.write_dataset(rows(0), scene.table.uri).create_scalar_index("s.x", "BTREE", name="nested")
    lance.dataset(scene.table.uri).delete("id >= 0")
    lance.write_dataset(rows(100), scene.table.uri, mode="append")
    scene.started()
    assert [one["event"] for one in once(scene)] == ["indexed", "cleaned"]
    (index,) = lance.dataset(scene.table.uri).describe_indices()
    assert index.num_rows_indexed == 100
    assert lance.dataset(scene.table.uri).count_rows("s.x = 150") == 1
    assert [one["event"] for one in once(scene)] == ["cleaned"]


def test_an_index_that_names_no_column_is_named_and_the_other_steps_go_on(scene: Scene) -> None:
    """pylance panics when it carries such an index over a compaction. Somebody has to drop it: the exit code is 1."""
    lance.write_dataset(pa.table({"id": range(160)}), scene.table.uri, max_rows_per_file=10)
    lance.dataset(scene.table.uri).create_scalar_index("id", "BTREE")
    without_fields(Path(scene.table.uri))
    scene.started()
    said = once(scene, code=1)
    assert [one["event"] for one in said] == ["rewritten", "failed", "cleaned", "left_alone"]
    assert (said[0]["fragments_before"], said[0]["fragments_after"]) == (16, 1)
    assert (said[3]["index"], "drop it (staging.drop_index)" in said[3]["error"]) == ("id_idx", True)
    assert [one["event"] for one in once(scene, code=1)] == ["cleaned", "left_alone"]
    status = json.loads(printed(scene, "status", "--json"))["table"]
    assert [one["index"] for one in status["left_alone"]] == ["id_idx"]
    scene.ask(staging.drop_index(scene.table.open(), "id_idx"))
    assert [one["event"] for one in once(scene)] == ["cleaned"]
