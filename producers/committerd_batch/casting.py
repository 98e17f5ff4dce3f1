"""Casts the columns that are written to the schema of the table, without loss.

There are two steps. `check` compares types, on the driver, before any row is read. `conform` casts one batch, in a
task, and finds the values that don't fit (`committerd_client.casting`). Columns and struct fields match by name; their
order does not matter.

A type must fit without loss for all values: an int fits a long or a double, but a long does not fit a double. If Spark
has no type for a column of the table (unsigned, other time units, fixed sizes such as vectors), the values decide.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types

from committerd_batch.errors import SchemaMismatch
from committerd_client.casting import cast
from committerd_client.errors import StagingError

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Number of decimal digits that a signed integer may have, by its bit width."""
_MANTISSA_BITS = {32: 24, 64: 53}


def check(source: pa.Schema, target: pa.Schema, *, may_lack: bool = False) -> None:
    """Raise `SchemaMismatch` that names every column of `source` that does not fit `target`, or is missing.

    `may_lack`: whether nullable columns at the top may be missing; `conform` fills them with nulls.
    """
    filled = [field for field in target if may_lack and field.nullable and field.name not in source.names]
    columns_lack = any(field.name not in source.names for field in target)
    columns_more = any(field.name not in target.names for field in source)
    found = list(_fields(source, pa.schema([field for field in target if field not in filled]), ""))
    if found:
        hint = (
            " (schema_mode='merge' adds new columns, and fills missing ones with nulls)"
            if not may_lack and (columns_lack or columns_more)
            else ""
        )
        raise SchemaMismatch("the DataFrame does not fit the table: " + "; ".join(found) + hint)


def plain(schema: pa.Schema) -> pa.Schema:
    """The schema with the storage types of extension types, such as tensors: a table consists of these."""
    return pa.schema([pa.field(one.name, _storage(one.type), one.nullable) for one in schema])


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The same rows with the target's columns, in its order; a column that is missing is null.

    Raises `SchemaMismatch` for values that don't fit.
    """
    return pa.RecordBatch.from_arrays([_column(batch, field) for field in target], schema=target)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = batch.schema.get_field_index(field.name)
    column = pa.nulls(batch.num_rows) if place < 0 else batch.column(place)
    try:
        return cast(column, field)
    except StagingError as error:
        raise SchemaMismatch(str(error)) from error


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _fields(source: pa.Schema | pa.StructType, target: pa.Schema | pa.StructType, above: str) -> Iterator[str]:
    given, wanted = [field.name for field in source], [field.name for field in target]
    for name in sorted({name for name in given if given.count(name) > 1}):
        yield f"column {above + name!r} is there twice"
    for name in (name for name in given if name not in wanted):
        near = difflib.get_close_matches(name.lower(), [other.lower() for other in wanted if other not in given], n=1)
        hint = next((f" (did you mean {other!r}?)" for other in wanted if near == [other.lower()]), "")
        yield f"column {above + name!r} is not in the table{hint}"
    for name in (name for name in wanted if name not in given):
        yield f"column {above + name!r} of the table is missing"
    for field in source:
        if field.name in wanted and given.count(field.name) == 1:
            yield from _types(field.type, target.field(field.name).type, above + field.name)


def _types(source: pa.DataType, target: pa.DataType, name: str) -> Iterator[str]:
    if types.is_struct(source) and types.is_struct(target):
        yield from _fields(source, target, f"{name}.")
    elif types.is_map(source) and types.is_map(target):
        yield from _types(source.key_type, target.key_type, f"{name}.key")
        yield from _types(source.item_type, target.item_type, f"{name}.value")
    elif types.is_fixed_size_list(source) and source.list_size == getattr(target, "list_size", source.list_size):
        yield from _types(pa.list_(source.value_type), target, name)
    elif _is_list(source) and (_is_list(target) or types.is_fixed_size_list(target)):
        yield from _types(source.value_type, target.value_type, f"{name}[]")
    elif not (source.equals(target) or types.is_null(source) or _lossless(source, target)):
        yield f"column {name!r} is {source}, which does not go into {target} without loss: cast it in the DataFrame"


def _lossless(source: pa.DataType, target: pa.DataType) -> bool:
    if types.is_signed_integer(source):
        return _integer_fits(source.bit_width, target)
    if types.is_floating(source):
        return types.is_floating(target) and bool(target.bit_width >= source.bit_width)
    if types.is_decimal(source):
        whole = source.precision - source.scale
        return bool(
            types.is_decimal(target) and target.scale >= source.scale and target.precision - target.scale >= whole
        )
    if _is_text(source):
        return _is_text(target) or (types.is_dictionary(target) and _is_text(target.value_type))
    if _is_binary(source):
        return _is_binary(target) or types.is_fixed_size_binary(target)
    if types.is_timestamp(source):
        return types.is_timestamp(target) and (source.tz is None) == (target.tz is None)
    same = (types.is_date, types.is_time, types.is_duration)
    return any(bool(kind(source) and kind(target)) for kind in same)


def _integer_fits(bits: int, target: pa.DataType) -> bool:
    if types.is_signed_integer(target):
        return bool(target.bit_width >= bits)
    if types.is_floating(target):
        return bits <= _MANTISSA_BITS.get(target.bit_width, 0)
    if types.is_decimal(target):
        return bool(target.precision - target.scale >= _DIGITS[bits])
    return bool(types.is_unsigned_integer(target))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    # By name: pyarrow before 16 has neither view types nor predicates for them.
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or str(kind) == "binary_view")
