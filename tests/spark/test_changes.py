"""Change data capture, new columns, and the number of files: what a micro-batch makes of the table."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from committerd_client import KafkaUnavailable
from committerd_spark import InvalidKeys, LanceBatchWriter, SchemaMismatch
from tests.spark.queue import Queue
from tests.spark.streams import fails_late

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]

CHANGE = "op string, id long, seq long, v string"


def changes(rng: random.Random, first: int) -> list[dict[str, Any]]:
    """A micro-batch: several changes of the same keys, in any order."""
    made = []
    for seq in range(first, first + 60):
        op = rng.choice(["c", "r", "u", "d", "INSERT", "update", "delete"])
        made.append({"op": op, "id": rng.randrange(25), "seq": seq, "v": f"v{seq}"})
    rng.shuffle(made)
    return made


def files_of(queue: Queue) -> int:
    return len(list(Path(queue.uri, "data").iterdir()))


@pytest.mark.parametrize("stable_row_ids", [pytest.param(False, marks=pytest.mark.long), True])
def test_change_batches_equal_a_dict(spark: SparkSession, queue: Queue, stable_row_ids: bool) -> None:
    rng, model = random.Random(23), dict[int, tuple[int, str]]()
    writer = queue.writer(mode="cdc", keys=["id"], op_column="op", order_by="seq", enable_stable_row_ids=stable_row_ids)
    for batch in range(4):
        rows = changes(rng, batch * 60)
        for row in sorted(rows, key=lambda row: row["seq"]):
            if row["op"] in ("d", "delete"):
                model.pop(row["id"], None)
            else:
                model[row["id"]] = (row["seq"], row["v"])
        writer.write(spark.createDataFrame(rows, CHANGE).repartition(3))
        assert {row["id"]: (row["seq"], row["v"]) for row in queue.rows()} == model
        assert queue.versions() == batch + 1, "one transaction for each batch"
    assert queue.table().schema.names == ["id", "seq", "v"]


def test_changes_that_can_not_be_applied_are_named(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer(mode="cdc", keys="id", op_column="op", order_by="seq")
    for rows, said in {
        "('t', 1L, 1L, '')": r"column 'op' has \['t'\], which is not a known change",
        "(null, 1L, 1L, '')": r"column 'op' has \[None\]",
        "('c', null, 1L, '')": "key column 'id' is null in 1 row of",
        "('c', 1L, null, '')": "order_by column 'seq' is null in 1 row of",
    }.items():
        with pytest.raises(InvalidKeys, match=said):
            writer.write(spark.sql(f"select * from values {rows} as t(op, id, seq, v)"))
    with pytest.raises(SchemaMismatch, match=r"no columns \['op', 'seq'\], which mode 'cdc' needs"):
        writer.write(spark.range(1))
    assert not queue.exists()
    # A delete needs the key alone, whatever the table requires of its rows.
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    lance.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=schema), queue.uri)
    writer.write(spark.sql("select 'd' op, 1L id, 1L seq, cast(null as string) v"))
    assert queue.rows() == [{"id": 2, "v": "b"}]


def test_upserts_of_many_tasks_are_one_transaction(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer(mode="upsert", keys="id")
    writer.write(spark.range(0, 100_000, 1, 1).selectExpr("id", "'old' v"))
    files = files_of(queue)
    done = writer.write(spark.range(50_000, 150_000, 1, 2).selectExpr("id", "'new' v"))
    assert done is not None
    assert (done.operation, done.transactions, queue.versions()) == ("update", 1, 2)
    assert files_of(queue) == files + 2, "both tasks have written"
    table = queue.table()
    assert table.count_rows("v = 'new'") == 100_000
    assert table.count_rows() == 150_000
    with pytest.raises(InvalidKeys, match="50,000 keys are in more than one row"):
        writer.write(spark.range(0, 100_000, 1, 2).selectExpr("id % 50000 id", "'twice' v"))
    assert files_of(queue) == files + 2, "what a refused batch has written is removed"


def test_a_row_keeps_its_id_when_the_table_has_stable_ones(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer(mode="upsert", keys="id", enable_stable_row_ids=True)
    writer.write(spark.range(10).selectExpr("id", "'old' v"))
    writer.write(spark.range(5, 15).selectExpr("id", "'new' v"))
    rows = queue.table().scanner(with_row_id=True).to_table().sort_by("id").to_pylist()
    assert [row["_rowid"] for row in rows] == list(range(15))
    assert [row["v"] for row in rows] == ["old"] * 5 + ["new"] * 10


def test_new_columns_are_added_only_if_the_writer_says_so(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer()
    writer.write(spark.range(2))
    wider = spark.range(2, 4).selectExpr("named_struct('x', id) new", "id", "1.5f f")
    with pytest.raises(SchemaMismatch, match=r"column 'new' is not in the table.*schema_mode='merge' adds new"):
        writer.write(wider)
    merging = queue.writer(schema_mode="merge")
    merging.write(wider)
    merging.write(spark.range(4, 6))
    with pytest.raises(SchemaMismatch, match=r"column 'f' of the table is missing.*fills missing ones with nulls"):
        writer.write(spark.sql("select 1L id, named_struct('x', 1L) new"))
    assert queue.rows() == [
        {"id": id, "new": {"x": id} if id in (2, 3) else None, "f": 1.5 if id in (2, 3) else None} for id in range(6)
    ]
    with pytest.raises(SchemaMismatch, match="column 'id' is string"):
        merging.write(spark.sql("select 'one' id"))


def test_the_number_of_files_follows_the_rows_and_the_limits(spark: SparkSession, queue: Queue) -> None:
    queue.writer().write(spark.range(0, 1000, 1, 20))
    assert files_of(queue) == 1, "few rows make one file, however many tasks have read them"
    many = spark.range(0, 200_000, 1, 4)
    queue.writer().write(many)
    assert files_of(queue) == 5
    queue.writer(max_files_per_batch=2).write(many)
    assert files_of(queue) == 7
    queue.writer(target_rows_per_file=10_000).write(many)
    assert files_of(queue) == 27
    assert queue.table().count_rows() == 601_000


def test_kafka_is_asked_before_any_file_is_written(
    spark: SparkSession, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    lance.write_dataset(pa.table({"id": pa.array([0], pa.int64())}), queue.uri)
    with (
        LanceBatchWriter(queue.uri, bootstrap_servers="127.0.0.1:1", timeout=1) as away,
        pytest.raises(KafkaUnavailable),
    ):
        away.write(spark.range(0, 200_000, 1, 2))
    with pytest.raises(PySparkException, match="no luck"):
        queue.writer().write(fails_late(spark.range(0, 200_000, 1, 2), queue.uri))
    assert files_of(queue) == 1, "what the other task has written is removed"
    caplog.set_level(logging.INFO, logger="committerd_batch")
    for version in (7, 7, 6):
        queue.writer().write(spark.range(5), app_id="job", app_version=version)
    *lines, last = (record for record in caplog.records if record.name == "committerd_batch")
    first, second = (record.getMessage() for record in lines)
    assert first.startswith("batch 7 of job: version 2, 5 rows, 1 files, ")
    assert second.startswith("batch 7 of job: it is in the table already (version 2), 0 rows, 0 files, ")
    assert (last.levelname, last.getMessage().partition(",")[0]) == ("WARNING", "batch 6 of job: nothing is added")
