"""Makes Arrow columns of Python values, with the types of a table. What fits is what `casting` says.

pyarrow's own conversion changes values in silence: it cuts off fractions, times of day and nanoseconds, makes infinity
of what is out of range, and drops the fields of dicts that a struct does not have.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from committerd_client.casting import (
    MANTISSA_BITS,
    cast,
    entries_type,
    family,
    is_list,
    list_of,
    lists,
    misfit,
    nearest,
    nulls,
    require_known,
    require_size,
    tensors,
)
from committerd_client.errors import StagingError
from committerd_client.extension_types import (
    BFLOAT16,
    BLOB,
    JSON,
    UUID,
    extension_name,
    json_text,
    tensor_shape,
    uuid_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

_VALUES_MAX = 2**18
"""So many values of lists are converted at once."""
_MISSING = ("NAType", "NaTType")
"""Classes of pandas' nulls."""


def array(values: Iterable[Any], field: pa.Field, *, fill: bool = True, from_pandas: bool = False) -> Any:
    """The values as an array of the field's type.

    `fill`: whether fields of structs that no value has are added, as nulls; otherwise the type of the array lacks them,
    unless all values of the struct are null.
    `from_pandas`: whether NaN is a null, as it is in pandas. Raises `StagingError` (`schema_differs`) that names the
    column, or the field inside it, if a value does not fit; `casting.require_not_null` finds nulls.
    """
    return _Conversion(fill=fill, from_pandas=from_pandas).array(values, field, field.name)


def inferred(values: Iterable[Any], *, from_pandas: bool = False) -> pa.DataType:
    """The type that pyarrow takes these values for; for numpy arrays of several axes, that of tensors.

    Raises pyarrow's errors, `ValueError`, `TypeError`.
    """
    import numpy as np
    import pyarrow as pa

    plain = _Conversion(fill=True, from_pandas=from_pandas).plain(values)[0]
    arrays = {(one.shape, one.dtype) if isinstance(one, np.ndarray) else None for one in plain if one is not None}
    if len(arrays) == 1:
        (found,) = arrays
        if found is not None and len(found[0]) > 1:
            return pa.fixed_shape_tensor(pa.from_numpy_dtype(found[1]), found[0])
    return pa.infer_type(plain, from_pandas=from_pandas)


