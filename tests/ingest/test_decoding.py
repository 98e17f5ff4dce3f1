"""Records into rows: no value changes, and each record makes one row or is bad, with a reason."""

# ruff: noqa: DTZ001  # columns without a time zone have values without one

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from committerd_ingest.buffering import Buffer, FlushLimits
from committerd_ingest.decoding import Decoder, Format, RecordColumns, WrongColumns
from committerd_ingest.records import Record, Records

UTC = datetime.UTC
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("i", pa.int32()),
        ("u", pa.uint8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("zoned", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("time", pa.time64("us")),
        ("yes", pa.bool_()),
        ("list", pa.list_(pa.int32())),
        ("vector", pa.list_(pa.float32(), 2)),
        ("struct", pa.struct([("x", pa.int64())])),
        ("money", pa.decimal128(10, 2)),
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("key", pa.string()),
        ("offset", pa.int64()),
    ]
)

GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"id":1}', {}),
    (b'\n{\n"id":1,\n"s":"a"\n}\n', {"s": "a"}),
    (b'{"id":1,"s":null,"list":[1,null],"struct":{}}', {"list": [1, None], "struct": {"x": None}}),
    (b'{"id":1,"i":2147483647,"u":255}', {"i": 2**31 - 1, "u": 255}),
    (b'{"id":1,"f":1,"g":0.5}', {"f": 1.0, "g": 0.5}),
    (b'{"id":1,"s":"x\\u0000\\ud83d\\ude00"}', {"s": "x\0\U0001f600"}),
    (b'{"id":1,"zoned":"2020-01-01T01:00:00+01:00"}', {"zoned": datetime.datetime(2020, 1, 1, tzinfo=UTC)}),
    (b'{"id":1,"local":"2020-01-01T00:00:00.000001"}', {"local": datetime.datetime(2020, 1, 1, 0, 0, 0, 1)}),
    (b'{"id":1,"day":"2020-02-29"}', {"day": datetime.date(2020, 2, 29)}),
    (b'{"id":1,"time":"12:30:00"}', {"time": datetime.time(12, 30)}),
    (b'{"id":1,"vector":[1,2],"struct":{"x":7}}', {"vector": [1.0, 2.0], "struct": {"x": 7}}),
    (b'{"id":1,"money":1.25,"word":"w"}', {"money": Decimal("1.25"), "word": "w"}),
    (b'{"id":1,"money":"1.25"}', {"money": Decimal("1.25")}),
]  # fmt: skip

BAD: list[tuple[bytes | None, str]] = [
    (None, "no value"),
    (b"", "not JSON"),
    (b"  ", "not JSON"),
    (b"{", "not JSON"),
    (b"null", "JSON null"),
    (b"[]", "JSON array"),
    (b"5", "JSON number"),
    (b"true", "JSON boolean"),
    (b'"x"', "JSON string"),
    (b"\xff", "not UTF-8"),
    (b'{"id":1,"s":"\xff"}', "not UTF-8"),
    (b'\xef\xbb\xbf{"id":1}', "not JSON"),
    (b'{"id":1} {"id":2}', "Extra data"),
    (b'{"id":1}\n{"id":2}', "Extra data"),
    (b"{} null {}", "Extra data"),
    (b'{"id":1}}', "Extra data"),
    (b"[" * 100_000, "nested too deep"),
    (b'{"a":' * 5_000, "nested too deep"),
    (b'{"id":' + b"9" * 5_000 + b"}", "not JSON"),
    (b"{}", "column 'id' may not be null"),
    (b'{"id":null}', "column 'id' may not be null"),
    (b'{"id":1,"id":2}', "specified twice"),
    (b'{"id":1,"ID":2}', "field 'ID' is not in the table"),
    (b'{"id":1,"struct":{"x":1,"y":2}}', "field 'struct.y' is not in the table"),
    (b'{"id":1,"":2}', "field '' is not in the table"),
    (b'{"id":1,"offset":2}', "field 'offset' is not in the table"),
    (b'{"id":"1"}', "from number to string"),
    (b'{"id":1.5}', "couldn't parse:1.5"),
    (b'{"id":1.0}', "couldn't parse:1.0"),
    (b'{"id":1e2}', "couldn't parse:1e2"),
    (b'{"id":9223372036854775808}', "couldn't parse"),
    (b'{"id":true}', "from number to boolean"),
    (b'{"id":1,"i":2147483648}', "couldn't parse"),
    (b'{"id":1,"u":256}', "couldn't parse"),
    (b'{"id":1,"u":-1}', "couldn't parse"),
    (b'{"id":1,"f":1e400}', "too big"),
    (b'{"id":1,"g":1e39}', "would be changed"),
    (b'{"id":1,"f":"1"}', "from number to string"),
    (b'{"id":1,"s":5}', "from string to number"),
    (b'{"id":1,"s":"\\ud800"}', "surrogate"),
    (b'{"id":1,"zoned":"2020-01-01T00:00:00"}', "expected a zone"),
    (b'{"id":1,"local":"2020-01-01T00:00:00Z"}', "expected no zone"),
    (b'{"id":1,"local":"2020-01-01T00:00:00.0000001"}', "Failed to parse"),
    (b'{"id":1,"local":1577836800}', "from string to number"),
    (b'{"id":1,"day":"2020-02-30"}', "Failed to parse"),
    (b'{"id":1,"day":"2020-02-28T00:00:00"}', "Failed to parse"),
    (b'{"id":1,"yes":1}', "from boolean to number"),
    (b'{"id":1,"list":[1,2.5]}', "couldn't parse:2.5"),
    (b'{"id":1,"list":3}', "from array to number"),
    (b'{"id":1,"vector":[1]}', "a list has 1 values"),
    (b'{"id":1,"struct":7}', "from object to number"),
    (b'{"id":1,"money":1.255}', "scale"),
    (b'{"id":1,"money":123456789.00}', "precision"),
]


