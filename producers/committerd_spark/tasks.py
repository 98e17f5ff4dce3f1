"""Tasks for Spark's executors: they write files of a table, and return what the driver needs to commit these.

This module uses neither Kafka nor the driver's session; an executor needs pylance and this package. A task returns one
small row for each fragment. Spark delivers only the rows of the successful attempt; no version names the files of
failed, repeated or speculative attempts.

A task returns an error about the data instead of raising it: Spark would repeat the task, and it would fail again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from committerd_spark.casting import conform
from committerd_spark.errors import InvalidKeys, SchemaMismatch, SparkWriteError

RESULT = "kind string, payload binary"
"""Schema of the rows that a task returns, in Spark's notation."""
_RESULT = pa.schema([("kind", pa.string()), ("payload", pa.binary())])

Results = Iterator[tuple[str, bytes]]
"""(kind, payload) of each row that a task returns."""
FRAGMENT, TRANSACTION, KEYS = "fragment", "transaction", "keys"
_REFUSALS: dict[str, type[SparkWriteError]] = {kind.code: kind for kind in (SchemaMismatch, InvalidKeys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The table that tasks write to."""

    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    version: int | None = None
    """The version that the batch is planned against; None if there is no table yet."""

    def open(self) -> Any:
        """pylance's dataset at this version."""
        import lance  # imported here: a task imports it in its own process, the driver only if needed

        return lance.dataset(self.uri, version=self.version, storage_options=_options(self.storage_options))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFragments:
    """Writes one partition as fragments; a function for `mapInArrow`."""

    place: Place
    schema: pa.Schema
    """The table's schema; `check` has found that the DataFrame's schema fits."""
    replace: bool
    """Whether the fragments are for a new table, or replace all rows; otherwise they are for an Append."""
    data_storage_version: str | None = None
    keys: Sequence[str] = ()
    """Key columns, whose values must differ in all rows; given only if the task sees the whole batch."""
    named: Sequence[str] = ()
    """Key columns whose values the Append names; empty = none."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row for each fragment, with pylance's JSON of it, and one with the keys if they are named; nothing
        if there are no rows.
        """
        rows = Rows(batches, self.schema, keys=self.keys)
        yield from rows.written(self._write)

    def _write(self, reader: pa.RecordBatchReader) -> Results:
        if self.named:
            from committerd_client.staging.keys import KEYS_MAX, KeyHashes, key_columns

            hashes = KeyHashes(key_columns(self.place.open(), self.named), most=KEYS_MAX)
            with_keys = pa.RecordBatchReader.from_batches(reader.schema, hashes.adding(reader))
            yield from self._fragments(with_keys)
            yield KEYS, hashes.filter().SerializeToString()
        else:
            yield from self._fragments(reader)

    def _fragments(self, reader: pa.RecordBatchReader) -> Results:
        from lance.fragment import write_fragments

        fragments = write_fragments(
            reader,
            self.place.uri if self.replace else self.place.open(),
            mode="overwrite" if self.replace else "append",
            data_storage_version=self.data_storage_version,
            storage_options=_options(self.place.storage_options),
        )
        for fragment in fragments:
            yield FRAGMENT, json.dumps(fragment.to_json()).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRows:
    """Merges all rows of a batch into the table by their keys; a function for `mapInArrow` over one partition."""

    place: Place
    schema: pa.Schema
    """Schema of the rows: the table's, or that of its key columns for a delete."""
    keys: Sequence[str]
    delete: bool
    """Whether to delete the rows with these keys; otherwise an upsert."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with the transaction; nothing if the transaction would change nothing."""
        rows = Rows(batches, self.schema, keys=self.keys)
        yield from rows.written(self._merge)

    def _merge(self, reader: pa.RecordBatchReader) -> Results:
        from committerd_client import staging

        merged = staging.merge_insert(
            self.place.open(),
            reader,
            on=list(self.keys),
            when_matched_update_all=not self.delete,
            when_matched_delete=self.delete,
            when_not_matched_insert_all=not self.delete,
        )
        if merged.changes:
            yield TRANSACTION, merged.transaction.SerializeToString()


class Rows:
    """Streams the rows of a partition to pylance, cast to a schema."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, keys: Sequence[str] = ()) -> None:
        self._batches = batches
        self._schema = schema
        self._names = list(keys)
        self._counted: list[pa.Table] = []
        self._error: Exception | None = None

    def written(self, write: Callable[[pa.RecordBatchReader], Results]) -> Iterator[pa.RecordBatch]:
        """Call `write` with a reader of the rows, and yield its results, or an error, as rows for Spark.

        `write` is not called if there are no rows.
        """
        try:
            results = self._results(write)
        except (SchemaMismatch, InvalidKeys) as error:
            results = [(error.code, str(error).encode())]
        if results:
            kinds, payloads = zip(*results, strict=True)
            columns = [pa.array(kinds, pa.string()), pa.array(payloads, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=_RESULT)

    def _results(self, write: Callable[[pa.RecordBatchReader], Results]) -> list[tuple[str, bytes]]:
        conformed = self._conformed()
        first = next(conformed, None)
        if first is None:
            return []
        try:
            results = list(write(self._reader(first, conformed)))
        except Exception:
            if self._error is not None:  # pylance's own error has it only as text
                raise self._error from None
            self._check_keys()  # pylance fails on some keys that occur twice
            raise
        self._check_keys()
        return results

    def _reader(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            yield first
            try:
                yield from rest
            except Exception as error:
                self._error = error
                raise

        return pa.RecordBatchReader.from_batches(self._schema, batches())

    def _conformed(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if batch.num_rows:
                made = conform(batch, self._schema)
                if self._names:
                    self._counted.append(self._count(made))
                yield made

    def _count(self, batch: pa.RecordBatch) -> pa.Table:
        """The batch's keys, with the number of rows of each. These are copies, so the batch can be freed."""
        return pa.Table.from_batches([batch.select(self._names)]).group_by(self._names).aggregate([([], "count_all")])

    def _check_keys(self) -> None:
        """Raise `InvalidKeys` if a key is null or occurs twice. Until then only the keys are kept in memory."""
        if not self._names:
            return
        counted = pa.concat_tables(self._counted).group_by(self._names).aggregate([("count_all", "sum")])
        for name in self._names:
            nulls = counted.filter(pc.is_null(counted[name]))
            if nulls.num_rows:
                rows = pc.sum(nulls["count_all_sum"]).as_py()
                raise InvalidKeys(f"key column {name!r} is null in {rows} rows of the batch")
        twice = counted.filter(pc.greater(counted["count_all_sum"], 1))
        if twice.num_rows:
            example = twice.select(self._names).slice(0, 1).to_pylist()[0]
            raise InvalidKeys(
                f"{twice.num_rows} keys are in more than one row of the batch, such as {example}: keep one row for "
                "each key, for example the latest with row_number() over a window, or dropDuplicates()"
            )


def refusal(kind: str, payload: bytes) -> SparkWriteError | None:
    """The error that a task has returned as a row; None if the row is a result."""
    refused = _REFUSALS.get(kind)
    return refused(payload.decode()) if refused is not None else None


def _options(options: Mapping[str, str] | None) -> dict[str, str] | None:
    return dict(options) if options is not None else None
