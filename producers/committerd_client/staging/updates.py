"""Updates rows with SQL expressions: deletes the old rows, and writes the new ones into new fragments."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from committerd_client import arguments
from committerd_client.casting import cast, family, misfit, require_not_null
from committerd_client.headers import StagedChange
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.deletion import RowOffsets, delete_rows
from committerd_client.staging.equalities import asked_values
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import fragment, quoted
from committerd_client.staging.key_cache import KeyCache
from committerd_client.staging.streams import Stream
from committerd_client.staging.transactions import ReadTable, read_table
from committerd_common.messages import DataFragment, Transaction
from committerd_common.row_ids import RowIds, encode_row_ids

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


@takes_branches
def update(
    dataset: lance.LanceDataset,
    updates: Mapping[str, str | pa.Scalar],
    where: str | None = None,
    *,
    cache: KeyCache | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> StagedChange:
    """Set columns to SQL expressions, as `dataset.update(updates, where)` does.

    `updates`: SQL expressions by top-level column, or Arrow scalars, which are the values themselves. An expression may
    use all columns of the old row. Values are cast to the column's type without loss, in the ways of SQL. `where`: None
    = all rows. In a table with stable row ids the rows keep their ids. `cache`: as in `delete`.

    Raises `StagingError` for unknown columns, blob columns, legacy files and values that can't be cast. With a pylance
    that can delete only by predicate (4.0.0), also for a `where` that is not deterministic.
    """
    table = read_table(dataset)
    table.refuse_legacy("update")
    table.refuse_blobs("update")
    if not isinstance(updates, Mapping):
        raise TypeError(f"update takes a dict of columns, such as {{'count': 'count + 1'}}, not {updates!r}")
    if not updates:
        raise StagingError("update got no column to set", code="nothing_to_stage")
    if where is not None:
        arguments.predicate(where, "update")
    transaction = table.transaction(uuid, properties)
    table.note_changes(transaction, updates.keys())
    changed_fields = sorted(table.column(name).id for name in updates)
    read = _RowsRead()
    searched = dataset
    if cache is not None and where is not None:
        searched = cache.narrowed(dataset, table, asked_values(where, dataset.schema))
    written = _write(_new_rows(searched, table, updates, where=where, read=read), dataset)
    changed, removed = _delete_rows(dataset, table, where or "true", read)
    if table.stable_row_ids:
        _carry_row_ids(written, read.ids)
    transaction.update.CopyFrom(
        Transaction.Update(
            removed_fragment_ids=removed,
            updated_fragments=changed,
            new_fragments=written,
            fields_for_preserving_frag_bitmap=changed_fields,
        )
    )
    return table.change(transaction, updated=sum(read.rows.counts().values()))


class _RowsRead:
    """The updated rows, and their row ids in the order in which they are read."""

    def __init__(self) -> None:
        self.ids = array("Q")
        self.rows = RowOffsets()


def _new_rows(
    dataset: lance.LanceDataset,
    table: ReadTable,
    updates: Mapping[str, str | pa.Scalar],
    *,
    where: str | None,
    read: _RowsRead,
) -> Iterator[pa.RecordBatch]:
    """The updated rows; collects them in `read`."""
    import pyarrow as pa

    schema = dataset.schema
    expressions = {name: new for name, new in updates.items() if isinstance(new, str)}
    values = {name: new for name, new in updates.items() if not isinstance(new, str)}
    columns = {one.name: expressions.get(one.name, quoted(one.name)) for one in table.top_fields}
    rows = dataset.scanner(columns=columns, filter=where, with_row_id=True, with_row_address=True).to_reader()
    for batch in rows:
        read.ids.frombytes(batch.column("_rowid").to_numpy().tobytes())
        read.rows.add(batch.column("_rowaddr"))
        given = [
            pa.repeat(values[field.name], batch.num_rows) if field.name in values else batch.column(field.name)
            for field in schema
        ]
        arrays = [_cast(column, field) for column, field in zip(given, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _write(rows: Iterator[pa.RecordBatch], dataset: lance.LanceDataset) -> list[DataFragment]:
    from lance.fragment import write_fragments

    first = next(rows, None)  # pylance can't write zero batches
    if first is None:
        return []
    with Stream(dataset.schema, itertools.chain([first], rows)).being_read() as reader:
        return [fragment(one) for one in write_fragments(reader, dataset, mode="append")]


_AS_TEXT = ("boolean", "integer", "decimal", "date")
"""What pyarrow writes as SQL does."""
_ASSIGNED = {
    *(("text", one) for one in ("boolean", "integer", "float", "decimal", "date", "time", "timestamp")),
    *((one, "text") for one in _AS_TEXT),
    *(("boolean", one) for one in ("integer", "float")),
    *((one, "boolean") for one in ("integer", "float")),
    *(("integer", one) for one in ("timestamp", "duration")),
    ("date", "integer"),
    ("date", "timestamp"),
    ("timestamp", "timestamp"),
}
"""What SQL assigns to columns of other types, besides what `casting` knows."""


def _cast(column: pa.Array, field: pa.Field) -> Any:
    """The column with the field's type, as SQL assigns it: '7' is a number too. No value is cut off or rounded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    way = (family(column.type), family(field.type))
    if column.type == field.type or way not in _ASSIGNED:
        return cast(column, field)
    try:
        if way == ("text", "float"):
            made = column.cast(pa.float64())
            huge = column.filter(pc.and_(pc.is_inf(made), pc.match_substring_regex(column, "[0-9]")))
            if len(huge):
                raise misfit(field.name, field.type, column.type, f"{huge[0]} is out of range")
            return cast(made, field)
        made = column.cast(field.type)
        back = column if way[0] == "text" else made.cast(column.type, safe=False)
    except pa.ArrowException as error:
        raise misfit(field.name, field.type, column.type, error) from error
    row = pc.index(pc.not_equal(back, column), True).as_py()
    if row >= 0:
        raise misfit(field.name, field.type, column.type, f"{column[row]} would be changed")
    require_not_null(made, field)
    return made