def decoder(schema: pa.Schema = SCHEMA, format: Format = "json", **columns: str) -> Decoder:
    chosen = columns or {"key": "key", "offset": "offset"}
    return Decoder(
        schema, format=format, columns=RecordColumns(**chosen), value_column="value", topic="orders", partition=3
    )


def record(offset: int, value: bytes | None, key: bytes | None = b"k") -> Record:
    return Record(offset, 1_700_000_000_000, key, value, [("h", b"1"), ("n", None)])


@pytest.mark.parametrize(("value", "expected"), GOOD)
def test_what_fits_is_as_it_was(value: bytes, expected: dict[str, Any]) -> None:
    found = decoder().decode([record(7, value)])
    assert not found.bad
    (row,) = found.rows.to_pylist()
    assert {name: one for name, one in row.items() if one is not None} == {"id": 1, "key": "k", "offset": 7, **expected}
    assert found.rows.schema == SCHEMA


@pytest.mark.parametrize(("value", "reason"), BAD)
def test_what_does_not_fit_is_bad_and_says_why(value: bytes | None, reason: str) -> None:
    found = decoder().decode([record(7, value)])
    assert found.rows.num_rows == 0
    (bad,) = found.bad
    assert bad.record.offset == 7
    assert reason in bad.reason


def test_bad_records_leave_the_good_ones_between_them_alone() -> None:
    values = [value for pair in zip([b for b, _ in BAD], [g for g, _ in GOOD] * 5, strict=False) for value in pair]
    values += [b'{"id":2}'] * 100
    found = decoder().decode([record(n, value) for n, value in enumerate(values)])
    bad = [one.record.offset for one in found.bad]
    assert bad == list(range(0, 2 * len(BAD), 2))
    assert found.rows["offset"].to_pylist() == sorted(set(range(len(values))) - set(bad))


def test_a_key_that_is_no_text_is_bad_for_a_text_column() -> None:
    found = decoder().decode([record(0, b'{"id":1}', b"\xff"), record(1, b'{"id":1}', None)])
    assert [one.reason.startswith("column 'key' is string") for one in found.bad] == [True]
    assert found.rows["key"].to_pylist() == [None]


