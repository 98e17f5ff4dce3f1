"""Random values of random types, given to each call in several forms, held against a model and pylance alone.

The model says for each value what the column holds afterwards, or that it is refused; it works on plain Python values
and knows nothing of how the client casts.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import anyio
import lance
import lance.arrow
import numpy as np
import pyarrow as pa
from pyarrow import types

from committerd_client import StagingError, staging
from committerd_client.casting import nulls
from committerd_client.changes import Append, Create, OnLatest, Overwrite, Upsert
from committerd_client.data import rows_of, scalars
from committerd_client.options import NewTable
from committerd_client.table_location import TableLocation
from tests.producers.direct_commit import commit

VERSION: Final = "2.2"  # the first that has maps
DEPTH_MAX = 3
ROWS_MAX = 4
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY = 86_400 * 10**9
BFLOAT16: pa.DataType = lance.arrow.BFloat16Type()  # type: ignore[no-untyped-call]

LEAVES: list[pa.DataType] = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.decimal128(5, 2), pa.decimal128(20, 0), pa.decimal128(38, 10), pa.decimal256(50, 3)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(2), pa.binary(16)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in NANOSECONDS),
    *(pa.timestamp(unit, zone) for unit, zone in (("us", "UTC"), ("ms", "Europe/Berlin"), ("ns", "+02:00"))),
    *(pa.duration(unit) for unit in NANOSECONDS),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())),
    *(pa.uuid(), pa.json_(), BFLOAT16, pa.fixed_shape_tensor(pa.float32(), (1, 2)), pa.null()),
]
WIDER = {
    "integer": [one for one in LEAVES if types.is_integer(one)],
    "float": [one for one in LEAVES if types.is_floating(one)],
    "number": [one for one in LEAVES if types.is_integer(one) or types.is_floating(one) or types.is_decimal(one)],
    "text": [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.string())],
    "time": [one for one in LEAVES if types.is_temporal(one)],
}
"""Types among which a source and a target are often chosen."""


class Refused(Exception):
    """The model's: the value does not fit."""


# types


def any_type(rng: random.Random, depth: int = 0) -> pa.DataType:
    """A random type; nested ones are rarer with the depth."""
    if depth >= DEPTH_MAX or rng.random() < 0.55:
        return rng.choice([one for one in LEAVES if not types.is_null(one)])
    inner = any_type(rng, depth + 1)
    match rng.randrange(5):
        case 0:
            return pa.list_(inner)
        case 1:
            return pa.large_list(inner)
        case 2:
            return pa.list_(inner, rng.randint(1, 3))
        case 3:
            return pa.map_(rng.choice((pa.string(), pa.int32())), inner)
        case _:
            return pa.struct([(name, any_type(rng, depth + 1)) for name in rng.sample("abcd", rng.randint(1, 3))])


def source_of(rng: random.Random, target: pa.DataType, depth: int = 0) -> pa.DataType:
    """A type of rows that go to a column of the type `target`: often one that fits."""
    chance = rng.random()
    if chance < 0.03:
        return any_type(rng, depth)
    if isinstance(target, pa.BaseExtensionType) or types.is_dictionary(target) or not target.num_fields:
        return _leaf_source(rng, target)
    if types.is_struct(target):
        fields = [(one.name, source_of(rng, one.type, depth + 1)) for one in target]
        rng.shuffle(fields)
        if chance < 0.12:
            fields.append(("extra", rng.choice(LEAVES)))
        elif chance < 0.25 and len(fields) > 1:
            fields.pop()
        return pa.struct(fields)
    if types.is_map(target):
        return pa.map_(source_of(rng, target.key_type, depth + 1), source_of(rng, target.item_type, depth + 1))
    inner = source_of(rng, target.value_type, depth + 1)
    size = getattr(target, "list_size", 2) + (chance > 0.95)
    return rng.choice([pa.list_(inner), pa.large_list(inner), pa.list_(inner, size)])


def _leaf_source(rng: random.Random, target: pa.DataType) -> pa.DataType:
    if rng.random() < 0.3:
        return target
    kin = [kinds for kinds in WIDER.values() if target in kinds]
    if isinstance(target, pa.BaseExtensionType):
        kin = {
            "arrow.uuid": [[pa.string(), pa.binary(16), pa.binary()]],
            "arrow.json": [[pa.string(), pa.large_string()]],
            "lance.bfloat16": [WIDER["float"], WIDER["integer"]],
        }.get(target.extension_name, [[pa.list_(pa.float64()), pa.list_(pa.int64(), 2)]])
    return rng.choice(rng.choice(kin)) if kin else target