def _delete_rows(
    dataset: lance.LanceDataset, table: ReadTable, where: str, read: _RowsRead
) -> tuple[list[DataFragment], list[int]]:
    """Delete the rows in `read`: (fragments with new deletion files, ids of the fragments without rows left)."""
    from lance.fragment import LanceFragment

    changed, removed = delete_rows(dataset, table, read.rows, where)
    if not hasattr(LanceFragment, "delete_rows"):
        _check_rows(table, read.rows.counts(), changed=changed, removed=removed)
    return changed, removed


def _check_rows(table: ReadTable, read: dict[int, int], *, changed: list[DataFragment], removed: list[int]) -> None:
    """Raise `StagingError` unless each fragment has as many read as deleted rows: `where` was evaluated twice."""
    before = {one.id: one for one in table.fragments_with({*read, *removed, *(one.id for one in changed)})}
    deleted = {id: before[id].physical_rows - before[id].deletion_file.num_deleted_rows for id in removed}
    for one in changed:
        deleted[one.id] = one.deletion_file.num_deleted_rows - before[one.id].deletion_file.num_deleted_rows
    if read != deleted:
        raise StagingError(
            f"`where` was true for {sum(read.values())} rows when it was evaluated first, and for other rows "
            f"({sum(deleted.values())}) the second time: use a predicate that depends on nothing but the row",
            code="predicate_not_deterministic",
        )


def _carry_row_ids(written: list[DataFragment], row_ids: array[int]) -> None:
    start = 0
    for one in written:
        ids = row_ids[start : start + one.physical_rows]
        ascending = all(before < after for before, after in itertools.pairwise(ids))
        one.inline_row_ids = encode_row_ids(RowIds((BitMap64(ids) if ascending else ids,)))
        start += one.physical_rows
