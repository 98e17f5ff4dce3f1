"""Casts Arrow columns to the types of a table. A value goes in if what is read back equals it; all others are errors.

The exception is a floating-point number, which is rounded to the precision of the column, as pylance does. It must be
within the range of the column.

What fits without loss, besides the type itself: numbers into numbers (not booleans), text and binary into each other,
dates and timestamps without a time zone into each other, other units, other time zones. Fields of structs match by
name, as columns do: a field that the table does not have is an error, a field that the rows don't have is null.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

from committerd_client.errors import StagingError
from committerd_client.extension_types import (
    BFLOAT16,
    BLOB,
    JSON,
    UUID,
    bfloat16_storage,
    extension_name,
    flat,
    json_text,
    tensor_shape,
    uuid_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

MANTISSA_BITS = {16: 11, 32: 24, 64: 53}
"""Of floating-point numbers, by their width."""
_OFFSETS_MAX = 2**31 - 1


def cast(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> Any:
    """The column with the field's type.

    Raises `StagingError` (`schema_differs`) that names the column, or the field inside it (`s.a`, `tags[]`, `m.value`),
    if a value does not fit, or is null where the field allows none.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([cast(chunk, field) for chunk in column.chunks], field.type)
    made = _converted(column, field, field.name)
    require_not_null(made, field)
    return made


def narrowed(given: pa.DataType, field: pa.Field) -> pa.Field:
    """The field without those fields inside its structs that `given` does not have."""
    import pyarrow as pa
    from pyarrow import types

    kind = field.type
    if types.is_struct(kind) and types.is_struct(given):
        names = [given.field(i).name for i in range(given.num_fields)]
        inner = [kind.field(i) for i in range(kind.num_fields)]
        kept = [narrowed(given.field(names.index(one.name)).type, one) for one in inner if one.name in names]
        return field.with_type(pa.struct(kept))
    if types.is_map(kind) and types.is_map(given):
        item = narrowed(given.item_type, kind.item_field)
        return field.with_type(pa.map_(kind.key_field, item, keys_sorted=kind.keys_sorted))
    if is_list(kind) and is_list(given):
        return field.with_type(list_of(kind, narrowed(given.value_type, kind.value_field)))
    return field


def require_not_null(column: pa.Array, field: pa.Field) -> None:
    """Raise `StagingError` (`schema_differs`) for a null in a field that allows none, at any depth."""
    path = next(_nulls(column, field, field.name), None) if _requires(field) else None
    if path is not None:
        raise StagingError(
            f"column {path!r} may not be null in the table, and the rows have a null there", code="schema_differs"
        )


def require_known(names: Iterable[Any], known: Sequence[str], above: str = "") -> None:
    """Raise `StagingError` (`schema_differs`) for a name that is there twice, not among the `known` ones, or no text.

    `above`: the path of the struct whose fields these are; empty = columns of the table.
    """
    seen = set[str]()
    for name in names:
        path = f"{above}.{name}" if above else str(name)
        if not isinstance(name, str):
            raise StagingError(
                f"the name {name!r} of column {path!r} is not text: give {str(name)!r}", code="schema_differs"
            )
        if name in seen:
            raise StagingError(f"column {path!r} is there twice", code="schema_differs")
        seen.add(name)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            what, way = (
                (f"{above!r} has", "Leave the field out")
                if above
                else ("it has", "Leave the column out, or add it to the table with add_columns")
            )
            raise StagingError(
                f"column {path!r} is not in the table{hint}: {what} {', '.join(known)}. {way}", code="schema_differs"
            )


def misfit(path: str, kind: pa.DataType, given: object, why: object) -> StagingError:
    """The error for values that don't fit. `kind`: the type in the table. `given`: the type or class of the values."""
    return StagingError(
        f"column {path!r} is {kind} in the table, and the values are {given}: {why}", code="schema_differs"
    )


