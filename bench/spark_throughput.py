"""Rows a second that Spark's executors write, and that pylance writes from `df.toArrow()`: side by side, on one core.

    taskset --cpu-list 0 python -m bench.spark_throughput

A million rows of a vector of 64 floats, cached in Spark, go into a table that has the schema already. Nothing is
committed by the executors: it is their part of the work. The runs alternate; medians are printed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
from pyspark.sql import DataFrame

from committerd_batch.target import Mode, Target
from committerd_spark.arrow_types import arrow_schema
from committerd_spark.running import run
from harness.spark import small_session

ROWS, RUNS = 1_000_000, 4
_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 64))])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="committerd-spark-") as name:
        folder = Path(name)
        spark = small_session(
            "throughput", folder, master="local[1]",
            settings={"spark.driver.memory": "4g", "spark.driver.extraJavaOptions": ""},
        )  # fmt: skip
        vector = "transform(sequence(1, 64), i -> cast(id + i as float)) v"
        df = spark.range(0, ROWS, 1, 1).selectExpr("id", vector).persist()
        df.count()
        ways: dict[str, Callable[[DataFrame, str], None]] = {"pylance": _pylance, "executors": _executors}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(RUNS + 1):
            for way, write in ways.items():
                uri = str(folder / f"{way}-{number}.lance")
                lance.write_dataset(_SCHEMA.empty_table(), uri)
                began = time.monotonic()
                write(df, uri)
                if number:  # the first run warms up
                    seconds[way].append(time.monotonic() - began)
        spark.stop()
    median = {way: statistics.median(each) for way, each in seconds.items()}
    for way, each in median.items():
        print(f"{way}: {ROWS / each:,.0f} rows/s ({each:.2f} s)")
    print(f"executors / pylance: {median['pylance'] / median['executors']:.2f}")


def _pylance(df: DataFrame, uri: str) -> None:
    lance.write_dataset(df.toArrow().cast(_SCHEMA), uri, mode="append")


def _executors(df: DataFrame, uri: str) -> None:
    target = Target(uri=uri)
    run(df, target.plan(arrow_schema(df.schema), Mode.APPEND, target.open()))


if __name__ == "__main__":
    main()
