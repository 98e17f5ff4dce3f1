"""Rewrites fragments and extends indices with pylance, and commits the result through the queue."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from committerd.commands.maintain.failed_work import FailedWorkOfTable
from committerd.maintenance.left_alone import Failure
from committerd.settings.maintain import MaintainSettings
from committerd_client import ClientError, CompactionResult, LeftAlone, Staged, StagingError
from committerd_client.compacting import Commits, compact, optimize_index, require_committer
from committerd_client.maintenance.plan import (
    Limits,
    MaintenancePlan,
    RewriteGroup,
    Targets,
    TaskPace,
    in_one_commit,
    plan,
)
from committerd_client.maintenance.table import IndexState, TableState, read_state
from committerd_client.panics import PANIC, is_lasting, run_sync
from committerd_client.staging.compaction import execute_task, fragments_of
from committerd_client.staging.indices import update_index
from committerd_client.tracing import past_span, work_span
from committerd_common.uris import lance_uri

if TYPE_CHECKING:
    import lance
    from lance.optimize import CompactionTask, RewriteResult

_COMMIT_SECONDS = 120.0
"""How long a commit may wait for its outcome, without re-executions."""
_SHORT = 0.1
"""Tasks that take at most this share of maintain.task_seconds_max together go into one commit."""
_PATIENCE = 3.0
"""Re-executions of a commit may take this many times as long as the first execution."""


def targets_of(settings: MaintainSettings) -> Targets:
    """The state that the settings aim for."""
    return Targets(
        rows_per_fragment=settings.rows_per_fragment,
        bytes_per_fragment=settings.bytes_per_fragment,
        deleted_share=settings.deleted_share,
        fragments=settings.fragments_max,
        unindexed_rows=settings.unindexed_rows_max,
        segments=settings.segments_max,
    )


def limits_of(settings: MaintainSettings, *, tasks: int) -> Limits:
    """The limits that the settings set, for a plan of at most this many tasks, or more if they are short."""
    return Limits(
        task_bytes=settings.task_bytes_max,
        task_seconds=settings.task_seconds_max,
        tasks=tasks,
        short_seconds=settings.task_seconds_max * _SHORT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRewrite:
    """The result of one commit of rewritten fragments."""

    version: int | None
    fragments_before: int
    fragments_after: int
    bytes_read: int
    bytes_written: int
    seconds: float
    left_alone: tuple[LeftAlone, ...] = ()
    """Fragments that pylance can't rewrite."""


