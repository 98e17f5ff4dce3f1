"""Compact a table through its queue, while others write to it.

    async with CommitClient("broker:9092", dataset="events", dataset_uri=uri) as client:
        done = await client.compact(target_rows_per_fragment=1_000_000)

A compaction takes two transactions: the first reserves fragment ids, the second replaces the old fragments and carries
along the indices that cover them, rewritten for the rows' new addresses. No data is written before the first has its
outcome. So nothing is rewritten in vain while no committer runs, or while another Rewrite of the same fragments waits:
what was staged before the reservation is committed or refused by then. Appends don't conflict with the second. Deletes,
updates and upserts of its rows don't conflict with it either: the committer follows the rows. Only another compaction
of the same fragments, or a change of their columns, causes a group to be rewritten again. Files that no version will
name are removed as soon as that is certain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from committerd_client.errors import RetryableConflict, StagingError
from committerd_client.headers import Staged
from committerd_client.leftovers import Leftovers, data_keys, index_keys
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.panics import run_sync
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Reexecution, TransactionLike
from committerd_client.results import CommitResult, CompactionResult, LeftAlone
from committerd_client.staging.compaction import (
    Compacted,
    Execute,
    Groups,
    Remap,
    compact_files_again,
    compacted,
    compaction_tasks,
    execute_here,
    ids_expected,
    new_data_files,
    with_remapped_indices,
)
from committerd_client.staging.indices import update_index
from committerd_client.staging.operations import reserve_fragments
from committerd_client.staging.remapping import remapped_indices
from committerd_client.staging.transactions import read_table

if TYPE_CHECKING:
    import lance
    from lance.optimize import CompactionTask, RewriteResult

_log = logging.getLogger("committerd_client")

_SPARE_IDS = 8
"""Ids reserved beyond the need, so that a re-execution that makes more fragments need not reserve during the hold."""

_IDS_MAX = 2**20
"""Maximum number of ids that a committer reserves at once."""


class Commits(Protocol):
    """A `CommitClient`."""

    async def commit(
        self,
        transaction: TransactionLike,
        *,
        timeout: Timeout = ...,
        reexecute: AsyncReexecute | None = ...,
        attempts: int = ...,
    ) -> CommitResult: ...


async def compact(
    client: Commits,
    open_table: Callable[[], lance.LanceDataset],
    *,
    timeout: Timeout = CLIENTS_TIMEOUT,
    patience: float = 0.0,
    attempts: int = ATTEMPTS_MAX,
    reindex: bool = True,
    groups: Groups | None = None,
    execute: Execute = execute_here,
    remap: Remap = remapped_indices,
    **options: Any,
) -> CompactionResult | None:
    """Rewrite small fragments and those with deleted rows into fewer; None if there is nothing to do.

    `open_table`: opens the table at its latest version; called in a worker thread, once for each execution. `timeout`,
    `attempts`: for each commit, as in `CommitClient.commit`. `patience`: as in `optimize_index`. `reindex`: afterwards
    update the indices that held addresses of moved rows and could not be rewritten, in a transaction each; until then
    queries scan those rows. `groups`: which fragments to rewrite together; None: as pylance plans it.
    `execute`, `remap`: execute the tasks and rewrite the indices, in a worker thread; by default in this process.
    `options`: fields of `lance.optimize.CompactionOptions`.

    What was written is read back before it is committed; fragments that pylance can't rewrite are left alone, and the
    result and the log name them.

    Raises the errors of `CommitClient.commit`, and `StagingError` for tables that can't be compacted.
    """
    chosen = {**options, "groups": groups}
    work = _Compaction(client, open_table, chosen, execute=execute, remap=remap, timeout=timeout)
    result = await work.commit(attempts=attempts, patience=patience)
    if result is None:
        return CompactionResult(left_alone=tuple(work.left_alone)) if work.left_alone else None
    reindexed: list[str] = []
    stale: list[str] = []
    for name in work.done.reindex:
        update = partial(update_index, name=name)
        try:
            if reindex:
                await optimize_index(client, open_table, update, attempts=attempts, timeout=timeout, patience=patience)
            (reindexed if reindex else stale).append(name)
        except StagingError as error:
            _log.warning("the rows that a compaction has moved are not in index %s: %s", name, error)
            stale.append(name)
    return CompactionResult(
        version=result.version,
        fragments_removed=sum(len(group.old) for group in work.done.groups),
        fragments_added=work.done.ids_needed,
        attempts=result.attempts,
        left_alone=tuple(work.left_alone),
        reindexed=tuple(reindexed),
        stale=tuple(stale),
        bytes_written=sum(
            file.file_size_bytes for group in work.done.groups for one in group.new for file in one.files
        ),
    )


async def require_committer(
    client: Commits, open_table: Callable[[], lance.LanceDataset], *, timeout: Timeout = CLIENTS_TIMEOUT
) -> None:
    """Return when a committer has settled a small request: the reservation of a fragment id, which stays unused.

    For work that writes much before it is committed. Raises the errors of `CommitClient.commit`.
    """
    await client.commit(reserve_fragments(await run_sync(open_table), 1), timeout=timeout)


async def optimize_index(
    client: Commits,
    open_table: Callable[[], lance.LanceDataset],
    optimize: Callable[[lance.LanceDataset], Staged | None],
    *,
    timeout: Timeout = CLIENTS_TIMEOUT,
    patience: float = 0.0,
    attempts: int = ATTEMPTS_MAX,
) -> CommitResult | None:
    """Commit what `optimize` makes of the latest version; None if there is nothing left to do.

    `optimize`: writes files of indices, and returns their transaction. `patience`: re-executions may take this many
    times as long as the first execution took, beyond `timeout`, which must be a number or None then.

    Raises the errors of `CommitClient.commit`, and those of `optimize`.
    """
    leftovers = Leftovers()
    opened: lance.LanceDataset | None = None
    nothing_left = False

    def executed(_refused: Reexecution | None = None) -> Staged | None:
        nonlocal nothing_left, opened
        leftovers.refused()
        opened = open_table()
        made = optimize(opened)
        nothing_left = made is None
        if made is not None:
            keys = index_keys(made.transaction, opened)
            leftovers.wrote(keys)
            leftovers.sends(keys)
        return made

    started = time.monotonic()
    first = await run_sync(executed)
    if first is None:
        return None
    longer = _longer(timeout, patience * (time.monotonic() - started))
    try:
        result = await client.commit(first, reexecute=executed, attempts=attempts, timeout=longer)
    except Exception as error:
        leftovers.ended(error)
        if isinstance(error, RetryableConflict) and nothing_left:
            return None
        raise
    else:
        return result
    finally:
        if opened is not None:
            await run_sync(partial(leftovers.remove, opened))


class _Compaction:
    """One compaction through all its executions."""

    def __init__(
        self,
        client: Commits,
        open_table: Callable[[], lance.LanceDataset],
        options: dict[str, Any],
        *,
        execute: Execute,
        remap: Remap,
        timeout: Timeout,
    ) -> None:
        self._client, self._open, self._options = client, open_table, options
        self._execute, self._remap, self._timeout = execute, remap, timeout
        self._leftovers = Leftovers()
        self._ids: list[int] = []
        """Reserved fragment ids that no version uses yet. After a refused Rewrite the next one uses them."""
        self._nothing_left = False
        """Whether the last execution has found nothing to do."""
        self.left_alone: list[LeftAlone] = []
        """What was not rewritten, in all executions."""
        self.done: Compacted
        """The rewritten fragments of the last execution."""

    async def commit(self, *, attempts: int, patience: float) -> CommitResult | None:
        """Execute and commit it; None if there is nothing to do."""
        dataset = await run_sync(self._open)
        try:
            tasks = await run_sync(partial(self._tasks, dataset))
            if not tasks:
                return None
            reserved = await self._reserve(dataset, ids_expected(tasks))
            # What was staged earlier is committed or refused by now: for example, the Rewrite of an earlier call that
            # had no outcome in time.
            dataset = await run_sync(partial(dataset.checkout_version, reserved.version or dataset.version))
            tasks = await run_sync(partial(self._tasks, dataset))
            if not tasks:
                return None
            started = time.monotonic()
            self.done = await run_sync(lambda: compacted(dataset, self._executed(dataset, tasks)))
            first = await self._staged(dataset)
            if first is None:
                return None
            longer = _longer(self._timeout, patience * (time.monotonic() - started))
            return await self._client.commit(first, reexecute=self._again, attempts=attempts, timeout=longer)
        except Exception as error:
            self._leftovers.ended(error)
            if isinstance(error, RetryableConflict) and self._nothing_left:
                return None  # others have compacted the table, or deleted the rows
            raise
        finally:
            await run_sync(partial(self._leftovers.remove, dataset))

    async def _again(self, _refused: Reexecution) -> Staged | None:
        """The Rewrite of a later execution, for `reexecute`; None if there is nothing left to do."""
        self._leftovers.refused()
        dataset = await run_sync(self._open)
        again = partial(compact_files_again, dataset, self.done, execute=self._executed, **self._options)
        self.done = await run_sync(again)
        return await self._staged(dataset)

    def _tasks(self, dataset: lance.LanceDataset) -> list[CompactionTask]:
        read_table(dataset)  # refuses what can't be committed before anything is rewritten
        return compaction_tasks(dataset, **self._options)

    def _executed(self, dataset: lance.LanceDataset, tasks: Sequence[CompactionTask]) -> Iterator[RewriteResult]:
        for result in self._execute(dataset, tasks):
            if isinstance(result, LeftAlone):
                self.left_alone.append(result)
                _log.warning("fragments %s of %s are left alone: %s", result.fragments, dataset.uri, result.why)
                continue
            self._leftovers.wrote(new_data_files(result))
            yield result

    async def _reserve(self, dataset: lance.LanceDataset, count: int) -> CommitResult:
        reservation = reserve_fragments(dataset, min(count + _SPARE_IDS, _IDS_MAX))
        result: CommitResult = await self._client.commit(reservation, timeout=self._timeout)
        self._ids = list(result.reserved or ())
        return result

    async def _staged(self, dataset: lance.LanceDataset) -> Staged | None:
        self._nothing_left = not self.done.groups
        if self._nothing_left:
            return None
        highest = max((one.id for group in self.done.groups for one in group.old), default=0)
        if self.done.ids_needed > len(self._ids) or highest >= self._ids[0]:
            await self._reserve(dataset, self.done.ids_needed)
        remapped = partial(with_remapped_indices, dataset, self.done, self._ids, remap=self._remap)
        self.done = await run_sync(remapped)
        staged = self.done.rewrite(self._ids)
        indices = await run_sync(partial(index_keys, staged.transaction, dataset))
        self._leftovers.wrote(indices)
        self._leftovers.sends(indices.union(*(data_keys(group.new) for group in self.done.groups)))
        return staged


def _longer(timeout: Timeout, seconds: float) -> Timeout:
    return timeout + seconds if isinstance(timeout, float | int) else timeout
