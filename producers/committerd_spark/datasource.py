"""`df.write.format("committerd")` and `df.writeStream.format("committerd")`: Spark 4's Python Data Source API.

    spark.dataSource.register(CommitterdDataSource)  # only where Spark has not found it by itself
    df.write.format("committerd").mode("append").option("bootstrap_servers", "broker:9092").save(uri)

Spark makes the writer in a process of the driver, which plans the batch; runs `write` in the executors, once for each
partition; and then runs `commit` in a process of the driver, which stages one transaction. It works on Spark Connect
too, where all of them run on the server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from committerd_batch.app_marks import result_of
from committerd_batch.committing import BatchCommit, BatchLog, add_new_columns, before_writing, remove_files
from committerd_batch.errors import AppIdInUse
from committerd_batch.target import Plan, mark_of
from committerd_batch.tasks import TaskResult
from committerd_client.app_marks import AppMark
from committerd_client.headers import App
from committerd_client.results import CommitResult
from committerd_spark.arrow_types import arrow_schema
from committerd_spark.errors import AppIdMissing, SparkWriteError
from committerd_spark.micro_batch import of_task
from committerd_spark.options import Options, client_of

_Messages = Sequence[WriterCommitMessage | None]


class CommitterdDataSource(DataSource):
    """Writes a Lance table through its queue; `docs/spark.md` lists the options."""

    @classmethod
    def name(cls) -> str:
        return "committerd"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan the write of a DataFrame. Raises before any file is written: Kafka, schema, options."""
        options = Options.of(self.options)
        app = options.app
        plan, mark = _plan(options, schema, overwrite=overwrite, app_id=None if app is None else app.app_id)
        return JobWriter(options, plan, app, result_of(mark, app))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Plan the write of a micro-batch; as `writer`. Spark calls it anew for each micro-batch, and its commit."""
        options = Options.of(self.options)
        app_id = options.app_id
        if app_id is None:
            raise AppIdMissing(
                "this stream needs a name that stays the same when it is started again, or a replayed micro-batch "
                "could not be told from a new micro-batch: give option app_id, or the stream .queryName('...')"
            )
        plan, mark = _plan(options, schema, overwrite=overwrite, app_id=app_id)
        return StreamWriter(options, plan, app_id, mark)


def _plan(options: Options, schema: StructType, *, overwrite: bool, app_id: str | None) -> tuple[Plan, AppMark | None]:
    mode, target, given = options.mode(overwrite=overwrite), options.target, arrow_schema(schema)
    client = client_of(options)
    dataset, _ = before_writing(client, target, None)
    mark = None if app_id is None else mark_of(dataset, app_id)
    return target.plan(given, mode, add_new_columns(client, target, given, mode, dataset=dataset)), mark


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the commit."""

    plan: Plan
    result: TaskResult = field(default_factory=TaskResult)
    app: App | None = None
    there: CommitResult | None = None
    """The result of a batch that is in the table already; then nothing was written."""
    refused: AppIdInUse | None = None


class JobWriter(DataSourceArrowWriter):
    """Writes a DataFrame that is not a stream."""

    def __init__(self, options: Options, plan: Plan, app: App | None, there: CommitResult | None) -> None:
        self._options, self._plan, self._app, self._there = options, plan, app, there

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, on an executor."""
        if self._there is not None:
            return Written(self._plan, app=self._app, there=self._there)
        return Written(self._plan, self._plan.task(iterator), self._app)

    def commit(self, messages: _Messages) -> None:
        """Commit all partitions as one transaction, on the driver."""
        _commit(self._options, messages, BatchLog(f"a job into {self._options.target.uri}"))

    def abort(self, messages: _Messages) -> None:
        """Remove the files of a job that failed."""
        _abort(messages)


# Spark 4.0 hands Arrow batches to a stream's writer only if it is a DataSourceArrowWriter; newer ones accept that too.
class StreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Writes one micro-batch of a stream."""

    def __init__(self, options: Options, plan: Plan, app_id: str, mark: AppMark | None) -> None:
        self._options, self._plan, self._app_id, self._mark = options, plan, app_id, mark

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, on an executor; nothing if the micro-batch is in the table already."""
        batch = of_task()
        if batch is None:
            raise SparkWriteError("this task does not belong to a stream")
        app = App(self._app_id, batch.batch_id, batch.query_id)
        try:
            there = result_of(self._mark, app)
        except AppIdInUse as error:
            return Written(self._plan, app=app, refused=error)
        if there is not None:
            return Written(self._plan, app=app, there=there)
        return Written(self._plan, self._plan.task(iterator), app)

    def commit(self, messages: _Messages, batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Commit the micro-batch as one transaction, on the driver."""
        _commit(self._options, messages, BatchLog(f"batch {batchId} of {self._app_id}"))

    def abort(self, messages: _Messages, batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Remove the files of a micro-batch that failed."""
        _abort(messages)


def _commit(options: Options, messages: _Messages, log: BatchLog) -> None:
    _log_to_stderr()
    written = [one for one in messages if isinstance(one, Written)]
    for one in written:
        if one.refused is not None:
            raise one.refused
    found = [one.there for one in written if one.there is not None]
    if not written or len(found) == len(written):
        log.done(found[0] if found else None)
        return
    results = [one.result for one in written]
    BatchCommit(client_of(options), options.queue, written[0].plan, log).run(results, written[0].app)


def _abort(messages: _Messages) -> None:
    """Remove the files, unless `commit` has run: then the table may have them, and `commit` has removed what it may.

    Without a failed task, whose message is None, `commit` has run.
    """
    if all(messages):
        return
    for one in messages:
        if isinstance(one, Written):
            remove_files(one.plan.target, one.result.file_names)


def _log_to_stderr() -> None:
    """Let the driver's own log hold a line for each batch: nobody has configured the logs of this process."""
    log = logging.getLogger("committerd_batch")
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
