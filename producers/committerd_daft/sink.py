"""The sink for Daft."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from daft import DataFrame, Schema
from daft.io.sink import DataSink, WriteResult
from daft.recordbatch import MicroPartition

from committerd_batch.job import Job, JobOptions
from committerd_batch.tasks import TaskResult
from committerd_client.results import CommitResult, CommitStatus
from committerd_common.backports import Unpack

_RESULT = pa.schema(
    [
        ("uuid", pa.large_string()),
        ("status", pa.large_string()),
        ("version", pa.int64()),
        ("offset", pa.int64()),
        ("operation", pa.large_string()),
        ("reason", pa.large_string()),
        ("attempts", pa.int64()),
    ]
)
"""Columns of the DataFrame that `write_sink` returns; it has no row if nothing changed."""


def write(df: DataFrame, uri: str | os.PathLike[str], **options: Unpack[JobOptions]) -> CommitResult | None:
    """Write the DataFrame; returns when it is in the table, None if it changed nothing.

    The options are those of `JobOptions`; `bootstrap_servers` must be given. If the unit `app_id`, `app_version` is in
    the table already, the DataFrame is not executed. Raises before any file is written: `KafkaUnavailable`, and
    `SchemaMismatch` if the columns don't fit the table; and afterwards Daft's errors, which hold the text of those of
    `CommitClient.commit`.
    """
    sink = CommitterdSink(uri, df.schema(), **options)
    if sink.there is not None:
        return sink.there
    for row in df.write_sink(sink).to_pylist():
        return CommitResult(**{**row, "status": CommitStatus(row["status"])})
    return None


class CommitterdSink(DataSink[TaskResult]):  # type: ignore[misc]  # Daft may be missing where types are checked
    """For `df.write_sink`. Use it once."""

    def __init__(self, uri: str | os.PathLike[str], given: Schema, **options: Unpack[JobOptions]) -> None:
        """Plan the write of rows with the schema `given`. Raises as `write` does."""
        self._job = Job(uri, given.to_pyarrow_schema(), options, engine="daft")
        self.there: CommitResult | None = self._job.there
        """The result of a unit that is in the table already: nothing is written then."""

    def name(self) -> str:
        return "committerd"

    def schema(self) -> Schema:
        """The columns of the result: those of `CommitResult`."""
        return Schema.from_pyarrow_schema(_RESULT)

    def write(self, micropartitions: Iterator[MicroPartition]) -> Iterator[WriteResult[TaskResult]]:
        """Write the rows of one task, on a worker."""
        if self.there is None:
            result = self._job.plan.task(_batches(micropartitions))
            written = sum(file.get("file_size_bytes") or 0 for file in result.files)
            yield WriteResult(result=result, bytes_written=written, rows_written=result.row_count)

    def finalize(self, write_results: list[WriteResult[TaskResult]]) -> MicroPartition:
        """Commit the rows of all tasks as one transaction."""
        result = self.there or self._job.finish([one.result for one in write_results])
        row: list[dict[str, Any]] = [] if result is None else [asdict(result)]
        return MicroPartition.from_arrow(pa.Table.from_pylist(row, schema=_RESULT))


def _batches(micropartitions: Iterator[MicroPartition]) -> Iterator[pa.RecordBatch]:
    for one in micropartitions:
        yield from one.to_arrow().to_batches()
