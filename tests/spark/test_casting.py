"""Spark's values are cast to the table's schema without loss, or refused by name. In process, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from committerd_batch.casting import check, conform, plain
from committerd_batch.errors import SchemaMismatch

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


def not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def cast(values: list[Any], source: pa.DataType, target: pa.DataType | pa.Field) -> pa.Array:
    """Cast one column, through both steps."""
    field = target if isinstance(target, pa.Field) else pa.field("c", target)
    batch = pa.record_batch([pa.array(values, source)], names=["c"])
    wanted = pa.schema([field.with_name("c")])
    check(batch.schema, wanted)
    made = conform(batch, wanted)
    made.validate(full=True)
    assert made.schema == wanted
    return made.column(0)


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([True, None], pa.bool_(), pa.bool_()),
        ([1, None], pa.int32(), pa.int64()),
        ([-128, 127], pa.int8(), pa.int16()),
        ([32767], pa.int16(), pa.float32()),
        ([2**31 - 1], pa.int32(), pa.float64()),
        ([2**63 - 1], pa.int64(), pa.decimal128(19, 0)),
        ([0, 255], pa.int16(), pa.uint8()),
        ([1.5], pa.float32(), pa.float64()),
        ([Decimal("1.25")], pa.decimal128(10, 2), pa.decimal128(12, 4)),
        ([Decimal("1.25")], pa.decimal128(10, 2), pa.decimal256(40, 2)),
        (["a", None], pa.string(), pa.large_string()),
        (["a", "b", "a"], pa.string(), pa.dictionary(pa.int32(), pa.string())),
        ([b"a"], pa.binary(), pa.large_binary()),
        ([b"ab"], pa.binary(), pa.binary(2)),
        ([NOON], pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        ([NOON], pa.timestamp("us", "Etc/UTC"), pa.timestamp("us", "UTC")),
        ([NOON], pa.timestamp("us", "UTC"), pa.timestamp("ms", "America/New_York")),
        ([NOON], pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")),
        ([None, None], pa.null(), pa.string()),
        ([[1.0, 2.0], None], pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
        ([[1], [], None], pa.list_(pa.int32()), pa.large_list(pa.int64())),
        ([[1.0, 2.0], None], pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2)),
        ([[1.0, 2.0]], pa.list_(pa.float32(), 2), pa.list_(pa.float32())),
        ([[NOON]], pa.list_(pa.timestamp("us", "Europe/Berlin")), pa.list_(pa.timestamp("us", "UTC"))),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
        ([[("k", [1])]], pa.map_(pa.string(), pa.list_(pa.int32())), pa.map_(pa.string(), pa.list_(pa.int64()))),
        ([[1], None], pa.list_(pa.int32()), pa.list_(not_null("item", pa.int32()))),
    ],
    ids=str,
)
def test_what_fits_arrives_unchanged(values: list[Any], source: pa.DataType, target: pa.DataType) -> None:
    assert cast(values, source, target).to_pylist() == values


def test_fields_of_a_struct_are_found_by_name_at_any_depth() -> None:
    source = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.struct([("x", pa.string()), ("y", pa.float32())]))]))
    target = pa.list_(
        pa.struct([("b", pa.struct([("y", pa.float64()), ("x", pa.large_string())])), not_null("a", pa.int64())])
    )
    made = cast([[{"a": 1, "b": {"x": "one", "y": 0.5}}, None], None], source, target)
    assert made.to_pylist() == [[{"b": {"y": 0.5, "x": "one"}, "a": 1}, None], None]


def test_an_extension_type_goes_in_as_what_it_stores() -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (2,))
    tensor = pa.ExtensionArray.from_storage(kind, pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)))
    batch = pa.record_batch([tensor], names=["c"])
    assert plain(batch.schema).field("c").type == pa.list_(pa.float32(), 2)
    assert conform(batch, plain(batch.schema)).to_pylist() == [{"c": [1.0, 2.0]}]


def test_the_order_of_columns_does_not_matter() -> None:
    batch = pa.record_batch({"b": ["x"], "a": pa.array([1], pa.int32())})
    target = pa.schema([("a", pa.int64()), ("b", pa.string())])
    check(batch.schema, target)
    assert conform(batch, target).to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.int64(), pa.decimal128(18, 0)),
        (pa.int32(), pa.string()),
        (pa.float64(), pa.float32()),
        (pa.float32(), pa.float16()),
        (pa.float32(), pa.int64()),
        (pa.decimal128(10, 2), pa.decimal128(10, 1)),
        (pa.decimal128(10, 2), pa.decimal128(11, 4)),
        (pa.decimal128(10, 2), pa.float64()),
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.bool_(), pa.int8()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.list_(pa.float64()), pa.list_(pa.float32(), 2)),
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 2)),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
        (pa.struct([("a", pa.int64())]), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_types_that_may_lose_something_are_refused_whatever_the_values(
    source: pa.DataType, target: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'c.*' is .*cast it in the DataFrame"):
        check(pa.schema([("c", source)]), pa.schema([("c", target)]))


@pytest.mark.parametrize(
    ("values", "source", "target", "said"),
    [
        ([300], pa.int16(), pa.uint8(), "column 'c'"),
        ([-1], pa.int32(), pa.uint64(), "column 'c'"),
        ([b"abc"], pa.binary(), pa.binary(2), "column 'c'"),
        ([[1.0]], pa.list_(pa.float32()), pa.list_(pa.float32(), 2), "column 'c'"),
        ([datetime(9999, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), "column 'c'"),
        ([datetime(2026, 1, 1, 0, 0, 0, 1, UTC)], pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), "lose data"),
        ([None], pa.int32(), not_null("c", pa.int32()), "column 'c' may not be null in the table"),
        ([[1, None]], pa.list_(pa.int32()), pa.list_(not_null("item", pa.int32())), r"column 'c\[\]' may not be null"),
        (
            [[("k", None)]],
            pa.map_(pa.string(), pa.int32()),
            pa.map_(pa.string(), not_null("value", pa.int32())),
            "column 'c.value' may not be null",
        ),
        (
            [[{"a": [None]}]],
            pa.list_(pa.struct([("a", pa.list_(pa.int32()))])),
            pa.list_(pa.struct([("a", pa.list_(not_null("item", pa.int32())))])),
            r"column 'c\[\]\.a\[\]' may not be null",
        ),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_by_name(
    values: list[Any], source: pa.DataType, target: pa.DataType | pa.Field, said: str
) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        cast(values, source, target)


def test_every_column_that_is_wrong_is_named() -> None:
    source = pa.schema(
        [("id", pa.int64()), ("Name", pa.string()), ("extra", pa.int8()), ("at", pa.struct([("x", pa.int8())]))]
    )
    target = pa.schema([("id", pa.int32()), ("name", pa.string()), ("at", pa.struct([("y", pa.int8())]))])
    with pytest.raises(SchemaMismatch) as caught:
        check(source, target)
    said = str(caught.value)
    assert "column 'Name' is not in the table (did you mean 'name'?)" in said
    assert "column 'extra' is not in the table" in said
    assert "column 'name' of the table is missing" in said
    assert "column 'at.x' is not in the table" in said
    assert "column 'at.y' of the table is missing" in said
    assert "column 'id' is int64, which does not go into int32" in said


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="column 'a' is there twice"):
        check(pa.schema([("a", pa.int8()), ("a", pa.int8())]), pa.schema([("a", pa.int8())]))
