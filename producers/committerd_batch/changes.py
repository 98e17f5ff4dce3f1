"""Rows that change a table by their keys: which of them are upserts, which are deletes, and which is the latest.

A task notes the keys of its rows in a table with the key columns, the columns that order changes, and `UPSERT`: whether
the row is to be in the table. The noted upserts are in the order in which the task writes the rows. The driver compares
the keys of all tasks: only keys and order columns pass through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from committerd_batch.casting import conform
from committerd_batch.errors import InvalidKeys
from committerd_client.staging.unique_keys import told_of_twins

UPSERT = "__committerd_upsert"
_PLACE = "__committerd_place"

_UPSERTS = ("c", "r", "u", "create", "read", "insert", "update", "upsert")
_DELETES = ("d", "delete")
"""Names of the kinds of change: Debezium's `op`, and plain words; case does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How the rows of a batch change the table. Without `op_column` all of them are of one kind."""

    keys: tuple[str, ...]
    deletes: bool = False
    """Whether each row deletes the rows with its key; then it needs no other columns."""
    op_column: str | None = None
    """The column that says what a row does."""
    order_by: tuple[str, ...] = ()
    """Columns whose values grow with the changes of a key: the highest is the latest. Of equal ones, the one that
    comes later in its task."""

    def rows(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, noted: list[pa.Table]
    ) -> Iterator[pa.RecordBatch]:
        """The rows to write, cast to `schema`; appends the keys to `noted`. Raises `InvalidKeys`, `SchemaMismatch`."""
        if self.op_column is None:
            for batch in batches:
                noted.append(self._note(batch, schema, pa.repeat(not self.deletes, batch.num_rows)))
                if not self.deletes:
                    yield conform(batch, schema)
            return
        given = list(batches)
        if not given:
            return
        (whole,) = pa.Table.from_batches(given).combine_chunks().to_batches()
        upserts = self._upserts(whole.column(self.op_column))
        latest = self.latest(self._note(whole, schema, upserts))
        written = latest.filter(pc.take(upserts, latest))
        deleted = latest.filter(pc.invert(pc.take(upserts, latest)))
        for part, kind in ((written, True), (deleted, False)):
            if len(part):
                noted.append(self._note(whole.take(part), schema, pa.repeat(kind, len(part))))
        if len(written):
            yield conform(whole.take(written), schema)

    def latest(self, keys: pa.Table) -> pa.Array:
        """The places of the rows that hold the latest change of each key, ascending.

        Raises `InvalidKeys` for nulls in keys or order columns; without `order_by` also for a key that is there twice.
        """
        for name in (*self.keys, *self.order_by):
            nulls = keys[name].null_count
            if nulls:
                what = "key column" if name in self.keys else "order_by column"
                rows = "1 row" if nulls == 1 else f"{nulls:,} rows"
                raise InvalidKeys(f"{what} {name!r} is null in {rows} of the batch: leave such rows out, or fill it")
        numbered = keys.append_column(_PLACE, pa.array(range(keys.num_rows), pa.int64()))
        if self.order_by:
            numbered = numbered.sort_by([(name, "ascending") for name in (*self.order_by, _PLACE)])
        names = list(self.keys)
        grouped = numbered.group_by(names, use_threads=False).aggregate([(_PLACE, "last"), ([], "count_all")])
        if not self.order_by and not self.deletes:
            self._refuse_twins(grouped)
        places = grouped[f"{_PLACE}_last"].combine_chunks()
        return places.take(pc.sort_indices(places))

    def _refuse_twins(self, grouped: pa.Table) -> None:
        twice = grouped.filter(pc.greater(grouped["count_all"], 1))
        if twice.num_rows:
            raise InvalidKeys(
                f"{told_of_twins(twice.select(list(self.keys)), of=' of the batch')}: keep one row for each key, for "
                "example with dropDuplicates(); or write with mode='cdc', in which the latest change wins"
            )

    def _note(self, batch: pa.RecordBatch, schema: pa.Schema, upserts: pa.Array) -> pa.Table:
        wanted = pa.schema([schema.field(name).with_nullable(True) for name in self.keys])
        columns = dict(zip(self.keys, conform(batch, wanted).columns, strict=True))
        columns |= {name: batch.column(name) for name in self.order_by if name not in columns}
        return pa.table({**columns, UPSERT: upserts})

    def _upserts(self, ops: pa.Array) -> pa.Array:
        """For each row whether it is to be in the table. Raises `InvalidKeys` for kinds that are not known."""
        plain = pc.utf8_lower(ops.cast(pa.string()))
        upserts = pc.is_in(plain, pa.array(_UPSERTS))
        known = pc.or_(upserts, pc.is_in(plain, pa.array(_DELETES)))
        if not pc.all(known).as_py():
            strange = pc.unique(ops.filter(pc.invert(known))).to_pylist()[:5]
            raise InvalidKeys(
                f"column {self.op_column!r} has {strange}, which is not a known change: {', '.join(_UPSERTS)} put a "
                f"row into the table, {', '.join(_DELETES)} take it out. Leave other rows out of the DataFrame"
            )
        return upserts


def packed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """The rows as an Arrow IPC stream, which holds no more than these rows, even for a slice."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def unpacked(stream: bytes) -> pa.Table:
    """The rows of an Arrow IPC stream, in memory that is aligned as pylance needs it (16 bytes for decimals)."""
    rows = pa.ipc.open_stream(stream).read_all()
    return rows.take(pa.array(range(rows.num_rows), pa.int64()))
