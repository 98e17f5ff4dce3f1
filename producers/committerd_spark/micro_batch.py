"""Identifies the micro-batch and the streaming query of a write, so that a replayed batch is recognized.

Spark passes the batch id to a foreachBatch function, and the rest to its thread, as local properties.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import SparkContext, TaskContext

from committerd_batch.app_marks import checked
from committerd_client.headers import App
from committerd_spark.errors import AppIdMissing, SecondWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The micro-batch of a foreachBatch function, from the local properties of its thread."""

    query_id: str
    """Id of the query; it stays the same over restarts from a checkpoint, and a new checkpoint has a new one."""
    query_name: str
    """The query's `queryName`, or empty."""
    batch_id: int
    execution: str
    """Id of this execution of the batch; a replay has another one."""


def current(context: SparkContext) -> MicroBatch | None:
    """The micro-batch of the calling thread; None outside a foreachBatch function."""
    return _of_properties(context.getLocalProperty, context.applicationId or "")


def of_task() -> MicroBatch | None:
    """The micro-batch of the task that this process runs; None if it does not belong to a stream."""
    task = TaskContext.get()
    return None if task is None else _of_properties(task.getLocalProperty, "")


def _of_properties(local_property: Callable[[str], str | None], application: str) -> MicroBatch | None:
    query_id = local_property("sql.streaming.queryId")
    batch_id = local_property("streaming.sql.batchId")
    if not query_id or not batch_id:
        return None
    # Spark's MicroBatchExecution describes its jobs with the query's name, id, run and batch, one per line.
    described = local_property("spark.job.description") or ""
    name, found, _ = described.partition(f"\nid = {query_id}\n")
    return MicroBatch(
        query_id=query_id,
        query_name=name if found else "",
        batch_id=int(batch_id),
        execution=f"{application}/{local_property('spark.sql.execution.id')}",
    )


def app_unit(batch: MicroBatch, *, app_id: str | None, name: str | None) -> App:
    """The app unit of this batch; with it a replay of the batch gets DUPLICATE.

    `name`: tells one write from others of the same batch. Raises `AppIdMissing` if the stream has no name that stays
    the same over a restart and a lost checkpoint.
    """
    base = app_id or batch.query_name
    if not base:
        raise AppIdMissing(
            "this stream needs a name that stays the same when it is started again, or a replayed micro-batch could "
            "not be told from a new micro-batch: give the writer app_id='...', or the stream .queryName('...')"
        )
    return App(checked(f"{base}.{name}" if name else base), batch.batch_id, batch.query_id)


class StagedUnits:
    """The last app unit that each sink has staged; detects a second write in one execution of a batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], str] = {}

    def claim(self, topic: str, app: App, execution: str) -> None:
        """Note a write. Raises `SecondWrite` if this execution has already written under this app id."""
        with self._lock:
            if self._last.get((topic, app.app_id)) == execution:
                raise SecondWrite(
                    f"batch {app.version} has been written as app id {app.app_id!r} already: a second write of a "
                    "micro-batch to one table needs a name of its own, which must stay the same: "
                    "writer(df, batch_id, name='...')"
                )
            self._last[topic, app.app_id] = execution

    def give_back(self, topic: str, app: App) -> None:
        """Forget a refused write, so that another may replace it."""
        with self._lock:
            self._last.pop((topic, app.app_id), None)
