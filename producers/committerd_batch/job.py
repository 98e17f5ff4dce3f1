"""One write of a distributed engine that is not a stream: planned here, written by tasks, committed here."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import pyarrow as pa

from committerd_batch.app_marks import unit
from committerd_batch.casting import plain
from committerd_batch.committing import (
    BatchCommit,
    BatchLog,
    QueueOptions,
    add_new_columns,
    before_writing,
    key_file_of,
)
from committerd_batch.target import Mode, Plan, SchemaMode, Target
from committerd_batch.tasks import TaskResult
from committerd_client.arguments import names
from committerd_client.results import CommitResult
from committerd_client.table_location import checked_uri
from committerd_common.backports import Required
from committerd_common.branches import branch_queue, branch_uri, checked_branch
from committerd_common.uris import dataset_name


class JobOptions(TypedDict, total=False):
    """The arguments of a write, as in `committerd_spark.LanceBatchWriter`."""

    bootstrap_servers: Required[str | Sequence[str]]
    dataset: str | None
    branch: str | None
    topic_prefix: str
    mode: Literal["append", "overwrite", "upsert", "delete", "cdc"]
    keys: str | Sequence[str]
    op_column: str | None
    order_by: str | Sequence[str]
    schema_mode: Literal["strict", "merge"]
    app_id: str | None
    """With `app_version`: identifies a run of a job that may be repeated, such as the job's name and the number of the
    day. A version at or below the one in the table is not written again."""
    app_version: int | None
    producer: str | None
    producer_key_file: str | os.PathLike[str] | None
    storage_options: Mapping[str, str] | None
    target_rows_per_file: int | None
    schema: pa.Schema | None
    enable_stable_row_ids: bool | None
    enable_v2_manifest_paths: bool | None
    data_storage_version: str | None
    timeout: float | None
    attempts: int
    kafka_options: Mapping[str, Any] | None


class Job:
    """The driver's side of one write; tasks get `plan.task`. It connects anew for the commit, and may be pickled."""

    def __init__(self, uri: str | os.PathLike[str], given: pa.Schema, options: JobOptions, *, engine: str) -> None:
        """Plan the write of rows with the schema `given`. `engine`: its name in logs, and to Kafka.

        Raises `ValueError` and `TypeError` for invalid arguments, and before any file is written: `KafkaUnavailable`,
        `SchemaMismatch`, `AppIdInUse`.
        """
        _check_names(options)
        root, branch = checked_uri(uri), checked_branch(options.get("branch") or "")
        uri = branch_uri(root, branch)
        app_id, version = options.get("app_id"), options.get("app_version")
        self._app = unit(app_id, version)
        mode, target = Mode(options.get("mode", "append")), _target(uri, branch, options)
        target.check(mode)
        servers = options["bootstrap_servers"]
        self._queue = QueueOptions(
            bootstrap_servers=servers if isinstance(servers, str) else tuple(servers),
            dataset=branch_queue(options.get("dataset") or dataset_name(root), branch),
            topic_prefix=options.get("topic_prefix", ""),
            producer=options.get("producer") or app_id or engine,
            producer_key_file=key_file_of(options.get("producer"), options.get("producer_key_file")),
            timeout=options.get("timeout", 300.0),
            attempts=options.get("attempts", 10),
            kafka_options=options.get("kafka_options"),
        )
        self._log = BatchLog(f"{engine} into {uri}" if self._app is None else f"batch {version} of {app_id}")
        client = self._queue.client(target)
        try:
            dataset, self.there = before_writing(client, target, self._app)
            """The result of a unit that is in the table already: then there is nothing to write."""
            if self.there is not None:
                self._log.done(self.there)
            rows = plain(given)
            self.plan: Plan = target.plan(rows, mode, add_new_columns(client, target, rows, mode, dataset=dataset))
        finally:
            client.close()

    def finish(self, results: Sequence[TaskResult]) -> CommitResult | None:
        """Commit the files of all tasks as one transaction; None if they change nothing."""
        with self._queue.client(self.plan.target) as client:
            return BatchCommit(client, self._queue, self.plan, self._log).run(results, self._app)


def _check_names(options: JobOptions) -> None:
    """Raise `TypeError` for an argument that does not exist, and for the one that must be there."""
    known = JobOptions.__annotations__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(f"the write has no argument {name!r}{hint}; it has {', '.join(known)}")
    if "bootstrap_servers" not in options:
        raise TypeError("the write needs bootstrap_servers: Kafka's addresses, such as 'broker1:9092,broker2:9092'")


def _target(uri: str, branch: str, options: JobOptions) -> Target:
    storage = options.get("storage_options")
    return Target(
        uri=uri,
        branch=branch,
        storage_options=None if storage is None else dict(storage),
        keys=tuple(names(options.get("keys", ()), "keys")),
        op_column=options.get("op_column"),
        order_by=tuple(names(options.get("order_by", ()), "order_by")),
        schema_mode=SchemaMode(options.get("schema_mode", "strict")),
        target_rows_per_file=options.get("target_rows_per_file"),
        schema=options.get("schema"),
        enable_stable_row_ids=options.get("enable_stable_row_ids"),
        enable_v2_manifest_paths=options.get("enable_v2_manifest_paths"),
        data_storage_version=options.get("data_storage_version"),
    )
