"""Runs the tasks of a plan over a DataFrame, on Spark's executors."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

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
        missing = _missing_package(error)
        if missing is not None:
            raise PackageMissing(
                f"an executor has no package {missing!r}: install committerd-client[spark] where the executors' Python "
                "is (PYSPARK_PYTHON), with the versions of the driver"
            ) from error
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


def _missing_package(error: Exception) -> str | None:
    """The package that a task could not import; None if that is not the error."""
    said = str(error) if isinstance(error, PySparkException) else ""
    return next((name for name in _NEEDED if f"No module named '{name}" in said), None)
