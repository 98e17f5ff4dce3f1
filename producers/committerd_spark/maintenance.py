"""Keeps a table fit for reading with the executors of Spark, for tables that outgrow one machine.

    from committerd_spark import maintain

    maintain(spark, "s3://lake/events.lance", bootstrap_servers="broker:9092")

The plan is that of `committerd maintain`, made from the manifest. Each task runs on an executor, which reads the old
fragments, writes the new ones and reads them back; indices are rewritten and optimized on executors too. The driver
stages one transaction for all tasks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from committerd_client import CommitClient, LeftAlone, StagingError
from committerd_client.compacting import compact, optimize_index, require_committer
from committerd_client.headers import Staged
from committerd_client.maintenance.plan import Limits, Targets, TaskPace, plan
from committerd_client.maintenance.table import read_state
from committerd_client.panics import PANIC, is_lasting, panics_raised
from committerd_client.results import CompactionResult
from committerd_client.staging.remapping import RewrittenIndex
from committerd_client.table_location import checked_uri
from committerd_common.branches import branch_uri, checked_branch
from committerd_common.messages import Transaction
from committerd_common.uris import dataset_name

if TYPE_CHECKING:
    import lance
    from lance.optimize import CompactionTask, RewriteResult
    from pyspark.sql import SparkSession

T = TypeVar("T")

_log = logging.getLogger("committerd_client")

_ANY_PACE = TaskPace(bytes_per_second=1e15, fragments_per_second=1e9)
"""The limit of a task is its bytes: nothing is known about the executors."""
_PATIENCE = 3.0
"""Re-executions of a commit may take this many times as long as its first execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """What one call has done."""

    compaction: CompactionResult | None
    """None if there was nothing to rewrite. Its `left_alone` names fragments that pylance can't rewrite."""
    optimized: tuple[str, ...]
    """Names of the indices that were optimized."""
    waiting: int
    """Number of tasks that could be done by another call."""
    left_alone: Mapping[str, str] = field(default_factory=dict)
    """The indices that can't be kept up to date, by name, and what to do."""


def maintain(
    spark: SparkSession,
    uri: str,
    *,
    bootstrap_servers: str | Sequence[str],
    dataset: str | None = None,
    branch: str | None = None,
    topic_prefix: str = "",
    storage_options: Mapping[str, str] | None = None,
    producer: str = "spark-maintain",
    producer_key_file: str | os.PathLike[str] | None = None,
    targets: Targets | None = None,
    limits: Limits | None = None,
    leave: Collection[int] = (),
    timeout: float | None = 600.0,
    kafka_options: Mapping[str, Any] | None = None,
) -> MaintenanceResult:
    """Rewrite small fragments and those with deleted rows, and optimize indices; returns when the result is in the
    table.

    `uri`, `dataset`, `branch`, `topic_prefix`, `storage_options`, `producer_key_file`, `kafka_options`: as in
    `LanceBatchWriter`. `producer`: its name in the committer's log.
    `targets`: the state to aim for. `limits`: bytes of a task, and the maximum number of tasks, by default 1,000; all
    of them are one commit. `leave`: ids of fragments that stay as they are, such as those that an earlier call has
    named in `compaction.left_alone`. `timeout`: seconds for each commit; its re-executions may take three times as long
    as its first execution beyond that. Old versions and files are deleted by `committerd maintain`, not here.

    Raises the errors of `CommitClient.commit`, and those of Spark if a task fails.
    """
    root, branch = checked_uri(uri), checked_branch(branch or "")
    work = _Executors(spark, branch_uri(root, branch), None if storage_options is None else dict(storage_options))
    client = partial(
        CommitClient,
        bootstrap_servers,
        dataset=dataset or dataset_name(root),
        branch=branch,
        topic_prefix=topic_prefix,
        dataset_uri=root,
        storage_options=storage_options,
        producer=producer,
        producer_key_file=producer_key_file,
        timeout=timeout,
        client_id="committerd-spark",
        kafka_options=kafka_options,
    )

    async def run() -> MaintenanceResult:
        async with client() as opened:
            wanted, most = targets or Targets(), limits or Limits(tasks=1000)
            return await _maintain(opened, work, wanted, most, leave=leave, timeout=timeout)

    # A notebook's own thread has an event loop already.
    with ThreadPoolExecutor(1, thread_name_prefix="committerd-maintain") as pool:
        return pool.submit(lambda: asyncio.run(run())).result()


