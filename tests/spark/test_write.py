"""DataFrames that are not streams: modes, schemas, refusals, failing tasks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from committerd_client import CommitTimeout, RetryableConflict, SyncCommitClient, staging
from committerd_spark import (
    ConnectUnsupported,
    InvalidKeys,
    LanceBatchWriter,
    PackageMissing,
    SchemaMismatch,
    TableMissing,
)
from committerd_spark.arrow_types import arrow_schema
from tests.spark.queue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]

EVERYTHING = """
    select cast(id as byte) byte, cast(id as short) short, cast(id as int) int, id long, cast(id as float) float,
        cast(id as double) double, cast(id as decimal(12, 3)) decimal, concat('t', id) text, cast('b' as binary) bytes,
        id % 2 = 0 flag, date'2026-03-29' day, timestamp'2026-03-29 12:00:00Z' at,
        timestamp_ntz'2026-03-29 12:00:00' local, array(id, null) list, map('k', id) map,
        named_struct('x', id, 'y', array(named_struct('z', 'deep'))) struct, cast(null as string) empty
    from range(3)
"""


def test_every_type_makes_a_table_and_goes_into_it_again(spark: SparkSession, queue: Queue) -> None:
    df = spark.sql(EVERYTHING)
    writer = queue.writer()
    writer.write(df)
    writer.write(df.select(*reversed(df.columns)))
    table = queue.table().to_table()
    assert table.schema.equals(arrow_schema(df.schema))
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    first, second = table.slice(0, 3), table.slice(3)
    assert first.to_pylist() == second.to_pylist()
    row = first.to_pylist()[2]
    assert row["at"] == datetime(2026, 3, 29, 12, tzinfo=UTC)
    assert (row["day"], row["decimal"]) == (date(2026, 3, 29), Decimal("2.000"))
    assert (row["map"], row["struct"], row["list"]) == ([("k", 2)], {"x": 2, "y": [{"z": "deep"}]}, [2, None])


def test_rows_are_cast_to_the_schema_of_a_table_that_pylance_made(spark: SparkSession, queue: Queue) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.uint32(), nullable=False),
            ("at", pa.timestamp("ns", "UTC")),
            ("price", pa.decimal128(20, 4)),
            ("vector", pa.list_(pa.float32(), 2)),
            ("place", pa.struct([("city", pa.large_string()), ("size", pa.int64())])),
        ]
    )
    lance.write_dataset(schema.empty_table(), queue.uri)
    df = spark.sql(
        "select named_struct('size', 5, 'city', 'Riga') place, array(1f, 2f) vector, cast(1.5 as decimal(10, 2)) price,"
        " timestamp'2026-03-29 12:00:00Z' at, 7 id"
    )
    writer = queue.writer()
    writer.write(df)
    assert queue.table().schema == schema
    (row,) = queue.rows()
    assert (row["id"], row["vector"], row["price"]) == (7, [1.0, 2.0], Decimal("1.5000"))
    assert row["place"] == {"city": "Riga", "size": 5}
    assert row["at"].isoformat() == "2026-03-29T12:00:00+00:00"
    for wrong, said in {
        "select *, 1 more from df": "column 'more' is not in the table",
        "select id, at, price, vector from df": "column 'place' of the table is missing",
        "select cast(id as string) id, at, price, vector, place from df": "column 'id' is string",
        "select -id id, at, price, vector, place from df": "column 'id'.*not in range",
        "select cast(null as int) id, at, price, vector, place from df": "column 'id' may not be null in the table",
        "select id, at, price, array(1f) vector, place from df": "column 'vector'",
    }.items():
        with pytest.raises(SchemaMismatch, match=said):
            writer.write(spark.sql(wrong.replace("from df", "from {df}"), df=df))
    assert queue.table().version == 2


def test_a_table_is_made_as_the_writer_says(spark: SparkSession, queue: Queue) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.list_(pa.float32(), 2))])
    writer = queue.writer(schema=schema, enable_stable_row_ids=True, data_storage_version="2.1")
    writer.write(spark.sql("select array(1f, 2f) v, id from range(4)"))
    assert queue.table().schema == schema
    assert queue.table().has_stable_row_ids
    assert queue.table().data_storage_version == "2.1"
    assert queue.column("id") == [0, 1, 2, 3]


def test_who_comes_second_with_a_create_appends(spark: SparkSession, queue: Queue) -> None:
    writers = [queue.writer() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        frames = [spark.range(start, start + 10) for start in (0, 10, 20)]
        results = list(pool.map(lambda each: each[0].write(each[1]), zip(writers, frames, strict=True)))
    assert queue.column("id") == list(range(30))
    assert sorted(result.operation for result in results if result) == ["append", "append", "overwrite"]


def test_a_batch_job_that_runs_again_adds_nothing(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer()
    first = writer.write(spark.range(10), app_id="daily", app_version=20260329)
    again = writer.write(spark.range(10), app_id="daily", app_version=20260329)
    assert first is not None
    assert again is not None
    assert (first.duplicate, again.duplicate, again.version) == (False, True, first.version)
    assert queue.column("id") == list(range(10))


def test_keys_must_be_there_once_and_not_null(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer(mode="upsert", keys=["id", "part"])
    with pytest.raises(TableMissing, match="no table at"):
        writer.write(spark.sql("select 1L id, 'a' part"), mode="delete")
    for table_is_there in (False, True):
        for rows, said in {
            "(1L, 'a', 'x'), (1L, 'a', 'y'), (1L, 'b', 'z')": "1 key is in more than one row.*'part': 'a'",
            "(1L, 'a', 'x'), (1L, cast(null as string), 'y')": "key column 'part' is null in 1 row of",
        }.items():
            with pytest.raises(InvalidKeys, match=said):
                writer.write(spark.sql(f"select * from values {rows} as t(id, part, v)"))
        assert queue.exists() is table_is_there
        writer.write(spark.sql("select * from values (1L, 'a', 'x'), (1L, 'b', 'z') as t(id, part, v)"))
    with pytest.raises(SchemaMismatch, match=r"keys \['other'\] are not columns of the table"):
        queue.writer(mode="upsert", keys="other").write(spark.sql("select 1L id, 'a' part, 'x' v"))
    # A delete may name a key twice, and one that is not there.
    assert writer.write(spark.sql("select 9L id, 'a' part"), mode="delete") is None
    assert len(queue.rows()) == 2
    writer.write(spark.sql("select * from values ('a', 1L, 0), ('a', 1L, 1) as t(part, id, n)"), mode="delete")
    assert [row["part"] for row in queue.rows()] == ["b"]
    with pytest.raises(SchemaMismatch, match=r"no columns \['part'\], which are keys"):
        writer.write(spark.range(3), mode="delete")


class Once:
    """Performs an action in the first task that reaches it, and never again; for `mapInArrow`."""

    def __init__(self, mark: Path, uri: str, mode: str) -> None:
        self._mark, self._uri, self._mode = mark, uri, mode

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return
        if self._mode == "fail":
            raise RuntimeError("this attempt fails when its rows are written")
        rows = pa.table({"id": pa.array([100], pa.int64())})
        lance.write_dataset(rows, self._uri, mode=self._mode)


def meanwhile(df: DataFrame, queue: Queue, mode: str) -> DataFrame:
    """The same rows; while they are read, `mode` happens to the table, once."""
    once = Once(queue.folder / f"{mode}-happened", queue.uri, mode)

    def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return once(batches)

    return df.mapInArrow(pass_on, df.schema)


def test_a_task_that_fails_and_is_repeated_leaves_no_rows(spark: SparkSession, queue: Queue) -> None:
    queue.writer().write(meanwhile(spark.range(0, 100, 1, 2), queue, "fail"))
    assert (queue.folder / "fail-happened").exists()
    assert queue.column("id") == list(range(100))


def test_an_upsert_sees_rows_that_come_while_it_is_written(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer(mode="upsert", keys="id")
    writer.write(spark.range(3))
    writer.write(meanwhile(spark.sql("select id from range(5) union all select 100L"), queue, "append"))
    assert queue.column("id") == [0, 1, 2, 3, 4, 100]


def test_an_upsert_that_is_refused_is_staged_again_with_the_same_files(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer(mode="upsert", keys="id")
    writer.write(spark.range(3))
    queue.daemon.stop()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.write, spark.range(5))
        queue.wait_staged(2)
        lance.write_dataset(pa.table({"id": pa.array([4, 100], pa.int64())}), queue.uri, mode="append")
        queue.daemon.start()
        done = writing.result()
    assert done is not None
    assert done.attempts == 2
    assert queue.column("id") == [0, 1, 2, 3, 4, 100]
    assert len(list(Path(queue.uri, "data").iterdir())) == 3


def test_an_append_names_its_keys_and_an_upsert_of_others_passes_it(spark: SparkSession, queue: Queue) -> None:
    queue.writer().write(spark.range(3))
    upsert = staging.merge_insert(queue.table(), pa.table({"id": [2, 50]}), on="id")
    same = staging.merge_insert(queue.table(), pa.table({"id": [11]}), on="id")
    queue.writer(keys="id").write(spark.range(10, 20, 1, 3))
    with SyncCommitClient(queue.kafka, dataset=queue.name, timeout=60) as client:
        client.commit(upsert)
        with pytest.raises(RetryableConflict):
            client.commit(same)
    assert sorted(queue.column("id")) == [0, 1, 2, *range(10, 20), 50]
    with pytest.raises(SchemaMismatch, match="keys \\['key'\\] are not columns"):
        queue.writer(keys="key").write(spark.range(1))


def test_rows_pass_an_overwrite_that_came_between(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer()
    writer.write(spark.range(3))
    writer.write(meanwhile(spark.range(5, 8), queue, "overwrite"))
    assert queue.column("id") == [5, 6, 7, 100]


def test_an_answer_that_does_not_come_is_unknown_and_found_later(spark: SparkSession, queue: Queue) -> None:
    writer = queue.writer()
    writer.write(spark.range(3))
    queue.daemon.stop()
    with pytest.raises(CommitTimeout, match="unknown, not failed") as caught:
        queue.writer(timeout=5).write(spark.range(3, 6), app_id="job", app_version=1)
    queue.daemon.start()
    again = writer.write(spark.range(3, 6), app_id="job", app_version=1)
    assert again is not None
    assert again.duplicate or caught.value.offset is None  # without one, Kafka was too slow to take it
    assert queue.column("id") == list(range(6))


def test_what_spark_can_say_and_arrow_cannot_is_named(spark: SparkSession, queue: Queue) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'a\.b\[\]' is interval year, which has no form in Arrow"):
        queue.writer().write(spark.sql("select named_struct('b', array(interval '1' year)) a"))


def test_a_writer_can_be_pickled(queue: Queue) -> None:
    writer = queue.writer(mode="upsert", keys="id", app_id="s", storage_options={"secret": "s3cr3t"})
    copy: LanceBatchWriter = pickle.loads(pickle.dumps(writer))
    assert vars(copy)["_target"] == vars(writer)["_target"]
    assert "s3cr3t" not in repr(vars(copy)["_target"])
    copy.close()


def test_arguments_that_can_not_be_right_are_told_at_once() -> None:
    def made(**options: Any) -> LanceBatchWriter:
        return LanceBatchWriter("/tables/events.lance", bootstrap_servers="broker:9092", **options)

    for options, said in (
        ({"mode": "upsert"}, "mode 'upsert' needs keys"),
        ({"mode": "merge"}, "mode takes one of append, .*, not 'merge'"),
        ({"attempts": 0}, "attempts=0"),
        ({"dataset": "no name"}, "'no name' is not a dataset name"),
        ({"kafka_options": {"sasl_mechansim": "PLAIN"}}, "did you mean 'sasl_mechanism'"),
    ):
        with pytest.raises(ValueError, match=said):
            made(**options)
    from_connect: Any = FromConnect()
    with pytest.raises(ValueError, match="mode 'delete' needs keys"):
        made().write(from_connect, mode="delete")
    with pytest.raises(ConnectUnsupported, match="or a classic session"):
        made(app_id="s")(from_connect, 0)


class FromConnect:
    """Such a DataFrame's class name; a Connect server needs a gRPC that Spark's Python package lacks."""

    __module__ = "pyspark.sql.connect.dataframe"


def test_a_package_that_executors_lack_is_found_before_a_file_is_written(
    spark: SparkSession, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.write_dataset(pa.table({"id": [1]}), queue.uri)
    lacking = tmp_path / "lacking" / "lance"
    lacking.mkdir(parents=True)
    (lacking / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'lance'\")\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={lacking.parent}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    runs = list[Any]()
    monkeypatch.setattr("committerd_spark.writer.run", lambda *given, **more: runs.append(given))
    with monkeypatch.context() as executors:
        executors.setattr(spark.sparkContext, "pythonExec", str(python))
        with pytest.raises(PackageMissing, match="an executor has no package 'lance': install"):
            queue.writer().write(spark.range(3))
    assert runs == []
    assert len(list(Path(queue.uri, "data").iterdir())) == 1
