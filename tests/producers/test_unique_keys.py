"""A merge that may insert takes no row whose key is null, and no two rows with the same key."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from committerd_client import StagingError, staging
from committerd_client.changes import Upsert
from committerd_client.data import rows_of
from committerd_client.options import NewTable
from committerd_client.staging import unique_keys
from committerd_client.table_location import TableLocation

pytestmark = pytest.mark.pylance

KEY = pa.field("key", pa.int64())
SCHEMA = pa.schema([KEY, ("value", pa.int64())])
CHANGE: dict[str, Any] = {"when_not_matched_insert_all": False}
CLAUSES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "insert": {"when_matched_update_all": False},
    "upsert on a condition": {"when_matched_update_all": "source.value > 0"},
    "insert or fail": {"when_matched_update_all": False, "when_matched_fail": True},
    "delete or insert": {"when_matched_update_all": False, "when_matched_delete": True},
    "replace": {"when_not_matched_by_source_delete": True},
}
"""Those of merges that may insert."""


def rows(*keys: int | None) -> pa.Table:
    return pa.table({"key": keys, "value": range(len(keys))}, schema=SCHEMA)


def batches(*parts: tuple[int | None, ...]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, [rows(*part).to_batches()[0] for part in parts])


def table(folder: Path, *, index: str | None = None, **options: Any) -> lance.LanceDataset:
    made: Any = lance.write_dataset(rows(1, 2, None), folder / "t.lance", **options)
    if index is not None:
        made.create_scalar_index("key", index)
    found: lance.LanceDataset = made
    return found


SOURCES: dict[str, tuple[Any, str]] = {
    "a key of the table": (lambda: rows(7, 2, 2), "duplicate_keys"),
    "a new key": (lambda: rows(7, 8, 7), "duplicate_keys"),
    "a batch": (lambda: rows(7, 7).to_batches()[0], "duplicate_keys"),
    "a reader, in one batch": (lambda: batches((7, 8, 7)), "duplicate_keys"),
    "a reader, in two batches": (lambda: batches((7, 8), (9,), (7,)), "duplicate_keys"),
    "null": (lambda: rows(7, None), "null_keys"),
    "null in a batch": (lambda: rows(None).to_batches()[0], "null_keys"),
    "null in a reader": (lambda: batches((7,), (8, None)), "null_keys"),
}


@pytest.mark.parametrize("clauses", CLAUSES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_merge_that_may_insert_refuses_them_and_names_the_key(tmp_path: Path, source: str, clauses: str) -> None:
    rows, code = SOURCES[source]
    with pytest.raises(StagingError) as caught:
        staging.merge_insert(table(tmp_path), rows(), on="key", **CLAUSES[clauses])
    assert caught.value.code == code
    said = {
        "duplicate_keys": "1 key is in more than one row, such as {'key': ",
        "null_keys": "key column 'key' is null",
    }
    assert said[code] in str(caught.value)


@pytest.mark.parametrize("index", [None, "BTREE", "BITMAP", "ZONEMAP"])
@pytest.mark.parametrize("stable", [False, True])
def test_no_index_makes_a_null_key_vanish(tmp_path: Path, index: str | None, stable: bool) -> None:
    made = table(tmp_path, index=index, enable_stable_row_ids=stable)
    for use_index in (True, False):
        with pytest.raises(StagingError, match="is null in 1 of 3 rows"):
            staging.merge_insert(made, rows(2, None, 9), on="key", use_index=use_index)
    merged = staging.merge_insert(made, rows(2, None), on="key", **CHANGE)
    assert (merged.inserted, merged.updated) == (0, 1), "a merge that inserts nothing finds no row for a null"


@pytest.mark.parametrize(
    ("columns", "bad"),
    [
        ({"a": [1, 1], "b": ["x", "y"]}, ""),
        ({"a": [1, 1], "b": ["x", "x"]}, "such as {'a': 1, 'b': 'x'}"),
        ({"a": [1, 1], "b": ["x", None]}, "key column 'b' is null"),
        ({"a": [None, 1], "b": ["x", "x"]}, "key column 'a' is null"),
    ],
)
def test_a_key_of_two_columns_is_one_key(tmp_path: Path, columns: dict[str, Any], bad: str) -> None:
    made = lance.write_dataset(pa.table({"b": ["q"], "a": [1], "c": [0]}), tmp_path)
    source = pa.table({**columns, "c": [0, 0]})
    for given in (source, source.to_reader()):
        if bad:
            with pytest.raises(StagingError, match=bad):
                staging.merge_insert(made, given, on=["a", "b"])
        else:
            assert staging.merge_insert(made, given, on=["a", "b"]).inserted == 2


@pytest.mark.parametrize("field", [pa.field("key", pa.int64()), pa.field("key", pa.dictionary(pa.int8(), pa.utf8()))])
def test_keys_are_compared_as_the_tables_type(tmp_path: Path, field: pa.Field) -> None:
    keys: list[Any] = [1, 2] if pa.types.is_integer(field.type) else ["1", "2"]
    made = lance.write_dataset(pa.table({"key": pa.array(keys).cast(field.type)}), tmp_path)
    twice = pa.table({"key": pa.array([*keys, keys[0]]).dictionary_encode()})
    with pytest.raises(StagingError, match="more than one row"):
        staging.merge_insert(made, twice, on="key")


KINDS: dict[pa.DataType, tuple[Any, Any]] = {
    **dict.fromkeys([pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64()], (1, 2)),
    **dict.fromkeys([pa.float16()], (np.float16(1), np.float16(2))),
    **dict.fromkeys([pa.bool_()], (False, True)),
    **dict.fromkeys([pa.decimal128(12, 2), pa.decimal256(40, 0)], (Decimal(1), Decimal(2))),
    **dict.fromkeys([pa.date32(), pa.date64()], (date(2024, 1, 1), date(2024, 1, 2))),
    **dict.fromkeys([pa.time32("ms"), pa.time64("us")], (time(1), time(2))),
    **dict.fromkeys(
        [pa.timestamp("us"), pa.timestamp("ns", "UTC")],
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)),
    ),
    **dict.fromkeys([pa.duration("s")], (timedelta(1), timedelta(2))),
    **dict.fromkeys([pa.utf8(), pa.large_utf8()], ("a", "b")),
    **dict.fromkeys([pa.binary(2)], (b"ab", b"cd")),
}
"""Two keys of each type."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_keys_of_any_type_are_compared(kind: pa.DataType) -> None:
    values, field = pa.array(KINDS[kind], kind), pa.field("key", kind)
    unique_keys.require_unique(pa.table({"key": values}), [field])
    unique_keys.require_unique(pa.table({"key": pa.chunked_array([values.slice(1), values.slice(0, 1)])}), [field])
    with pytest.raises(StagingError, match="1 key is in more than one row"):
        unique_keys.require_unique(pa.table({"key": pa.concat_arrays([values, values.slice(1)])}), [field])
    with pytest.raises(StagingError, match="1 key is in more than one row"):
        unique_keys.require_unique(pa.table({"key": pa.chunked_array([values, values.slice(1)])}), [field])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_floats_are_compared_by_their_bits(kind: pa.DataType) -> None:
    field = pa.field("key", kind)
    unique_keys.require_unique(pa.table({"key": pa.array([0.0, -0.0, float("nan")], kind)}), [field])
    with pytest.raises(StagingError, match="1 key is in more than one row"):
        unique_keys.require_unique(pa.table({"key": pa.array([1.0, float("nan"), float("nan")], kind)}), [field])