async def _maintain(
    client: CommitClient,
    work: _Executors,
    targets: Targets,
    limits: Limits,
    *,
    leave: Collection[int],
    timeout: float | None,
) -> MaintenanceResult:
    state = await asyncio.to_thread(lambda: read_state(work.open()))
    wanted = plan(state, targets, limits, _ANY_PACE, leave=leave)
    done = None
    if wanted.groups:
        done = await compact(
            client,
            work.open,
            groups=[one.fragments for one in wanted.groups],
            execute=work.execute,
            remap=work.remap,
            timeout=timeout,
            patience=_PATIENCE,
            target_rows_per_fragment=targets.rows_per_fragment,
            max_bytes_per_file=targets.bytes_per_fragment,
        )
        state = await asyncio.to_thread(lambda: read_state(work.open()))
    optimized: list[str] = []
    alone: dict[str, str] = {}
    for index in plan(state, targets, limits, _ANY_PACE).indices:
        merged = index.segments if index.segments > targets.segments else None
        await require_committer(client, work.open)
        optimize = partial(work.optimize, index.name, merged)
        try:
            if await optimize_index(client, work.open, optimize, timeout=timeout, patience=_PATIENCE) is not None:
                optimized.append(index.name)
        except StagingError as error:
            _log.warning("index %s of %s is left alone: %s", index.name, work.uri, error)
            alone[index.name] = str(error)
    return MaintenanceResult(compaction=done, optimized=tuple(optimized), waiting=wanted.waiting, left_alone=alone)


@dataclass(frozen=True, slots=True)
class _Executors:
    """The work on executors. Its methods block, and run on the driver."""

    spark: SparkSession
    uri: str
    storage_options: dict[str, str] | None

    def open(self, version: int | None = None) -> lance.LanceDataset:
        return _open(self.uri, self.storage_options, version)

    def execute(self, dataset: lance.LanceDataset, tasks: Sequence[CompactionTask]) -> list[RewriteResult | LeftAlone]:
        """Execute each task on an executor, which reads back what it has written."""
        from lance.optimize import RewriteResult

        kind: Any = RewriteResult  # its stub lacks `from_json`
        given: Sequence[Any] = tasks
        run = partial(_execute, self.uri, self.storage_options, dataset.version)
        found = self._on_executors(run, [task.json() for task in given])
        return [kind.from_json(one) if isinstance(one, str) else one for some in found for one in some]

    def remap(
        self, dataset: lance.LanceDataset, results: Sequence[str], reserved: Sequence[int]
    ) -> tuple[RewrittenIndex, ...]:
        """Rewrite the indices on one executor."""
        run = partial(_remap, self.uri, self.storage_options, dataset.version)
        (found,) = self._on_executors(run, [(list(results), list(reserved))])
        if isinstance(found, str):
            raise StagingError(found, code=PANIC)
        return tuple(RewrittenIndex.FromString(one) for one in found)

    def optimize(self, name: str, merged: int | None, _dataset: lance.LanceDataset) -> Staged | None:
        """Optimize an index on one executor; None if there is nothing to do. Raises `StagingError` (`index`)."""
        (found,) = self._on_executors(partial(_optimize, self.uri, self.storage_options, merged), [name])
        if found is None:
            return None
        if isinstance(found, str):
            raise StagingError(found, code="index")
        return Staged(transaction=Transaction.FromString(found[0]), read_uuid=found[1])

    def _on_executors(self, run: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Call `run` for each item, in a task of its own."""
        return self.spark.sparkContext.parallelize(items, max(len(items), 1)).map(run).collect() if items else []


def _open(uri: str, storage_options: dict[str, str] | None, version: int | None) -> lance.LanceDataset:
    import lance

    return lance.dataset(uri, version=version, storage_options=storage_options)


def _execute(uri: str, storage_options: dict[str, str] | None, version: int, task: str) -> list[str | LeftAlone]:
    """The results, as JSON, and what is left alone."""
    from lance.optimize import CompactionTask

    from committerd_client.staging.compaction import execute_task

    kind: Any = CompactionTask  # its stub lacks `from_json`
    found: list[Any] = execute_task(_open(uri, storage_options, version), kind.from_json(task))
    return [one if isinstance(one, LeftAlone) else str(one.json()) for one in found]


def _remap(
    uri: str, storage_options: dict[str, str] | None, version: int, given: tuple[list[str], list[int]]
) -> list[bytes] | str:
    """The rewritten indices, or why pylance can't rewrite them."""
    from committerd_client.staging.remapping import remapped_indices

    try:
        with panics_raised():
            found = remapped_indices(_open(uri, storage_options, version), *given)
    except Exception as error:
        if not is_lasting(error):
            raise
        return str(error)
    return [one.SerializeToString() for one in found]


def _optimize(
    uri: str, storage_options: dict[str, str] | None, merged: int | None, name: str
) -> tuple[bytes, str | None] | str | None:
    """The transaction, with the uuid of the version that it was planned on.

    A text says why the index can't be kept up to date; None: there is nothing to do.
    """
    from committerd_client.staging.indices import update_index

    options: dict[str, Any] = {} if merged is None else {"num_indices_to_merge": merged}
    try:
        staged = update_index(_open(uri, storage_options, None), name, **options)
    except StagingError as error:
        return str(error)
    return None if staged is None else (staged.transaction.SerializeToString(), staged.read_uuid)