def test_raw_values_stay_as_they_are() -> None:
    named = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    schema = pa.schema([("value", pa.binary()), ("h", named), ("p", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
    made = decoder(schema, "raw", headers="h", partition="p", timestamp="at")
    found = made.decode([record(0, b"\xff"), record(1, None)]).rows.to_pylist()
    headers = [{"name": "h", "value": b"1"}, {"name": "n", "value": None}]
    at = datetime.datetime.fromtimestamp(1_700_000_000, UTC)
    assert found == [{"value": value, "h": headers, "p": 3, "at": at} for value in (b"\xff", None)]


def test_columns_that_the_table_does_not_have_are_said() -> None:
    with pytest.raises(WrongColumns, match="no column 'ofset' \\(did you mean 'offset'"):
        decoder(offset="ofset")
    with pytest.raises(WrongColumns, match="can hold only one"):
        decoder(offset="offset", partition="offset")
    with pytest.raises(WrongColumns, match="no column 'value'"):
        decoder(format="raw")
    with pytest.raises(WrongColumns, match="something else"):
        decoder(pa.schema([("value", pa.binary())]), "raw", key="value")


def test_no_records_make_no_rows() -> None:
    found = decoder().decode([])
    assert (found.rows.num_rows, found.rows.schema, list(found.bad)) == (0, SCHEMA, [])


TRICKY = [
    b'{"id":1,"s":"a"}', b'{"id":2}{"id":3}', b'{"id":4}null{"id":5}', b'{"id":6} \n null', b'null{"id":7}', b"null",
    b'{"id":8,"s":"}', b'{"}', b'{"id":9,"s":"}\n{"}', b'{"id":10,"struct":{"x":1}', b'{"x":2}}', b"{}", b"", None,
    b'{"id":11,"list":[1}', b'{2]}', b'{"id":12,"s":"} null"}', b' {"id":13}\t', b'{"id":14,"s":"\xff"}', b"[{}]",
    b'{"id":15,}', b'{"id":16,"s":"\xe2}', b'{"id":"x"}', b'{"unknown":{"id":17}}', b'{"id":18},{"id":19}',
    b"{" * 5000 + b"}",
]  # fmt: skip


def test_a_value_is_good_or_bad_whatever_stands_beside_it() -> None:
    """Values that stand beside each other are parsed as one text: none lends or takes anything."""
    made = decoder()

    def of(*values: bytes | None) -> list[Any]:
        found = made.decode([record(7, value) for value in values])
        return [*found.rows.to_pylist(), *sorted(one.reason for one in found.bad)]

    alone = [of(value) for value in TRICKY]
    assert {type(one) for (one,) in alone} == {dict, str}
    for first, (found,) in zip(TRICKY, alone, strict=True):
        for second, (other,) in zip(TRICKY, alone, strict=True):
            rows = [one for one in (found, other) if isinstance(one, dict)]
            reasons = sorted(one for one in (found, other) if isinstance(one, str))
            assert of(first, second) == [*rows, *reasons], (first, second)


# When they are written


def test_records_wait_for_others_but_not_for_long() -> None:
    buffer = Buffer(FlushLimits(rows=3, bytes=10_000, seconds=5))
    assert buffer.due_in(100) is None
    buffer.add(Records.of([record(0, b"a")]), 100)
    buffer.add(Records.of([record(1, b"b")]), 103)
    assert (buffer.due_in(101), buffer.due_in(106)) == (4, 0)
    buffer.add(Records.of([record(n, b"c") for n in (2, 3)]), 103)
    assert buffer.due_in(103) == 0
    assert [one.offset for one in buffer.take(104, 1000)] == [0, 1, 2]
    assert (buffer.due_in(104), buffer.bytes) == (5, Records.of([record(3, b"c")]).size)
    buffer.clear()
    assert (buffer.due_in(104), buffer.bytes) == (None, 0)


def test_records_of_a_backlog_wait_for_the_others_while_they_come() -> None:
    buffer = Buffer(FlushLimits(rows=100, bytes=1_000_000, seconds=5))
    buffer.add(Records.of([record(0, b"a"), record(1, b"b")]), 100, more=5)
    buffer.add(Records.of([record(2, b"c")]), 104, more=4)
    assert buffer.due_in(105) == 4  # since the last one
    buffer.add(Records.of([record(3, b"d")]), 105, more=3)
    assert buffer.due_in(105) == 0  # since the first one: the backlog ends
    buffer.add(Records.of([record(4, b"e")]), 106, more=1_000)
    assert buffer.due_in(111) == 0  # nothing comes any more


def test_a_transaction_has_about_the_bytes_that_it_may_have() -> None:
    buffer = Buffer(FlushLimits(rows=100, bytes=2_000, seconds=5))
    buffer.add(Records.of([record(n, b"x" * 800) for n in range(5)]), 0)
    assert buffer.due_in(0) == 0
    assert [len(buffer.take(0, 1000)) for _ in range(3)] == [2, 2, 1]
    buffer.add(Records.of([record(9, b"x" * 9_000)]), 0)
    assert len(buffer.take(0, 1000)) == 1  # larger than all that is allowed, and alone
