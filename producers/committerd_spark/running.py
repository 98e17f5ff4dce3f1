"""Runs the tasks of a plan over a DataFrame, on Spark's executors."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from committerd_batch.committing import remove_files
from committerd_batch.target import Mode, Plan
from committerd_batch.tasks import TaskResult, WriteTask
from committerd_spark.errors import PackageMissing

_RESULT = "result binary"
_NEEDED = ("committerd_batch", "committerd_client", "committerd_common", "committerd_spark", "lance")


class _Names(AccumulatorParam[tuple[str, ...]]):
    """Collects names of files, from failed jobs too."""

    def zero(self, value: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def addInPlace(self, value1: tuple[str, ...], value2: tuple[str, ...]) -> tuple[str, ...]:  # noqa: N802
        return value1 + value2


def check_executors(session: SparkSession) -> None:
    """Import what a task needs on the executors, in a job with a task for each of their cores.

    Raises `PackageMissing`, and Spark's errors.
    """
    tasks = session.sparkContext.defaultParallelism
    try:
        session.range(0, tasks, 1, tasks).mapInArrow(_imported, "nothing int").collect()
    except Exception as error:
        _raise_if_missing(error)
        raise


def run(df: DataFrame, plan: Plan, *, files_max: int | None = None) -> list[TaskResult]:
    """Run the plan's task over each partition; returns their results.

    `files_max`: the number of tasks, so that each writes one file. If the job fails, the files that its tasks have
    written are removed. Raises `PackageMissing`, and Spark's errors.
    """
    written = df.sparkSession.sparkContext.accumulator((), _Names())
    task = plan.task

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _as_rows(task, batches, written)

    try:
        rows = _spread(df, plan, files_max).mapInArrow(work, _RESULT).collect()
    except Exception as error:
        remove_files(plan.target, written.value)
        _raise_if_missing(error)
        raise
    return [pickle.loads(row[0]) for row in rows]


def _as_rows(task: WriteTask, batches: Iterable[pa.RecordBatch], written: Any) -> Iterator[pa.RecordBatch]:
    result = task(batches)
    written.add(tuple(result.file_names))
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])


def _spread(df: DataFrame, plan: Plan, files_max: int | None) -> DataFrame:
    """The DataFrame with its rows in the partitions in which they are to be written."""
    keys = ["`" + key.replace("`", "``") + "`" for key in plan.target.keys]
    if plan.mode is Mode.DELETE:
        df = df.select(*keys)
    if plan.mode is Mode.CDC:  # all changes of a key in one task, so that it writes the latest alone
        return df.repartition(*keys) if files_max is None else df.repartition(files_max, *keys)
    return df if files_max is None else df.coalesce(files_max)


def _imported(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for name in _NEEDED:
        importlib.import_module(name)
    return iter(())


def _raise_if_missing(error: Exception) -> None:
    """Raise `PackageMissing` if the error says that a task could not import a package."""
    said = str(error) if isinstance(error, PySparkException) else ""
    missing = next((name for name in _NEEDED if f"No module named '{name}" in said), None)
    if missing is not None:
        raise PackageMissing(
            f"an executor has no package {missing!r}: install committerd-client[spark] where the executors' Python "
            "is (PYSPARK_PYTHON), with the versions of the driver"
        ) from error
