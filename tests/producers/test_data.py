"""Rows in every form become the same Arrow rows, with the table's types; what does not fit names its column."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from committerd_client import StagingError
from committerd_client.data import rows_of, scalars

pytestmark = pytest.mark.pylance

TABLE = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("vector", pa.list_(pa.float32(), 2)),
    ]
)
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.timezone.utc)  # noqa: UP017  # the client runs on Python 3.10
DICTS: list[dict[str, Any]] = [{"id": 1, "at": NOON, "vector": [0.5, 1.0]}, {"name": "b", "id": 2}]
WIDE = pa.table({"name": [None, "b"], "id": [1, 2], "vector": [[0.5, 1.0], None], "at": [NOON, None]})


class _Stream:
    """What other libraries offer: a stream of Arrow data, and nothing else."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return WIDE.__arrow_c_stream__(requested_schema)


def _lance(folder: Path) -> Any:
    return lance.write_dataset(WIDE, folder / "source.lance")


def _dataset(folder: Path) -> Any:
    pads.write_dataset(WIDE, folder / "files", format="parquet")
    return pads.dataset(folder / "files")


FORMS: dict[str, Callable[[Path], Any]] = {
    "dicts": lambda _: DICTS,
    "iterator of dicts": lambda _: iter(DICTS),
    "columns": lambda _: {
        "id": [1, 2],
        "vector": np.array([[0.5, 1.0], [0, 0]]),
        "at": [NOON, None],
        "name": [None, "b"],
    },
    "table": lambda _: WIDE,
    "batch": lambda _: WIDE.to_batches()[0],
    "list of batches": lambda _: WIDE.to_batches(max_chunksize=1),
    "reader": lambda _: WIDE.to_reader(),
    "pandas": lambda _: pd.DataFrame(DICTS),
    "pandas with an index": lambda _: pd.DataFrame(DICTS).set_index("id"),
    "pandas after a filter": lambda _: pd.DataFrame([*DICTS, {"id": 3}])[lambda rows: rows.id < 3],
    "polars": lambda _: pl.DataFrame(DICTS),
    "Arrow stream": lambda _: _Stream(),
    "Lance": _lance,
    "Lance scanner": lambda folder: _lance(folder).scanner(),
    "pyarrow dataset": _dataset,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_rows_gets_the_types_of_the_table(form: str, tmp_path: Path) -> None:
    rows = rows_of(FORMS[form](tmp_path))
    assert rows.count in (None, 2)
    found = rows.table(TABLE)
    assert {field.name: field.type for field in found.schema} == {field.name: field.type for field in TABLE}
    assert found["id"].to_pylist() == [1, 2]
    assert found["name"].to_pylist() == [None, "b"]
    assert found["at"].to_pylist() == [NOON, None]
    assert found["vector"].to_pylist()[0] == [0.5, 1.0]
    if rows.again:
        assert rows.table(TABLE) == found


def test_without_a_table_the_rows_keep_their_own_types_and_pandas_leaves_no_mark() -> None:
    made = rows_of(pa.Table.from_pandas(pd.DataFrame({"id": [1]}))).table()
    assert made.schema == pa.schema([("id", pa.int64())])
    assert not made.schema.metadata
    dicts = rows_of([{"a": 1}, {"b": "x"}]).table()
    assert dicts.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_columns_of_the_table_that_the_rows_lack_are_left_out_or_filled() -> None:
    rows = rows_of([{"name": "a", "id": 1}])
    assert rows.table(TABLE).schema.names == ["name", "id"]
    schema, batches = rows.read(TABLE, fill=True)
    assert pa.Table.from_batches(batches, schema).to_pylist() == [{"id": 1, "name": "a", "at": None, "vector": None}]
    assert schema == TABLE


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{"id": 1, "nam": "a"}], r"column 'nam' is not in the table \(did you mean 'name'\?\).*add_columns"),
        ([{"name": "a"}], "have no column 'id', which may not be null"),
        ([{"id": None}], "column 'id' may not be null in the table, and the rows have a null"),
        ([{"id": "x"}], "column 'id' is int32 in the table, and the values are str: 'x' is of another kind"),
        (pa.table({"id": [2**40]}), r"column 'id' is int32 in the table, and the values are int64: .*1099511627776"),
        (pa.table({"id": [1.5]}), "column 'id' is int32 in the table, and the values are double"),
        (pa.table([[1], [2]], names=["id", "id"]), "column 'id' is there twice"),
        (
            [{"id": 1, "vector": [1.0, 2.0, 3.0]}],
            "'vector' is fixed_size_list.*a list has 3 values, and each list of the column must have 2",
        ),
    ],
)
def test_rows_that_do_not_fit_name_the_column(given: Any, told: str) -> None:
    with pytest.raises(StagingError, match=told) as refused:
        rows_of(given).table(TABLE)
    assert refused.value.code == "schema_differs"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (pd.DataFrame([[1, 2]], columns=pd.Index([1, "1"], dtype=object)), "column '1' is there twice"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column 'a' is there twice"),
        ([{1: 5}], "the name 1 of column '1' is not text: give '1'"),
        ({1: [5]}, "the name 1 of column '1' is not text: give '1'"),
    ],
)
def test_each_column_has_a_name_of_its_own_in_a_new_table_too(given: Any, told: str) -> None:
    with pytest.raises(StagingError, match=told) as refused:
        rows_of(given).table()
    assert refused.value.code == "schema_differs"


def test_what_a_mask_of_numpy_hides_is_null() -> None:
    hidden = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])
    found = rows_of({"n": hidden[:, 1], "vector": hidden}).table()
    assert found.to_pylist() == [{"n": None, "vector": [1.0, None]}, {"n": 4.0, "vector": [3.0, 4.0]}]


def test_a_dictionary_and_a_category_go_both_ways() -> None:
    coded = pa.schema([pa.field("kind", pa.dictionary(pa.int8(), pa.string()))])
    frame = pd.DataFrame({"kind": ["a", "b", "a"]})
    for given in (frame, frame.astype("category"), pa.table({"kind": ["a", "b", "a"]})):
        assert rows_of(given).table(coded)["kind"].to_pylist() == ["a", "b", "a"]
    plain = pa.schema([pa.field("kind", pa.string())])
    assert rows_of(frame.astype("category")).table(plain).schema == plain


def test_values_of_an_update_have_the_types_of_their_columns() -> None:
    schema = pa.schema([("price", pa.decimal128(12, 2)), ("tags", pa.list_(pa.string()))])
    made = scalars({"price": decimal.Decimal("1.5"), "tags": ["a"]}, schema)
    assert [one.type for one in made.values()] == schema.types
    with pytest.raises(StagingError, match="no column 'prize' in the table; it has price, tags"):
        scalars({"prize": 1}, schema)
    with pytest.raises(StagingError, match=r"column 'price' is decimal.*'cheap' is of another kind"):
        scalars({"price": "cheap"}, schema)
