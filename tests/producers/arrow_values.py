"""Values of every Arrow type that pylance writes, for tests that go through the types."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

ROWS = 100

_PRIMITIVE = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(),
    pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal256(50, 3), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(8), pa.date32(),
    pa.date64(), pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"),
    pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("s"), pa.duration("ns"),
]  # fmt: skip
_INDICES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
_DICTIONARIES = [pa.dictionary(index, value) for index in _INDICES for value in (pa.string(), pa.int64())]
_BELOW = [pa.int32(), pa.bool_(), pa.string(), pa.dictionary(pa.int8(), pa.string())]


def _nested(one: pa.DataType) -> list[pa.DataType]:
    return [
        pa.list_(one),
        pa.large_list(one),
        pa.list_(one, 3),
        pa.struct([("a", one), ("b", pa.string())]),
        pa.map_(pa.string(), one),
        pa.list_(pa.struct([("a", one)])),
        pa.struct([("l", pa.list_(one))]),
        pa.list_(pa.list_(one)),
        pa.struct([("s", pa.struct([("a", one)]))]),
    ]


_EXTENSIONS = [pa.uuid(), pa.fixed_shape_tensor(pa.float32(), [2, 2]), pa.bool8(), pa.opaque(pa.int32(), "x", "y")]
TYPES: list[pa.DataType] = [
    *_PRIMITIVE,
    *_DICTIONARIES,
    *(nested for one in _BELOW for nested in _nested(one)),
    pa.list_(pa.float32(), 8),
    *_EXTENSIONS,
]


def array_of(kind: pa.DataType, first: int, *, nulls: bool = True) -> pa.Array:
    """`ROWS` values of this type; most differ from those of another `first`. `nulls`: every seventh is null."""
    values = list(_values(kind, first))
    if nulls:
        values = [None if number % 7 == 3 else one for number, one in enumerate(values)]
    return _array(kind, values)


def _array(kind: Any, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        found = list(dict.fromkeys(one for one in values if one is not None))
        places = {one: number for number, one in enumerate(found)}
        indices = pa.array([None if one is None else places[one] for one in values], kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, pa.array(found, kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _array(kind.storage_type, values))
    return pa.array(values, kind)


def _values(kind: Any, first: int) -> Iterator[Any]:
    """Values of this type, without nulls."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from _values(kind.storage_type, first)
        return
    is_ = pa.types
    below = [list(_values(one, first)) for one in _parts(kind)]
    for number in range(first, first + ROWS):
        place = number - first
        if is_.is_null(kind):
            yield None
        elif is_.is_boolean(kind):
            yield number % 3 == 0
        elif is_.is_integer(kind):
            yield number % 120
        elif is_.is_floating(kind):
            yield number / 2
        elif is_.is_decimal(kind):
            yield decimal.Decimal(number)
        elif is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
            yield f"v{number}"
        elif is_.is_fixed_size_binary(kind):
            yield number.to_bytes(kind.byte_width, "big")
        elif is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind):
            yield b"v%d" % number
        elif is_.is_date(kind):
            yield datetime.date(2020, 1, 1) + datetime.timedelta(days=number)
        elif is_.is_timestamp(kind):
            yield datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=number)
        elif is_.is_time(kind):
            yield datetime.time(place % 24, first % 60, place % 60)
        elif is_.is_duration(kind):
            yield datetime.timedelta(seconds=number)
        elif is_.is_dictionary(kind):
            yield below[0][place]
        elif is_.is_struct(kind):
            yield {field.name: one[place] for field, one in zip(kind, below, strict=True)}
        elif is_.is_map(kind):
            yield [(below[0][place], below[1][place])]
        elif is_.is_fixed_size_list(kind):
            yield [below[0][(place + one) % ROWS] for one in range(kind.list_size)]
        else:
            yield below[0][place : place + place % 3]


def _parts(kind: Any) -> list[pa.DataType]:
    """The types of which this one is made."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if pa.types.is_struct(kind):
        return [field.type for field in kind]
    value = getattr(kind, "value_type", None)
    return [] if value is None else [value]
