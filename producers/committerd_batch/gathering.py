"""Puts the results of all tasks together, on the driver, and makes one transaction of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from committerd_batch.changes import UPSERT, unpacked
from committerd_batch.errors import TableChanged, TableMissing
from committerd_batch.target import Mode, Plan, fields_of
from committerd_batch.tasks import TaskResult
from committerd_client import staging
from committerd_client.headers import Staged
from committerd_client.reexecution import Reexecution
from committerd_client.staging.keys import KeyHashes, key_columns, name_inserted
from committerd_client.staging.transactions import read_table
from committerd_common.messages import Transaction
from committerd_common.own_properties import CHANGES

_TASK = "__committerd_task"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFiles:
    """The files of a batch, ready to be staged, again if need be: it outlives a refused transaction."""

    plan: Plan
    fragments: tuple[Any, ...]
    """pylance's descriptions of the fragments."""
    keys: pa.Table | None = None
    """The latest change of each key, for a mode that finds rows by keys."""
    named: Transaction.KeyExistenceFilter | None
    """The keys that an Append names; None if it names none."""
    file_names: frozenset[str]
    """Names of all data files that were written for the batch."""
    rows: int
    """Number of rows that the tasks have read."""


def gather(plan: Plan, results: Sequence[TaskResult]) -> BatchFiles:
    """Put the results together; writes the rows of tasks that had few of them as one file.

    Raises the first error that a task has returned, and `InvalidKeys`.
    """
    from lance.fragment import FragmentMetadata

    for result in results:
        if result.error is not None:
            raise result.error
    keys, lost = _latest(plan, results)
    fragments: list[Any] = []
    few: list[pa.RecordBatch] = []
    for number, result in enumerate(results):
        if number in lost:
            few.extend(_kept(plan, result, lost[number]))
            continue
        fragments.extend(FragmentMetadata.from_json(one) for one in result.fragments)
        if result.rows:
            few.extend(unpacked(result.rows).to_batches())
    if few:
        fragments.extend(plan.task.write(pa.RecordBatchReader.from_batches(plan.schema, few)))
    return BatchFiles(
        plan=plan,
        fragments=tuple(fragments),
        keys=keys,
        named=staging.joined_keys(Transaction.KeyExistenceFilter.FromString(one.named) for one in results if one.named),
        file_names=frozenset(_names(fragments)).union(*(result.file_names for result in results)),
        rows=sum(result.row_count for result in results),
    )


def _latest(plan: Plan, results: Sequence[TaskResult]) -> tuple[pa.Table | None, dict[int, pa.Array]]:
    """(the latest change of each key, for each task with rows that are not the latest: which of its rows are)."""
    changes = plan.changes
    if changes is None:
        return None, {}
    tables = [
        table.append_column(_TASK, pa.repeat(pa.scalar(number, pa.int64()), table.num_rows))
        for number, table in ((number, unpacked(one.keys)) for number, one in enumerate(results) if one.keys)
    ]
    if not tables:
        return None, {}
    every = pa.concat_tables(tables)
    places = changes.latest(every)
    latest = every.take(places)
    lost: dict[int, pa.Array] = {}
    if len(places) < every.num_rows and not changes.deletes:
        is_latest = pc.is_in(pa.array(range(every.num_rows), places.type), places)
        for number in pc.unique(every[_TASK].filter(pc.invert(is_latest))).to_pylist():
            of_task = pc.equal(every[_TASK], number)
            upserts = pc.and_(of_task, every[UPSERT])
            lost[number] = pa.chunked_array([is_latest]).filter(upserts).combine_chunks()
    return latest.select([*plan.target.keys, UPSERT]), lost


def _kept(plan: Plan, result: TaskResult, kept: pa.Array) -> Iterator[pa.RecordBatch]:
    """The rows of a task that hold the latest change of their keys; `kept` says so for each of its rows."""
    rows = unpacked(result.rows) if result.rows else _read(plan, result)
    yield from rows.filter(kept).to_batches()


def _read(plan: Plan, result: TaskResult) -> pa.Table:
    """The rows of a task, from the files that it has written."""
    return pa.concat_tables([_rows_of(plan, name) for name in result.file_names])


def _rows_of(plan: Plan, file_name: str) -> pa.Table:
    from lance.file import LanceFileReader

    target = plan.target
    reader = LanceFileReader(f"{target.uri.rstrip('/')}/data/{file_name}", storage_options=target.table.options)
    return reader.read_all().to_table().cast(plan.schema)


def stage(gathered: BatchFiles, dataset: Any, again: Reexecution | None = None) -> Staged | None:
    """The transaction of the batch, for the version at which `dataset` is open; None if it changes nothing.

    `dataset`: None if there is no table. `again`: the refusal of the transaction before. Raises `TableMissing`, and
    `TableChanged` if the files do not fit the table at this version.
    """
    plan, fragments = gathered.plan, gathered.fragments
    if not fragments and not (plan.mode is Mode.OVERWRITE or (dataset is not None and gathered.keys is not None)):
        return None
    if dataset is None:
        if plan.version is not None:
            raise TableMissing(f"the table at {plan.target.uri} is gone: it was there when the batch was planned")
        return staging.create(
            fragments,
            plan.schema,
            enable_stable_row_ids=plan.target.enable_stable_row_ids,
            enable_v2_manifest_paths=plan.target.enable_v2_manifest_paths,
            data_storage_version=plan.target.data_storage_version,
        )
    if dataset.version != plan.version and fields_of(read_table(dataset).manifest.fields) != plan.fields:
        raise TableChanged(
            f"the columns of the table have changed since the files were written: it is at version {dataset.version} "
            "now. Write the batch again"
        )
    if plan.mode is Mode.OVERWRITE:
        return staging.overwrite(fragments, plan.schema, dataset=dataset)
    if plan.mode is Mode.APPEND:
        staged = staging.append(fragments, read_version=dataset.version, keys=gathered.named)
        return read_table(dataset).staged(staged)
    return _merged(gathered, dataset, again)


def _merged(gathered: BatchFiles, dataset: Any, again: Reexecution | None) -> Staged | None:
    """The rows that have the keys go, and the new ones come, in one Update."""
    plan, keys = gathered.plan, gathered.keys
    assert keys is not None
    names = list(plan.target.keys)
    table = read_table(dataset)
    if table.stable_row_ids and plan.mode is Mode.UPSERT and gathered.fragments:
        # The rows keep their ids only if the one who writes them knows which they replace, as pylance's merge does.
        rows = pa.concat_tables([_rows_of(plan, name) for name in _names(gathered.fragments)])
        return staging.merge_insert(dataset, rows, on=names)
    merged = staging.merge_insert(
        dataset,
        keys.select(names),
        on=names,
        when_matched_update_all=False,
        when_matched_delete=True,
        when_not_matched_insert_all=False,
        again=again,
    )
    update = merged.transaction.update
    if gathered.fragments:
        merged.transaction.transaction_properties.pop(CHANGES, None)  # it is true of the merge, which only deletes
    if gathered.fragments and not update.new_fragments:
        update.new_fragments.extend(staging.fragment(one) for one in gathered.fragments)
        # The deleted keys too: the batch may not pass an Append of one, or its row would stay.
        hashes = KeyHashes(key_columns(dataset, names), most=staging.KEYS_MAX)
        hashes.add_all(keys)
        name_inserted(merged.transaction, hashes.filter())
    return merged if merged.changes or gathered.fragments else None


def _names(fragments: Iterable[Any]) -> list[str]:
    return [str(file.path) for one in fragments for file in one.files]