def nulls(count: int, kind: pa.DataType) -> Any:
    """An array of nulls; of any type that pyarrow knows, extension types inside others too."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, nulls(count, kind.storage_type))
    none = pa.py_buffer(bytes((count + 7) // 8))
    if types.is_struct(kind):
        children = [nulls(count, kind.field(i).type) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, count, [none], count, children=children)
    if types.is_fixed_size_list(kind):
        children = [nulls(count * kind.list_size, kind.value_type)]
        return pa.Array.from_buffers(kind, count, [none], count, children=children)
    if types.is_map(kind) or is_list(kind):
        empty = nulls(0, entries_type(kind) if types.is_map(kind) else kind.value_type)
        return lists(kind, np.zeros(count, np.int64), np.zeros(count, np.bool_), empty)
    return pa.nulls(count, kind)


def lists(kind: pa.DataType, lengths: Any, valid: Any, values: pa.Array) -> Any:
    """An array of lists of `kind` (variable or fixed size) or of maps, made of their parts.

    `lengths`, `valid`: numpy arrays with an entry for each list; null lists have length 0. `values`: the values of all
    lists, one list after the other; those of maps are structs of key and value. Lists of a fixed size must have it.
    Raises `ValueError` for keys of maps that are null.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    if types.is_map(kind) and values.field(0).null_count:  # pyarrow ends the process
        raise ValueError("the key of a map is null")
    count = len(lengths)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    missing = count - int(valid.sum())
    if types.is_fixed_size_list(kind):
        if missing:
            size = kind.list_size
            places = np.cumsum(valid, dtype=np.int64) - 1
            wanted = (places[:, None] * size + np.arange(size)).ravel()
            values = take(values, pa.array(wanted, mask=np.repeat(~valid, size)))
        return pa.Array.from_buffers(kind, count, [bits], missing, children=[values])
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if not types.is_large_list(kind):
        if offsets[-1] > _OFFSETS_MAX:
            raise pa.ArrowInvalid(f"a batch has {offsets[-1]:,} values in its lists: give smaller batches")
        offsets = offsets.astype(np.int32)
    return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(offsets)], missing, children=[values])


def take(values: pa.Array, places: pa.Array) -> Any:
    """The values at these places, null at a null; of extension types too."""
    import pyarrow as pa

    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, take(values.storage, places))
    return values.take(places)


