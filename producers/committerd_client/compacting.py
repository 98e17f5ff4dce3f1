"""Compact a table through its queue, while others write to it.

    async with CommitClient("broker:9092", dataset="events", dataset_uri=uri) as client:
        done = await client.compact(target_rows_per_fragment=1_000_000)

A compaction takes two transactions: the first reserves fragment ids, the second replaces the old fragments and carries
along the indices that cover them, rewritten for the rows' new addresses. Appends don't conflict with it. A delete, an
update or an upsert of a row in a rewritten fragment does: then that fragment's group, and only that, is rewritten again
on the latest version, while the committer holds other commits back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from anyio import to_thread

from committerd_client.errors import RetryableConflict
from committerd_client.headers import Staged
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Reexecution, Work
from committerd_client.results import CommitResult, CompactionResult
from committerd_client.staging.compaction import (
    Compacted,
    Execute,
    Groups,
    Remap,
    compact_files,
    compact_files_again,
    execute_here,
    with_remapped_indices,
)
from committerd_client.staging.indices import index_names, optimize_indices
from committerd_client.staging.operations import reserve_fragments
from committerd_client.staging.remapping import remapped_indices

if TYPE_CHECKING:
    import lance

_SPARE_IDS = 8
"""Ids reserved beyond the need, so that a re-execution that makes more fragments need not reserve during the hold."""


class Commits(Protocol):
    """A `CommitClient`."""

    async def commit(
        self,
        transaction: Work,
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
    attempts: int = ATTEMPTS_MAX,
    reindex: bool = True,
    groups: Groups | None = None,
    execute: Execute = execute_here,
    remap: Remap = remapped_indices,
    **options: Any,
) -> CompactionResult | None:
    """Rewrite small fragments and those with deleted rows into fewer; None if there is nothing to do.

    `open_table`: opens the table at its latest version; called in a worker thread, once for each execution. `timeout`,
    `attempts`: for each commit, as in `CommitClient.commit`. `reindex`: afterwards optimize the indices that held
    addresses of moved rows and could not be rewritten, in a transaction of their own; until then queries scan those
    rows. `groups`: which fragments to rewrite together; None: as pylance plans it. `execute`, `remap`: execute the
    tasks and rewrite the indices, in a worker thread; by default in this process. `options`: fields of
    `lance.optimize.CompactionOptions`.

    Raises the errors of `CommitClient.commit`, and `StagingError` for tables that can't be compacted.
    """
    chosen = {**options, "groups": groups, "execute": execute}
    work = _Compaction(client, open_table, chosen, remap=remap, timeout=timeout)
    first = await work.execute()
    if first is None:
        return None
    try:
        result = await client.commit(first, reexecute=work.again, attempts=attempts, timeout=timeout)
    except RetryableConflict:
        if not work.done.groups:  # others have compacted the table, or deleted the rows
            return None
        raise
    stale = work.done.reindex
    if reindex and stale:
        await _optimize(client, open_table, stale, attempts=attempts, timeout=timeout)
    return CompactionResult(
        version=result.version,
        fragments_removed=sum(len(group.old) for group in work.done.groups),
        fragments_added=work.done.ids_needed,
        attempts=result.attempts,
        reindexed=stale if reindex else (),
        stale=() if reindex else stale,
        bytes_written=sum(
            file.file_size_bytes for group in work.done.groups for one in group.new for file in one.files
        ),
    )


class _Compaction:
    """One compaction through all its executions."""

    def __init__(
        self,
        client: Commits,
        open_table: Callable[[], lance.LanceDataset],
        options: dict[str, Any],
        *,
        remap: Remap,
        timeout: Timeout,
    ) -> None:
        self._client, self._open, self._options = client, open_table, options
        self._remap, self._timeout = remap, timeout
        self._ids: list[int] = []
        """Reserved fragment ids that no version uses yet. After a refused Rewrite the next one uses them."""
        self.done: Compacted
        """The rewritten fragments of the last execution."""

    async def execute(self) -> Staged | None:
        """The Rewrite of the first execution; None if there is nothing to do."""
        dataset = await to_thread.run_sync(self._open)
        self.done = await to_thread.run_sync(partial(compact_files, dataset, **self._options))
        return await self._staged(dataset)

    async def again(self, _refused: Reexecution) -> Staged | None:
        """The Rewrite of a later execution, for `reexecute`; None if there is nothing left to do."""
        dataset = await to_thread.run_sync(self._open)
        self.done = await to_thread.run_sync(partial(compact_files_again, dataset, self.done, **self._options))
        return await self._staged(dataset)

    async def _staged(self, dataset: lance.LanceDataset) -> Staged | None:
        needed = self.done.ids_needed
        if not self.done.groups:
            return None
        if needed > len(self._ids):
            reservation = reserve_fragments(dataset, needed + _SPARE_IDS)
            result: CommitResult = await self._client.commit(reservation, timeout=self._timeout)
            self._ids = list(result.reserved or ())
        remapped = partial(with_remapped_indices, dataset, self.done, self._ids, remap=self._remap)
        self.done = await to_thread.run_sync(remapped)
        return self.done.rewrite(self._ids)


async def _optimize(
    client: Commits,
    open_table: Callable[[], lance.LanceDataset],
    names: tuple[str, ...],
    *,
    attempts: int,
    timeout: Timeout,
) -> None:
    def optimized(_refused: Reexecution | None = None) -> Staged | None:
        dataset = open_table()
        # Others may have dropped one meanwhile.
        return optimize_indices(dataset, index_names(dataset).intersection(names))

    staged = await to_thread.run_sync(optimized)
    if staged is not None:
        await client.commit(staged, reexecute=optimized, attempts=attempts, timeout=timeout)
