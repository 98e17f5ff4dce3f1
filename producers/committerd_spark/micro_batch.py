"""Which micro-batch of which streaming query is being written, so that a replayed one can be told from a new one.

Spark tells a foreachBatch function the batch id, and its thread the rest, as local properties.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from pyspark import SparkContext

from committerd_client.headers import App
from committerd_spark.errors import AppIdMissing, SecondWrite

_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What the thread of a foreachBatch function knows."""

    query_id: str
    """Stays over restarts from one checkpoint; a new checkpoint has a new one."""
    query_name: str
    """As given by `queryName`, or empty."""
    batch_id: int
    execution: str
    """Of this execution of the batch: a replay has another."""


def current(context: SparkContext) -> MicroBatch | None:
    """The micro-batch for which this thread works; None outside of a foreachBatch function."""
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if not query_id or not batch_id:
        return None
    # Spark's MicroBatchExecution describes its jobs with the query's name, id, run and batch, a line each.
    described = context.getLocalProperty("spark.job.description") or ""
    name, found, _ = described.partition(f"\nid = {query_id}\n")
    return MicroBatch(
        query_id=query_id,
        query_name=name if found else "",
        batch_id=int(batch_id),
        execution=f"{context.applicationId}/{context.getLocalProperty('spark.sql.execution.id')}",
    )


def app_unit(batch: MicroBatch, *, app_id: str | None, name: str | None) -> App:
    """What makes a replay of this batch a DUPLICATE. `name`: of one write among several of a batch.

    Raises `AppIdMissing` when nothing names the stream in a way that a restart, and a lost checkpoint, don't change.
    """
    base = app_id or batch.query_name
    if not base:
        raise AppIdMissing(
            "this stream needs a name that stays the same when it is started again, or a replayed micro-batch could "
            "not be told from a new one: give the writer app_id='...', or the stream .queryName('...')"
        )
    return App(checked(f"{base}.{name}" if name else base), batch.batch_id, batch.query_id)


def checked(app_id: str) -> str:
    """The same. Raises `AppIdMissing` for what can't be an app id."""
    if not _APP_ID.fullmatch(app_id):
        raise AppIdMissing(
            f"{app_id!r} can't be an app id: 1 to 128 of the characters A-Z a-z 0-9 . _ - are needed. Give the writer "
            "app_id='...'"
        )
    return app_id


class Written:
    """What each sink has staged last, so that a second write of one execution of a batch is noticed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], str] = {}

    def claim(self, topic: str, app: App, execution: str) -> None:
        """Raises `SecondWrite` when this execution has written under this app id already."""
        with self._lock:
            if self._last.get((topic, app.app_id)) == execution:
                raise SecondWrite(
                    f"batch {app.version} has been written as app id {app.app_id!r} already: a second write of a "
                    "micro-batch to one table needs a name of its own, which must stay the same: "
                    "writer(df, batch_id, name='...')"
                )
            self._last[topic, app.app_id] = execution

    def give_back(self, topic: str, app: App) -> None:
        """The write was refused, so that another may take its place."""
        with self._lock:
            self._last.pop((topic, app.app_id), None)