def _converted(given: Any, wanted: pa.Field, path: str) -> Any:
    """The array with the type of `wanted`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = wanted.type
    if given.type == kind:
        return given
    try:
        if types.is_null(given.type):
            return nulls(len(given), kind)
        if isinstance(given, pa.DictionaryArray):
            return _converted(given.dictionary_decode(), wanted, path)
        if str(given.type).startswith("run_end_encoded"):
            return _converted(pc.run_end_decode(given), wanted, path)
        if extension_name(wanted) or isinstance(given, pa.ExtensionArray):
            return _extension(given, wanted, path)
        if types.is_dictionary(kind):
            values = _converted(given, pa.field(wanted.name, kind.value_type), path)
            return values.dictionary_encode().cast(kind)
        if types.is_struct(given.type) and types.is_struct(kind):
            return _struct(given, kind, path)
        if types.is_map(kind) and (types.is_map(given.type) or _holds_entries(given.type)):
            return _map(given, kind, path)
        if is_list(given.type, views=True) and is_list(kind):
            return _list(given, kind, path)
        return _leaf(given, kind, path)
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, StagingError):
            raise
        raise misfit(path, kind, given.type, error) from error


def _extension(given: Any, wanted: pa.Field, path: str) -> Any:
    """A conversion from or to an extension type."""
    import pyarrow as pa

    kind, name = wanted.type, extension_name(wanted)
    if isinstance(given, pa.ExtensionArray):
        if isinstance(kind, pa.BaseExtensionType) and _shape(given.type) != _shape(kind):
            raise misfit(path, kind, given.type, "these are of another kind or shape")
        if given.type.extension_name == UUID and family(kind) == "text":
            raise misfit(path, kind, given.type, "convert the UUIDs to text first")
        given = given.storage
    elif name == UUID and family(given.type) == "text":
        given = pa.array([uuid_bytes(one) for one in given.to_pylist()], pa.binary(16))
    elif name in JSON and family(given.type) in ("text", "binary"):
        given = pa.array([json_text(one) for one in given.to_pylist()], pa.string())
    elif name == BFLOAT16 and family(given.type) in ("float", "integer"):
        given = _bfloat16(given, kind, path)
    elif name == BLOB and family(given.type) == "binary":
        given = pa.StructArray.from_arrays([given], ["data"], mask=given.is_null())
    elif tensor_shape(kind) is not None and is_list(getattr(given.type, "value_type", None), views=True):
        return tensors(given.to_pylist(), kind, path)
    if not isinstance(kind, pa.BaseExtensionType):
        return _converted(given, pa.field(wanted.name, kind), path)
    storage = _converted(given, pa.field(wanted.name, kind.storage_type), path)
    return pa.ExtensionArray.from_storage(kind, storage)


def tensors(values: Sequence[Any], kind: pa.DataType, path: str) -> Any:
    """Tensors of numpy arrays or nested lists. Raises `ValueError` for those of another shape."""
    import numpy as np
    import pyarrow as pa

    rows = [flat(one, tensor_shape(kind) or ()) for one in values]
    valid = np.array([one is not None for one in rows], np.bool_)
    numbers = [one for one in rows if one is not None]
    storage = kind.storage_type
    if len({one.dtype for one in numbers}) == 1:
        numbers = [np.concatenate(numbers)]  # numpy would change values of several types
    made = [_converted(pa.array(one), storage.value_field, f"{path}[]") for one in numbers]
    inner = pa.concat_arrays(made) if made else nulls(0, storage.value_type)
    return pa.ExtensionArray.from_storage(kind, lists(storage, np.zeros(len(rows)), valid, inner))


def _bfloat16(given: Any, kind: pa.DataType, path: str) -> Any:
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    wide = given if types.is_float64(given.type) else _leaf(given, pa.float64(), path)
    made, lost = bfloat16_storage(wide)
    if not types.is_floating(given.type):
        lost |= np.abs(wide.fill_null(0.0).to_numpy(zero_copy_only=False)) > 256  # 8 bits of mantissa
    _refuse_first(given, pa.array(lost), kind, path)
    return made


def _shape(kind: Any) -> tuple[Any, ...]:
    """What two extension types must share for their storage to mean the same."""
    return kind.extension_name, getattr(kind, "shape", None), getattr(kind, "permutation", None)


def _struct(given: Any, kind: pa.DataType, path: str) -> Any:
    import numpy as np
    import pyarrow as pa

    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = [given.type.field(i).name for i in range(given.type.num_fields)]
    require_known(names, [one.name for one in fields], path)
    columns = dict(zip(names, given.flatten(), strict=True))  # a field is null where its struct is
    children = [
        _converted(columns[one.name], one, f"{path}.{one.name}") if one.name in columns else nulls(len(given), one.type)
        for one in fields
    ]
    valid = given.is_valid().to_numpy(zero_copy_only=False)
    bits = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes()) if given.null_count else None
    return pa.Array.from_buffers(kind, len(given), [bits], given.null_count, children=children)


def _map(given: Any, kind: pa.DataType, path: str) -> Any:
    import pyarrow as pa
    from pyarrow import types

    lengths, valid, entries = _parts(given)
    names = ("key", "value") if types.is_map(given.type) else [entries.type.field(i).name for i in range(2)]
    columns = dict(zip(names, entries.flatten(), strict=True))
    children = [
        _converted(columns["key"], kind.key_field, f"{path}.key"),
        _converted(columns["value"], kind.item_field, f"{path}.value"),
    ]
    made = pa.Array.from_buffers(entries_type(kind), len(entries), [None], 0, children=children)
    return lists(kind, lengths, valid, made)


def _list(given: Any, kind: pa.DataType, path: str) -> Any:
    from pyarrow import types

    lengths, valid, values = _parts(given)
    if types.is_fixed_size_list(kind):
        require_size(lengths[valid], kind, given.type, path)
    return lists(kind, lengths, valid, _converted(values, kind.value_field, f"{path}[]"))


def require_size(lengths: Any, kind: pa.DataType, given: object, path: str) -> None:
    """Raise `StagingError` unless all lists (numpy array of their lengths) have the size of the list type `kind`."""
    others = lengths[lengths != kind.list_size]
    if len(others):
        raise misfit(
            path, kind, given, f"a list has {others[0]} values, and each list of the column must have {kind.list_size}"
        )


def _parts(given: Any) -> tuple[Any, Any, Any]:
    """(lengths, valid, values) of lists or maps, as `lists` takes them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_map(given.type):  # pyarrow flattens lists only
        view = pa.list_(pa.field("entries", entries_type(given.type), nullable=False))
        given = pa.Array.from_buffers(
            view, len(given), given.buffers()[:2], given.null_count, given.offset, children=[_all_entries(given)]
        )
    valid = given.is_valid().to_numpy(zero_copy_only=False)
    if types.is_fixed_size_list(given.type):
        lengths = np.where(valid, given.type.list_size, 0)
    else:
        lengths = pc.fill_null(pc.list_value_length(given), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not lengths.any():  # pyarrow can't flatten all types to nothing
        return lengths, valid, nulls(0, given.type.value_type)
    return lengths, valid, given.flatten()


def _all_entries(given: Any) -> Any:
    """The entries of maps, with those before its offset."""
    import pyarrow as pa

    children = [given.keys, given.items]
    return pa.Array.from_buffers(entries_type(given.type), len(children[0]), [None], 0, children=children)


def _holds_entries(kind: Any) -> bool:
    """Whether it is a list of structs of `key` and `value`: a map, in libraries without that type."""
    from pyarrow import types

    inner = kind.value_type if is_list(kind, views=True) else None
    return (
        inner is not None
        and types.is_struct(inner)
        and sorted(inner.field(i).name for i in range(inner.num_fields)) == ["key", "value"]
    )


def entries_type(kind: pa.DataType) -> Any:
    """The type of the entries of a map."""
    import pyarrow as pa

    return pa.struct([kind.key_field, kind.item_field])


def _leaf(given: Any, kind: pa.DataType, path: str) -> Any:
    """A conversion between types that have no others inside."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    source = given.type
    way = (family(source), family(kind))
    if way not in _WAYS or None in way:
        raise misfit(path, kind, source, "the types are of different kinds: convert the values first")
    if types.is_timestamp(source) or types.is_timestamp(kind):
        if getattr(source, "tz", None) is None and getattr(kind, "tz", None) is not None:
            raise misfit(path, kind, source, "values without a time zone may mean any time: give them their zone first")
        if getattr(source, "tz", None) is not None and getattr(kind, "tz", None) is None:
            raise misfit(path, kind, source, "the column has no time zone: make the values local times first")
    if way == ("decimal", "float"):
        return _nearest(given, kind, path)
    if way == ("float", "decimal"):
        return pa.array([None if one is None else Decimal(str(one)) for one in _numbers(given)], kind)
    if types.is_float16(source) or types.is_float16(kind):
        return _half(given, kind, path)
    if way == ("integer", "decimal"):
        given = given.cast(pa.decimal128(20, 0))  # a cast from integers asks for room for the largest
    elif types.is_fixed_size_binary(source):
        given = given.cast(pa.binary())
    made = given.cast(kind)
    if way == ("float", "float"):
        lost = pc.and_(pc.is_inf(made), pc.invert(pc.is_inf(given)))
    elif way in _CHECKED:
        lost = pc.not_equal(made.cast(given.type, safe=False), given)
    else:
        return made
    _refuse_first(given, lost, kind, path)
    return made


_FAMILIES = {
    "is_boolean": "boolean",
    "is_integer": "integer",
    "is_floating": "float",
    "is_decimal": "decimal",
    "is_date": "date",
    "is_time": "time",
    "is_timestamp": "timestamp",
    "is_duration": "duration",
}
_WAYS = {
    *((one, one) for one in ("boolean", "integer", "float", "decimal", "text", "binary")),
    *((one, one) for one in ("date", "time", "timestamp", "duration")),
    *((one, other) for one in ("integer", "float", "decimal") for other in ("integer", "float", "decimal")),
    ("text", "binary"),
    ("binary", "text"),
    ("date", "timestamp"),
    ("timestamp", "date"),
}
_CHECKED = {
    *((one, other) for one in ("date", "time", "timestamp", "duration") for other in ("date", "time", "timestamp")),
    ("duration", "duration"),
    ("float", "integer"),
}
"""Casts that pyarrow does not check in every version: the values are cast back, and compared."""


def family(kind: Any) -> str | None:
    """What kind of values a type has; None for a type that is cast to no other."""
    from pyarrow import types

    name = str(kind)  # by name: pyarrow before 16 has neither view types nor predicates for them
    if name in ("string", "large_string", "string_view"):
        return "text"
    if name in ("binary", "large_binary", "binary_view") or types.is_fixed_size_binary(kind):
        return "binary"
    return next((family for test, family in _FAMILIES.items() if getattr(types, test)(kind)), None)


def _numbers(given: Any) -> list[Any]:
    """Floating-point numbers of their own width, whose text has no more digits than they need."""
    return [one if valid.as_py() else None for one, valid in zip(given.to_numpy(False), given.is_valid(), strict=True)]


def _nearest(given: Any, kind: pa.DataType, path: str) -> Any:
    """Floating-point numbers of decimals; pyarrow's cast is a little off for some."""
    import pyarrow as pa

    values = given.to_pylist()
    near = [None if one is None else nearest(one, kind.bit_width) for one in values]
    changed = [one is not None and Decimal(str(one)) != value for one, value in zip(near, values, strict=True)]
    lost = pa.array(changed, pa.bool_())
    _refuse_first(given, lost, kind, path)
    return pa.array(near, kind)


def nearest(value: Decimal, bits: int) -> Any:
    """The floating-point number of so many bits that is the nearest to a decimal, as numpy has it."""
    import numpy as np

    with np.errstate(over="ignore"):
        return np.dtype(f"f{bits // 8}").type(value)


def _half(given: Any, kind: pa.DataType, path: str) -> Any:
    """A conversion from or to float16, of which older versions of pyarrow know little."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    empty = given.is_null().to_numpy(zero_copy_only=False)
    if types.is_float16(given.type):
        wide = pa.array(given.to_numpy(zero_copy_only=False).astype(np.float64), mask=empty)
        return _leaf(wide, kind, path) if not types.is_float64(kind) else wide
    wide = given if types.is_float64(given.type) else _leaf(given, pa.float64(), path)
    values = pc.fill_null(wide, 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        made = values.astype(np.float16)
    inexact = np.isfinite(values) & ~np.isfinite(made)
    if not types.is_floating(given.type):
        inexact |= values != made
    _refuse_first(given, pa.array(inexact), kind, path)
    return pa.array(made, mask=empty)


def _refuse_first(given: Any, lost: Any, kind: pa.DataType, path: str) -> None:
    """Raise `StagingError` if a value would be lost, with the first of them."""
    import pyarrow.compute as pc

    row = pc.index(lost, True).as_py()
    if row >= 0:
        raise misfit(path, kind, given.type, f"{given[row]} would be changed")


def _requires(field: pa.Field) -> bool:
    """Whether the field, or one inside it, allows no null."""
    from pyarrow import types

    kind = field.type
    if not field.nullable:
        return True
    inner = [kind.item_field] if types.is_map(kind) else [kind.field(i) for i in range(kind.num_fields)]
    return any(_requires(one) for one in inner)


def _nulls(array: Any, field: pa.Field, path: str) -> Iterator[str]:
    """Paths of the fields that allow no null and hold one."""
    import pyarrow as pa
    from pyarrow import types

    kind = field.type
    if array.null_count and not field.nullable:
        yield path
    if isinstance(array, pa.ExtensionArray):
        return
    if types.is_struct(kind):
        children = array.filter(array.is_valid()).flatten()
        inner = ((child, kind.field(i), f"{path}.{kind.field(i).name}") for i, child in enumerate(children))
        yield from chain.from_iterable(_nulls(*each) for each in inner)
    elif types.is_map(kind):
        yield from _nulls(_parts(array)[2].field(1), kind.item_field, f"{path}.value")
    elif is_list(kind):
        yield from _nulls(array.flatten(), kind.value_field, f"{path}[]")


def is_list(kind: Any, *, views: bool = False) -> bool:
    """Whether it is a type of lists; `views`: or of views of lists."""
    from pyarrow import types

    if kind is None:
        return False
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return True
    return views and str(kind).startswith(("list_view", "large_list_view"))


def list_of(kind: Any, item: pa.Field) -> Any:
    """The list type with other items."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)
