"""`committerd_spark.maintain`: the plan's tasks run on executors, and one commit replaces all fragments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from committerd_client import CommitTimeout, SyncCommitClient, staging
from committerd_client.maintenance.plan import Limits, Targets
from committerd_spark import maintain
from harness.kafka import KafkaBroker, RunningKafka
from tests.producers.test_panics import without_fields
from tests.spark.queue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]

TARGETS = Targets(rows_per_fragment=1000, fragments=10, unindexed_rows=10)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_tasks_run_on_executors_and_one_commit_replaces_all_fragments(
    spark: SparkSession, queue: Queue, stable: bool
) -> None:
    rows = pa.table({"id": range(3000), "text": [f"word{one}" for one in range(3000)]})
    lance.write_dataset(rows, queue.uri, max_rows_per_file=50, enable_stable_row_ids=stable)
    with SyncCommitClient(queue.kafka, dataset=queue.name, dataset_uri=queue.uri, timeout=200) as client:
        client.commit(staging.create_index(queue.table(), "id", "BTREE"))
        client.commit(staging.delete(queue.table(), "id % 100 = 7"))
    lance.write_dataset(rows.slice(0, 500), queue.uri, mode="append", max_rows_per_file=50)
    before = queue.versions()
    options: dict[str, Any] = {"bootstrap_servers": queue.kafka, "targets": TARGETS, "timeout": 200.0}
    done = maintain(spark, queue.uri, limits=Limits(tasks=100), **options)
    assert done.compaction is not None
    assert (done.compaction.fragments_removed, done.compaction.fragments_added) == (70, 4)
    assert (done.optimized, done.waiting) == (("id_idx",), 0)
    assert queue.versions() == before + 4  # the ids, the fragments, an id to see whether a committer answers, the index
    assert len(queue.table().get_fragments()) == 4
    assert queue.column("id") == sorted([one for one in range(3000) if one % 100 != 7] + [*range(500)])
    (index,) = queue.table().describe_indices()
    assert index.num_rows_indexed == queue.table().count_rows()
    assert [queue.table().count_rows(f"id = {one}") for one in (7, 8, 107, 2999)] == [1, 2, 1, 1]
    # What is left are remainders; it ends.
    while maintain(spark, queue.uri, **options).compaction is not None:
        assert queue.versions() < before + 12
    assert queue.table().count_rows() == 3470


def test_a_call_while_the_rewrite_of_an_earlier_one_waits_writes_nothing(spark: SparkSession, queue: Queue) -> None:
    lance.write_dataset(pa.table({"id": range(400)}), queue.uri, max_rows_per_file=20)
    with SyncCommitClient(queue.kafka, dataset=queue.name, dataset_uri=queue.uri, timeout=200) as client:
        ids = client.commit(staging.reserve_fragments(queue.table(), 1)).reserved
        assert ids is not None
        earlier = staging.compact_files(queue.table(), groups=[range(20)]).rewrite(ids)
        queue.daemon.stop()
        client.submit(earlier)
    options: dict[str, Any] = {"bootstrap_servers": queue.kafka, "targets": TARGETS}
    data = Path(queue.uri, "data")
    before = set(data.iterdir())
    with pytest.raises(CommitTimeout):
        maintain(spark, queue.uri, timeout=6.0, **options)
    queue.daemon.start()
    done = maintain(spark, queue.uri, timeout=200.0, **options)
    assert done.compaction is None
    assert set(data.iterdir()) == before, "the earlier one wrote its file, and nobody wrote more"
    assert (len(queue.table().get_fragments()), queue.column("id")) == (1, [*range(400)])


def test_what_pylance_cannot_rewrite_is_left_alone_and_named(spark: SparkSession, queue: Queue) -> None:
    """A dictionary with small indices, an index that names no column, and a nested one that covers no live fragment."""

    def rows(first: int) -> pa.Table:
        indices, values = pa.array([*range(100)], pa.int8()), [f"v{one}" for one in range(first, first + 100)]
        return pa.table(
            {
                "id": range(first, first + 100),
                "c": pa.DictionaryArray.from_arrays(indices, pa.array(values)),
                "s": pa.array([{"x": one} for one in range(first, first + 100)]),
            }
        )

    lance.write_dataset(rows(0), queue.uri).create_scalar_index("s.x", "BTREE", name="nested")
    queue.table().delete("id >= 0")
    for first in (100, 200):
        lance.write_dataset(rows(first), queue.uri, mode="append")
    queue.table().create_scalar_index("id", "BTREE", name="bad")
    without_fields(Path(queue.uri), "bad")
    lance.write_dataset(rows(300), queue.uri, mode="append")
    targets = Targets(rows_per_fragment=1000, fragments=1, unindexed_rows=10)
    options: dict[str, Any] = {"bootstrap_servers": queue.kafka, "targets": targets, "timeout": 200.0}
    done = maintain(spark, queue.uri, **options)
    assert done.compaction is not None
    assert (done.compaction.version, [one.fragments for one in done.compaction.left_alone]) == (None, [(1, 2)])
    assert "dictionary indices use 32 bits" in done.compaction.left_alone[0].why
    assert done.optimized == ("nested",)
    assert "drop it" in done.left_alone["bad"]
    assert queue.table().to_table()["id"].to_pylist() == [*range(100, 400)]
    assert queue.table().count_rows("s.x = 150") == 1
    assert maintain(spark, queue.uri, leave=[1, 2], **options).compaction is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("spark_java")
def test_workers_of_a_standalone_cluster_share_the_tasks_of_one_commit(kafka: KafkaBroker | RunningKafka) -> None:
    """The program reads the whole table at the end, and looks up a row through the index."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark_maintenance", "--fragments", "600", "--json"],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "LANCE_LOG": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["fragments_before"], found["fragments_after"], found["versions"]) == (600, 6, 2)
    assert len(found["tasks"]) == 2
    assert min(found["tasks"].values()) > 0
