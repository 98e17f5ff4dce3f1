"""`format("committerd")`: jobs and streams through Spark's Python Data Source API, on Spark Connect too.

Spark finds the format by itself, through the package `pyspark_committerd`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from committerd_spark import CommitterdDataSource
from harness.daemon import Daemon
from harness.scene import QUICK
from tests.spark.queue import Queue
from tests.spark.streams import Files, fails_late

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def write(df: DataFrame, queue: Queue, *, save_mode: str = "append", **options: Any) -> None:
    """Write a DataFrame that is not a stream."""
    given = {"bootstrap_servers": queue.kafka, "timeout": 200, **options}
    df.write.format("committerd").mode(save_mode).options(**given).save(queue.uri)


def data_files(queue: Queue) -> set[str]:
    folder = Path(queue.uri, "data")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_jobs_append_and_overwrite(spark: SparkSession, queue: Queue) -> None:
    write(spark.range(0, 10, 1, 2), queue)
    write(spark.range(10, 20), queue, **{"kafka.bootstrap.servers": queue.kafka, "kafka.request.timeout.ms": "20000"})
    assert queue.column("id") == list(range(20))
    assert [len(one.metadata.files) for one in queue.table().get_fragments()] == [1, 1]  # few rows make one file
    write(spark.range(5), queue, save_mode="overwrite")
    assert queue.column("id") == list(range(5))
    assert queue.versions() == 3


@pytest.mark.long
def test_jobs_and_micro_batches_write_into_a_branch(spark: SparkSession, queue: Queue) -> None:
    write(spark.range(3), queue)
    queue.table().create_branch("exp")
    folder = f"{queue.uri}/tree/exp"
    settings = QUICK | {"DATASET__BRANCH": "exp"}
    with Daemon(name=queue.name, uri=queue.uri, kafka=queue.kafka, settings=settings) as daemon:
        daemon.wait_ready(text="active")
        write(spark.range(3, 6), queue, branch="exp")
        queue.writer(branch="exp", mode="delete", keys="id").write(spark.range(1))
        assert sorted(lance.dataset(folder).to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]
        assert queue.column("id") == [0, 1, 2]
        with pytest.raises(PySparkException, match=r"\.tree\.gone\.staged' does not exist"):
            write(spark.range(1), queue, branch="gone")


def test_a_job_that_runs_again_adds_nothing_and_writes_nothing(spark: SparkSession, queue: Queue) -> None:
    for _ in range(2):
        write(spark.range(10), queue, appId="daily", appVersion="20260329")
        assert queue.column("id") == list(range(10))
        assert len(data_files(queue)) == 1


def test_what_can_not_be_written_is_told_before_any_file_is_written(spark: SparkSession, queue: Queue) -> None:
    lance.write_dataset(pa.table({"id": pa.array([0], pa.int64())}), queue.uri)
    before = data_files(queue)
    df = spark.range(3)
    for wrong, said in (
        ({"bootstrap_server": "b"}, "no option 'bootstrap_server' .did you mean 'bootstrap_servers'"),
        ({"mode": "upsert"}, "mode 'upsert' needs keys"),
        ({"appId": "a"}, "both or none"),
        ({"bootstrap_servers": "127.0.0.1:1", "timeout": "1"}, "Kafka at 127.0.0.1:1 "),
    ):
        with pytest.raises(PySparkException, match=said):
            write(df, queue, **wrong)
    with pytest.raises(PySparkException, match=r"column 'v' is not in the table.*schema_mode='merge'"):
        write(df.selectExpr("id", "1 v"), queue)
    assert data_files(queue) == before


def test_a_job_whose_task_fails_leaves_no_file(spark: SparkSession, queue: Queue) -> None:
    lance.write_dataset(pa.table({"id": pa.array([0], pa.int64())}), queue.uri)
    before = data_files(queue)
    with pytest.raises(PySparkException, match="no luck"):
        write(fails_late(spark.range(0, 200_000, 1, 2), queue.uri), queue)
    assert data_files(queue) == before
    assert queue.column("id") == [0]


def test_a_stream_writes_each_micro_batch_once(spark: SparkSession, queue: Queue, files: Files) -> None:
    options = {"bootstrap_servers": queue.kafka, "app_id": "s"}
    for start in (0, 10, 20):
        files.add(range(start, start + 10))
    files.run_into(spark, queue.uri, options)
    assert queue.rows() == files.rows
    assert queue.versions() == 3
    written = data_files(queue)
    files.forget_last_batch()
    files.run_into(spark, queue.uri, options)
    assert queue.versions() == 3
    assert data_files(queue) == written, "a batch that is there already writes nothing"
    files.add(range(30, 40))
    files.run_into(spark, queue.uri, options)
    assert queue.rows() == files.rows


def test_a_deleted_checkpoint_is_noticed(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    with pytest.raises(PySparkException, match=r"give option app_id, or the stream \.queryName"):
        files.run_into(spark, queue.uri, {"bootstrap_servers": queue.kafka})
    options = {"bootstrap_servers": queue.kafka, "app_id": "s"}
    files.run_into(spark, queue.uri, options)
    shutil.rmtree(files.checkpoint)
    with pytest.raises(PySparkException, match=r"checkpoint was deleted.*committerd app release s --apply"):
        files.run_into(spark, queue.uri, options)
    assert queue.rows() == files.rows


def test_changes_of_one_key_in_several_tasks(spark: SparkSession, queue: Queue) -> None:
    """The data source can't shuffle rows: the driver finds the latest change of a key, and drops the others."""
    write(spark.range(0, 100, 1, 2).selectExpr("id", "'old' v"), queue)
    changes = spark.range(0, 100_000, 1, 2).selectExpr(
        "id % 50000 id", "id seq", "if(id >= 90000, 'd', 'u') op", "concat('at ', id) v"
    )
    write(changes, queue, mode="cdc", keys="id", op_column="op", order_by="seq")
    assert queue.versions() == 2
    rows = {row["id"]: row["v"] for row in queue.rows()}
    assert rows == {id: f"at {id + 50_000}" for id in range(40_000)}
    assert queue.table().count_rows() == 40_000
    with pytest.raises(PySparkException, match="2 keys are in more than one row of the batch"):
        write(spark.range(0, 4, 1, 2).selectExpr("id % 2 id", "'new' v"), queue, mode="upsert", keys="id")
    write(spark.range(2).selectExpr("id", "'new' v"), queue, mode="upsert", keys='["id"]')
    write(spark.range(2, 40_000), queue, mode="delete", keys="id")
    assert queue.rows() == [{"id": 0, "v": "new"}, {"id": 1, "v": "new"}]


@pytest.mark.long
def test_jobs_and_streams_on_spark_connect(spark: SparkSession, connect_port: int, queue: Queue, files: Files) -> None:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    remote: Any = ConnectSession.builder.remote(f"sc://127.0.0.1:{connect_port}").getOrCreate()
    try:
        if not pyspark.__version__.startswith("4.0."):  # which refuses what it has found by itself
            remote.dataSource.register(CommitterdDataSource)
        files.add(range(10))
        files.add(range(10, 20))
        options = {"bootstrap_servers": queue.kafka, "app_id": "s"}
        files.run_into(remote, queue.uri, options)
        files.forget_last_batch()
        files.run_into(remote, queue.uri, options)
        assert queue.rows() == files.rows
        write(remote.range(20, 30).selectExpr("id", "cast(id as string) v"), queue)
        assert queue.column("id") == list(range(30))
        assert queue.versions() == 3
    finally:
        remote.stop()
