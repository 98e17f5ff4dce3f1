"""Compaction: rewrites small fragments, and those with deleted rows, into fewer.

pylance plans and rewrites, but would commit by itself, twice: it reserves ids for the new fragments, then replaces the
old fragments. Here these are two transactions, and the outcome of the first one holds the ids.
`committerd_client.compacting` does both.

What a task has written is read back before it is committed (`read_back`): pylance can write files that it can't read,
such as the values of several fragments in one dictionary whose index type is too small for them. Then the halves of the
task are tried. Fragments that can't be rewritten at all are left alone (`LeftAlone`).

In a table with stable row ids, indices stay valid, except for the few kinds that hold row addresses all the same. In a
table without them, every index holds addresses of moved rows. `with_remapped_indices` rewrites these indices, so that
the Rewrite carries them along. Without it, and for kinds that can't be rewritten, the Rewrite leaves an index as it is,
readers treat the new fragments as not indexed, and `Compacted.reindex` names the indices to optimize afterwards
(`staging.optimize_indices`).
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from committerd_client.headers import Staged
from committerd_client.leftovers import data_keys, remover
from committerd_client.panics import is_lasting, panics_raised
from committerd_client.results import LeftAlone
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import fragment_of_json
from committerd_client.staging.indices import ADDRESS_KINDS
from committerd_client.staging.read_back import read_back
from committerd_client.staging.remapping import RewrittenIndex, remapped_indices
from committerd_client.staging.transactions import ReadTable, new_transaction, read_table, refuse_legacy
from committerd_common.messages import DataFragment, Field
from committerd_common.own_properties import IN_ORDER, ROWS

if TYPE_CHECKING:
    import lance
    from lance.optimize import CompactionTask, RewriteResult

_log = logging.getLogger("committerd_client")

_ROWS_MAX = 2**62
_BYTES_MAX = 90 * 2**30
"""pylance's default for the size of a data file."""
_IN_ORDER_MAJORS = range(4, 15)
"""The major versions of pylance whose compaction is known to scan the old fragments in order and to write the new ones
in that order (optimize.rs, rewrite_files). A later one may cluster rows.
"""


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """Fragments that were rewritten together, and the new fragments."""

    old: tuple[DataFragment, ...]
    new: tuple[DataFragment, ...]
    """The new fragments, without ids."""
    result: str = field(compare=False, repr=False)
    """pylance's `RewriteResult` as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Rewritten fragments that are not committed. Their files are written and belong to no version yet."""

    read_version: int
    read_uuid: str | None
    groups: tuple[RewrittenGroup, ...]
    schema: tuple[Field, ...]
    """The table's schema at the read version."""
    reindex: tuple[str, ...]
    """Names of the indices that will not cover the new fragments."""
    indices: tuple[RewrittenIndex, ...] = ()
    """The indices that were rewritten for the new fragments, with the ids that these had then."""
    in_order: bool = False
    """Whether the rows keep their order within each group. The committer then follows rows that others change,
    so the Rewrite and a Delete or an upsert of the same rows pass each other.
    """
    left_alone: tuple[LeftAlone, ...] = ()
    branch: str | None = None
    """The branch at which the dataset was open; empty for the main branch."""

    @property
    def ids_needed(self) -> int:
        """Number of fragment ids that `rewrite` needs."""
        return sum(len(group.new) for group in self.groups)

    def rewrite(
        self, reserved: Iterable[int], *, uuid: str | None = None, properties: Mapping[str, str] | None = None
    ) -> Staged:
        """The Rewrite that replaces the old fragments.

        `reserved`: at least `ids_needed` ids from a committed `reserve_fragments`.
        """
        ids = iter(reserved)
        transaction = new_transaction(self.read_version, uuid=uuid, properties=properties)
        if self.in_order:
            transaction.transaction_properties[ROWS] = IN_ORDER
        transaction.rewrite.SetInParent()
        for group in self.groups:
            staged = transaction.rewrite.groups.add(old_fragments=group.old)
            for one in group.new:
                id = next(ids, None)
                if id is None:
                    raise StagingError(
                        f"{self.ids_needed} fragment ids are needed, and fewer were reserved", code="fragments_reserved"
                    )
                staged.new_fragments.add().CopyFrom(one)
                staged.new_fragments[-1].id = id
        transaction.rewrite.rewritten_indices.extend(self.indices)
        return Staged(transaction=transaction, read_uuid=self.read_uuid, branch=self.branch)


