"""`committerd maintain`: fragments are rewritten through the queue, indices go along, and writers go on."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.commands.maintain import rewriting
from committerd_client import staging
from committerd_common.messages import Status
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene, until
from tests.commands.running import printed, run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

SMALL: Any = {"MAINTAIN__ROWS_PER_FRAGMENT": "1000", "MAINTAIN__UNINDEXED_ROWS_MAX": "100"}
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), 4))])


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    vectors = np.random.default_rng(first).random((count, 4), np.float32)
    columns = [pa.array(ids), [f"word{one}" for one in ids], pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4)]
    return pa.table(columns, schema=SCHEMA)


def append(scene: Scene, first: int, fragments: int, rows_each: int) -> None:
    """Append fragments through the queue, each in a transaction of its own."""
    dataset = scene.table.open()
    written = write_fragments(rows(first, fragments * rows_each), dataset, mode="append", max_rows_per_file=rows_each)
    answers = scene.ask(*(staging.append([one], dataset=dataset) for one in written))
    assert {one.status for one in answers} == {Status.COMMITTED}


def events(scene: Scene, *words: str, **settings: Any) -> list[dict[str, Any]]:
    lines = printed(scene, "maintain", *words, "--json", **SMALL | settings).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def indexed(scene: Scene, request: pytest.FixtureRequest) -> Scene:
    """A table with a scalar, a text and a vector index over 20 fragments of 10 rows, and 30 fragments beyond them."""
    lance.write_dataset(rows(0, 200), scene.table.uri, max_rows_per_file=10, enable_stable_row_ids=request.param)
    scene.started()
    for column, kind in (("id", "BTREE"), ("text", "INVERTED"), ("vector", "IVF_FLAT")):
        options: dict[str, Any] = {"num_partitions": 2} if kind == "IVF_FLAT" else {}
        (answer,) = scene.ask(staging.create_index(scene.table.open(), column, kind, **options))
        assert answer.status == Status.COMMITTED
    append(scene, 200, 30, 10)
    (answer,) = scene.ask(staging.delete(scene.table.open(), "id % 10 = 3"))
    assert answer.status == Status.COMMITTED
    return scene


def found(scene: Scene) -> list[list[int]]:
    """The results of queries that use each of the indices."""
    table = scene.table.open()
    nearest = {"column": "vector", "q": np.full(4, 0.5, np.float32), "k": 20, "nprobes": 2}
    scans: list[dict[str, Any]] = [
        {"filter": "id in (7, 13, 444)"},
        {"full_text_query": "word77"},
        {"nearest": nearest},
    ]
    return [sorted(table.to_table(columns=["id"], **scan)["id"].to_pylist()) for scan in scans]


def test_fragments_are_rewritten_with_their_indices_and_nothing_is_lost(indexed: Scene) -> None:
    scene = indexed
    before, version = found(scene), scene.table.version
    plan, cleanup = events(scene, "--dry-run")
    assert (cleanup["versions"], cleanup["bytes"], cleanup["kept"]) == ([], 0, {"count": version})
    assert (cleanup["waiting_records"], cleanup["oldest_read_version"]) == (0, None)
    assert scene.table.version == version
    assert plan["table"]["fragments"] == 50
    assert {one["name"]: one["unindexed_rows"] for one in plan["table"]["indices"]} == dict.fromkeys(
        ("id_idx", "text_idx", "vector_idx"), 270
    )
    assert sorted(len(one["fragments"]) for one in plan["groups"]) == [20, 30]
    assert sorted(plan["optimize"]) == ["id_idx", "text_idx", "vector_idx"]

    done = events(scene, "--once")
    assert [one["event"] for one in done] == ["rewritten", "indexed", "indexed", "indexed", "cleaned"]
    assert (done[0]["fragments_before"], done[0]["fragments_after"]) == (50, 2)
    assert found(scene) == before
    table = scene.table.open()
    (unindexed,) = {
        len(
            {one.fragment_id for one in table.get_fragments()}
            - {id for part in index.segments for id in part.fragment_ids}
        )
        for index in table.describe_indices()
    }
    assert unindexed == 0
    assert table.count_rows() == 450
    assert table.to_table(filter="id % 10 = 3").num_rows == 0
    after, _ = events(scene, "--dry-run")
    assert (after["groups"], after["optimize"]) == ([], [])
    assert len(scene.table.ids_in_4()) == 450


def test_people_read_what_would_be_done_and_what_was_done(indexed: Scene) -> None:
    said = printed(indexed, "maintain", "--dry-run", **SMALL)
    assert "fragments:  50 of" in said
    assert "2 tasks would rewrite" in said
    assert "Index id_idx would be optimized: it lacks 270 rows, and has 1 segments." in said
    done = printed(indexed, "maintain", "--once", **SMALL)
    assert "50 fragments became 2" in done
    assert "There is nothing to do." in printed(indexed, "maintain", "--dry-run", **SMALL)
    assert Path(indexed.table.uri, "data").is_dir()


def test_a_process_of_its_own_goes_on_until_it_is_told_to_end(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    scene.table.create(rows=10)
    scene.started()
    scene.committed(20)
    maintainer = Daemon(
        name=scene.name,
        uri=scene.table.uri,
        kafka=kafka.bootstrap_servers,
        settings={"MAINTAIN__INTERVAL_SECONDS": "0.2", "MAINTAIN__CLEANUP_SECONDS": "1"},
        log=scene.folder / "maintain.log",
        command=(sys.executable, "-m", "committerd", "maintain"),
    )
    with maintainer:
        until(lambda: len(scene.table.open().get_fragments()) < 10)
        scene.committed(20)
        # The 21 that it found, and at least eight of these, which it may have seen while they came.
        until(lambda: maintainer.metric("committerd_maintenance_rewritten_fragments_total", files="before") >= 29)
        until(lambda: maintainer.metric("committerd_maintenance_stored_bytes") > 0)
        # A cleanup that looks while the committer puts a version finds files that no version names yet.
        until(lambda: maintainer.metric("committerd_maintenance_unneeded_bytes") == 0)
        assert maintainer.metric("committerd_maintenance_fragments_wanted") == 1000
        assert maintainer.ready()[0]
        maintainer.stop()
    assert maintainer.code == 0
    scene.audit(range(50))
    assert sorted(scene.table.ids_in_4()) == sorted(scene.table.ids())
    found = json.loads(printed(scene, "status", "--json"))["table"]
    assert 0 < found["maintenance"]["versions"] <= found["versions_in_all"]
    assert "maintenance:" in printed(scene, "status")


def test_a_metric_tells_the_oldest_version_that_a_waiting_record_reads(
    scene: Scene, kafka: KafkaBroker | RunningKafka
) -> None:
    scene.table.create(rows=10)
    committer = scene.started()
    maintainer = Daemon(
        name=scene.name,
        uri=scene.table.uri,
        kafka=kafka.bootstrap_servers,
        settings={"MAINTAIN__INTERVAL_SECONDS": "0.2", "MAINTAIN__CLEANUP_SECONDS": "0.5"},
        log=scene.folder / "maintain.log",
        command=(sys.executable, "-m", "committerd", "maintain"),
    )

    def oldest() -> float:
        return maintainer.metric("committerd_maintenance_oldest_read_version")

    with maintainer:
        until(lambda: oldest() == scene.table.version)
        committer.stop()
        old, delete = scene.table.version, staging.delete(scene.table.open(), "id = 3")
        scene.table.write()
        scene.table.write()
        until(lambda: oldest() == old + 2)
        offsets = scene.stage(delete)
        until(lambda: oldest() == old)
        committer.start()
        scene.topics.wait_answers(offsets)
        until(lambda: oldest() == scene.table.version > old + 2)


def test_a_missing_table_and_wrong_hours_are_said_so(scene: Scene) -> None:
    missing = run(scene, "maintain", "--once")
    assert (missing.code, "maintenance begins when somebody has created it" in missing.err) == (2, True)
    wrong = run(scene, "maintain", "--once", MAINTAIN__HOURS="22 to 6")
    assert wrong.code == 2
    assert "such as 22-6 or 8-18" in wrong.err


def test_operations_that_are_not_allowed_are_named_before_data_is_written(scene: Scene) -> None:
    """Each try would leave its data files behind, for as long as its dead letter may be replayed."""
    lance.write_dataset(rows(0, 200), scene.table.uri, max_rows_per_file=10)
    allowed = {"COMMIT__ALLOWED_OPERATIONS": "append,reserve_fragments"}
    scene.started(**allowed)
    before = files(scene)
    done = run(scene, "maintain", "--once", **allowed)
    assert files(scene) == before
    assert done.code == 2
    assert "commit.allowed_operations lacks create_index and rewrite, which maintenance commits" in done.err


def test_while_no_committer_answers_it_writes_nothing_and_ends_with_1(scene: Scene) -> None:
    lance.write_dataset(rows(0, 200), scene.table.uri, max_rows_per_file=10)
    scene.started().stop()
    before = files(scene)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "_COMMIT_SECONDS", 1.0)
        patch.setattr(rewriting, "_SHORT", 0.0)  # each task has a commit of its own
        done = run(scene, "maintain", "--once", MAINTAIN__ROWS_PER_FRAGMENT="50", MAINTAIN__TASKS_MAX="1")
    assert done.code == 1
    assert "rewrite failed: " in done.err
    assert "3 of 4 tasks were not begun after this failure" in done.err
    assert files(scene) == before
    assert len(scene.topics.read_staged()) <= 1, "the rest was not tried"  # none if Kafka was too slow to take it


def test_fragments_that_a_waiting_rewrite_replaces_are_left_alone(scene: Scene) -> None:
    lance.write_dataset(rows(0, 200), scene.table.uri, max_rows_per_file=10)
    committer = scene.started()
    (answer,) = scene.ask(staging.reserve_fragments(scene.table.open(), 1))
    committer.stop()
    others = staging.compact_files(scene.table.open(), groups=[range(8)]).rewrite([answer.reserved_first])
    scene.stage(others)
    plan, _ = events(scene, "--dry-run")
    assert [one["fragments"] for one in plan["groups"]] == [list(range(8, 20))]
    committer.start()
    done = events(scene, "--once")
    assert done[0]["fragments_before"] >= 12
    assert sorted(scene.table.open().to_table(columns=["id"])["id"].to_pylist()) == list(range(200))


def test_outside_of_its_hours_it_begins_nothing(scene: Scene) -> None:
    lance.write_dataset(rows(0, 200), scene.table.uri, max_rows_per_file=10)
    scene.started()
    hour, version = datetime.now(UTC).hour, scene.table.version
    hours = f"{(hour + 3) % 24}-{(hour + 5) % 24}"
    assert f"maintain.hours is {hours} (UTC): nothing more is begun now" in printed(
        scene, "maintain", "--once", MAINTAIN__HOURS=hours
    )
    assert scene.table.version == version


def files(scene: Scene) -> set[str]:
    return {path.as_posix() for path in Path(scene.table.uri, "data").iterdir()}
