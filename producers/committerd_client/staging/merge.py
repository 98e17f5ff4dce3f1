"""Merges rows into a table by their keys: upserts, inserts of new rows, deletes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from committerd_client import arguments
from committerd_client.headers import StagedChange
from committerd_client.panics import PANIC, panics_raised
from committerd_client.reexecution import Reexecution
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import fragment
from committerd_client.staging.key_cache import KEYS_IN_CALL_MAX, KeyCache
from committerd_client.staging.keys import KEYS_MAX, KeyHashes, name_inserted
from committerd_client.staging.merge_again import Merge, Rows, still_holds
from committerd_client.staging.streams import Stream, readable
from committerd_client.staging.transactions import STABLE_ROW_IDS, ReadTable, read_table
from committerd_client.staging.unique_keys import require_unique, requiring_unique
from committerd_common.messages import Manifest, Transaction
from committerd_common.own_properties import BY_KEY, MERGE

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

_HASHED_ASIDE = 5000
"""From this many rows on, a second thread hashes the keys while pylance merges. Hashing takes about 1 µs a row."""
_UPDATE_MODES = {
    "rewrite_rows": Transaction.REWRITE_ROWS,
    "rewrite_columns": Transaction.REWRITE_COLUMNS,
    "": Transaction.REWRITE_ROWS,
}
_UPDATE_FIELDS = frozenset(
    {
        "removed_fragment_ids",
        "updated_fragments",
        "new_fragments",
        "fields_modified",
        "fields_for_preserving_frag_bitmap",
        "update_mode",
        "updated_fragment_offsets",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StagedMerge(StagedChange):
    """A merge, with the numbers of rows that it inserts, updates and deletes."""

    merge: Merge | None = field(default=None, repr=False, compare=False)
    """The merge that was executed, and its version; None if a re-execution could not use its results."""


@takes_branches
def merge_insert(
    dataset: lance.LanceDataset,
    source: Rows,
    *,
    on: str | Sequence[str] | None = None,
    when_matched_update_all: bool | str = True,
    when_matched_delete: bool = False,
    when_matched_fail: bool = False,
    when_not_matched_insert_all: bool = True,
    when_not_matched_by_source_delete: bool | str = False,
    use_index: bool = True,
    keys_max: int = KEYS_MAX,
    again: Reexecution | None = None,
    cache: KeyCache | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> StagedMerge:
    """Merge the source's rows by key, as `dataset.merge_insert(on)` does; by default an upsert.

    `source` is read once, in batches. `on`: the key columns, which must be top-level; None = the table's unenforced
    primary key. The clauses are those of pylance's builder: `when_matched_update_all` may be a condition on `source.`
    and `target.`, `when_not_matched_by_source_delete` one on the table's columns. To delete by keys, use
    `when_matched_update_all=False, when_matched_delete=True, when_not_matched_insert_all=False`, and a source with the
    key columns alone. `use_index`: whether a scalar index on the key may be used.

    A merge that may insert names its keys (`keys.py`). Of two merges that insert the same key, the second is RETRYABLE;
    so is a merge after an Append. But a merge that has no clause for rows that are not in the source passes an Append
    that names its keys (`append(keys=...)`), if these differ from its own, and an `update` or a merge that inserts
    nothing, if it changes other rows and no key column. A merge with more than `keys_max` keys conflicts with every
    other merge that may insert, and so does one with more than `KEYS_MAX`, which the committer takes for any key.

    `again`: the argument of a `reexecute` callback. If rows were appended since the same merge was executed, its
    results for the rest of the table are still valid: the helper reads only the new rows, and stages the files that are
    already written once more (`merge_again.py`). If that is not possible, the merge is executed in full; so it is for a
    source that is a reader. Read a source that depends on the table, or on anything that another transaction may have
    changed, again for each call, at the version at which `dataset` is open.

    `cache`: remembers the keys of small fragments from call to call (`KeyCache`). A merge with a clause for rows that
    are not in the source needs all fragments, and does not use it; nor does one whose source is a reader.

    A row that is updated keeps the values of columns, and of fields of structs, that the source does not have. pylance
    can't keep all of them: those of a list of structs only if the lists have the lengths that they had, those of files
    of format 2.0 never. So a part of a column is read back before the merge is staged.

    Raises `StagingError` for blob columns, legacy files, unknown columns and keys that can't be compared; and, of a
    merge that may insert, for a null in a key (`null_keys`) and for two rows with the same key (`duplicate_keys`),
    which pylance inserts. Raises pylance's other errors too (two source rows for one row of the table, a schema that
    does not fit).
    """
    table = read_table(dataset)
    table.refuse_legacy("merge_insert")
    table.refuse_blobs("merge_insert")
    names = _key_columns(table, on)
    columns = [(table.column(name).id, dataset.schema.field(name)) for name in names]
    _check_source(source, names, table)
    lacks = _parts(dataset.schema, source.schema)
    merge = Merge(
        uri=dataset.uri,
        table=table,
        columns=tuple(columns),
        source=source,
        keys_max=keys_max,
        clauses={
            "when_matched_update_all": when_matched_update_all,
            "when_matched_delete": when_matched_delete,
            "when_matched_fail": when_matched_fail,
            "when_not_matched_insert_all": when_not_matched_insert_all,
            "when_not_matched_by_source_delete": when_not_matched_by_source_delete,
        },
        executed_at=time.time(),
    )
    transaction = table.transaction(uuid, properties)
    if not when_not_matched_by_source_delete:
        transaction.transaction_properties[MERGE] = BY_KEY
    if not when_not_matched_insert_all:
        changed = set(source.schema.names).difference(names) if when_matched_update_all else set[str]()
        table.note_changes(transaction, changed)
    staged = _found_before(merge, dataset, transaction, again)
    if staged is None:
        searched = dataset if cache is None else cache.narrowed(dataset, table, _searched_keys(merge))
        try:
            with panics_raised():
                staged = _executed(merge, searched, transaction, use_index=use_index)
                if lacks:
                    _read_back(dataset, table, staged.transaction.update, list(lacks))
        except (OSError, ValueError, RuntimeError) as error:
            if not lacks or (isinstance(error, StagingError) and error.code != PANIC):
                raise
            raise StagingError(
                f"the rows lack {next(iter(lacks.values()))!r}, and pylance can't merge this part of a column with the "
                f"rest: give rows with all fields of the column, or without it ({error})",
                code="schema_differs",
            ) from error
    return staged if again is None else replace(staged, can_catch_up=staged.merge is not None)


def _key_columns(table: ReadTable, on: str | Sequence[str] | None) -> list[str]:
    if on is None:
        keys = [one for one in table.top_fields if one.unenforced_primary_key]
        if not keys:
            raise StagingError(
                "the table has no unenforced primary key: name the columns to merge on, as in on='id'", code="column"
            )
        return [one.name for one in sorted(keys, key=lambda one: (one.unenforced_primary_key_position, one.id))]
    names = arguments.names(on, "on")
    if not names:
        raise ValueError("on names no column: None means the table's unenforced primary key")
    return names


def _check_source(source: Rows, names: Sequence[str], table: ReadTable) -> None:
    import pyarrow as pa

    if not isinstance(source, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        raise TypeError(f"a pyarrow Table, RecordBatch or RecordBatchReader is needed, not {type(source).__name__}")
    missing = [name for name in names if name not in source.schema.names]
    if missing:
        raise StagingError(
            f"the rows have no column {missing[0]!r}, which is part of the key; they have "
            f"{', '.join(source.schema.names)}",
            code="keys_missing",
        )
    for name in source.schema.names:
        table.column(name)


def _read_back(
    dataset: lance.LanceDataset, table: ReadTable, update: Transaction.Update, columns: Sequence[str]
) -> None:
    """Read columns of the fragments that the merge has written, in a version that nobody else sees.

    pylance 14.0.2 writes parts of structs and lists that nobody can read, and raises nothing. Raises pylance's error.
    """
    import lance

    manifest = Manifest()
    manifest.CopyFrom(table.manifest)
    manifest.reader_feature_flags &= ~STABLE_ROW_IDS  # new fragments get theirs when they are committed
    manifest.fragments.extend(update.updated_fragments)
    for id, one in enumerate(
        update.new_fragments, start=max((one.id for one in update.updated_fragments), default=0) + 1
    ):
        manifest.fragments.add().CopyFrom(one)
        manifest.fragments[-1].id = id
    written = lance.LanceDataset(
        dataset.uri,
        table.version,
        storage_options=dataset._storage_options,
        serialized_manifest=manifest.SerializeToString(),
    )
    for _ in written.scanner(columns=list(columns)).to_batches():
        pass


def _parts(wanted: pa.Schema, given: pa.Schema) -> dict[str, str]:
    """The columns of which the source has a part: for each a field that it lacks, such as `s.b` or `tags[].b`."""
    lacks = {name: _lacking(wanted.field(name).type, given.field(name).type, name) for name in given.names}
    return {name: path for name, path in lacks.items() if path}


def _lacking(wanted: Any, given: Any, path: str) -> str:
    """The path of a field that the source's type lacks; empty if it has all of them."""
    from pyarrow import types

    if types.is_struct(wanted) and types.is_struct(given):
        kinds = {one.name: one.type for one in given}
        inner = [(one.type, kinds.get(one.name), f"{path}.{one.name}") for one in wanted]
    elif types.is_map(wanted) and types.is_map(given):
        inner = [(wanted.item_type, given.item_type, f"{path}.value")]
    elif hasattr(wanted, "value_field") and hasattr(given, "value_field"):
        inner = [(wanted.value_type, given.value_type, f"{path}[]")]
    else:
        return ""
    return next((found for one, other, at in inner if (found := at if other is None else _lacking(one, other, at))), "")