Execute = Callable[["lance.LanceDataset", Sequence["CompactionTask"]], Iterable["RewriteResult | LeftAlone"]]
"""Executes tasks on the dataset that they were planned on, here or on other machines, as `execute_task` does; the
results in any order.

If a task fails, it raises the error after the results of those that have ended.
"""
Groups = Sequence[Collection[int]]
"""Ids of fragments that are rewritten together."""


def execute_here(dataset: lance.LanceDataset, tasks: Sequence[CompactionTask]) -> Iterator[RewriteResult | LeftAlone]:
    """Execute the tasks in this process, one after the other."""
    for task in tasks:
        yield from execute_task(dataset, task)


def execute_task(dataset: lance.LanceDataset, task: CompactionTask) -> list[RewriteResult | LeftAlone]:
    """Execute a task, and read back what it has written.

    If pylance can't rewrite its fragments together, each half of them is tried, and so on; each file that is not as it
    should be is deleted. Raises pylance's errors that are not about the rows, such as those of the store.
    """
    try:
        with panics_raised():
            result = task.execute(dataset)
    except Exception as error:
        if not is_lasting(error):
            raise
        return _in_halves(dataset, task, error)
    given = _as_json(result)
    new = _fragments(given["new_fragments"])
    try:
        with panics_raised():
            read_back(dataset, _fragments(given["original_fragments"]), new)
    except Exception as error:
        _delete(dataset, data_keys(new))
        if not isinstance(error, StagingError):
            raise
        return _in_halves(dataset, task, error)
    return [result]


def _in_halves(dataset: lance.LanceDataset, task: CompactionTask, error: Exception) -> list[RewriteResult | LeftAlone]:
    given = _as_json(task)
    fragments = given["task"]["fragments"]
    middle = len(fragments) // 2
    halves = [half for half in (fragments[:middle], fragments[middle:]) if _is_worth_it(half)]
    alone = {one["id"] for one in fragments} - {one["id"] for half in halves for one in half}
    if len(fragments) == 1:
        halves, alone = [], {fragments[0]["id"]}
    found: list[RewriteResult | LeftAlone] = []
    if alone:
        found.append(LeftAlone(fragments=tuple(sorted(alone)), why=str(error)))
    part: Any = type(task)  # its stub lacks `from_json`
    for half in halves:
        task_of_half = part.from_json(json.dumps({**given, "task": {**given["task"], "fragments": half}}))
        found += execute_task(dataset, task_of_half)
    return found


