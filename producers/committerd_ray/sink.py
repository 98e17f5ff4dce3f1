"""The sink for Ray Data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from ray.data import Dataset, Schema
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink

from committerd_batch.errors import SchemaMismatch
from committerd_batch.job import Job, JobOptions
from committerd_batch.tasks import TaskResult
from committerd_client.results import CommitResult
from committerd_common.backports import Unpack


def write(ds: Dataset, uri: str | os.PathLike[str], **options: Unpack[JobOptions]) -> CommitResult | None:
    """Write the dataset; returns when it is in the table, None if it changed nothing.

    The options are those of `JobOptions`; `bootstrap_servers` must be given. If the unit `app_id`, `app_version` is in
    the table already, the dataset is not executed. Raises before any file is written: `KafkaUnavailable`, and
    `SchemaMismatch` if the columns don't fit the table; and afterwards the errors of Ray and of `CommitClient.commit`.
    """
    sink = CommitterdDatasink(uri, ds.schema(), **options)
    if sink.result is None:
        ds.write_datasink(sink)
    return sink.result


class CommitterdDatasink(Datasink[TaskResult]):  # type: ignore[misc]  # Ray has no types here
    """For `ds.write_datasink`. Use it once; `result` is the result of the commit."""

    def __init__(
        self, uri: str | os.PathLike[str], given: Schema | pa.Schema | None, **options: Unpack[JobOptions]
    ) -> None:
        """Plan the write of rows with the schema `given`: `ds.schema()`. Raises as `write` does."""
        self._job: Job | None = Job(uri, _arrow(given), options, engine="ray")
        self._task = self._job.plan.task
        self.result: CommitResult | None = self._job.there

    def write(self, blocks: Iterable[Block], ctx: Any) -> TaskResult:
        """Write the blocks of one task, on a worker; nothing if the unit is in the table already."""
        return self._task(_batches(blocks)) if self.result is None else TaskResult()

    def on_write_complete(self, write_result: Any) -> None:
        """Commit all blocks as one transaction, on the driver."""
        if self.result is None and self._job is not None:
            self.result = self._job.finish(write_result.write_returns)

    def get_name(self) -> str:
        return "committerd"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_job": None}  # tasks don't commit


def _batches(blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        yield from BlockAccessor.for_block(block).to_arrow().to_batches()


def _arrow(schema: Schema | pa.Schema | None) -> pa.Schema:
    if schema is None:
        raise SchemaMismatch("the dataset has no rows, so its columns are not known")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if not isinstance(kind, pa.DataType):
            raise SchemaMismatch(f"column {name!r} holds Python objects, which have no form in Arrow: convert it first")
    return pa.schema(list(zip(schema.names, schema.types, strict=True)))
