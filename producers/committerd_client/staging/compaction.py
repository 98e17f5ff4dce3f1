"""Compaction: small fragments, and those with deleted rows, are rewritten into fewer.

pylance plans and rewrites, but would commit by itself, twice: it reserves ids for the new fragments, then replaces the
old ones. Here these are two transactions, and the ids are in the outcome of the first. `committerd_client.compacting`
does all of it.

In a table with stable row ids indices stay as they are, but for the few kinds that hold row addresses all the same. In
one without, all hold addresses of rows that have moved: the Rewrite is staged without touching them, readers take the
new fragments as not indexed, and `Compacted.reindex` names what should be optimized afterwards
(`staging.optimize_indices`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from committerd_client.headers import Staged
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import fragment_of_json
from committerd_client.staging.transactions import ReadTable, new_transaction, read_table
from committerd_common.messages import DataFragment, Field

if TYPE_CHECKING:
    import lance
    from lance.optimize import CompactionTask, RewriteResult

_ADDRESS_KINDS = frozenset({"ZoneMapIndexDetails", "BloomFilterIndexDetails"})


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """Fragments that were rewritten together, and what they became."""

    old: tuple[DataFragment, ...]
    new: tuple[DataFragment, ...]
    """Without ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Rewritten fragments, not committed. Their files are written and belong to no version yet."""

    read_version: int
    read_uuid: str | None
    groups: tuple[RewrittenGroup, ...]
    schema: tuple[Field, ...]
    """Of the table when they were read."""
    reindex: tuple[str, ...]
    """Names of the indices that will not cover the new fragments."""

    @property
    def ids_needed(self) -> int:
        """How many fragment ids `rewrite` takes."""
        return sum(len(group.new) for group in self.groups)

    def rewrite(
        self, reserved: Iterable[int], *, uuid: str | None = None, properties: Mapping[str, str] | None = None
    ) -> Staged:
        """Replace the old fragments. `reserved`: ids from a committed `reserve_fragments`, at least `ids_needed`."""
        ids = iter(reserved)
        transaction = new_transaction(self.read_version, uuid=uuid, properties=properties)
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
        return Staged(transaction=transaction, read_uuid=self.read_uuid)


def compact_files(dataset: lance.LanceDataset, **options: Any) -> Compacted:
    """Plan a compaction and rewrite the fragments here. `options`: those of `lance.optimize.CompactionOptions`.

    No groups: there was nothing to do.
    """
    return compacted(dataset, [task.execute(dataset) for task in compaction_tasks(dataset, **options)])


def compact_files_again(dataset: lance.LanceDataset, before: Compacted, **options: Any) -> Compacted:
    """The same on a newer version, after a conflict: what is still true of the work before is kept.

    A group is, when its fragments are still there with the same files and deletions; the others are planned anew.
    """
    table = read_table(dataset)
    latest = {one.id: one for one in table.manifest.fragments}
    kept = [
        group
        for group in before.groups
        if tuple(table.manifest.fields) == before.schema and all(latest.get(one.id) == one for one in group.old)
    ]
    done = {one.id for group in kept for one in group.old}
    tasks = [part for task in compaction_tasks(dataset, **options) for part in _without(task, done)]
    fresh = compacted(dataset, [task.execute(dataset) for task in tasks])
    groups = (*kept, *fresh.groups)
    return replace(fresh, groups=groups, reindex=_stale_indices(dataset, table, groups))


def compaction_tasks(dataset: lance.LanceDataset, **options: Any) -> list[CompactionTask]:
    """To be executed here or elsewhere; they can be pickled."""
    from lance.optimize import Compaction

    read_table(dataset).refuse_legacy("compaction")
    if options.get("defer_index_remap"):
        raise StagingError(
            "defer_index_remap: a Rewrite can't carry the fragment reuse index to the table. Leave it out, and "
            "optimize the indices in `reindex` afterwards",
            code="index",
        )
    given: Any = options
    return list(Compaction.plan(dataset, given).tasks)


def compacted(dataset: lance.LanceDataset, results: Iterable[RewriteResult]) -> Compacted:
    """From what the tasks returned; `dataset` is open at the version that they were planned on."""
    table = read_table(dataset)
    groups = []
    for result in results:
        if result.read_version != table.version:
            raise StagingError(
                f"the compaction was planned on version {result.read_version}, and the dataset is open at "
                f"{table.version}: open it at {result.read_version}",
                code="fragments_reserved",
            )
        # Its `new_fragments` can't be read under pylance 4.0.0 where row ids are stable; its JSON always can.
        told = _told(result)
        groups.append(RewrittenGroup(_fragments(told["original_fragments"]), _fragments(told["new_fragments"])))
    return Compacted(
        read_version=table.version,
        read_uuid=table.read_uuid,
        groups=tuple(groups),
        schema=tuple(table.manifest.fields),
        reindex=_stale_indices(dataset, table, groups),
    )


def _told(given: Any) -> Any:
    """What pylance sends to other processes: its stubs lack `json`."""
    return json.loads(given.json())


def _fragments(told: Iterable[Mapping[str, Any]]) -> tuple[DataFragment, ...]:
    return tuple(fragment_of_json(one) for one in told)


def _without(task: CompactionTask, done: set[int]) -> list[CompactionTask]:
    """What is left of a task without some fragments: a task for each run of neighbours that is worth one."""
    told = _told(task)
    fragments = told["task"]["fragments"]
    if done.isdisjoint(one["id"] for one in fragments):
        return [task]
    parts = []
    for skipped, run in itertools.groupby(fragments, key=lambda one: one["id"] in done):
        left = list(run)
        if not skipped and (len(left) > 1 or left[0].get("deletion_file") is not None):
            part: Any = type(task)  # its stub lacks `from_json`
            parts.append(part.from_json(json.dumps({**told, "task": {**told["task"], "fragments": left}})))
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
    """Of an index in a table with stable row ids."""
    # pylance 14.0.2: zone maps and bloom filters never do, B-trees up to version 0.
    kind = type_url.rpartition(".")[2]
    return kind not in _ADDRESS_KINDS and (kind != "BTreeIndexDetails" or version == 0)