def _found_before(
    merge: Merge, dataset: lance.LanceDataset, transaction: Transaction, again: Reexecution | None
) -> StagedMerge | None:
    """The results of the execution before, staged for this version; None if they are not valid any more."""
    before = again.work if again is not None else None
    if not isinstance(before, StagedMerge) or before.merge is None:
        return None
    if not still_holds(before.merge, before.transaction.update, merge, dataset):
        return None
    update = before.transaction.update
    transaction.update.CopyFrom(update)
    if update.HasField("inserted_rows"):
        name_inserted(transaction, update.inserted_rows)
    return replace(
        before,
        transaction=transaction,
        read_uuid=merge.table.read_uuid,
        merge=replace(merge, executed_at=before.merge.executed_at),
    )


def _searched_keys(merge: Merge) -> dict[str, pa.Array]:
    """The keys in the source, by column, if only rows with these matter; otherwise empty."""
    import pyarrow as pa

    source = merge.source
    if isinstance(source, pa.RecordBatchReader) or source.num_rows > KEYS_IN_CALL_MAX:
        return {}
    if merge.clauses["when_not_matched_by_source_delete"]:
        return {}
    keys: dict[str, pa.Array] = {}
    for _, column in merge.columns:
        values = source.column(column.name)
        if values.type != column.type:  # pylance may compare them as a third type
            return {}
        keys[column.name] = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return keys