# values


def values_of(rng: random.Random, kind: pa.DataType, count: int, *, nulls: bool = True) -> pa.Array:
    """A random array of the type. What is below a null is random too."""
    valid = [not nulls or rng.random() > 0.2 for _ in range(count)]
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.json":
            return pa.array([any_json(rng) if one else None for one in valid], kind)
        return pa.ExtensionArray.from_storage(kind, values_of(rng, kind.storage_type, count, nulls=nulls))
    if types.is_dictionary(kind):
        return values_of(rng, kind.value_type, count, nulls=nulls).dictionary_encode().cast(kind)
    if types.is_struct(kind):
        children = [values_of(rng, one.type, count) for one in kind]
        return pa.Array.from_buffers(kind, count, [_bits(valid)], children=children)
    if types.is_map(kind):
        entries = values_of(rng, kind.key_type, sum(sizes := [rng.randint(0, 2) for _ in valid]), nulls=False)
        items = values_of(rng, kind.item_type, sum(sizes))
        held = pa.StructArray.from_arrays([entries, items], fields=[kind.key_field, kind.item_field])
        return _of_lists(kind, sizes, valid, held)
    if types.is_fixed_size_list(kind):
        items = values_of(rng, kind.value_type, count * kind.list_size)
        return pa.Array.from_buffers(kind, count, [_bits(valid)], children=[items])
    if types.is_list(kind) or types.is_large_list(kind):
        sizes = [rng.choice((0, 1, 2, 2, 2, 3)) for _ in valid]
        return _of_lists(kind, sizes, valid, values_of(rng, kind.value_type, sum(sizes)))
    return pa.array([any_value(rng, kind) if one else None for one in valid], kind)


def _of_lists(kind: pa.DataType, sizes: list[int], valid: list[bool], values: pa.Array) -> pa.Array:
    offsets = np.cumsum([0, *sizes]).astype(np.int64 if types.is_large_list(kind) else np.int32)
    return pa.Array.from_buffers(kind, len(sizes), [_bits(valid), pa.py_buffer(offsets.tobytes())], children=[values])


def _bits(valid: list[bool]) -> Any:
    return pa.py_buffer(np.packbits(np.array(valid, np.bool_), bitorder="little").tobytes())