def _is_worth_it(fragments: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a task of these neighbours changes anything."""
    return len(fragments) > 1 or any(one.get("deletion_file") is not None for one in fragments)


def _delete(dataset: lance.LanceDataset, keys: Iterable[str]) -> None:
    """Delete files that no transaction names; those that can't be deleted are reclaimed by maintenance."""
    with suppress(Exception):
        delete = remover(dataset.uri, dataset.latest_storage_options())
        for key in keys:
            delete(key)


def fragments_of(task: CompactionTask) -> tuple[int, ...]:
    """The ids of the fragments that a task rewrites."""
    return tuple(one["id"] for one in _as_json(task)["task"]["fragments"])


def new_data_files(result: RewriteResult) -> set[str]:
    """The keys of the data files that a task has written."""
    return data_keys(_fragments(_as_json(result)["new_fragments"]))


@takes_branches
def compact_files(
    dataset: lance.LanceDataset, *, groups: Groups | None = None, execute: Execute = execute_here, **options: Any
) -> Compacted:
    """Plan a compaction and rewrite the fragments; the result has no groups if there is nothing to do.

    What was written is read back. `Compacted.left_alone` names the fragments that pylance can't rewrite.

    `groups`, `options`: as in `compaction_tasks`. `execute`: executes the tasks, by default in this process.
    """
    read_table(dataset)  # refuses what can't be committed before anything is rewritten
    return compacted(dataset, execute(dataset, compaction_tasks(dataset, groups=groups, **options)))


@takes_branches
def compact_files_again(
    dataset: lance.LanceDataset,
    before: Compacted,
    *,
    groups: Groups | None = None,
    execute: Execute = execute_here,
    **options: Any,
) -> Compacted:
    """Compact again on a newer version, after a conflict, and keep the groups that are still valid.

    A group is valid if its old fragments are still there with the same files and deletions. The rest is planned again.
    """
    table = read_table(dataset)
    latest = {one.id: one for one in table.fragments()}
    kept = [
        group
        for group in before.groups
        if tuple(table.manifest.fields) == before.schema and all(latest.get(one.id) == one for one in group.old)
    ]
    done = {one.id for group in kept for one in group.old}
    planned = compaction_tasks(dataset, groups=groups, **options)
    tasks = [part for task in planned for part in _without(task, done)]
    fresh = compacted(dataset, execute(dataset, tasks))
    every = (*kept, *fresh.groups)
    return replace(fresh, groups=every, reindex=_stale_indices(dataset, table, every))


Remap = Callable[["lance.LanceDataset", Sequence[str], Sequence[int]], tuple[RewrittenIndex, ...]]
"""Rewrites indices as `staging.remapping.remapped_indices` does, here or on another machine."""


@takes_branches
def with_remapped_indices(
    dataset: lance.LanceDataset, done: Compacted, reserved: Sequence[int], *, remap: Remap = remapped_indices
) -> Compacted:
    """Rewrite the indices in `done.reindex` for the new fragments, as pylance does when it commits a compaction.

    `dataset`: open at `done.read_version`. `reserved`: the ids that `rewrite` will be given. `remap`: does the work, by
    default in this process. Reads and writes each of the indices as a whole, in a temporary folder of the machine.
    Kinds of indices that can't be rewritten stay in `reindex`, and all of them do where pylance fails to rewrite one.
    """
    if not done.reindex:
        return done
    try:
        with panics_raised():
            indices = remap(dataset, [group.result for group in done.groups], reserved[: done.ids_needed])
    except Exception as error:
        if not is_lasting(error):
            raise
        _log.warning("indices of %s are not carried over a compaction: %s", dataset.uri, error)
        return done
    names = {UUID(str(one.uuid)): index.name for index in dataset.describe_indices() for one in index.segments}
    kept = {names[UUID(bytes=one.old_id.uuid)] for one in indices}
    return replace(done, indices=indices, reindex=tuple(name for name in done.reindex if name not in kept))


@takes_branches
def compaction_tasks(
    dataset: lance.LanceDataset, *, groups: Groups | None = None, **options: Any
) -> list[CompactionTask]:
    """The tasks of a compaction, to execute in this or another process; they can be pickled.

    `groups`: which fragments to rewrite together; None: as pylance plans it. Fragments that are gone are left out, and
    so is a group that pylance would not rewrite together, because different indices cover parts of it. `options`:
    fields of `lance.optimize.CompactionOptions`.
    """
    from lance.optimize import Compaction

    refuse_legacy(dataset.data_storage_version, "compaction")
    if options.get("defer_index_remap"):
        raise StagingError(
            "defer_index_remap: a Rewrite can't carry the fragment reuse index to the table. Leave it out, and "
            "optimize the indices in `reindex` afterwards",
            code="index",
        )
    if groups is None:
        given: Any = options
        return list(Compaction.plan(dataset, given).tasks)
    # With these options each task is as large as it may be, so that a group is a part of one of them.
    widest: Any = {**options, "target_rows_per_fragment": _ROWS_MAX, "materialize_deletions_threshold": 0.0}
    return [
        part
        for task in Compaction.plan(dataset, widest).tasks
        for part in _parts(task, groups, options.get("target_rows_per_fragment"))
    ]


def ids_expected(tasks: Iterable[CompactionTask]) -> int:
    """How many fragments the tasks are expected to make; if rows take more room than before, they make more."""
    expected = 0
    for task in tasks:
        given = _as_json(task)
        fragments = given["task"]["fragments"]
        rows = sum(one["physical_rows"] or 0 for one in fragments)
        size = sum(file.get("file_size_bytes") or 0 for one in fragments for file in one["files"])
        by_size = size // (given["options"].get("max_bytes_per_file") or _BYTES_MAX)
        expected += 1 + rows // given["options"]["target_rows_per_fragment"] + by_size
    return expected


@takes_branches
def compacted(dataset: lance.LanceDataset, results: Iterable[RewriteResult | LeftAlone]) -> Compacted:
    """Combine the results of the tasks. `dataset` must be open at the version on which they were planned."""
    import lance

    table = read_table(dataset)
    groups, left_alone = [], []
    for result in results:
        if isinstance(result, LeftAlone):
            left_alone.append(result)
            continue
        if result.read_version != table.version:
            raise StagingError(
                f"the compaction was planned on version {result.read_version}, and the dataset is open at "
                f"{table.version}: open it at {result.read_version}",
                code="fragments_reserved",
            )
        # With stable row ids, pylance 4.0.0 can't return `new_fragments`; it can always return the JSON.
        given = _as_json(result)
        groups.append(
            RewrittenGroup(
                _fragments(given["original_fragments"]), _fragments(given["new_fragments"]), json.dumps(given)
            )
        )
    return Compacted(
        read_version=table.version,
        read_uuid=table.read_uuid,
        branch=table.manifest.branch,
        groups=tuple(groups),
        schema=tuple(table.manifest.fields),
        reindex=_stale_indices(dataset, table, groups),
        left_alone=tuple(left_alone),
        in_order=int(lance.__version__.partition(".")[0]) in _IN_ORDER_MAJORS,
    )


def _as_json(given: Any) -> Any:
    """The JSON in which pylance sends a task or a result to other processes; pylance's stubs lack `json`."""
    return json.loads(given.json())


def _fragments(given: Iterable[Mapping[str, Any]]) -> tuple[DataFragment, ...]:
    return tuple(fragment_of_json(one) for one in given)


def _parts(task: CompactionTask, groups: Groups, target_rows: int | None) -> Iterator[CompactionTask]:
    """The groups that lie in this task, each as a task of its own."""
    given = _as_json(task)
    fragments = {one["id"]: one for one in given["task"]["fragments"]}
    rows = {} if target_rows is None else {"target_rows_per_fragment": target_rows}
    part: Any = type(task)  # its stub lacks `from_json`
    for group in groups:
        chosen = [fragments[id] for id in sorted(group) if id in fragments]
        if _is_worth_it(chosen):
            task_of_group = {**given["task"], "fragments": chosen}
            yield part.from_json(json.dumps({**given, "task": task_of_group, "options": {**given["options"], **rows}}))


def _without(task: CompactionTask, done: set[int]) -> list[CompactionTask]:
    """The rest of a task without the fragments in `done`: a task for each run of neighbours that is worth rewriting."""
    given = _as_json(task)
    fragments = given["task"]["fragments"]
    if done.isdisjoint(one["id"] for one in fragments):
        return [task]
    parts = []
    for skipped, run in itertools.groupby(fragments, key=lambda one: one["id"] in done):
        left = list(run)
        if not skipped and _is_worth_it(left):
            part: Any = type(task)  # its stub lacks `from_json`
            parts.append(part.from_json(json.dumps({**given, "task": {**given["task"], "fragments": left}})))
    return parts


def _stale_indices(dataset: lance.LanceDataset, table: ReadTable, groups: Iterable[RewrittenGroup]) -> tuple[str, ...]:
    """Indices that cover a rewritten fragment and hold row addresses."""
    moved = {one.id for group in groups for one in group.old}
    return tuple(
        sorted(
            index.name
            for index in dataset.describe_indices()
            if any(
                not moved.isdisjoint(segment.fragment_ids)
                and not (table.stable_row_ids and _holds_row_ids(index.type_url, segment.index_version))
                for segment in index.segments
            )
        )
    )


def _holds_row_ids(type_url: str, version: int) -> bool:
    """Whether an index of this type and version holds row ids, and not addresses, in a table with stable row ids."""
    # pylance 14.0.2: zone maps and bloom filters never hold them, B-trees only in version 0.
    kind = type_url.rpartition(".")[2]
    return kind not in ADDRESS_KINDS and (kind != "BTreeIndexDetails" or version == 0)
