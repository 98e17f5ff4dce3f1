"""Compact a table through its queue, while others write to it.

    from committerd_client.compacting import compact

    async with CommitClient("broker:9092", dataset="events", dataset_uri=uri) as client:
        done = await compact(client, lambda: lance.dataset(uri), target_rows_per_fragment=1_000_000)

Two transactions: fragment ids are reserved, then the old fragments are replaced. Appends don't contradict it. A delete,
an update or an upsert of a row in a fragment that was rewritten does: then that fragment's group is done again on the
latest version, and only that, while the committer holds the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from committerd_client.client import CommitClient
from committerd_client.errors import RetryableConflict
from committerd_client.headers import Staged
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.reexecution import ATTEMPTS_MAX, Reexecution
from committerd_client.results import CommitResult
from committerd_client.staging.compaction import Compacted, compact_files, compact_files_again
from committerd_client.staging.indices import optimize_indices
from committerd_client.staging.operations import reserve_fragments

if TYPE_CHECKING:
    import lance

_SPARE_IDS = 8
"""Reserved beyond what is needed: a re-execution that makes more fragments need not ask again, as its turn is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """What a compaction has done."""

    version: int | None
    """The table version that holds the new fragments."""
    fragments_removed: int
    fragments_added: int
    attempts: int
    """Executions, the first included."""
    reindexed: tuple[str, ...]
    """Indices that had to take the moved rows in again."""
    stale: tuple[str, ...]
    """Indices that don't cover the moved rows, as `reindex` was off: queries read these rows without them."""


async def compact(
    client: CommitClient,
    open_table: Callable[[], lance.LanceDataset],
    *,
    timeout: Timeout = CLIENTS_TIMEOUT,
    attempts: int = ATTEMPTS_MAX,
    reindex: bool = True,
    **options: Any,
) -> CompactionResult | None:
    """Rewrite small fragments and those with deleted rows into fewer; None when there is nothing to do.

    `open_table`: opens the table at its latest version; called in a worker thread, for each execution. `timeout`,
    `attempts`: of each commit, as in `CommitClient.commit`. `reindex`: indices that hold
    addresses of moved rows (all, in a table without stable row ids) are optimized afterwards, in a transaction of their
    own; until then queries read those rows without them. `options`: those of `lance.optimize.CompactionOptions`.

    Raises what `CommitClient.commit` raises, and `StagingError` for tables that can't be compacted.
    """
    work = _Compaction(client, open_table, options, timeout)
    first = await work.execute()
    if first is None:
        return None
    try:
        result = await client.commit(first, reexecute=work.again, attempts=attempts, timeout=timeout)
    except RetryableConflict:
        if not work.done.groups:  # others have compacted it, or deleted the rows
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
    )


class _Compaction:
    """One compaction through all its executions."""

    def __init__(
        self,
        client: CommitClient,
        open_table: Callable[[], lance.LanceDataset],
        options: dict[str, Any],
        timeout: Timeout,
    ) -> None:
        self._client, self._open, self._options, self._timeout = client, open_table, options, timeout
        self._ids: list[int] = []
        """Reserved, and in no version: those of a refused Rewrite are good for the next."""
        self.done: Compacted
        """Of the last execution."""

    async def execute(self) -> Staged | None:
        """The Rewrite of the first execution; None when there is nothing to do."""
        dataset = await to_thread.run_sync(self._open)
        self.done = await to_thread.run_sync(partial(compact_files, dataset, **self._options))
        return await self._staged(dataset)

    async def again(self, _refused: Reexecution) -> Staged | None:
        """For `reexecute`."""
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
        return self.done.rewrite(self._ids)


async def _optimize(
    client: CommitClient,
    open_table: Callable[[], lance.LanceDataset],
    names: tuple[str, ...],
    *,
    attempts: int,
    timeout: Timeout,
) -> None:
    def optimized(_refused: Reexecution | None = None) -> Staged | None:
        return optimize_indices(open_table(), names)

    staged = await to_thread.run_sync(optimized)
    if staged is not None:
        await client.commit(staged, reexecute=optimized, attempts=attempts, timeout=timeout)