def any_value(rng: random.Random, kind: Any) -> Any:
    """A random value of a type without others inside, as `pa.array` takes it; times are numbers of their unit."""
    if types.is_null(kind):
        return None
    if types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        high = low + 2**kind.bit_width - 1
        near = [
            0,
            1,
            2,
            7,
            -1,
            127,
            128,
            255,
            256,
            257,
            2048,
            2049,
            2**24,
            2**24 + 1,
            2**31,
            2**53,
            2**53 + 1,
            low,
            high,
        ]
        return rng.choice([one for one in near if low <= one <= high])
    if types.is_floating(kind):
        plain = [0.0, -0.0, 1.0, 2.0, -7.0, 1.5, 0.1, 1.555, 255.0, 65504.0, float("nan"), float("inf"), float("-inf")]
        wide = [70000.0, 1e30] * (kind.bit_width >= 32) + [1e300, 1e-300, 2.0**53] * (kind.bit_width == 64)
        value = rng.choice(plain + wide)
        return np.float16(value) if kind.bit_width == 16 else value
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if types.is_decimal(kind):
        digits = rng.choice([0, 1, 150, 155, 1555, 10**kind.scale, 7 * 10**kind.scale, 10 ** (kind.precision - 1)])
        return Decimal(digits % 10**kind.precision).scaleb(-kind.scale)
    if types.is_string(kind) or types.is_large_string(kind):
        return rng.choice(["", "a", "ab", "é", "007", "1.5", "true", "2026-01-01", str(uuid.UUID(int=7)), '{"a": [1]}'])
    if types.is_binary(kind) or types.is_large_binary(kind):
        return rng.choice([b"", b"ab", b"\xff", "é".encode(), bytes(16)])
    if types.is_fixed_size_binary(kind):
        return rng.choice([b"ab", b"\xff\xfe", "é".encode()]) * (kind.byte_width // 2)
    if types.is_date32(kind):
        return rng.choice([0, 20_000, -1])
    if types.is_date64(kind):
        return rng.choice([0, 20_000, -1]) * 86_400_000
    if types.is_time(kind):
        ns = rng.choice([0, 3661 * 10**9, 3661 * 10**9 + 10**6, 3661 * 10**9 + 10**3])
        return ns // NANOSECONDS[kind.unit]
    ns = rng.choice([0, 20_000 * DAY, 20_000 * DAY + 1, 20_000 * DAY + 10**3, 20_000 * DAY + 10**6, DAY // 2, -(10**9)])
    far = 2_800_000 * DAY if kind.unit != "ns" and rng.random() < 0.2 else 0
    return (ns + far) // NANOSECONDS[kind.unit]


def any_json(rng: random.Random, depth: int = 0) -> str:
    """A random text of JSON."""

    def value(depth: int) -> Any:
        match rng.randrange(7 if depth < 3 else 5):
            case 0:
                return rng.choice([0, -1, 2**63 - 1, 2**64 - 1, -(2**63)])
            case 1:
                return rng.choice([0.5, 1e300, 0.1])
            case 2:
                return rng.choice(["", "é", 'a"b'])
            case 3:
                return None
            case 4:
                return rng.random() < 0.5
            case 5:
                return [value(depth + 1) for _ in range(rng.randrange(3))]
            case _:
                return {name: value(depth + 1) for name in rng.sample("abc", rng.randrange(3))}

    return json.dumps(value(depth))


def facts(array: pa.Array) -> list[Any]:
    """The values as plain Python values that can be compared; times as nanoseconds."""
    return [fact(one) for one in array]


def fact(value: Any) -> Any:
    kind = value.type
    if not value.is_valid:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        stored = fact(value.value)
        return json.loads(stored) if kind.extension_name == "arrow.json" else stored
    if types.is_dictionary(kind):
        return value.as_py()
    if types.is_struct(kind):
        return {one.name: fact(value[one.name]) for one in kind}
    if types.is_map(kind):
        return [(fact(entry[0]), fact(entry[1])) for entry in _entries(value.values)]
    if types.is_nested(kind):
        return [fact(one) for one in value.values]
    if types.is_floating(kind):
        return Float(float(value.as_py()))
    if types.is_date32(kind):
        return value.value * DAY
    if types.is_date64(kind):
        return value.value * 10**6
    if types.is_temporal(kind):
        return value.value * NANOSECONDS[kind.unit]
    return value.as_py()


def _entries(entries: pa.StructArray) -> Iterator[tuple[Any, Any]]:
    return zip(entries.field(0), entries.field(1), strict=True)


class Float(float):
    """A float that equals another one if it is the same: NaN equals NaN, and 0.0 does not equal -0.0."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and repr(float(self)) == repr(float(other))

    def __hash__(self) -> int:
        return hash(repr(float(self)))


# the model


@dataclass
class Model:
    """What a column holds after it was given values of the type `source`."""

    of_arrow: bool
    """Whether the source's types count, as they do for Arrow arrays; otherwise only the values."""

    def stored(self, values: list[Any], source: pa.DataType, target: pa.DataType) -> list[Any]:
        """Raises `Refused`."""
        if self.of_arrow:
            self._require_types(source, target)
        return [self._value(one, source, target) for one in values]

    def _require_types(self, source: pa.DataType, target: pa.DataType) -> None:
        source, target = _plain(source), _plain(target)
        if types.is_null(source) or source == target:
            return
        if types.is_struct(source) and types.is_struct(target):
            names = [one.name for one in target]
            for one in source:
                if one.name not in names:
                    raise Refused
                self._require_types(one.type, target.field(one.name).type)
        elif types.is_map(source) and types.is_map(target):
            self._require_types(source.key_type, target.key_type)
            self._require_types(source.item_type, target.item_type)
        elif _is_list(source) and _is_list(target):
            self._require_types(source.value_type, target.value_type)
        elif isinstance(target, pa.BaseExtensionType) and not isinstance(source, pa.BaseExtensionType):
            self._value(None, source, target)
            if not _extension_takes(source, target):
                raise Refused
        elif (kind_of(source), kind_of(target)) not in WAYS or _of_other_zones(source, target):
            raise Refused

    def _value(self, value: Any, source: pa.DataType, target: pa.DataType) -> Any:
        source, target = _plain(source), _plain(target)
        if value is None:
            return None
        if isinstance(target, pa.BaseExtensionType):
            return self._of_extension(value, source, target)
        if isinstance(source, pa.BaseExtensionType):
            if source.extension_name == "arrow.uuid" and kind_of(target) == "text":
                raise Refused
            return self._value(_text(value, source), source.storage_type, target)
        if types.is_struct(target):
            if not types.is_struct(source) or set(value) - {one.name for one in target}:
                raise Refused
            given = {one.name: one.type for one in source}
            return {
                one.name: self._value(value[one.name], given[one.name], one.type) if one.name in given else None
                for one in target
            }
        if types.is_map(target):
            if not types.is_map(source):
                raise Refused
            return [
                (
                    self._value(key, source.key_type, target.key_type),
                    self._value(item, source.item_type, target.item_type),
                )
                for key, item in value
            ]
        if _is_list(target):
            if not _is_list(source) or len(value) != getattr(target, "list_size", len(value)):
                raise Refused
            return [self._value(one, source.value_type, target.value_type) for one in value]
        way = (kind_of(source), kind_of(target))
        if way not in WAYS:
            raise Refused
        return self._leaf(value, source, target)

    def _of_extension(self, value: Any, source: Any, target: Any) -> Any:
        if isinstance(source, pa.BaseExtensionType):
            if source.extension_name != target.extension_name:
                raise Refused
            return value
        name = target.extension_name
        try:
            if name == "arrow.uuid" and kind_of(source) == "text":
                return uuid.UUID(value).bytes
            if name == "arrow.uuid" and isinstance(value, bytes) and len(value) == 16:
                return value
            if name == "arrow.json" and isinstance(value, str | bytes):
                return json.loads(value, parse_constant=_no_constant)
        except ValueError:
            raise Refused from None
        if name == "lance.bfloat16" and kind_of(source) in ("integer", "float"):
            if isinstance(value, int) and abs(value) > 256:
                raise Refused
            (stored,) = lance.arrow.bfloat16_array([float(value)]).storage.to_pylist()
            if np.isfinite(float(value)) and stored[0] & 0x80 and stored[1] & 0x7F == 0x7F:
                raise Refused
            return stored
        if name == "arrow.fixed_shape_tensor" and _is_list(source) and len(value) == 2:
            return [self._value(one, source.value_type, target.value_type) for one in value]
        raise Refused

    def _leaf(self, value: Any, source: Any, target: Any) -> Any:
        match kind_of(target):
            case "integer":
                if not isinstance(value, int):
                    if (isinstance(value, float) and not np.isfinite(value)) or int(value) != value:
                        raise Refused
                    value = int(value)
                low = 0 if types.is_unsigned_integer(target) else -(2 ** (target.bit_width - 1))
                return _within(value, low, low + 2**target.bit_width - 1)
            case "float":
                return self._float(value, target.bit_width)
            case "decimal":
                return self._decimal(value, source, target)
            case "text":
                return value if isinstance(value, str) else _decoded(value)
            case "binary":
                value = value.encode() if isinstance(value, str) else value
                if types.is_fixed_size_binary(target) and len(value) != target.byte_width:
                    raise Refused
                return value
            case "date":
                if _of_other_zones(source, target):
                    raise Refused
                return _whole(value, DAY, 32 if types.is_date32(target) else 64)
            case "time" | "timestamp" | "duration":
                if _of_other_zones(source, target):
                    raise Refused
                return _whole(value, NANOSECONDS[target.unit], target.bit_width)
            case _:
                return value

    def _float(self, value: Any, bits: int) -> Float:
        if isinstance(value, int):
            most = 2 ** {16: 11, 32: 24, 64: 53}[bits]
            return Float(_within(value, -most, most))
        with np.errstate(over="ignore"):
            made = np.dtype(f"f{bits // 8}").type(value)
        if np.isinf(made) and np.isfinite(float(value)):
            raise Refused
        if isinstance(value, Decimal) and Decimal(str(made)) != value:
            raise Refused
        return Float(float(made))

    def _decimal(self, value: Any, source: Any, target: Any) -> Decimal:
        if isinstance(value, float):
            if not np.isfinite(value):
                raise Refused
            width = source.bit_width if self.of_arrow else 64  # Python has doubles alone
            value = Decimal(str(np.dtype(f"f{width // 8}").type(value)))
        digits = Decimal(value).scaleb(target.scale)
        if digits != int(digits):
            raise Refused
        _within(int(digits), -(10**target.precision) + 1, 10**target.precision - 1)
        return Decimal(value)


def _of_other_zones(source: Any, target: Any) -> bool:
    return (getattr(source, "tz", None) is None) != (getattr(target, "tz", None) is None)


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise Refused
    return value


def _whole(value: int, unit: int, bits: int) -> int:
    if value % unit:
        raise Refused
    _within(value // unit if unit != DAY or bits == 32 else value // 10**6, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return value


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Refused from None


def _no_constant(_: str) -> Any:
    raise ValueError


def _text(value: Any, source: Any) -> Any:
    return json.dumps(value) if source.extension_name == "arrow.json" else value


def _plain(kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _extension_takes(source: pa.DataType, target: Any) -> bool:
    name = target.extension_name
    if name == "arrow.fixed_shape_tensor":
        return _is_list(source) and kind_of(source.value_type) in ("integer", "float", "decimal")
    return (
        kind_of(source)
        in {
            "arrow.uuid": ("text", "binary"),
            "arrow.json": ("text", "binary"),
            "lance.bfloat16": ("integer", "float"),
        }[name]
    )


def kind_of(kind: Any) -> str:
    """What kind of values a type has."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind_of(kind.storage_type)
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "binary"
    tests = {
        "integer": types.is_integer,
        "float": types.is_floating,
        "decimal": types.is_decimal,
        "date": types.is_date,
    }
    return next((name for name, test in tests.items() if test(kind)), str(kind).partition("[")[0].rstrip("3264"))


NUMBERS = ("integer", "float", "decimal")
WAYS = {
    *itertools.product(NUMBERS, NUMBERS),
    *itertools.product(("text", "binary"), ("text", "binary")),
    *itertools.product(("date", "timestamp"), ("date", "timestamp")),
    *((one, one) for one in ("bool", "time", "timestamp", "duration", "date", "null")),
}
"""From which kind to which values go."""


# a run


@dataclass
class Column:
    """A column of a table, and what it is given."""

    target: pa.DataType
    source: pa.DataType
    given: pa.Array

    def expected(self, *, of_arrow: bool) -> list[Any] | None:
        """The values that the table holds afterwards; None if they are refused."""
        try:
            return Model(of_arrow).stored(facts(self.given), self.source, self.target)
        except Refused:
            return None

    def __str__(self) -> str:
        return f"{self.source} to {self.target}: {self.given.to_string() if len(self.given) else 'nothing'}"


def run(seed: int, folder: Path) -> Counter[str]:
    """Give random rows to every call, as Arrow and as Python values: what came of it.

    Raises `AssertionError` for a difference.
    """
    rng = random.Random(seed)
    outcomes = Counter[str]()
    count = rng.randint(1, ROWS_MAX)
    columns = dict(_columns(rng, count, folder, outcomes))
    for form in ("Arrow", "Python"):
        rows = _rows(columns, count, form)
        if rows is None:
            outcomes["no Python values"] += 1
            continue
        for call in ("append", "upsert", "create", "overwrite"):
            place = TableLocation(uri=str(folder / f"{form}-{call}"))
            told = f"{call} of {form} values of\n" + "\n".join(map(str, columns.values()))
            outcomes[_held(place, call, rows, columns, told)] += 1
    first = {name: replace(one, given=one.given.slice(0, 1)) for name, one in columns.items()}
    if (values := _rows(first, 1, "Python")) is not None:
        outcomes[_held(TableLocation(uri=str(folder / "update")), "update", values, first, f"update of {first}")] += 1
    outcomes[_pylance_alone(columns, count, folder / "pylance")] += 1
    return outcomes


def _columns(rng: random.Random, count: int, folder: Path, outcomes: Counter[str]) -> Iterator[tuple[str, Column]]:
    for number in range(rng.choice((1, 1, 2, 3))):
        target = any_type(rng)
        alone = (values_of(rng, target, 3), nulls(1, target))
        if not all(_kept_by_pylance(one, folder / f"alone-{number}") for one in alone):
            outcomes["pylance alone does not keep the type"] += 1
            continue
        source = source_of(rng, target)
        skipped = rng.randrange(2)
        yield f"c{number}", Column(target, source, values_of(rng, source, count + skipped).slice(skipped))


def _kept_by_pylance(values: pa.Array, place: Path) -> bool:
    try:
        rows = _table({"id": pa.array(range(len(values))), "c": values})
        made = lance.write_dataset(rows, str(place), data_storage_version=VERSION)
        return _read(made, "c") == facts(values) and made.to_table().num_rows == len(values)
    except BaseException as error:  # a panic of pylance is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _table(columns: dict[str, pa.Array]) -> pa.Table:
    return pa.Table.from_batches([pa.record_batch(list(columns.values()), list(columns))])


def _read(dataset: lance.LanceDataset, name: str) -> list[Any]:
    return [one for chunk in dataset.to_table(columns=[name])[name].chunks for one in facts(chunk)]


def _rows(columns: dict[str, Column], count: int, form: str) -> Any:
    ids = list(range(count))
    if form == "Arrow":
        return _table({"id": pa.array(ids), **{name: one.given for name, one in columns.items()}})
    try:
        values = {name: one.given.to_pylist() for name, one in columns.items()}
    except (ValueError, OverflowError, NotImplementedError):
        return None
    return [{"id": row, **{name: one[row] for name, one in values.items()}} for row in ids]


def _held(place: TableLocation, call: str, rows: Any, columns: dict[str, Column], told: str) -> str:
    expected = {name: one.expected(of_arrow=isinstance(rows, pa.Table)) for name, one in columns.items()}
    kept = all(values is not None for values in expected.values())
    schema = pa.schema([("id", pa.int64()), *((name, one.target) for name, one in columns.items())])
    try:
        staged = CALLS[call](place, rows, schema)
    except StagingError as error:
        if call == "upsert" and "pylance can't merge this part of a column" in str(error):
            return "pylance can't merge it"
        if kept or error.code != "schema_differs":
            raise AssertionError(f"{error}: {told}") from error
        return "refused"
    assert kept, f"the table took what does not fit: {told}"
    anyio.run(commit, place.uri, staged)
    made = lance.dataset(place.uri)
    assert made.schema.types == schema.types, told
    for name, values in expected.items():
        found = _read(made, name)
        assert found == values, f"{name} has {found}, and not {values}: {told}"
    return "kept"


def _pylance_alone(columns: dict[str, Column], count: int, place: Path) -> str:
    """pylance never stores another value than the model says, where the model keeps the value."""
    rows = _rows(columns, count, "Python")
    schema = pa.schema([("id", pa.int64()), *((name, one.target) for name, one in columns.items())])
    try:
        made = lance.write_dataset(pa.Table.from_pylist(rows, schema=schema), str(place), data_storage_version=VERSION)
    except BaseException as error:  # a panic of pylance is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return "pylance alone refuses"
    for name, one in columns.items():
        values = one.expected(of_arrow=False)
        if values is None:
            return "pylance alone stores what we refuse"
        found = _read(made, name)
        assert found == values, f"pylance alone stores {found}, and not {values}: {one}"
    return "pylance alone stores the same"


def _empty(place: TableLocation, schema: pa.Schema, rows: int = 0) -> TableLocation:
    made = [pa.array(range(rows), pa.int64()), *(nulls(rows, one.type) for one in list(schema)[1:])]
    lance.write_dataset(
        pa.Table.from_batches([pa.record_batch(made, schema=schema)]), place.uri, data_storage_version=VERSION
    )
    return place


def _update(place: TableLocation, rows: Any, schema: pa.Schema) -> Any:
    _empty(place, schema, rows=1)
    return OnLatest(place, lambda table: staging.update(table, dict(scalars(rows[0], table.schema))))()


CALLS: dict[str, Callable[[TableLocation, Any, pa.Schema], Any]] = {
    "append": lambda place, rows, schema: Append(place=_empty(place, schema), rows=rows_of(rows))(),
    "upsert": lambda place, rows, schema: Upsert(
        place=_empty(place, schema), rows=rows_of(rows), on=["id"], clauses={}
    )(),
    "create": lambda place, rows, schema: Create(
        place=place, rows=rows_of(rows), schema=schema, new_table=NewTable(data_storage_version=VERSION)
    )(),
    "overwrite": lambda place, rows, schema: Overwrite(
        place=_empty(place, schema), rows=rows_of(rows), schema=schema
    )(),
    "update": _update,
}
