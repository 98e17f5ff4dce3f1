"""Values, the types in which they are given, and the types of the columns that they go to."""

# ruff: noqa: DTZ001  # columns without a time zone have values without one

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import lance.arrow
import numpy as np
import pandas as pd
import pyarrow as pa

UTC = datetime.timezone.utc  # noqa: UP017  # the client runs on Python 3.10
NOON = datetime.datetime(2026, 3, 29, 12, 0, 0, 1)
AWARE = NOON.replace(tzinfo=UTC)
DAY, MIDNIGHT = datetime.date(2026, 3, 29), datetime.datetime(2026, 3, 29)
SECONDS, MICROS = datetime.timedelta(seconds=2), datetime.timedelta(seconds=1, microseconds=1)
BFLOAT16: pa.DataType = lance.arrow.BFloat16Type()  # type: ignore[no-untyped-call]
TENSOR = pa.fixed_shape_tensor(pa.float32(), (2, 2))
ID = uuid.UUID("8e793cab-cc2f-42c5-a083-85b7c30eb5e1")
NANOSECOND = pd.Timestamp("2026-03-29 12:00:00.000000001")
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Case:
    """A value for a column."""

    value: Any
    """In Python."""
    source: pa.DataType | None
    """The type of the Arrow array that has the value; None = Python alone can give it."""
    target: pa.DataType
    """The type of the column."""
    stored: Any = None
    """What is read back. The column of an extension type yields what it stores."""
    at: str | None = None
    """If the value is refused: the place in the column, as in `.a` or `[]`."""

    def __str__(self) -> str:
        return f"{self.value!r:.40} {self.source or 'in Python'} to {self.target}"

    @property
    def refused(self) -> bool:
        return self.at is not None

    def given(self) -> pa.Array:
        """The value and a null, in an Arrow array of the source's type."""
        if isinstance(self.source, pa.BaseExtensionType):
            value: Any = self.value.bytes if isinstance(self.value, uuid.UUID) else self.value
            value = [item for row in value for item in row] if self.source == TENSOR_64 else value
            return pa.ExtensionArray.from_storage(self.source, pa.array([value, None], self.source.storage_type))
        value = np.float16(self.value) if self.source == pa.float16() else self.value
        return pa.array([value, None], self.source)


def struct(**kinds: pa.DataType) -> pa.DataType:
    return pa.struct(list(kinds.items()))


TENSOR_64 = pa.fixed_shape_tensor(pa.float64(), (2, 2))
FLAT, SQUARE = [1.0, 2.0, 3.0, 4.0], [[1.0, 2.0], [3.0, 4.0]]


def _same(value: Any, source: pa.DataType | None, *targets: pa.DataType) -> list[Case]:
    return [Case(value, source, target, stored=value) for target in targets]


def _refused(value: Any, source: pa.DataType | None, *targets: pa.DataType, at: str = "") -> list[Case]:
    return [Case(value, source, target, at=at) for target in targets]


I8, I16, I32, I64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
U8, U64 = pa.uint8(), pa.uint64()
F16, F32, F64 = pa.float16(), pa.float32(), pa.float64()
TEXT, BYTES = pa.string(), pa.binary()

