"""Writes Spark DataFrames, and micro-batches of streams, into a Lance table through its queue: each exactly once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from committerd_batch.app_marks import checked, unit
from committerd_batch.committing import (
    BatchCommit,
    BatchLog,
    QueueOptions,
    add_new_columns,
    before_writing,
    key_file_of,
)
from committerd_batch.target import Mode, SchemaMode, Target
from committerd_client.arguments import names
from committerd_client.errors import NotCommitted
from committerd_client.headers import App
from committerd_client.results import CommitResult
from committerd_client.sync import SyncCommitClient
from committerd_client.table_location import checked_uri
from committerd_common.backports import Self
from committerd_common.branches import branch_queue, branch_uri, checked_branch
from committerd_common.uris import dataset_name
from committerd_spark.arrow_types import arrow_schema
from committerd_spark.errors import ConnectUnsupported, SecondWrite, SparkWriteError, TableChanged
from committerd_spark.micro_batch import StagedUnits, app_unit, current
from committerd_spark.running import check_executors, run

ModeName = Literal["append", "overwrite", "upsert", "delete", "cdc"]

_ROWS_MAX = 2**31 - 1
"""More rows than any file has."""

_written = StagedUnits()
"""The writes of all writers of this process: two of them may write to one table."""


class LanceBatchWriter:
    """A function for `df.writeStream.foreachBatch(...)`; `write(df)` is for DataFrames that are not streams.

    It may be pickled, and used from several threads and streams at once.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        bootstrap_servers: str | Sequence[str],
        dataset: str | None = None,
        branch: str | None = None,
        topic_prefix: str = "",
        mode: ModeName = "append",
        keys: str | Sequence[str] = (),
        op_column: str | None = None,
        order_by: str | Sequence[str] = (),
        schema_mode: Literal["strict", "merge"] = "strict",
        app_id: str | None = None,
        producer: str | None = None,
        producer_key_file: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        target_rows_per_file: int | None = None,
        max_files_per_batch: int | None = None,
        schema: pa.Schema | None = None,
        enable_stable_row_ids: bool | None = None,
        enable_v2_manifest_paths: bool | None = None,
        data_storage_version: str | None = None,
        timeout: float | None = 300.0,
        attempts: int = 10,
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Configure a writer; it connects at the first write.

        `uri`, `dataset`, `topic_prefix`: as in the committer's settings; the default of `dataset` is the last part of
        the URI without `.lance`. `branch`: the branch of the table to write to; default the main branch. `keys`:
        columns by which the modes upsert, delete and cdc find rows; with mode append the columns by which others
        upsert, so that upserts of other keys pass the batch (`staging.append`).
        `op_column`, `order_by`: for mode cdc, the column that says what a row does (Debezium's c, r, u, d, or insert,
        update, delete), and those whose highest value is a key's latest change. `schema_mode`: `merge` adds new columns
        to the table and fills missing ones with nulls. `app_id`: identifies a stream after a restart, and must differ
        for each stream that writes to the table; default its `queryName`. `producer`: its name in the committer's log;
        default `app_id`. `producer_key_file`: a file on the driver with that producer's key, as in `CommitClient`.
        `storage_options`: credentials and endpoints
        of the object store, as in pylance; they are sent to the executors.

        Tasks with few rows write no file: the driver writes their rows as one. `target_rows_per_file`: the largest
        number of rows in a file; default about a million. `max_files_per_batch`: how many tasks write, each one file.

        For a table that does not exist yet: `schema` (default that of the first DataFrame, with all columns nullable),
        `enable_stable_row_ids`, `enable_v2_manifest_paths`, `data_storage_version` as in `lance.write_dataset`.

        `timeout`: seconds for the commit of a batch, re-executions included; None waits forever. `attempts`: how often
        a batch that is refused RETRYABLE is executed at most. `kafka_options`: as in `CommitClient`.

        Raises `ValueError` and `TypeError` for invalid arguments.
        """
        root, branch = checked_uri(uri), checked_branch(branch or "")
        if max_files_per_batch is not None and (max_files_per_batch < 1 or target_rows_per_file is not None):
            raise ValueError(
                f"max_files_per_batch={max_files_per_batch}: at least 1 is needed, and without target_rows_per_file, "
                "because one of the two decides"
            )
        self._mode = Mode(mode)
        self._app_id = None if app_id is None else checked(app_id)
        self._files_max = max_files_per_batch
        self._target = Target(
            uri=branch_uri(root, branch),
            branch=branch,
            storage_options=None if storage_options is None else dict(storage_options),
            keys=tuple(names(keys, "keys")),
            op_column=op_column,
            order_by=tuple(names(order_by, "order_by")),
            schema_mode=SchemaMode(schema_mode),
            target_rows_per_file=target_rows_per_file if max_files_per_batch is None else _ROWS_MAX,
            schema=schema,
            enable_stable_row_ids=enable_stable_row_ids,
            enable_v2_manifest_paths=enable_v2_manifest_paths,
            data_storage_version=data_storage_version,
        )
        self._target.check(self._mode)
        self._queue = QueueOptions(
            bootstrap_servers=bootstrap_servers if isinstance(bootstrap_servers, str) else tuple(bootstrap_servers),
            dataset=branch_queue(dataset or dataset_name(root), branch),
            topic_prefix=topic_prefix,
            producer=producer or app_id or "spark",
            producer_key_file=key_file_of(producer, producer_key_file),
            timeout=timeout,
            attempts=attempts,
            kafka_options=kafka_options,
        )
        self._topic = f"{topic_prefix}{self._queue.dataset}"
        self._client: SyncCommitClient | None = self._queue.client(self._target)  # checks the arguments
        self._checked = False
        """Whether the executors can run the tasks."""

    # A `CommitResult`, or None. It is Any because `foreachBatch` is typed for functions that return None.
    def __call__(self, df: DataFrame, batch_id: int, *, name: str | None = None) -> Any:
        """Commit one micro-batch, for `foreachBatch`; returns when it is in the table.

        A batch that was committed before is never committed again (DUPLICATE). Returns None if the batch had no rows
        and changed nothing. `name`: name of this write, if a batch is written to one table more than once.

        Raises `AppIdMissing`, `AppIdInUse`, `SecondWrite`, `SchemaMismatch`, `InvalidKeys`, and the errors of
        `CommitClient.commit`. Let an error end the stream: after a restart Spark replays the batch, and a write of it
        that was committed gets DUPLICATE.
        """
        batch = current(_context(df))
        if batch is None:
            raise SparkWriteError(
                "this thread works for no micro-batch: call the writer in the foreachBatch function's own thread (or "
                "one started with pyspark.InheritableThread), or use write(df) for a DataFrame that is not a stream"
            )
        if batch.batch_id != batch_id:
            raise SparkWriteError(f"the batch id is {batch_id}, and this thread works for batch {batch.batch_id}")
        app = app_unit(batch, app_id=self._app_id, name=name)
        _written.claim(self._topic, app, batch.execution)
        return self._write(df, self._mode, app)

    def write(
        self,
        df: DataFrame,
        *,
        mode: ModeName | None = None,
        app_id: str | None = None,
        app_version: int | None = None,
    ) -> CommitResult | None:
        """Commit a DataFrame that is not a stream; returns when it is in the table, None if it changed nothing.

        `mode`: default the writer's. `app_id`, `app_version`: identify a run of a job that may be repeated after a
        crash, such as the job's name and the number of the day; a version at or below the committed one gets DUPLICATE.
        Without them a second run adds the rows again.
        """
        chosen = self._mode if mode is None else Mode(mode)
        self._target.check(chosen)
        context = _context(df)
        app = unit(app_id, app_version)
        if app_id is None and current(context) is not None:
            raise SecondWrite("in a foreachBatch function use writer(df, batch_id): write(df) would repeat on a replay")
        return self._write(df, chosen, app)

    def close(self) -> None:
        """Close the connection to Kafka; a later write opens another one. The end of the process closes it too."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_checked": False}

    def __repr__(self) -> str:
        return f"<LanceBatchWriter {self._mode.value} into {self._target.uri}, queue {self._topic}>"

    def _write(self, df: DataFrame, mode: Mode, app: App | None) -> CommitResult | None:
        log = BatchLog(f"batch {app.version} of {app.app_id}" if app is not None else f"a DataFrame for {self._topic}")
        try:
            # What is wrong with the surroundings is found before any file is written.
            dataset, there = before_writing(self._connected(), self._target, app)
            if there is not None:
                log.done(there)
                return there
            if not self._checked:
                check_executors(df.sparkSession)
                self._checked = True
            return self._commit(df, mode, app, dataset=dataset, log=log)
        except (NotCommitted, SparkWriteError):
            if app is not None:
                _written.give_back(self._topic, app)
            raise

    def _commit(
        self, df: DataFrame, mode: Mode, app: App | None, *, dataset: Any, log: BatchLog
    ) -> CommitResult | None:
        given, left = arrow_schema(df.schema), self._queue.attempts
        while True:
            planned = add_new_columns(self._connected(), self._target, given, mode, dataset=dataset)
            plan = self._target.plan(given, mode, planned)
            results = run(df, plan, files_max=self._files_max)
            try:
                return BatchCommit(self._connected(), self._queue, plan, log).run(results, app)
            except TableChanged:
                left -= 1
                if left < 1:
                    raise
                dataset = self._target.open()

    def _connected(self) -> SyncCommitClient:
        if self._client is None:
            self._client = self._queue.client(self._target)
        return self._client


def _context(df: DataFrame) -> Any:
    if "connect" in type(df).__module__.split("."):
        raise ConnectUnsupported(
            "this is a DataFrame of Spark Connect, which runs foreachBatch where the query is not known: use "
            "df.writeStream.format('committerd') or df.write.format('committerd') (Spark 4), or a classic session"
        )
    return df.sparkSession.sparkContext
