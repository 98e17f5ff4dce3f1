"""Rows of a reader that change a table by its keys: which rows they put in, and which they take out.

What comes out is what `keyed` makes of records: all columns of the table, `OP` and `ORDER`, which is the place of a row
among those of its transaction. The same code commits both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from committerd_batch.target import Mode
from committerd_client.data import rows_of
from committerd_client.errors import StagingError
from committerd_ingest.debezium import effect
from committerd_ingest.keyed import ORDER, marked

_PLACE = "__committerd_place"


def columns_of(mode: Mode, table: pa.Schema) -> pa.Schema:
    """The columns of rows that change this table, as a reader is told: those of an envelope with cdc."""
    if mode is not Mode.CDC:
        return table
    before = pa.struct([one.with_nullable(True) for one in table])
    return pa.schema([("before", before), ("after", pa.struct(list(table))), ("op", pa.string())])


def table_of(mode: Mode, columns: pa.Schema) -> pa.Schema:
    """The table whose `columns_of` these are."""
    return pa.schema(list(columns.field("after").type)) if mode is Mode.CDC else columns


class RowChanges:
    """Makes changes of the rows of one transaction, which are in memory together."""

    def __init__(self, schema: pa.Schema, *, mode: Mode, keys: Sequence[str], bytes_max: int) -> None:
        """`schema`: of the table. `mode`: upsert, delete or cdc. `bytes_max`: of the rows. Raises `StagingError`."""
        lacks = [name for name in keys if name not in schema.names]
        if lacks:
            raise StagingError(f"the table has no columns {lacks}, which are ingest.keys; it has {schema.names}")
        self._schema, self._mode, self._keys, self._bytes_max = schema, mode, list(keys), bytes_max

    def __call__(self, rows: pa.RecordBatchReader) -> pa.Table:
        """The changes. Raises `StagingError` for rows that make none, and what the reader raises."""
        made: list[pa.Table] = []
        count = size = 0
        for batch in rows:
            size += batch.nbytes
            if size > self._bytes_max:
                raise StagingError(
                    f"the rows up to a token take more than {self._bytes_max:,} bytes: with mode {self._mode.value} "
                    "they are in memory together. Make smaller files of them, or raise ingest.buffer_bytes_max"
                )
            made += self._of(pa.Table.from_batches([batch]), count)
            count += batch.num_rows
        return pa.concat_tables(made)

    def _of(self, rows: pa.Table, first: int) -> Iterator[pa.Table]:
        places = pa.array(range(first, first + rows.num_rows), pa.int64())
        if self._mode is Mode.UPSERT:
            yield self._put(rows, places)
        elif self._mode is Mode.DELETE:
            yield self._taken(rows, places)
        else:
            put, taken = _effects(rows)
            yield self._put(_row_in(rows, "after").filter(put), places.filter(put))
            yield self._taken(_row_in(rows, "before").filter(taken), places.filter(taken))

    def _put(self, rows: pa.Table, places: pa.Array) -> pa.Table:
        schema, batches = rows_of(rows if rows.num_rows else self._schema.empty_table()).read(self._schema)
        return self._marked(pa.Table.from_batches(batches, schema), places, "upsert")

    def _taken(self, rows: pa.Table, places: pa.Array) -> pa.Table:
        lacks = [name for name in self._keys if name not in rows.column_names]
        if lacks and rows.num_rows:
            raise StagingError(f"rows that take others out have no columns {lacks}, which are ingest.keys")
        wanted = pa.schema([self._schema.field(name) for name in self._keys])
        found = rows.select(self._keys) if rows.num_rows else wanted.empty_table()
        schema, batches = rows_of(found).read(wanted)
        return self._marked(pa.Table.from_batches(batches, schema), places, "delete")

    def _marked(self, rows: pa.Table, places: pa.Array, op: str) -> pa.Table:
        for name in self._keys:
            if rows.num_rows and (name not in rows.column_names or rows[name].null_count):
                raise StagingError(f"key column {name!r} is null, or is missing")
        return marked(rows.append_column(ORDER, places), op, self._schema)


def _effects(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Which envelopes put a row in, and which take a row out. Raises `StagingError`."""
    names = frozenset(rows.column_names)
    ops = rows["op"].combine_chunks() if "op" in names else pa.nulls(rows.num_rows, pa.string())
    has_row = {name: _there(rows, name) for name in ("before", "after")}
    kinds = pa.table({"op": ops, **has_row})
    found: dict[tuple[object, bool], str] = {}
    for one in kinds.group_by(["op", "after"]).aggregate([]).to_pylist():
        try:
            found[one["op"], one["after"]] = effect(names, one["op"], has_row=one["after"])
        except ValueError as error:
            raise StagingError(str(error)) from error
    effects = [found[op, row] for op, row in zip(ops.to_pylist(), has_row["after"].to_pylist(), strict=True)]
    put = pa.array([one == "put" for one in effects], pa.bool_())
    taken = pa.array([one == "take" for one in effects], pa.bool_())
    if pc.any(pc.and_(taken, pc.invert(has_row["before"]))).as_py():
        raise StagingError(
            "an envelope's op is 'd', and it has no row in before, which would name the row to take out: let the "
            "source write it (PostgreSQL: REPLICA IDENTITY)"
        )
    return put, taken


def _there(rows: pa.Table, name: str) -> pa.Array:
    if name not in rows.column_names:
        return pa.array([False] * rows.num_rows, pa.bool_())
    return pc.is_valid(rows[name]).combine_chunks()


def _row_in(rows: pa.Table, name: str) -> pa.Table:
    """The rows in a column of structs; without columns, if there are none."""
    kind = rows.schema.field(name).type if name in rows.column_names else pa.null()
    if not pa.types.is_struct(kind):
        return pa.table({_PLACE: pa.nulls(rows.num_rows)})
    return pa.table(rows[name].flatten(), names=[one.name for one in kind])