CASES: list[Case] = [
    # numbers
    *_same(-128, I64, I8, I16, I32, F16, F32, F64, pa.decimal128(5, 2), pa.decimal256(50, 2)),
    *_same(255, I16, U8, pa.uint16(), pa.uint32(), U64),
    *_same(2**63 - 1, U64, I64, pa.decimal128(19, 0)),
    *_same(2**53, I64, F64),
    *_same(-(2**24), I32, F32),
    *_same(2048, I64, F16),
    *_refused(2049, I64, F16),
    *_refused(2**24 + 1, I64, F32),
    *_refused(2**53 + 1, I64, F64, F32, I32),
    *_refused(-1, I64, U8, U64),
    *_refused(2**63, U64, I64, pa.decimal128(5, 2)),
    *_refused(2**70, None, I64, U64, F64),
    *_refused(1000, I64, I8, pa.decimal128(3, 2)),
    *_same(2.0, F64, I8, U64, F16, F32, pa.decimal128(5, 2)),
    *_same(1.5, F16, F32, F64),
    *_same(1.5, F32, F16),
    *_same(INF, F64, F16, F32),
    *_same(-0.0, F64, F16, F32),
    *_refused(1.5, F64, I8, I32, U64),
    *_refused(1.5, F32, I32),
    *_refused(1.5, F16, I32),
    *_refused(NAN, F64, I32, pa.decimal128(5, 2)),
    *_refused(INF, F64, I32, pa.decimal128(5, 2)),
    *_refused(1e300, F64, F16, F32, I64, pa.decimal128(38, 2)),
    *_refused(70000.0, F32, F16),
    Case(0.1, F64, F32, stored=float(np.float32(0.1))),
    Case(0.1, F64, F16, stored=float(np.float16(0.1))),
    Case(1e-300, F64, F32, stored=0.0),
    Case(1.1, F64, pa.decimal128(5, 2), stored=Decimal("1.10")),
    *_refused(1.555, F64, pa.decimal128(5, 2)),
    *_same(Decimal("7.00"), pa.decimal128(5, 2), I8, F32, pa.decimal128(3, 2), pa.decimal256(50, 0)),
    *_same(Decimal("1.50"), pa.decimal128(5, 2), F16, F64, pa.decimal128(5, 1)),
    Case(Decimal("0.1"), pa.decimal128(5, 1), F32, stored=float(np.float32(0.1))),
    *_refused(Decimal("1.5"), pa.decimal128(5, 2), I32, pa.decimal128(5, 0)),
    *_refused(Decimal("1.555"), pa.decimal128(5, 3), pa.decimal128(5, 2)),
    *_refused(Decimal("123.45"), pa.decimal128(5, 2), pa.decimal128(4, 2)),
    *_refused(Decimal("1.12345678901234567890"), pa.decimal128(38, 20), F64, F32),
    *_refused(Decimal("NaN"), None, pa.decimal128(5, 2), F64),
    # of another kind
    *_same(True, pa.bool_(), pa.bool_()),
    *_refused(True, pa.bool_(), I8, F64, TEXT, pa.decimal128(5, 2)),
    *_refused(5, I64, pa.bool_(), TEXT, BYTES, pa.timestamp("us"), pa.date32(), pa.duration("s")),
    *_refused(1, I64, pa.bool_(), pa.list_(I64)),
    *_refused("007", TEXT, I64, F64, pa.decimal128(5, 2), pa.bool_(), pa.date32(), pa.list_(TEXT)),
    *_refused("2026-03-29", TEXT, pa.date32(), pa.timestamp("us")),
    *_refused({"a": 1}, struct(a=I64), I64, pa.list_(I64), TEXT),
    *_refused([1], pa.list_(I64), I64, TEXT, struct(a=I64)),
    # text and bytes
    *_same("é", TEXT, pa.large_string(), pa.dictionary(I8, TEXT), pa.dictionary(pa.uint32(), pa.large_string())),
    *_same("é", pa.dictionary(I64, TEXT), TEXT, pa.dictionary(I8, pa.large_string())),
    Case("é", TEXT, BYTES, stored="é".encode()),
    Case("é".encode(), BYTES, TEXT, stored="é"),
    Case(b"abc", pa.binary(3), TEXT, stored="abc"),
    *_same(b"\xff\x00a", BYTES, pa.large_binary(), pa.binary(3)),
    *_same(b"\xff\x00a", pa.binary(3), BYTES, pa.large_binary()),
    *_refused(b"\xff\xfe", BYTES, TEXT, pa.large_string(), pa.binary(3)),
    *_refused(b"\xff\xfe", pa.binary(2), TEXT, pa.binary(3)),
    *_refused("\ud800", None, TEXT),
    # times
    Case(DAY, pa.date32(), pa.date64(), stored=DAY),
    Case(DAY, pa.date32(), pa.timestamp("ms"), stored=MIDNIGHT),
    Case(MIDNIGHT, pa.timestamp("us"), pa.date32(), stored=DAY),
    Case(MIDNIGHT, pa.timestamp("us"), pa.date64(), stored=DAY),
    *_same(NOON, pa.timestamp("us"), pa.timestamp("ns")),
    *_same(NOON.replace(microsecond=0), pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("ms")),
    *_refused(NOON, pa.timestamp("us"), pa.date32(), pa.date64(), pa.timestamp("ms"), pa.timestamp("s")),
    *_refused(datetime.datetime(2026, 1, 1, 23, 30), pa.timestamp("s"), pa.date32(), pa.time32("s")),
    *_refused(datetime.datetime(9999, 1, 1), pa.timestamp("us"), pa.timestamp("ns")),
    *_refused(NANOSECOND, pa.timestamp("ns"), pa.timestamp("us"), pa.date32()),
    *_same(AWARE, pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "+02:00")),
    *_refused(AWARE, pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32()),
    *_refused(MIDNIGHT, pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *_refused(DAY, pa.date32(), pa.timestamp("us", "UTC"), I32),
    *_same(datetime.time(1, 2, 3), pa.time64("us"), pa.time32("s"), pa.time32("ms"), pa.time64("ns")),
    *_refused(datetime.time(1, 2, 3, 4), pa.time64("us"), pa.time32("s"), pa.time32("ms"), I64),
    *_refused(datetime.time(1, tzinfo=UTC), None, pa.time64("us")),
    *_same(SECONDS, pa.duration("us"), pa.duration("s"), pa.duration("ms"), pa.duration("ns")),
    *_refused(MICROS, pa.duration("us"), pa.duration("s"), pa.duration("ms"), I64, pa.time64("us")),
    *_refused(pd.Timedelta(1), pa.duration("ns"), pa.duration("us")),
    # lists
    *_same([1, None], pa.list_(I64), pa.large_list(I8), pa.list_(F16), pa.list_(I8, 2)),
    *_same([1, 2], pa.list_(I64, 2), pa.list_(F32, 2), pa.list_(F16), pa.large_list(pa.decimal128(3, 1))),
    *_same([[1], None, []], pa.list_(pa.list_(I64)), pa.large_list(pa.list_(I8))),
    *_refused([1.0, 2.0, 3.0], pa.list_(F64), pa.list_(F32, 2)),
    *_refused([1.0, 2.0, 3.0], pa.list_(F64, 3), pa.list_(F64, 2)),
    *_refused([1e300], pa.list_(F64), pa.list_(F32), pa.list_(F16, 1), at="[]"),
    *_refused([[1.5]], pa.list_(pa.list_(F64)), pa.list_(pa.large_list(I8)), pa.list_(pa.list_(I8, 1), 1), at="[][]"),
    # structs
    Case({"b": "x", "a": 1}, struct(b=TEXT, a=I64), struct(a=I8, b=TEXT), stored={"a": 1, "b": "x"}),
    Case({"a": 1}, struct(a=I64), struct(b=struct(x=I8), a=I64), stored={"b": None, "a": 1}),
    Case([{"a": 1}, None], pa.list_(struct(a=I64)), pa.list_(struct(a=I8, b=I8)), stored=[{"a": 1, "b": None}, None]),
    *_refused({"a": 1, "extra": 9}, struct(a=I64, extra=I64), struct(a=I64), struct(a=I64, b=TEXT), at=".extra"),
    *_refused({"a": 1, "extra": None}, struct(a=I64, extra=I64), struct(a=I64), at=".extra"),
    *_refused({"a": {"x": 1}}, struct(a=struct(x=I64)), struct(a=struct(y=I64)), at=".a.x"),
    *_refused([{"a": 1, "extra": 9}], pa.list_(struct(a=I64, extra=I64)), pa.list_(struct(a=I64)), at="[].extra"),
    *_refused([{"a": 1, "extra": 9}], pa.list_(struct(a=I64, extra=I64)), pa.list_(struct(a=I8), 1), at="[].extra"),
    *_refused({"a": 1e300}, struct(a=F64), struct(a=F32), struct(a=F16, b=I8), at=".a"),
    *_refused({"a": [1.5]}, struct(a=pa.list_(F64)), struct(a=pa.list_(I64)), at=".a[]"),
    *_refused({"a": MIDNIGHT.replace(hour=23)}, struct(a=pa.timestamp("us")), struct(a=pa.date32()), at=".a"),
    # maps
    *_same([("a", 1)], pa.map_(TEXT, I64), pa.map_(pa.large_string(), I8), pa.map_(TEXT, F32)),
    Case([{"value": 1, "key": "a"}], pa.list_(struct(value=I64, key=TEXT)), pa.map_(TEXT, I8), stored=[("a", 1)]),
    *_refused([("a", 1.5)], pa.map_(TEXT, F64), pa.map_(TEXT, I8), at=".value"),
    *_refused([(1.5, 1)], pa.map_(F64, I8), pa.map_(I8, I8), at=".key"),
    *_refused([("a", {"x": 1, "extra": 1})], pa.map_(TEXT, struct(x=I8, extra=I8)), pa.map_(TEXT, struct(x=I8)),
              at=".value.extra"),
    *_refused([(None, 1)], None, pa.map_(TEXT, I8)),
    # extension types
    Case(ID, pa.uuid(), pa.uuid(), stored=ID.bytes),
    Case(ID, pa.uuid(), pa.binary(16), stored=ID.bytes),
    Case(str(ID), TEXT, pa.uuid(), stored=ID.bytes),
    Case(ID.bytes, pa.binary(16), pa.uuid(), stored=ID.bytes),
    *_refused(ID, pa.uuid(), TEXT),
    *_refused("8e793cab", TEXT, pa.uuid()),
    *_refused(b"8e793cab", BYTES, pa.uuid()),
    *_same('{"a":1}', TEXT, pa.json_()),
    *_same('[1,"x",null,true,0.5]', pa.json_(), pa.json_()),
    *_refused("hello", TEXT, pa.json_()),
    *_refused('{"a": 1, "a": 2}', TEXT, pa.json_()),
    *_refused('[18446744073709551616]', TEXT, pa.json_()),
    *_refused('[1e400]', TEXT, pa.json_()),
    *_refused("[NaN]", TEXT, pa.json_()),
    *_refused("", TEXT, pa.json_()),
    Case(1.1, F64, BFLOAT16, stored=b"\x8d\x3f"),
    Case(256, I64, BFLOAT16, stored=b"\x80\x43"),
    *_refused(257, I64, BFLOAT16),
    *_refused(1e39, F64, BFLOAT16),
    Case(SQUARE, pa.list_(pa.list_(F64)), TENSOR, stored=FLAT),
    Case(SQUARE, TENSOR_64, TENSOR, stored=FLAT),
    *_same(FLAT, pa.list_(F64), TENSOR),
    *_refused([[1e300] * 2] * 2, pa.list_(pa.list_(F64)), TENSOR, at="[]"),
    *_refused(FLAT[:3], pa.list_(F64), TENSOR),
    *_refused([SQUARE[0]], pa.list_(pa.list_(F64)), TENSOR),
]  # fmt: skip