def _executed(merge: Merge, dataset: lance.LanceDataset, transaction: Transaction, *, use_index: bool) -> StagedMerge:
    """Execute the merge in full: find the rows, and write the files."""
    import pyarrow as pa

    builder: Any = dataset.merge_insert(merge.names)
    builder.use_index(use_index)
    for clause, wish in merge.clauses.items():
        if wish:
            getattr(builder, clause)(*([wish] if isinstance(wish, str) else []))
    hashes = None
    if merge.inserts:
        hashes = KeyHashes(merge.columns, most=merge.keys_max)
        planned, counts = _execute(builder, merge, hashes)
    elif isinstance(merge.source, pa.RecordBatchReader):
        with Stream(merge.source.schema, merge.source).being_read() as reader:
            planned, counts = builder.execute_uncommitted(reader)
    else:
        planned, counts = builder.execute_uncommitted(_readable(merge.source))
    transaction.update.CopyFrom(_update(planned.operation))
    if hashes is not None:
        name_inserted(transaction, hashes.filter())
    return StagedMerge(
        transaction=transaction,
        read_uuid=merge.table.read_uuid,
        uri=merge.table.uri,
        branch=merge.table.manifest.branch,
        inserted=counts["num_inserted_rows"],
        updated=counts["num_updated_rows"],
        deleted=counts["num_deleted_rows"],
        merge=merge if merge.may_hold_again(transaction.update) else None,
    )


def _execute(builder: Any, merge: Merge, hashes: KeyHashes) -> Any:
    """Run pylance's merge, and collect the keys of the rows in the same pass, or, for many rows, in another thread."""
    import pyarrow as pa

    source, fields = merge.source, [field for _, field in merge.columns]
    if isinstance(source, pa.RecordBatchReader):
        with Stream(source.schema, requiring_unique(hashes.adding(source), fields)).being_read() as reader:
            return builder.execute_uncommitted(reader)
    require_unique(source, fields)
    rows = _readable(source)
    if source.num_rows > merge.keys_max:  # each has a key of its own
        hashes.too_many = True
        return builder.execute_uncommitted(rows)
    if source.num_rows < _HASHED_ASIDE:
        hashes.add_all(source)
        return builder.execute_uncommitted(rows)
    with ThreadPoolExecutor(1) as thread:
        hashing = thread.submit(hashes.add_all, source)
        try:
            return builder.execute_uncommitted(rows)
        finally:
            hashing.result()  # its error says more than that of pylance


def _readable(source: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The same rows as pylance can read them (`streams.readable`)."""
    import pyarrow as pa

    if isinstance(source, pa.RecordBatch):
        return readable(source)
    return pa.Table.from_batches([readable(batch) for batch in source.to_batches()], source.schema)


def _update(operation: Any) -> Transaction.Update:
    """The message of pylance's Update. Raises `StagingError` for fields that only a newer pylance has, if set."""
    for name, value in vars(operation).items():
        if name not in _UPDATE_FIELDS and value:
            raise StagingError(
                f"Update.{name} is set, and this version of committerd can't carry it to a table",
                code="unknown_to_committerd",
            )
    return Transaction.Update(
        removed_fragment_ids=operation.removed_fragment_ids,
        updated_fragments=[fragment(one) for one in operation.updated_fragments],
        new_fragments=[fragment(one) for one in operation.new_fragments],
        fields_modified=operation.fields_modified,
        fields_for_preserving_frag_bitmap=operation.fields_for_preserving_frag_bitmap,
        update_mode=_UPDATE_MODES[operation.update_mode],
        updated_fragment_offset_bitmaps=getattr(operation, "updated_fragment_offsets", None) or {},
    )