class _Conversion:
    """A conversion of the values of one column."""

    def __init__(self, *, fill: bool, from_pandas: bool) -> None:
        self._fill = fill
        self._from_pandas = from_pandas

    def array(self, given: Iterable[Any], field: pa.Field, path: str) -> Any:
        import pyarrow as pa

        values, classes = self.plain(given)
        try:
            return self._array(values, classes, field, path)
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            if isinstance(error, StagingError):
                raise
            raise misfit(path, field.type, _classes(values), error) from error

    def plain(self, given: Iterable[Any]) -> tuple[list[Any], set[type]]:
        """The values, with None for each kind of null, and Python values for Arrow's scalars; and their classes."""
        import pyarrow as pa

        values = given if isinstance(given, list) else list(given)
        classes = set(map(type, values))
        before = values
        if any(issubclass(one, pa.Scalar) for one in classes):
            values = [one.as_py() if isinstance(one, pa.Scalar) else one for one in values]
        if any(one.__name__ in _MISSING for one in classes):
            values = [None if type(one).__name__ in _MISSING else one for one in values]
        if self._from_pandas and any(one.__name__.startswith("float") for one in classes):
            values = [None if type(one).__name__.startswith("float") and one != one else one for one in values]
        return values, classes if values is before else set(map(type, values))

    def _array(self, values: list[Any], classes: set[type], field: pa.Field, path: str) -> Any:
        import pyarrow as pa
        from pyarrow import types

        kind = field.type
        if extension_name(field):
            return self._extension(values, field, path)
        if types.is_dictionary(kind):
            return self.array(values, pa.field(field.name, kind.value_type), path).dictionary_encode().cast(kind)
        if types.is_struct(kind):
            return self._structs(values, kind, path)
        if types.is_map(kind):
            return self._maps(values, kind, path)
        if is_list(kind):
            return self._lists(values, kind, path)
        return _leaf(values, classes, kind, path)

    def _extension(self, values: list[Any], field: pa.Field, path: str) -> Any:
        import pyarrow as pa

        kind, name = field.type, extension_name(field)
        if name == BFLOAT16 and not any(isinstance(one, bytes) for one in values):
            numbers = [one.as_float() if hasattr(one, "as_float") else one for one in values]
            _require_exact(numbers, 8, kind, path)
            return cast(
                _leaf(numbers, set(map(type, numbers)), pa.float64(), path),
                pa.field(path, kind, metadata=field.metadata),
            )
        if tensor_shape(kind) is not None:
            return tensors(values, kind, path)
        if name == UUID:
            values = [uuid_bytes(one) for one in values]
        elif name in JSON:
            values = [json_text(one) for one in values]
        elif name == BLOB:
            import lance

            return cast(lance.blob_array(values), pa.field(path, kind))
        if not isinstance(kind, pa.BaseExtensionType):
            return self.array(values, pa.field(field.name, kind), path)
        storage = self.array(values, pa.field(field.name, kind.storage_type), path)
        return pa.ExtensionArray.from_storage(kind, storage)

    def _structs(self, values: list[Any], kind: pa.DataType, path: str) -> Any:
        import numpy as np
        import pyarrow as pa

        fields = [kind.field(i) for i in range(kind.num_fields)]
        names = [one.name for one in fields]
        rows = [None if one is None else _row(one, names, kind, path) for one in values]
        given = dict.fromkeys(itertools.chain.from_iterable(row for row in rows if row is not None))
        require_known(given, names, path)
        every = self._fill or all(row is None for row in rows)
        kept = [one for one in fields if every or one.name in given]
        children = [
            self.array([None if row is None else row.get(one.name) for row in rows], one, f"{path}.{one.name}")
            for one in kept
        ]
        valid = np.array([row is not None for row in rows], np.bool_)
        made = pa.struct([one.with_type(child.type) for one, child in zip(kept, children, strict=True)])
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        missing = len(rows) - int(valid.sum())
        return pa.Array.from_buffers(made, len(rows), [bits], missing, children=children)

    def _maps(self, values: list[Any], kind: pa.DataType, path: str) -> Any:
        import numpy as np
        import pyarrow as pa

        pairs = [None if one is None else _pairs(one, kind, path) for one in values]
        valid = np.array([one is not None for one in pairs], np.bool_)
        lengths = np.array([len(one or ()) for one in pairs], np.int64)
        entries = [pair for one in pairs if one is not None for pair in one]
        keys = self.array([key for key, _ in entries], kind.key_field, f"{path}.key")
        items = self.array([item for _, item in entries], kind.item_field, f"{path}.value")
        made = pa.map_(kind.key_field, kind.item_field.with_type(items.type), keys_sorted=kind.keys_sorted)
        held = pa.Array.from_buffers(entries_type(made), len(entries), [None], 0, children=[keys, items])
        return lists(made, lengths, valid, held)

    def _lists(self, values: list[Any], kind: pa.DataType, path: str) -> Any:
        import numpy as np
        import pyarrow as pa
        from pyarrow import types

        values = [one if one is None or isinstance(one, list | tuple) else _items(one, kind, path) for one in values]
        valid = np.array([one is not None for one in values], np.bool_)
        lengths = np.array([0 if one is None else len(one) for one in values], np.int64)
        if types.is_fixed_size_list(kind):
            require_size(lengths[valid], kind, _classes(values), path)
        item, inner = kind.value_field, f"{path}[]"
        rows = [one for one in values if one is not None]
        if rows and all(_is_flat(one, getattr(rows[0], "dtype", None)) for one in rows):
            made = cast(from_numpy(np.concatenate(rows), from_pandas=self._from_pandas), item.with_nullable(True))
        else:
            # Without `fill` the type depends on all values.
            parts = [self.array(part, item, inner) for part in (_parts(rows) if self._fill else [_joined(rows)])]
            made = parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else nulls(0, item.type)
        return lists(list_of(kind, item.with_type(made.type)), lengths, valid, made)


