"""Kinds of bad records, over formats and modes: each says what is wrong with it, and the next record is taken."""

from __future__ import annotations

import base64
import decimal
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from committerd_batch.target import Mode
from committerd_ingest.avro import AvroRows
from committerd_ingest.decoding import Format, RecordColumns
from committerd_ingest.keyed import decoder_of
from committerd_ingest.protobuf import ProtobufSchema
from committerd_ingest.records import Partition, Record
from committerd_ingest.wire_format import Schema, UnusableSchema
from harness.registry_server import compiled
from tests.ingest.test_source import PIPELINE

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("text", pa.string()),
        ("ok", pa.bool_()),
        ("price", pa.decimal128(5, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms", "UTC")),
        ("local", pa.timestamp("ms")),
        ("list", pa.list_(pa.int64())),
        ("inner", pa.struct([("a", pa.int64())])),
        ("bytes", pa.binary()),
    ]
)
DEEP = b"[" * 100_000

JSON: list[tuple[bytes | None, str]] = [
    (None, "no value (a tombstone)"),
    (b"", "not JSON"),
    (b"  ", "not JSON"),
    (b"{", "not JSON"),
    (b"null", "a JSON null, and an object"),
    (b"true", "a JSON boolean"),
    (b"7", "a JSON number"),
    (b'"x"', "a JSON string"),
    (b"[]", "a JSON array"),
    (b'[{"id":1}]', "a JSON array"),
    (b'{"id":1}{"id":2}', "not JSON"),
    (b'{"id":1}\n{"id":2}', "not JSON"),
    (b'{"id":1} x', "not JSON"),
    (b"{'id':1}", "not JSON"),
    (b'{"id":1,}', "not JSON"),
    (b"\xef\xbb\xbf" + b'{"id":1}', "not JSON"),
    (b'{"id":1,"text":"\xff"}', "not UTF-8"),
    (b"\x00\x00\x00\x00\x01", "not JSON"),
    (b"\x1f\x8b\x08\x00", "not UTF-8"),
    (b'{"id":1,"list":' + DEEP + b"}", "nested too deep"),
    (b"{}", "column 'id' may not be null"),
    (b'{"id":null}', "column 'id' may not be null"),
    (b'{"id":1.0}', "id"),
    (b'{"id":"1"}', "id"),
    (b'{"id":9223372036854775808}', "id"),
    (b'{"id":1,"small":200}', "small"),
    (b'{"id":1,"text":7}', "text"),
    (b'{"id":1,"ok":1}', "ok"),
    (b'{"id":1,"price":1.005}', "price"),
    (b'{"id":1,"price":12345.6}', "price"),
    (b'{"id":1,"day":"31.5.2026"}', "day"),
    (b'{"id":1,"day":"2026-02-30"}', "day"),
    (b'{"id":1,"at":"2026-05-31T12:00:00"}', "at"),
    (b'{"id":1,"local":"2026-05-31T12:00:00Z"}', "local"),
    (b'{"id":1,"list":7}', "list"),
    (b'{"id":1,"list":["x"]}', "list"),
    (b'{"id":1,"inner":[]}', "inner"),
    (b'{"id":1,"inner":{"b":1}}', "field 'inner.b' is not in the table"),
    (b'{"id":1,"new":1}', "field 'new' is not in the table"),
    (b'{"id":1,"Id":1}', "field 'Id' is not in the table"),
    (b'{"id":1,"id":2}', "Column(/id) was specified twice"),
    (b'{"id":1,"inner":{"a":1,"a":2}}', "Column(/inner/a) was specified twice"),
    (b'{"id":1,"price":NaN}', "field 'price' is NaN"),
    (b'{"id":1e3}', "field 'id' is 1e3"),
    (b'{"id":1,"text":"\\ud800"}', "surrogate"),
    ('{"id":1}'.encode("utf-16-le"), "not JSON"),
    (b'{"id":1,"at":"2026-05-31T12:00:00.0001Z"}', "at"),
]


# Avro and Protobuf

AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "many", "type": {"type": "array", "items": "long"}},
    ],
}
AVRO_TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("kind", pa.string()),
        ("at", pa.timestamp("ms", "UTC")),
        ("many", pa.list_(pa.int64())),
        ("price", pa.decimal128(5, 2)),
        ("small", pa.int8()),
    ]
)


def avro_field(kind: Any, name: str) -> dict[str, Any]:
    return {"type": "record", "name": "Other", "fields": [{"name": "id", "type": "long"}, {"name": name, "type": kind}]}


AVRO_SCHEMAS: dict[int, dict[str, Any] | str] = {
    1: AVRO_SCHEMA,
    2: avro_field("string", "new"),
    3: avro_field("long", "text"),
    4: avro_field("long", "small"),
    5: {"type": "record", "name": "Other", "fields": [{"name": "text", "type": "string"}]},
    6: {"type": "record", "name": "Other", "fields": [{"name": "id", "type": ["null", "long"]}]},
    7: "long",
    8: avro_field(["string", "long"], "text"),
    9: avro_field({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 4}, "price"),
    10: avro_field({"type": "array", "items": "string"}, "many"),
    12: {"type": "record", "name": "Other", "fields": []},
    11: {
        "type": "record",
        "name": "Other",
        "fields": [{"name": "id", "type": "long"}, {"name": "me", "type": ["null", "Other"]}],
    },
}