def test_a_table_is_not_created_with_such_rows(tmp_path: Path) -> None:
    place = TableLocation(uri=str(tmp_path / "new.lance"))
    for given, code in (([{"k": 100}, {"k": 100}], "duplicate_keys"), ([{"k": None}, {"k": 1}], "null_keys")):
        with pytest.raises(StagingError) as caught:
            Upsert(place=place, rows=rows_of(given), on=["k"], clauses={}, new_table=NewTable())()
        assert caught.value.code == code
    assert Upsert(place=place, rows=rows_of([{"k": 1}]), on=["k"], clauses={}, new_table=NewTable())().inserted == 1


def test_a_key_column_of_nulls_alone_is_refused(tmp_path: Path) -> None:
    made = lance.write_dataset(pa.table({"key": pa.nulls(2), "value": [1, 2]}), tmp_path)
    with pytest.raises(StagingError, match="has the type null") as caught:
        staging.merge_insert(made, pa.table({"key": pa.nulls(1), "value": [3]}), on="key")
    assert caught.value.code == "key_type"


def test_a_long_key_is_named_in_part() -> None:
    with pytest.raises(StagingError) as caught:
        unique_keys.require_unique(pa.table({"key": ["x" * 5000] * 2}), [pa.field("key", pa.utf8())])
    assert len(str(caught.value)) < 400


# Rows of a reader


def read(source: Iterator[pa.RecordBatch], fields: list[pa.Field]) -> int:
    return sum(batch.num_rows for batch in unique_keys.requiring_unique(source, fields))


@pytest.mark.parametrize("seed", range(40))
def test_a_key_that_comes_again_in_any_part_is_found(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_keys, "_PART_ROWS", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng = random.Random(seed)
    keys = rng.sample(range(10**9), rng.choice([0, 99, 100, 101, 200, 1000, 1234]))
    twice = bool(keys) and rng.random() < 0.7
    if twice:
        keys.insert(rng.randrange(len(keys) + 1), rng.choice(keys))
    columns: dict[str, list[Any]] = {"key": keys, "value": [0] * len(keys)}
    fields = [KEY]
    if rng.random() < 0.5:
        columns, fields = {"key": [1] * len(keys), "text": list(map(str, keys))}, [KEY, pa.field("text", pa.utf8())]
    source = pa.table(columns).to_batches(max_chunksize=rng.choice([1, 7, 130]))
    if twice:
        with pytest.raises(StagingError, match="1 key is in more than one row"):
            read(iter(source), fields)
    else:
        assert read(iter(source), fields) == len(keys)
    assert list(tmp_path.iterdir()) == [], "its files are gone"


def test_rows_of_a_reader_take_no_more_memory_the_more_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the key is a small part of each row, in one buffer with the rest."""
    monkeypatch.setattr(unique_keys, "_PART_ROWS", 20_000)
    schema = pa.schema([KEY, ("text", pa.utf8())])

    def made(parts: int) -> Iterator[pa.RecordBatch]:
        for part in range(parts):
            keys = pa.array(range(part * 2_000, part * 2_000 + 2_000), pa.int64())
            batch = pa.record_batch([keys, pa.array(["x" * 500] * 2_000)], schema=schema)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_batch(batch)
            yield from pa.ipc.open_stream(sink.getvalue())

    def peak(parts: int) -> int:
        before, most = pa.total_allocated_bytes(), 0
        for _ in unique_keys.requiring_unique(made(parts), [KEY]):
            most = max(most, pa.total_allocated_bytes() - before)
        return most

    assert peak(200) < 1.2 * peak(20)