class Rewriter:
    """The work on one table. Opens the table anew for each plan and each execution."""

    def __init__(
        self,
        client: Commits,
        uri: str,
        storage_options: dict[str, str],
        settings: MaintainSettings,
        *,
        failed: FailedWorkOfTable,
    ) -> None:
        self._client = client
        self._failed = failed
        self.uri = lance_uri(uri)
        self._options = storage_options
        self._settings = settings
        self.pace = TaskPace()
        """How fast the tasks were so far."""

    def open(self) -> lance.LanceDataset:
        """Open the table at its latest version."""
        import lance

        return lance.dataset(self.uri, storage_options=self._options)

    async def look(self, *, tasks: int, leave: Collection[int] = frozenset()) -> tuple[TableState, MaintenancePlan]:
        """The state of the latest version, and what to do about it. `leave`: as in `plan`."""
        state = await run_sync(lambda: read_state(self.open()))
        limits = limits_of(self._settings, tasks=tasks)
        alone = await self._failed.among(state)
        leave = {*leave, *(id for one in alone for id in one.fragments)}
        wanted = plan(state, targets_of(self._settings), limits, self.pace, leave=leave)
        names = {one.index for one in alone}
        return state, replace(wanted, indices=tuple(one for one in wanted.indices if one.name not in names))

    @property
    def left_alone(self) -> tuple[Failure, ...]:
        """What was left alone at the last look, and since."""
        return self._failed.left_alone

    def in_one_commit(self, groups: Sequence[RewriteGroup]) -> int:
        """How many of these groups, from the first on, a call of `rewrite` replaces."""
        return in_one_commit(groups, limits_of(self._settings, tasks=self._settings.tasks_max), self.pace)

    async def rewrite(self, groups: Sequence[RewriteGroup]) -> CommittedRewrite | None:
        """Rewrite these fragments, all in one commit; None if they have changed so that nothing is left to do.

        Raises the errors of `CommitClient.commit` and of pylance.
        """
        started = time.monotonic()
        unproved: list[tuple[tuple[int, ...], str]] = []
        try:
            with work_span("rewrite", self._attributes(groups)):
                done = await compact(
                    self._client,
                    self.open,
                    groups=[one.fragments for one in groups],
                    execute=partial(self._execute, groups, unproved),
                    timeout=_COMMIT_SECONDS,
                    patience=_PATIENCE,
                    target_rows_per_fragment=self._settings.rows_per_fragment,
                    max_bytes_per_file=self._settings.bytes_per_fragment,
                )
        except StagingError as error:
            if error.code != PANIC:
                raise
            # Nothing was sent, and it would be the same at the next try.
            done = CompactionResult(
                left_alone=tuple(LeftAlone(fragments=one.fragments, why=str(error)) for one in groups)
            )
        finally:
            for fragments, why in unproved:
                await self._failed.note(fragments=fragments, why=why, proved=False)
        if done is None:
            return None
        for alone in done.left_alone:
            await self._failed.note(fragments=alone.fragments, why=alone.why, proved=True)
        return CommittedRewrite(
            version=done.version,
            fragments_before=done.fragments_removed,
            fragments_after=done.fragments_added,
            bytes_read=sum(one.bytes for one in groups),
            bytes_written=done.bytes_written,
            seconds=time.monotonic() - started,
            left_alone=done.left_alone,
        )

    def _attributes(self, groups: Sequence[RewriteGroup]) -> dict[str, str | int]:
        """Of the span of a rewrite."""
        return {
            "committerd.table": self.uri,
            "committerd.fragments": sum(len(one.fragments) for one in groups),
            "committerd.bytes": sum(one.bytes for one in groups),
        }

    async def index(self, index: IndexState) -> int | None:
        """Add the rows to the index that it does not cover, or merge its segments; the version, or None if others did.

        Raises the errors of `CommitClient.commit` and of pylance, and notes which index they are about.
        """
        try:
            with work_span("index", {"committerd.table": self.uri, "committerd.index": index.name}):
                version = await self._index(index)
        except ClientError as error:
            if isinstance(error, StagingError):
                await self._failed.note(index=index.name, why=str(error), proved=True)
            raise
        except Exception as error:
            await self._failed.note(index=index.name, why=str(error), proved=is_lasting(error))
            raise
        await self._failed.succeeded(index.name)
        return version

    async def _index(self, index: IndexState) -> int | None:
        merge = index.segments > self._settings.segments_max
        options: dict[str, Any] = {"num_indices_to_merge": index.segments} if merge else {}

        def optimize(dataset: lance.LanceDataset) -> Staged | None:
            return update_index(dataset, index.name, **options)

        await require_committer(self._client, self.open, timeout=_COMMIT_SECONDS)
        done = await optimize_index(self._client, self.open, optimize, timeout=_COMMIT_SECONDS, patience=_PATIENCE)
        return None if done is None else done.version

    def _execute(
        self,
        groups: Sequence[RewriteGroup],
        unproved: list[tuple[tuple[int, ...], str]],
        dataset: lance.LanceDataset,
        tasks: Sequence[CompactionTask],
    ) -> Iterator[RewriteResult | LeftAlone]:
        """Execute the tasks, several at once. Adds the fragments of tasks that fail to `unproved`, with the reason."""
        at_once = self._settings.tasks_max
        started = time.monotonic()
        failed: BaseException | None = None
        with ThreadPoolExecutor(at_once, thread_name_prefix="rewriting") as pool:
            given = {pool.submit(execute_task, dataset, task): task for task in tasks}
            for one in as_completed(given):
                error = one.exception()
                if error is None:
                    yield from one.result()
                else:
                    unproved.append((fragments_of(given[one]), str(error)))
                failed = failed or error
        past_span("write", ago=time.monotonic() - started)
        if failed is not None:
            raise failed
        if len(tasks) == len(groups):
            turns = math.ceil(len(tasks) / at_once)
            self.pace = self.pace.after(
                size=sum(one.bytes for one in groups) / len(groups),
                fragments=sum(len(one.fragments) for one in groups) / len(groups),
                seconds=(time.monotonic() - started) / turns,
            )
