"""Writes Spark DataFrames, and micro-batches of streams, into a Lance table through its queue: each exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from committerd_client.errors import IncompatibleConflict, InvalidTransaction, NotCommitted
from committerd_client.headers import App
from committerd_client.reexecution import Work
from committerd_client.results import CommitResult
from committerd_client.sync import SyncCommitClient
from committerd_common.backports import Self
from committerd_common.uris import dataset_name
from committerd_spark.errors import AppIdInUse, ConnectUnsupported, SecondWrite, SparkWriteError
from committerd_spark.micro_batch import Written, app_unit, checked, current
from committerd_spark.sink import Mode, Sink

ModeName = Literal["append", "overwrite", "upsert", "delete"]

_written = Written()
"""The writes of all writers of this process: two of them may write to one table."""


class LanceBatchWriter:
    """A function for `df.writeStream.foreachBatch(...)`; `write(df)` is for DataFrames that are not streams.

    It may be pickled, and used from several threads and streams at once.
    """

    def __init__(
        self,
        uri: str,
        *,
        bootstrap_servers: str | Sequence[str],
        dataset: str | None = None,
        topic_prefix: str = "",
        mode: ModeName = "append",
        keys: str | Sequence[str] = (),
        app_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
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
        the URI without `.lance`. `keys`: columns by which the modes upsert and delete find rows; with mode append the
        columns by which others upsert, so that upserts of other keys pass the batch (`staging.append`). `app_id`:
        identifies a stream after a restart, and must differ for each stream that writes to the table; default its
        `queryName`. `storage_options`: credentials and endpoints of the object store, as in pylance; they are sent to
        the executors.

        For a table that does not exist yet: `schema` (default that of the first DataFrame, with all columns nullable),
        `enable_stable_row_ids`, `enable_v2_manifest_paths`, `data_storage_version` as in `lance.write_dataset`.

        `timeout`: seconds for the commit of a batch, re-executions included; None waits forever. `attempts`: how often
        a batch that is refused RETRYABLE is executed at most. `kafka_options`: as in `CommitClient`.

        Raises `ValueError` for invalid arguments.
        """
        self._mode = Mode(mode)
        self._app_id = None if app_id is None else checked(app_id)
        self._sink = Sink(
            uri=uri,
            storage_options=None if storage_options is None else dict(storage_options),
            keys=(keys,) if isinstance(keys, str) else tuple(keys),
            schema=schema,
            enable_stable_row_ids=enable_stable_row_ids,
            enable_v2_manifest_paths=enable_v2_manifest_paths,
            data_storage_version=data_storage_version,
        )
        self._check(self._mode)
        if attempts < 1:
            raise ValueError(f"attempts={attempts}: the first execution counts, so at least 1 is needed")
        self._attempts = attempts
        name = dataset or dataset_name(uri)
        self._topic = f"{topic_prefix}{name}"
        self._connect: Callable[[], SyncCommitClient] = partial(
            SyncCommitClient,
            bootstrap_servers,
            dataset=name,
            topic_prefix=topic_prefix,
            dataset_uri=uri,
            storage_options=storage_options,
            producer=app_id or "spark",
            timeout=timeout,
            client_id="committerd-spark",
            kafka_options=kafka_options,
        )
        self._client: SyncCommitClient | None = self._connect()  # checks the arguments, and connects later

    def __call__(self, df: DataFrame, batch_id: int, *, name: str | None = None) -> CommitResult | None:
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
                "one started with pyspark.InheritableThread), or use write(df) for a DataFrame that is no stream"
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
        self._check(chosen)
        context = _context(df)
        if (app_id is None) != (app_version is None):
            raise ValueError("app_id and app_version belong together: give both or none")
        if app_id is None and current(context) is not None:
            raise SecondWrite("in a foreachBatch function use writer(df, batch_id): write(df) would repeat on a replay")
        app = None if app_id is None or app_version is None else App(checked(app_id), app_version)
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
        return {**self.__dict__, "_client": None}

    def _check(self, mode: Mode) -> None:
        if mode.keyed and not self._sink.keys:
            raise ValueError(f"mode {mode.value!r} needs keys=[...]: the columns by which rows are found")

    def _write(self, df: DataFrame, mode: Mode, app: App | None) -> CommitResult | None:
        # A refused DataFrame is executed again, possibly with its rows in another order: keep the rows.
        keep = mode.keyed and not df.is_cached
        if keep:
            df.persist()
        try:
            return self._commit(partial(self._sink.execute, df, mode), app)
        except (NotCommitted, SparkWriteError) as error:
            if app is None:
                raise
            _written.give_back(self._topic, app)
            if isinstance(error, InvalidTransaction) and error.code == AppIdInUse.code:
                raise _in_use(error, app) from error
            raise
        finally:
            if keep:
                df.unpersist()

    def _commit(self, execute: Callable[[], Work | None], app: App | None) -> CommitResult | None:
        left = self._attempts
        while True:
            work = execute()
            if work is None:
                return None
            try:
                return self._connected().commit(work, app=app, reexecute=lambda _: execute(), attempts=left)
            except IncompatibleConflict as error:
                # For example an Overwrite since the table was read: no transaction can pass it, but the rows
                # can be written again.
                left -= error.attempts
                if left < 1:
                    raise

    def _connected(self) -> SyncCommitClient:
        if self._client is None:
            self._client = self._connect()
        return self._client


def _context(df: DataFrame) -> Any:
    if "connect" in type(df).__module__.split("."):
        raise ConnectUnsupported(
            "this is a DataFrame of Spark Connect, which runs foreachBatch where the query is not known: use a classic "
            "session (spark-submit, or SparkSession.builder.master(...))"
        )
    return df.sparkSession.sparkContext


def _in_use(error: InvalidTransaction, app: App) -> AppIdInUse:
    made = AppIdInUse(
        f"app id {app.app_id!r} is that of another streaming query. Either the checkpoint was deleted: its batches "
        "count from 0 again, and nothing was written, because it can't be known which of them the table holds. Restore "
        "the checkpoint; or, when the source does not deliver again what is in the table, let the operator run "
        f"`committerd app release {app.app_id} --apply --reason '...'`; or go on under another app_id. Or two queries "
        f"have this name: give each its own. The committer said: {error}",
        uuid=error.uuid,
    )
    made.offset = error.offset
    return made