def _is_flat(value: Any, kind: Any) -> bool:
    """Whether it is an array of numpy's with one axis and values of this dtype, which are no Python objects."""
    import numpy as np

    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == kind and value.dtype.kind != "O"


def _joined(rows: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(rows))


def _parts(rows: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """The values of these lists, in parts of a bounded size unless a list is longer."""
    start, count = 0, 0
    for place, row in enumerate(rows):
        count += len(row)
        if count >= _VALUES_MAX:
            yield _joined(rows[start : place + 1])
            start, count = place + 1, 0
    if start < len(rows):
        yield _joined(rows[start:])


def _items(value: Any, kind: pa.DataType, path: str) -> Any:
    """The items of a list in any other form: numpy's and pyarrow's arrays, tensors of PyTorch, sets, ..."""
    import numpy as np
    import pyarrow as pa

    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return value if value.ndim else [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return list(value)
    raise misfit(path, kind, type(value).__name__, f"{value!r:.80} is not a list")


def _row(value: Any, names: Sequence[str], kind: pa.DataType, path: str) -> Mapping[Any, Any]:
    """A struct in any form that pyarrow knows: a dict, a tuple, a list of pairs, or a record of numpy."""
    if isinstance(value, Mapping):
        return value
    own = getattr(getattr(value, "dtype", None), "names", None)
    if own:
        return dict(zip(own, value.tolist(), strict=True))
    if isinstance(value, tuple) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    if isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        if len(dict(value)) < len(value):
            raise misfit(path, kind, type(value).__name__, f"{value!r:.80} has a field twice")
        return dict(value)
    raise misfit(path, kind, type(value).__name__, f"{value!r:.80} is not a dict of its fields")


def _pairs(value: Any, kind: pa.DataType, path: str) -> list[tuple[Any, Any]]:
    """The entries of a map in any form: a dict, pairs, or dicts of `key` and `value`."""
    if isinstance(value, Mapping):
        return list(value.items())
    try:
        return [_pair(**one) if isinstance(one, Mapping) else _pair(*one) for one in value]
    except TypeError as error:
        raise misfit(path, kind, type(value).__name__, f"{value!r:.80} is not a dict or a list of pairs") from error


def _pair(key: Any, value: Any) -> tuple[Any, Any]:
    return key, value


def from_numpy(values: Any, *, from_pandas: bool = False) -> Any:
    """A flat array of numpy's as Arrow has it; numbers of type bfloat16 as float32.

    Raises `ValueError` for times that no unit of Arrow can hold.
    """
    import numpy as np
    import pyarrow as pa

    if values.dtype.name == "bfloat16":
        values = values.astype(np.float32)
    if values.dtype.kind in "mM":
        values = _with_unit(values)
    return pa.array(values, from_pandas=from_pandas)


def _with_unit(times: Any) -> Any:
    """An array of times of numpy's in a unit that Arrow has. numpy cuts off, and overflows, in silence."""
    import numpy as np

    unit, _ = np.datetime_data(times.dtype)  # also a number of them: `M8[25s]`
    if unit not in ("s", "ms", "us", "ns"):
        unit = "ns" if unit in ("ps", "fs", "as") else "s"
    made = times.astype(f"{times.dtype.kind}8[{unit}]")
    lost = (made.astype(times.dtype) != times) & ~np.isnat(times)
    if lost.any():
        raise ValueError(f"{times[lost][0]!r} would be changed")
    return made


def _leaf(values: list[Any], classes: set[type], kind: pa.DataType, path: str) -> Any:
    """The array of a type that has no others inside. `classes`: those of the values."""
    import numpy as np
    import pyarrow as pa

    group = family(kind)
    taken = _taken().get(group or "")
    classes = classes - {type(None)}
    if taken is not None:
        for one in classes:
            if not issubclass(one, taken) or (group != "boolean" and issubclass(one, bool | np.bool_)):
                example = next(value for value in values if type(value) is one)
                raise misfit(path, kind, one.__name__, f"{example!r:.80} is of another kind")
    if group in ("date", "timestamp", "duration") and any(issubclass(one, np.generic) for one in classes):
        return cast(_times(values, kind, path), pa.field(path, kind))
    if group is None or group not in _MADE or classes <= _UNCHANGED.get(group, set()):
        return pa.array(values, kind)
    return _MADE[group](values, classes, kind, path)


def _taken() -> dict[str, tuple[type, ...]]:
    """The classes of Python values for each family of types."""
    import numpy as np

    numbers = (int, float, decimal.Decimal, np.integer, np.floating)
    texts = (str, bytes, bytearray, memoryview)
    return {
        "boolean": (bool, np.bool_),
        "integer": numbers,
        "float": numbers,
        "decimal": numbers,
        "text": texts,
        "binary": (*texts, uuid.UUID),
        "date": (datetime.date, np.datetime64),
        "timestamp": (datetime.date, np.datetime64),
        "time": (datetime.time,),
        "duration": (datetime.timedelta, np.timedelta64),
    }


def _integers(values: list[Any], classes: set[type], kind: pa.DataType, path: str) -> Any:
    import numpy as np
    import pyarrow as pa

    if not all(issubclass(one, int | np.integer) for one in classes):
        values = [None if one is None else _whole(one, kind, path) for one in values]
    return pa.array(values, kind)


def _whole(value: Any, kind: pa.DataType, path: str) -> int:
    whole = int(value)  # raises for NaN and infinity
    if whole != value:
        raise _changed(value, kind, path)
    return whole


def _floats(values: list[Any], classes: set[type], kind: pa.DataType, path: str) -> Any:
    import numpy as np
    import pyarrow as pa

    if any(issubclass(one, decimal.Decimal) for one in classes):
        values = [_float(one, kind, path) if isinstance(one, decimal.Decimal) else one for one in values]
    if classes != {float}:
        _require_exact(values, MANTISSA_BITS[kind.bit_width], kind, path)
    if any(issubclass(one, np.floating) for one in classes):
        values = [None if one is None else float(one) for one in values]
    return cast(pa.array(values, pa.float64()), pa.field(path, kind))


def _require_exact(values: list[Any], bits: int, kind: pa.DataType, path: str) -> None:
    """Raise `StagingError` for an integer that a floating-point number with a mantissa of so many bits may not hold."""
    import numpy as np

    if any(issubclass(one, int | np.integer) for one in set(map(type, values))):
        for one in values:
            if isinstance(one, int | np.integer) and not -(2**bits) <= int(one) <= 2**bits:
                raise _changed(one, kind, path)


def _float(value: decimal.Decimal, kind: pa.DataType, path: str) -> float:
    near = nearest(value, kind.bit_width)
    if decimal.Decimal(str(near)) != value:
        raise _changed(value, kind, path)
    return float(near)


def _decimals(values: list[Any], _classes: set[type], kind: pa.DataType, _path: str) -> Any:
    import numpy as np
    import pyarrow as pa

    def plain(value: Any) -> Any:
        if isinstance(value, np.integer):
            return int(value)
        return decimal.Decimal(str(value)) if isinstance(value, float | np.floating) else value

    return pa.array([plain(one) for one in values], kind)


def _binaries(values: list[Any], _classes: set[type], kind: pa.DataType, _path: str) -> Any:
    import pyarrow as pa

    return pa.array([one.bytes if isinstance(one, uuid.UUID) else one for one in values], kind)


def _dates(values: list[Any], _classes: set[type], kind: pa.DataType, path: str) -> Any:
    import pyarrow as pa

    def day(value: Any) -> Any:
        if not isinstance(value, datetime.datetime):
            return value
        fine = (value.hour, value.minute, value.second, value.microsecond, getattr(value, "nanosecond", 0))
        if any(fine) or value.tzinfo is not None:
            raise _changed(value, kind, path)
        return value.date()

    return pa.array([day(one) for one in values], kind)


def _timestamps(values: list[Any], classes: set[type], kind: Any, path: str) -> Any:
    import pyarrow as pa

    def moment(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time())
        if (value.utcoffset() is None) == (kind.tz is not None):
            way = (
                "it has no time zone: set its time zone"
                if kind.tz
                else "the column has no time zone: make it a local time"
            )
            raise misfit(path, kind, type(value).__name__, f"{value!r}: {way} first")
        return value

    if classes == {datetime.datetime} and _zones_are_sure(values, aware=kind.tz is not None):
        moments, unit = values, "us"
    else:
        moments = [moment(one) for one in values]
        unit = "ns" if any(getattr(one, "nanosecond", 0) for one in moments) else "us"
    return cast(pa.array(moments, pa.timestamp(unit, kind.tz)), pa.field(path, kind))


def _zones_are_sure(values: list[Any], *, aware: bool) -> bool:
    """Whether all these datetimes are known to have a time zone (`aware`), or all none, without a look at each."""
    zones = {one.tzinfo for one in values if one is not None}
    return all(isinstance(one, datetime.timezone) if aware else one is None for one in zones)


def _clock(values: list[Any], _classes: set[type], kind: pa.DataType, path: str) -> Any:
    import pyarrow as pa

    for one in values:
        if one is not None and one.tzinfo is not None:
            raise _changed(one, kind, path)
    return cast(pa.array(values, pa.time64("us")), pa.field(path, kind))


def _durations(values: list[Any], _classes: set[type], kind: pa.DataType, path: str) -> Any:
    import pyarrow as pa

    unit = "ns" if any(getattr(one, "nanoseconds", 0) for one in values) else "us"
    return cast(pa.array(values, pa.duration(unit)), pa.field(path, kind))


def _times(values: list[Any], kind: pa.DataType, path: str) -> Any:
    """The array of numpy's times, which have units of their own."""
    import numpy as np

    others = [one for one in values if one is not None and not isinstance(one, np.generic)]
    if others:
        raise misfit(path, kind, _classes(values), "give times of one class")
    empty = next(one for one in values if one is not None).__class__("NaT")
    times = np.array([empty if one is None else one for one in values])  # of the finest unit
    for one, made in zip(values, times, strict=True):
        if one is not None and not np.isnat(one) and made.astype(one.dtype) != one:
            raise _changed(one, kind, path)
    return from_numpy(times)


_UNCHANGED: dict[str, set[type]] = {
    "integer": {int},
    "decimal": {decimal.Decimal},
    "binary": {str, bytes, bytearray, memoryview},
    "date": {datetime.date},
}
"""The classes whose values pyarrow itself takes without a change, or refuses, by families of types."""
_MADE: dict[str, Callable[[list[Any], set[type], Any, str], Any]] = {
    "integer": _integers,
    "float": _floats,
    "decimal": _decimals,
    "binary": _binaries,
    "date": _dates,
    "timestamp": _timestamps,
    "time": _clock,
    "duration": _durations,
}


def _changed(value: Any, kind: pa.DataType, path: str) -> StagingError:
    return misfit(path, kind, type(value).__name__, f"{value!r} would be changed")


def _classes(values: Iterable[Any]) -> str:
    """The names of the values' classes, for a message."""
    return ", ".join(sorted({type(one).__name__ for one in values if one is not None})) or "nulls"
