"""Reads JSON as the types of a table, for files (`committerd append`) and for topics (`committerd ingest`).

A value that is not spelled as its type is an error, and a text stays as it stands there.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json


def read(text: bytes, schema: pa.Schema, *, lines: bool = True) -> pa.Table:
    """The rows of JSON objects, which follow each other, with the types of `schema` (`parseable`).

    `lines`: whether each stands on a line of its own. Raises pyarrow's errors, also for a field that `schema` lacks.
    """
    spelled = pa.schema([(field.name, _spelled(field.type)) for field in schema])
    table = pyarrow.json.read_json(
        io.BytesIO(text),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=spelled, unexpected_field_behavior="error", newlines_in_values=not lines
        ),
    )
    return pa.table([_typed(column, field.type) for column, field in zip(table.columns, schema, strict=True)], schema)


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_time(kind):  # pyarrow has no cast from text
        days = pc.binary_join_element_wise("1970-01-01T", column, "")
        column = days.cast(pa.timestamp(kind.unit))
    return column.cast(kind)


def parseable(kind: pa.DataType) -> pa.DataType:
    """The type that values get here; the client casts them to the table's type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, parseable(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(parseable(kind.value_type))
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if isinstance(kind, pa.BaseExtensionType) else kind


def unknown_field(value: Any, kind: pa.DataType, path: str = "") -> str | None:
    """The path of the first field of an object that the type does not have."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        for name, inner in value.items():
            at = kind.get_field_index(name)
            below = f"{path}.{name}" if path else name
            found = below if at < 0 else unknown_field(inner, kind.field(at).type, below)
            if found is not None:
                return found
    if isinstance(value, list) and pa.types.is_list(kind):
        inside = (unknown_field(inner, kind.value_type, path) for inner in value)
        return next((one for one in inside if one is not None), None)
    return None


def _spelled(kind: pa.DataType) -> pa.DataType:
    """The type with which pyarrow reads it: a date or a time is a text in JSON, and is cast as strictly as in CSV."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _spelled(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_spelled(kind.value_type))
    return pa.string() if any(test(kind) for test in _TIMES) else kind


_TIMES = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
