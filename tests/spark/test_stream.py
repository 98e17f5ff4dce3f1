"""Streams: each micro-batch is in the table once, whatever is stopped, replayed or deleted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from committerd_client import CommitResult
from committerd_spark import LanceBatchWriter
from tests.spark.queue import Queue
from tests.spark.streams import Files

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]


class Heard:
    """A foreachBatch function that keeps the results, and may fail after a batch was written."""

    def __init__(self, writer: LanceBatchWriter, *, fail_after: int | None = None) -> None:
        self._writer, self._fail_after = writer, fail_after
        self.results: dict[int, CommitResult | None] = {}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.results[batch_id] = self._writer(df, batch_id)
        if batch_id == self._fail_after:
            raise RuntimeError("the driver ends before Spark knows that the batch was written")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, queue: Queue, files: Files) -> None:
    for start in (0, 10, 20):
        files.add(range(start, start + 10))
    files.run(spark, queue.writer(app_id="s"))
    assert queue.versions() == 3
    files.add(range(30, 40))
    again = Heard(queue.writer(app_id="s"))
    files.run(spark, again)
    assert queue.rows() == files.rows
    assert {batch: result and result.duplicate for batch, result in again.results.items()} == {3: False}


def test_a_batch_that_is_replayed_is_not_written_again(spark: SparkSession, queue: Queue, files: Files) -> None:
    for start in (0, 10, 20):
        files.add(range(start, start + 10))
    with pytest.raises(StreamingQueryException, match="before Spark knows"):
        files.run(spark, Heard(queue.writer(), fail_after=1), name="clicks")
    assert queue.versions() == 2
    again = Heard(queue.writer())
    files.run(spark, again, name="clicks")
    assert {batch: result and (result.reason or result.status) for batch, result in again.results.items()} == {
        1: "app_version_seen",
        2: "COMMITTED",
    }
    assert queue.rows() == files.rows


def test_a_deleted_checkpoint_is_an_error_that_says_what_to_do(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    files.run(spark, queue.writer(app_id="s"))
    shutil.rmtree(files.checkpoint)
    for _ in range(2):  # restarted by its supervisor, it fails with the same error
        with pytest.raises(StreamingQueryException, match=r"checkpoint was deleted.*committerd app release s --apply"):
            files.run(spark, queue.writer(app_id="s"))
    assert queue.rows() == files.rows
    # The operator knows that the old rows do not come again.
    shutil.rmtree(files.checkpoint)
    shutil.rmtree(files.folder)
    files.folder.mkdir()
    files.add(range(10, 20))
    queue.command("app", "release", "s", "--apply", "--reason", "the source was emptied too")
    files.run(spark, queue.writer(app_id="s"))
    assert queue.rows() == files.rows


def test_a_stream_without_a_name_is_refused(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    with pytest.raises(StreamingQueryException, match=r"needs a name.*app_id='\.\.\.', or the stream .queryName"):
        files.run(spark, queue.writer())
    with pytest.raises(StreamingQueryException, match="'my clicks' can't be an app id"):
        files.run(spark, queue.writer(), name="my clicks")
    assert not queue.exists()


def test_two_writes_of_a_batch_need_two_names(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    files.add(range(10, 20))
    writer, other = queue.writer(app_id="s"), queue.writer(app_id="s")

    def unnamed(df: DataFrame, batch_id: int) -> None:
        writer(df.where("id % 2 = 0"), batch_id)
        other(df.where("id % 2 = 1"), batch_id)

    def named(df: DataFrame, batch_id: int) -> None:
        results = writer(df.where("id % 2 = 0"), batch_id), writer(df.where("id % 2 = 1"), batch_id, name="odd")
        duplicates.append([result is not None and result.duplicate for result in results])

    duplicates: list[list[bool]] = []
    with pytest.raises(StreamingQueryException, match=r"a second write .*needs a name of its own.*name='\.\.\.'"):
        files.run(spark, unnamed)
    files.run(spark, named)
    assert duplicates == [[True, False], [False, False]]
    assert queue.rows() == files.rows


def test_batches_that_change_nothing_commit_nothing(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    files.add(range(10, 20))
    writer = queue.writer(app_id="s")
    results: list[Any] = []
    files.run(spark, lambda df, batch_id: results.append(writer(df.where("id >= 10"), batch_id)))
    assert results[0] is None
    assert results[1].version == 1
    assert queue.column("id") == list(range(10, 20))


def test_each_batch_may_replace_the_table(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    files.add(range(10, 20))
    writer = queue.writer(app_id="s", mode="overwrite")
    files.run(spark, writer)
    assert queue.column("id") == list(range(10, 20))
    # As in Spark, the table is empty then; its schema stays.
    schema = queue.table().schema
    writer.write(spark.createDataFrame([], "v string, id long"))
    assert queue.column("id") == []
    assert queue.table().schema == schema


def test_upserts_and_deletes_from_a_stream_equal_a_dict(spark: SparkSession, queue: Queue, files: Files) -> None:
    for start in (0, 5, 10):
        files.add(range(start, start + 10), v=f"from {start}: ")
    upserts, deletes = (
        queue.writer(app_id="s", mode="upsert", keys=["id"]),
        queue.writer(app_id="s.gone", mode="delete", keys=["id"]),
    )

    def changes(df: DataFrame, batch_id: int) -> None:
        upserts(df, batch_id)
        deletes(df.where("id % 7 = 0"), batch_id)

    files.run(spark, changes)
    model = {row["id"]: row["v"] for row in files.rows if row["id"] % 7}
    assert {row["id"]: row["v"] for row in queue.rows()} == model
    assert len(queue.rows()) == len(model)


def test_what_knows_no_batch_is_told_so(spark: SparkSession, queue: Queue, files: Files) -> None:
    files.add(range(10))
    writer = queue.writer(app_id="s")
    with pytest.raises(ValueError, match="both or none"):
        writer.write(spark.range(1), app_id="a")
    with pytest.raises(Exception, match="works for no micro-batch"):
        writer(spark.range(1), 0)
    with pytest.raises(StreamingQueryException, match=r"use writer\(df, batch_id\)"):
        files.run(spark, lambda df, _: writer.write(df))
    with pytest.raises(StreamingQueryException, match="the batch id is 1, and this thread works for batch 0"):
        files.run(spark, lambda df, batch_id: writer(df, batch_id + 1))
    assert not queue.exists()
