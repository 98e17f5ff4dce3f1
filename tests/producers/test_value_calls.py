"""Values through every call: kept or refused, as pylance alone does, and never stored as other values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from committerd_batch.casting import check, conform, plain
from committerd_batch.errors import SchemaMismatch
from committerd_client import StagingError, staging
from committerd_client.changes import Append, Create, OnLatest, Overwrite, Upsert
from committerd_client.data import rows_of, scalars
from committerd_client.options import NewTable
from committerd_client.table_location import TableLocation
from tests.producers.direct_commit import commit
from tests.producers.value_cases import CASES, NAN, Case

pytestmark = pytest.mark.pylance

VERSION: Final = "2.2"  # the first that has maps
ID = pa.field("id", pa.int64(), nullable=False)


def columns(cases: list[Case]) -> dict[str, Case]:
    return {f"c{number}": case for number, case in enumerate(cases)}


FITS = columns([case for case in CASES if not case.refused])
REFUSED = columns([case for case in CASES if case.refused])
SCHEMA = pa.schema([ID, *(pa.field(name, case.target) for name, case in FITS.items())])
REFUSING = pa.schema([ID, *(pa.field(name, case.target) for name, case in REFUSED.items())])


def _dicts(cases: dict[str, Case]) -> Any:
    return [{"id": 1, **{name: case.value for name, case in cases.items()}}]


def _arrow(cases: dict[str, Case]) -> Any:
    given = {name: case.given().slice(0, 1) for name, case in cases.items() if case.source is not None}
    return pa.table({"id": [1], **given}) if given else None


def _pandas(cases: dict[str, Case]) -> Any:
    return pd.DataFrame({"id": [1], **{name: _objects(case.value) for name, case in cases.items()}})


def _objects(value: Any) -> pd.Series[Any]:
    made = pd.Series([None], dtype=object)
    made[0] = value
    return made


def _polars(cases: dict[str, Case]) -> Any:
    taken = {}
    for name, case in cases.items():
        if case.source is None:
            continue
        try:
            made = pl.Series(name, case.given().slice(0, 1))
        except (TypeError, ValueError, pl.exceptions.PolarsError, pa.ArrowException):  # it lacks the type
            continue
        if made.to_arrow().to_pylist() == [case.value]:
            taken[name] = made
    return pl.DataFrame({"id": [1], **taken}) if taken else None


FORMS: dict[str, Callable[[dict[str, Case]], Any]] = {
    "dicts": _dicts,
    "columns": lambda cases: {"id": [1], **{name: [case.value] for name, case in cases.items()}},
    "Arrow": _arrow,
    "pandas": _pandas,
    "polars": _polars,
}


def _update(place: TableLocation, rows: Any, _: pa.Schema) -> Any:
    values = {name: value for name, value in rows[0].items() if name != "id"}
    return OnLatest(place, lambda table: staging.update(table, scalars(values, table.schema)))()


CALLS: dict[str, Callable[[TableLocation, Any, pa.Schema], Any]] = {
    "append": lambda place, rows, _: Append(place=place, rows=rows_of(rows))(),
    "upsert": lambda place, rows, _: Upsert(place=place, rows=rows_of(rows), on=["id"], clauses={})(),
    "merge_insert": lambda place, rows, _: Upsert(
        place=place, rows=rows_of(rows), on=["id"], clauses={"when_not_matched_insert_all": True}
    )(),
    "update": _update,
    "create": lambda place, rows, schema: Create(
        place=TableLocation(uri=f"{place.uri}.new"),
        rows=rows_of(rows),
        schema=schema,
        new_table=NewTable(data_storage_version=VERSION),
    )(),
    "overwrite": lambda place, rows, schema: Overwrite(place=place, rows=rows_of(rows), schema=schema)(),
}
BOTH = [(call, form) for call in CALLS for form in FORMS if call != "update" or form == "dicts"]


def _read(uri: str, name: str) -> Any:
    """The value in the only row of the column, as its type stores it."""
    column = lance.dataset(uri).to_table(columns=[name])[name].combine_chunks()
    return (column.storage if isinstance(column, pa.ExtensionArray) else column)[0].as_py()


@pytest.mark.parametrize(("call", "form"), BOTH)
def test_what_fits_is_read_as_it_was_given(call: str, form: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    start = SCHEMA.empty_table() if call in ("append", "merge_insert") else pa.table({"id": [1]}).cast(pa.schema([ID]))
    table = lance.write_dataset(start, uri, schema=start.schema, data_storage_version=VERSION)
    if call in ("upsert", "update"):
        table.add_columns(pa.schema(list(SCHEMA)[1:]))
    rows = FORMS[form](FITS)
    staged = CALLS[call](TableLocation(uri=uri), rows, SCHEMA)
    uri = uri + ".new" if call == "create" else uri
    anyio.run(commit, uri, staged)
    given = set(rows_of(rows).names) - {"id"}
    assert len(given) > 50
    for name in given:
        assert _read(uri, name) == FITS[name].stored, FITS[name]


@pytest.mark.parametrize(("call", "form"), BOTH)
def test_what_does_not_fit_is_refused_and_nothing_is_written(call: str, form: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(REFUSING.empty_table(), uri, data_storage_version=VERSION)
    tried = 0
    for name, case in REFUSED.items():
        rows = FORMS[form]({name: case})
        if rows is None or (form == "pandas" and case.value is NAN):  # there it is a null
            continue
        tried += 1
        with pytest.raises(StagingError) as refused:
            CALLS[call](TableLocation(uri=uri), rows, pa.schema([ID, REFUSING.field(name)]))
        assert str(refused.value).startswith(f"column '{name}{case.at}' is "), case
    assert tried > 50
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".lance" and path.is_file()] == []


def _pylance(rows: Any, target: pa.DataType, uri: str) -> Iterator[Any]:
    """What pylance alone reads after it was given the rows for a column `c`; nothing if it refuses them."""
    table = lance.write_dataset(pa.schema([("c", target)]).empty_table(), uri, data_storage_version=VERSION)
    try:
        if isinstance(rows, list):  # as pylance makes a table of dicts and a schema
            rows = pa.Table.from_pylist(rows, schema=table.schema)
        lance.write_dataset(rows, table, mode="append", data_storage_version=VERSION)
    except (OSError, ValueError, TypeError, OverflowError, pa.ArrowException):
        return
    yield _read(uri, "c")


def _is_same(value: Any, stored: Any, target: pa.DataType) -> bool:
    """Whether what is stored is the value, rounded if the type is one of floating-point numbers."""
    if isinstance(value, bool) != isinstance(stored, bool):
        return False
    if isinstance(value, float) and pa.types.is_floating(target):
        with np.errstate(over="ignore"):
            rounded = float(np.dtype(f"f{target.bit_width // 8}").type(value))
        return bool(stored == rounded and math.isinf(stored) == math.isinf(value))
    return bool(stored == value)


def test_pylance_alone_stores_nothing_else_than_we_do_and_keeps_nothing_that_we_refuse(tmp_path: Path) -> None:
    kept = changed = 0
    for number, case in enumerate(CASES):
        forms: list[Any] = [[{"c": case.value}]]
        if case.source is not None:
            forms.append(pa.table({"c": case.given().slice(0, 1)}))
        for form, rows in enumerate(forms):
            for theirs in _pylance(rows, case.target, str(tmp_path / f"{number}-{form}.lance")):
                if case.refused:
                    changed += 1
                    assert not _is_same(case.value, theirs, case.target), case
                else:
                    kept += 1
                    assert theirs == case.stored, case
    assert kept > 50  # it refuses the rest
    assert changed > 30


def test_what_the_writer_for_spark_takes_is_what_the_client_takes() -> None:
    taken = 0
    for case in CASES:
        if case.source is None:
            continue
        batch = pa.record_batch([case.given()], ["c"])
        target = pa.schema([("c", case.target)])
        try:
            check(plain(batch.schema), target)
            made = conform(batch, target).column(0)
        except SchemaMismatch:
            continue
        taken += 1
        assert not case.refused, case
        assert (made.storage if isinstance(made, pa.ExtensionArray) else made).to_pylist() == [case.stored, None], case
    assert taken > 20


SQL = {
    pa.int32(): (
        ["2.0", "'007'", "5", "true", "date '2026-01-01'", "null", "i * 2"],
        ["1.5", "cast(i as double) / 2", "9007199254740993"],
    ),
    pa.float32(): (["1.5", "5", "true", "'1.5'", "-1"], ["1e300", "9007199254740993", "'1e300'"]),
    pa.float64(): (["'1.5'", "'inf'"], ["'1e400'"]),
    pa.bool_(): (["true", "1", "i = 1", "'true'"], ["5", "1.5", "-1"]),
    pa.string(): (["'a'", "5", "true", "date '2026-01-01'"], ["1.5", "timestamp '2026-01-01 23:30:00'"]),
    pa.binary(): (["'a'", "x'ff'"], ["5"]),
    pa.date32(): (["'2026-01-01'", "date '2026-01-01'"], ["timestamp '2026-01-01 23:30:00'", "'x'", "5"]),
    pa.timestamp("ms"): (
        ["'2026-01-01'", "date '2026-01-01'", "timestamp '2026-01-01 23:30:00.001'", "5"],
        ["timestamp '2026-01-01 23:30:00.000001'", "1.5"],
    ),
    pa.timestamp("us", "UTC"): (["timestamp '2026-01-01 23:30:00'", "date '2026-01-01'", "5"], ["1.5"]),
    pa.decimal128(5, 2): (["1.5", "5", "'7'"], ["arrow_cast(1.555, 'Decimal128(5, 3)')", "1000"]),
    pa.struct([("a", pa.int32())]): (["named_struct('a', 1)"], ["named_struct('a', 1, 'z', 2)"]),
    pa.list_(pa.float32(), 2): (["make_array(1, 2)"], ["make_array(1, 2, 3)", "make_array(1, 1e300)"]),
}
"""Types of columns: expressions that are assigned to them, as pylance does it, and those whose values don't fit."""


@pytest.mark.parametrize("kind", SQL, ids=str)
def test_an_expression_is_assigned_as_pylance_assigns_it_or_refused(kind: pa.DataType, tmp_path: Path) -> None:
    fits, refused = SQL[kind]
    rows = pa.table({"i": [1], "c": pa.nulls(1, kind)})
    place = TableLocation(uri=str(tmp_path / "ours"))
    lance.write_dataset(rows, place.uri)
    theirs = lance.write_dataset(rows, tmp_path / "theirs")
    for expression in fits:
        theirs.update({"c": expression})
        anyio.run(commit, place.uri, staging.update(place.open(), {"c": expression}))
        assert _read(place.uri, "c") == theirs.to_table()["c"].to_pylist()[0], expression
    for expression in refused:
        with pytest.raises(StagingError, match="column 'c"):
            staging.update(place.open(), {"c": expression})