def schemas() -> dict[int, Schema | UnusableSchema]:
    found: dict[int, Schema | UnusableSchema] = {
        99: UnusableSchema("the schema registry has no schema of id 99"),
        98: UnusableSchema("schema 98 of the registry can't be used: it is of JSON, and ingest.format is avro"),
    }
    for number, text in AVRO_SCHEMAS.items():
        try:
            found[number] = AvroRows(json.dumps(text))
        except UnusableSchema as error:
            found[number] = error
    return found


def avro(number: int, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO_SCHEMAS[number]), value)
    return head(number) + stream.getvalue()


def head(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


ORDER = {"id": 1, "text": "x", "kind": "A", "at": 0, "many": [1]}
GOOD_AVRO = avro(1, ORDER)
AVRO: list[tuple[bytes | None, str]] = [
    (None, "no value (a tombstone)"),
    (b"", "begins with nothing"),
    (b"\0\0\0", "begins with 00 00 00"),
    (b'{"id":1}', "begins with 7b 22"),
    (b"\1" + GOOD_AVRO[1:], "begins with 01"),
    (head(99) + GOOD_AVRO[5:], "no schema of id 99"),
    (head(98) + b"x", "it is of JSON"),
    (GOOD_AVRO[:-2], "not as its schema says"),
    (head(1), "not as its schema says"),
    (GOOD_AVRO + b"\0", "1 bytes follow the record"),
    (head(1) + b"\2\4", "not as its schema says"),
    (head(1) + b"\2\2\2\xff\0\0\0", "not as its schema says"),
    (head(1) + b"\2\0\x0a\0\0", "not as its schema says"),
    (head(1) + b"\xff" * 20, "not as its schema says"),
    (avro(2, {"id": 1, "new": "x"}), "column 'new' is not in the table"),
    (avro(3, {"id": 1, "text": 7}), "column 'text'"),
    (avro(4, {"id": 1, "small": 200}), "column 'small'"),
    (avro(5, {"text": "x"}), "column 'id'"),
    (avro(6, {"id": None}), "column 'id' may not be null"),
    (head(7) + b"\2", "only a record has fields"),
    (head(8) + b"\2\0\2x", "a column has one type"),
    (avro(9, {"id": 1, "price": decimal.Decimal("1.0001")}), "column 'price'"),
    (avro(10, {"id": 1, "many": ["x"]}), "column 'many[]' is int64 in the table, and the values are string"),
    (head(11) + b"\2\0", "inside a"),
    (head(12), "its schema has no fields"),
]

PROTO = """syntax = "proto3";
enum Kind { A = 0; B = 1; }
message Order { int64 id = 1; string text = 2; Kind kind = 3; }
message Other { int64 id = 1; int64 text = 2; }
message Empty { }
"""
PROTO_TABLE = pa.schema([("id", pa.int64()), ("text", pa.string()), ("kind", pa.string())])
PROTOBUF: list[tuple[bytes | None, str]] = [
    (None, "no value (a tombstone)"),
    (b"\x08\1", "begins with 08 01"),
    (head(1), "ends before it says which message"),
    (head(1) + b"\0\x08", "not as its schema says"),
    (head(1) + b"\0\x12\1\xff", "not as its schema says"),
    (head(1) + b"\0\x18\7", "for which its enum has no"),
    (head(1) + b"\0\x20\1", "it has a field"),
    (head(1) + b"\2\2\x10\1", "column 'text'"),
    (head(1) + b"\2\4", "its schema has no fields"),
    (head(1) + b"\2\x0c", "which its schema does not have"),
    (head(99) + b"\0", "no schema of id 99"),
]

# Keys and envelopes


def envelope(op: str, after: str = "null") -> bytes:
    return f'{{"before":null,"after":{after},"op":"{op}","ts_ms":1}}'.encode()


ROW = b'{"id":1,"text":"x"}'
UPSERT: list[tuple[bytes | None, bytes | None, str]] = [
    (None, None, "the record has no key"),
    (b"", None, "the key: "),
    (b'{"no":1}', None, "the key: field 'no' is not in the table"),
    (b'{"id":"x"}', None, "the key: field 'id' is"),
    (b"null", None, "the key: "),
    (b"\xff", None, "the key: the value is not UTF-8"),
    (b"1", b'{"text":"x"}', "column 'id' may not be null"),
    (b"1", b'{"id":1,"new":1}', "field 'new' is not in the table"),
    (b"1", b"[]", "a JSON array"),
]
DELETE: list[tuple[bytes | None, bytes | None, str]] = [
    (None, b"x", "the record has no key"),
    (b"1.5", b"x", "the key: field 'id' is 1.5"),
    (DEEP, None, "the key: the value is JSON that is nested too deep"),
    (b"NaN", None, "the key: field 'id' is NaN"),
    (b'{"id":1,"id":2}', None, "the key: JSON parse error: Column(/id) was specified twice"),
]
CDC: list[tuple[bytes | None, bytes | None, str]] = [
    (b"1", envelope("t"), "has truncated its table"),
    (b"1", envelope("x", ROW.decode()), "op is 'x'"),
    (b"1", envelope("c"), "no row in after"),
    (b"1", envelope("u", "7"), "a JSON number"),
    (b"1", envelope("u", '{"id":"x"}'), "field 'id' is"),
    (b"1", ROW, "no envelope of Debezium"),
    (b"1", b'{"schema":{},"payload":null}', "no envelope of Debezium"),
    (b"1", b'{"op":7,"after":{}}', "op is 7"),
    (b"1", b'{"op":"u","op":"d","after":{"id":1}}', "field 'op' is there twice"),
    (b"1", b'{"schema":{},"payload":{"op":"d"},"payload":{"op":"r"}}', "field 'payload' is there twice"),
    (b"1", b'{"op":"u","after":{"id":1,"id":2}}', "specified twice"),
    (b'{"schema":{},"payload":{"id":1},"payload":{"id":2}}', envelope("d"), "the key: "),
    (None, envelope("d"), "the record has no key"),
    (b'{"id":null}', envelope("d"), "the key: column 'id' may not be null"),
]

# Bytes, and what Kafka says of a record

RAW: list[tuple[bytes | None, bytes | None, str]] = [
    (b"k", b"\xff", "column 'value'"),
    (b"\xff", b"x", "column 'key'"),
]


@dataclass(frozen=True)
class Kinds:
    """Bad records of one format and mode."""

    good: tuple[bytes | None, bytes | None]
    bad: Sequence[tuple[bytes | None, bytes | None, str]]
    """Key, value, and what the reason says."""
    table: pa.Schema
    format: Format = "json"
    mode: Mode = Mode.APPEND
    schemas: Mapping[int, Schema | UnusableSchema] | None = None
    key_column: str = ""


def without_keys(cases: Sequence[tuple[bytes | None, str]]) -> list[tuple[bytes | None, bytes | None, str]]:
    return [(None, value, words) for value, words in cases]


def proto() -> dict[int, Schema | UnusableSchema]:
    text = base64.b64encode(compiled(PROTO, {})).decode()
    return {1: ProtobufSchema(text), 99: UnusableSchema("the schema registry has no schema of id 99")}


KINDS = {
    "json append": lambda: Kinds((None, b'{"id":1}'), without_keys(JSON), TABLE),
    "avro append": lambda: Kinds((None, GOOD_AVRO), without_keys(AVRO), AVRO_TABLE, "avro", schemas=schemas()),
    "protobuf append": lambda: Kinds(
        (None, head(1) + b"\0\x08\1"), without_keys(PROTOBUF), PROTO_TABLE, "protobuf", schemas=proto()
    ),
    "raw append": lambda: Kinds(
        (b"k", b"x"),
        RAW,
        pa.schema([("value", pa.string()), ("key", pa.string())]),
        "raw",
        key_column="key",
    ),
    "json upsert": lambda: Kinds((b"1", b'{"id":1}'), UPSERT, TABLE, mode=Mode.UPSERT),
    "json delete": lambda: Kinds((b"1", None), DELETE, TABLE, mode=Mode.DELETE),
    "json cdc": lambda: Kinds((b"1", envelope("u", ROW.decode())), CDC, TABLE, mode=Mode.CDC),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_bad_record_says_what_is_wrong_and_the_next_record_is_taken(name: str) -> None:
    kinds = KINDS[name]()
    pipeline = replace(
        PIPELINE,
        format=kinds.format,
        key_format=kinds.format,
        mode=kinds.mode,
        keys=() if kinds.mode is Mode.APPEND else ("id",),
        columns=RecordColumns(key=kinds.key_column),
        value_column="value",
    )
    given = [kinds.good, *(one for key, value, _ in kinds.bad for one in ((key, value), kinds.good))]
    records = [Record(offset, 0, key, value, []) for offset, (key, value) in enumerate(given)]
    found = decoder_of(pipeline, kinds.table, Partition("t", 0)).decode(records, kinds.schemas)
    assert [one.record.offset for one in found.bad] == list(range(1, len(given), 2))
    assert found.rows.num_rows == len(kinds.bad) + 1
    said = [(words, one.reason) for (*_, words), one in zip(kinds.bad, found.bad, strict=True)]
    assert [pair for pair in said if pair[0] not in pair[1]] == []
    # No Python of ours shows through.
    assert [
        pair for pair in said if re.search(r"KeyError|TypeError|AttributeError|NoneType|0x[0-9a-f]{6}", pair[1])
    ] == []


def test_there_are_more_than_a_hundred_kinds() -> None:
    made = [one for name in KINDS for one in KINDS[name]().bad]
    assert len(made) > 100
