"""Avro and Protobuf into rows: no value changes, and each record makes one row or is bad, with a reason."""

from __future__ import annotations

import asyncio
import base64
import datetime
import io
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from committerd_ingest import registry as registry_module
from committerd_ingest.avro import AvroRows
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.decoding import Decoded, Decoder, RecordColumns, schema_ids
from committerd_ingest.partition import PartitionWork
from committerd_ingest.protobuf import ProtobufSchema
from committerd_ingest.records import Partition, Record, Records
from committerd_ingest.registry import Registry, RegistryFormat, RegistryUnavailable
from committerd_ingest.wire_format import UnusableSchema
from harness.certificates import Authority
from harness.registry_server import RegistryServer, compiled
from tests.ingest.test_source import PIPELINE

UTC = datetime.UTC


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as made:
        yield made


def registry(server: RegistryServer, format: RegistryFormat, **options: Any) -> Registry:
    return Registry(server.url, format=format, **{"login": None, "tls": None, "timeout": 60.0, **options})


async def decoded(
    server: RegistryServer, format: RegistryFormat, schema: pa.Schema, *values: bytes | None, **columns: str
) -> Decoded:
    """The rows of records with these values."""
    records = [Record(n, 1_700_000_000_000, b"k", value, []) for n, value in enumerate(values)]
    schemas = await registry(server, format).schemas(schema_ids(values))
    made = Decoder(
        schema, format=format, columns=RecordColumns(**columns), value_column="", topic="orders", partition=3
    )
    return made.decode(records, schemas)


def head(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def written(number: int, schema: Any, value: Any) -> bytes:
    """What Confluent's serializer writes. `schema`: as fastavro needs it for this value."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return head(number) + stream.getvalue()


def record(kind: Any, logical: str = "", **more: Any) -> dict[str, Any]:
    """A record with one field `x`."""
    typed = {"type": kind, "logicalType": logical, **more} if logical else kind
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": typed}]}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


AVRO: list[tuple[dict[str, Any], dict[str, Any], Any, pa.DataType, Any]] = [
    # The schema, the one without logical types with which the value is written, the value, the column, what it has.
    (record("int"), record("int"), -(2**31), pa.int32(), -(2**31)),
    (record("int"), record("int"), 7, pa.uint8(), 7),
    (record("long"), record("long"), 2**63 - 1, pa.int64(), 2**63 - 1),
    (record("long"), record("long"), 2**53, pa.float64(), 2.0**53),
    (record("boolean"), record("boolean"), True, pa.bool_(), True),
    (record("float"), record("float"), 0.5, pa.float64(), 0.5),
    (record("double"), record("double"), 1e300, pa.float64(), 1e300),
    (record("double"), record("double"), 0.1, pa.float32(), pytest.approx(0.1)),
    (record("string"), record("string"), "x\0\U0001f600", pa.large_string(), "x\0\U0001f600"),
    (record("bytes"), record("bytes"), b"\xff\0", pa.binary(), b"\xff\0"),
    (record(fixed(3)), record(fixed(3)), b"abc", pa.binary(3), b"abc"),
    (record("null"), record("null"), None, pa.int64(), None),
    (record(["null", "long"]), record(["null", "long"]), None, pa.int64(), None),
    (record(["string", "null"]), record(["string", "null"]), "a", pa.string(), "a"),
    (record(["long"]), record(["long"]), 5, pa.int64(), 5),
    (record({"type": "enum", "name": "E", "symbols": ["A", "B"]}), record("int"), 1, pa.string(), "B"),
    (record({"type": "array", "items": "float"}), record({"type": "array", "items": "float"}), [1, 2],
     pa.list_(pa.float32(), 2), [1.0, 2.0]),
    (record({"type": "map", "values": ["null", "int"]}), record({"type": "map", "values": ["null", "int"]}),
     {"a": 1, "b": None}, pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
    (record(record(["null", "long"]) | {"name": "Q"}), record(record(["null", "long"]) | {"name": "Q"}), {"x": 4},
     pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 4, "y": None}),
    (record("int", "date"), record("int"), -1, pa.date32(), datetime.date(1969, 12, 31)),
    (record("int", "time-millis"), record("int"), 1, pa.time64("us"), datetime.time(0, 0, 0, 1000)),
    (record("long", "time-micros"), record("long"), 1, pa.time64("us"), datetime.time(0, 0, 0, 1)),
    (record("long", "timestamp-millis"), record("long"), -1, pa.timestamp("us", "UTC"),
     datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
    (record("long", "timestamp-micros"), record("long"), 1, pa.timestamp("us", "Europe/Berlin"),
     datetime.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
    (record("long", "local-timestamp-micros"), record("long"), 1, pa.timestamp("us"),
     datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
    (record("long", "timestamp-nanos"), record("long"), 2000, pa.timestamp("us", "UTC"),
     datetime.datetime(1970, 1, 1, 0, 0, 0, 2, UTC)),
    (record("bytes", "decimal", precision=4, scale=2), record("bytes"), b"\xff\x01", pa.decimal128(10, 3),
     Decimal("-2.550")),
    (record("bytes", "decimal", precision=4, scale=2), record("bytes"), b"", pa.decimal128(4, 2), Decimal("0.00")),
    (record("bytes", "decimal", precision=60), record("bytes"), (10**59).to_bytes(25, "big"), pa.decimal256(60, 0),
     Decimal(10**59)),
    (record("bytes", "decimal", precision=2, scale=3), record("bytes"), b"a", pa.binary(), b"a"),  # no valid one
    (record("string", "uuid"), record("string"), "no uuid", pa.string(), "no uuid"),
    (record("string", "of-mine"), record("string"), "a", pa.string(), "a"),
]  # fmt: skip

AVRO_BAD: list[tuple[dict[str, Any], dict[str, Any], Any, pa.DataType, str]] = [
    (record("int"), record("long"), 2**31, pa.int64(), "not as its schema says"),
    (record("int"), record("int"), 256, pa.uint8(), "column 'x' is uint8"),
    (record("long"), record("long"), 2**53 + 1, pa.float64(), "9007199254740993 not in range"),
    (record("double"), record("double"), 1.5, pa.int64(), "1.500000 was truncated"),
    (record("double"), record("double"), 1e39, pa.float32(), "would be changed"),
    (record("string"), record("string"), "1", pa.int64(), "of different kinds"),
    (record("string"), record("bytes"), b"\xff", pa.string(), "UnicodeDecodeError"),
    (record({"type": "enum", "name": "E", "symbols": ["A"]}), record("int"), 3, pa.string(), "IndexError"),
    (record(["null", "string"]), record("int"), 5, pa.string(), "IndexError"),
    (record("long", "timestamp-nanos"), record("long"), 1, pa.timestamp("us", "UTC"), "lose data"),
    (record("long", "timestamp-millis"), record("long"), 1, pa.timestamp("us"), "has no time zone"),
    (record("long", "local-timestamp-millis"), record("long"), 1, pa.timestamp("us", "UTC"), "without a time zone"),
    (record("bytes", "decimal", precision=4, scale=2), record("bytes"), b"\1\0\0", pa.decimal128(10, 2), "precision"),
    (record("bytes", "decimal", precision=4, scale=2), record("bytes"), b"\x0c", pa.decimal128(10, 1), "data loss"),
    (record({"type": "array", "items": "int"}), record({"type": "array", "items": "int"}), [1],
     pa.list_(pa.int32(), 2), "a list has 1 values"),
    (record(record("int") | {"name": "Q"}), record(record("int") | {"name": "Q"}), {"x": 4},
     pa.struct([("y", pa.int32())]), "column 'x.x' is not in the table"),
    (record(["null", "long"]), record(["null", "long"]), None, pa.null(), "column 'x' may not be null"),
    (record(["int", "string"]), record(["int", "string"]), 4, pa.int64(), "x is one of int, string: a column has one"),
    (record({"type": "array", "items": "null"}), record({"type": "array", "items": "null"}), [None],
     pa.list_(pa.int8()), "of which a few bytes may hold billions"),
    (record(["null", "R"]), record(["null", "R"]), None, pa.string(), "x is a R inside a R"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "writer", "value", "kind", "expected"), AVRO)
async def test_avro_that_fits_is_as_it_was(
    server: RegistryServer, schema: Any, writer: Any, value: Any, kind: pa.DataType, expected: Any
) -> None:
    number = server.register(json.dumps(schema))
    table = pa.schema([("x", kind), ("y", pa.int64()), ("offset", pa.int64())])
    found = await decoded(server, "avro", table, written(number, writer, {"x": value}), offset="offset")
    assert not found.bad
    assert found.rows.schema == table
    assert found.rows.to_pylist() == [{"x": expected, "y": None, "offset": 0}]


@pytest.mark.parametrize(("schema", "writer", "value", "kind", "reason"), AVRO_BAD)
async def test_avro_that_does_not_fit_is_bad_and_says_why(
    server: RegistryServer, schema: Any, writer: Any, value: Any, kind: pa.DataType, reason: str
) -> None:
    number = server.register(json.dumps(schema))
    nullable = "may not be null" not in reason
    table = pa.schema([pa.field("x", kind if nullable else pa.int64(), nullable=nullable)])
    found = await decoded(server, "avro", table, written(number, writer, {"x": value}))
    assert found.rows.num_rows == 0
    (bad,) = found.bad
    assert reason in bad.reason


async def test_values_that_no_serializer_of_a_registry_wrote_are_bad(server: RegistryServer) -> None:
    schema = record("long")
    number = server.register(json.dumps(schema))
    good = written(number, schema, {"x": 5})
    values = [good, None, b"", b"\0\0\0", b"{}", b"\1" + good[1:], good[:-1], good + b"\0", head(99) + b"\0", good]
    found = await decoded(server, "avro", pa.schema([("x", pa.int64())]), *values)
    assert found.rows["x"].to_pylist() == [5, 5]
    assert [one.record.offset for one in found.bad] == list(range(1, 9))
    reasons = ["tombstone", "nothing", "00 00 00", "7b 7d", "01 00", "EOFError", "1 bytes follow", "no schema of id 99"]
    assert [part for part, one in zip(reasons, found.bad, strict=True) if part not in one.reason] == []


async def test_versions_of_a_schema_are_read_each_as_it_was_written_and_rows_keep_their_order(
    server: RegistryServer,
) -> None:
    old, new = record("int"), record("long")
    new["fields"].append({"name": "y", "type": ["null", "string"], "default": None})
    wrong = record("long") | {"fields": [{"name": "z", "type": "long"}, {"name": "offset", "type": "long"}]}
    first, second, third = (server.register(json.dumps(one)) for one in (old, new, wrong))
    values = [
        written(first, old, {"x": n}) if n % 3 == 0
        else written(second, new, {"x": n, "y": "a"}) if n % 3 == 1
        else written(third, wrong, {"z": n, "offset": 1})
        for n in range(90)
    ]  # fmt: skip
    table = pa.schema([("x", pa.int64()), ("y", pa.string()), ("key", pa.binary()), ("offset", pa.int64())])
    found = await decoded(server, "avro", table, *values, key="key", offset="offset")
    assert found.rows.to_pylist() == [
        {"x": n, "y": None if n % 3 == 0 else "a", "key": b"k", "offset": n} for n in range(90) if n % 3 < 2
    ]
    assert {one.reason for one in found.bad} == {"column 'offset' holds the record's offset, and the value has it too"}
    found = await decoded(server, "avro", table, *values, key="key")
    assert {one.reason.partition(":")[0] for one in found.bad} == {"column 'z' is not in the table"}


async def test_a_schema_of_avro_may_refer_to_others(server: RegistryServer) -> None:
    server.register(json.dumps({"type": "enum", "name": "a.E", "symbols": ["A", "B"]}), subject="e/1")
    inner = {"type": "record", "name": "a.Q", "fields": [{"name": "e", "type": "a.E"}]}
    server.register(json.dumps(inner), subject="q", references=[("a.E", "e/1")])
    number = server.register(json.dumps(record("a.Q")), references=[("a.Q", "q"), ("a.E", "e/1")])
    lost = server.register(json.dumps(record("a.Z")), references=[("a.Z", "gone")])
    table = pa.schema([("x", pa.struct([("e", pa.string())]))])
    found = await decoded(server, "avro", table, head(number) + b"\2", head(lost) + b"\2")
    assert found.rows.to_pylist() == [{"x": {"e": "B"}}]
    assert "refers to version 1 of subject 'gone', and there is no subject" in found.bad[0].reason


@pytest.mark.parametrize(
    "text",
    ["", "{", "5", '{"type":"record"}', '{"type":"record","name":"R","fields":[{"name":"x","type":"no"}]}', "[]"],
)
def test_what_is_no_schema_of_avro_is_unusable(text: str) -> None:
    with pytest.raises(UnusableSchema):
        AvroRows(text)


async def test_values_of_about_a_mebibyte_are_in_memory_at_once(server: RegistryServer) -> None:
    number = server.register(json.dumps(record("bytes")))
    values = [written(number, record("bytes"), {"x": b"x" * 600 * 1024}) for _ in range(4)]
    found = await decoded(server, "avro", pa.schema([("x", pa.binary())]), *values)
    assert [len(one) for one in found.rows["x"].chunks] == [2, 2]


def nested(depth: int) -> Any:
    """Lists in lists."""
    kind: Any = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def doubled(depth: int) -> Any:
    """Records that hold the next one twice."""
    kind: Any = "int"
    for number in range(depth):
        again = f"Q{number - 1}" if number else "int"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"Q{number}", "fields": fields}
    return kind


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (nested(700), "RecursionError"),
        (doubled(16), "more than 10000 fields"),
        (fixed(2**40), "OverflowError"),
        ({"type": "array", "items": fixed(0)}, "a few bytes may hold billions"),
        (
            {"type": "array", "items": {**fixed(0), "logicalType": "decimal", "precision": 1}},
            "a few bytes may hold billions",
        ),
    ],
)
def test_a_schema_of_avro_whose_values_have_no_bounds_is_unusable(kind: Any, reason: str) -> None:
    with pytest.raises(UnusableSchema, match=reason):
        AvroRows(json.dumps(record(kind)))


# Protobuf

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "shop/color.proto";
message Other { int32 a = 1; }
message Order {
  int64 id = 1; optional int32 i = 2; uint64 u = 3; double f = 4; float g = 5; string s = 6; bytes b = 7; bool yes = 8;
  Color color = 9; google.protobuf.Timestamp at = 10; google.protobuf.StringValue word = 11;
  repeated int32 list = 12; map<string, Line> lines = 13; Line line = 14; repeated Line more = 15;
  oneof way { string mail = 16; int64 phone = 17; }
  message Line { string name = 1; optional sint64 count = 2; }
}
message Tree { Tree left = 1; }
message Empty { }
message Holds { Empty empty = 1; }
"""
COLOR = 'syntax = "proto3"; package shop; enum Color { RED = 0; BLUE = 3; }'
LINE = pa.struct([("name", pa.string()), ("count", pa.int64())])
ORDERS = pa.schema(
    [
        ("id", pa.int64()), ("i", pa.int32()), ("u", pa.uint64()), ("f", pa.float64()), ("g", pa.float32()),
        ("s", pa.string()), ("b", pa.binary()), ("yes", pa.bool_()), ("color", pa.string()),
        ("at", pa.timestamp("ns", "UTC")), ("word", pa.string()), ("list", pa.list_(pa.int32())),
        ("lines", pa.map_(pa.string(), LINE)), ("line", LINE), ("more", pa.list_(LINE)), ("mail", pa.string()),
        ("phone", pa.int64()),
    ]
)  # fmt: skip
NOTHING: Mapping[str, Any] = {
    "id": 0, "i": None, "u": 0, "f": 0.0, "g": 0.0, "s": "", "b": b"", "yes": False, "color": "RED", "at": None,
    "word": None, "list": [], "lines": [], "line": None, "more": [], "mail": None, "phone": None,
}  # fmt: skip


def registered(server: RegistryServer) -> int:
    server.register(COLOR, kind="PROTOBUF", subject="color")
    return server.register(PROTO, kind="PROTOBUF", references=[("shop/color.proto", "color")])


@pytest.fixture(scope="module")
def shop() -> Mapping[str, Any]:
    """The classes of the messages."""
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for name, text in (("shop/color.proto", COLOR), ("order.proto", PROTO)):
        file = descriptor_pb2.FileDescriptorProto.FromString(compiled(text, {"shop/color.proto": COLOR}))
        file.name = name
        pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName("order.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(one) for name, one in found.items()}


async def test_messages_are_rows_as_they_were(server: RegistryServer, shop: Mapping[str, Any]) -> None:
    number, order = registered(server), shop["Order"]
    full = order(
        id=-(2**63), i=0, u=2**64 - 1, f=1e300, g=0.5, s="x\0\U0001f600", b=b"\xff", yes=True, color=3,
        at={"seconds": -1, "nanos": 1}, word={"value": ""},
        list=[1, 2], lines={"a": {"name": "n"}}, line={"count": -1}, more=[{"name": "m"}, {}],
        phone=0,
    )  # fmt: skip
    head_of_order = head(number) + b"\2\2"  # one index: 1
    values = [head_of_order + one.SerializeToString() for one in (order(), full, order(at={"seconds": 253402300799}))]
    table = pa.schema([field for field in ORDERS if field.name != "at"] + [("at", pa.timestamp("us", "UTC"))])
    found = await decoded(server, "protobuf", ORDERS, *values[:2])
    assert not found.bad
    first, second = found.rows.to_pylist()
    assert first == NOTHING
    assert second.pop("at").value == -999_999_999
    assert second == {
        "id": -(2**63), "i": 0, "u": 2**64 - 1, "f": 1e300, "g": 0.5, "s": "x\0\U0001f600", "b": b"\xff", "yes": True,
        "color": "BLUE", "word": "", "list": [1, 2], "lines": [("a", {"name": "n", "count": None})],
        "line": {"name": "", "count": -1}, "more": [{"name": "m", "count": None}, {"name": "", "count": None}],
        "mail": None, "phone": 0,
    }  # fmt: skip
    found = await decoded(server, "protobuf", table, *values)  # microseconds reach year 9999, and cut off nothing
    assert [one.record.offset for one in found.bad] == [1]
    assert "lose data" in found.bad[0].reason
    assert found.rows["at"].to_pylist() == [None, datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]


async def test_messages_that_make_no_row_are_bad_and_say_why(server: RegistryServer, shop: Mapping[str, Any]) -> None:
    number, order = registered(server), shop["Order"]
    good = head(number) + b"\2\2" + order(id=1).SerializeToString()
    other = head(number) + b"\0" + shop["Other"](a=1).SerializeToString()  # message 0, in the short form
    line = (
        head(number) + b"\4\2\2" + order.Line(name="a").SerializeToString()
    )  # message 1 inside message 1; message 0 there is the entry of the map
    cases = [
        (other, "column 'a' is not in the table"),
        (line, "column 'name' is not in the table"),
        (head(number) + b"\2\4", "left is a shop.Tree inside another one"),
        (head(number) + b"\2\x08", "empty is a shop.Empty, which has no fields"),
        (head(number) + b"\2\x0c", "message [6], which its schema does not have"),
        (head(number) + b"\2\1", "message [-1], which its schema does not have"),
        (head(number) + b"\1", "inside -1 others"),
        (head(number), "ends before it says which message"),
        (head(number) + b"\xff" * 9, "has no end"),
        (head(number) + b"\2\2\x08", "not as its schema says: DecodeError"),
        (head(number) + b"\2\2\x32\x01\xff", "not as its schema says: DecodeError"),
        (head(number) + b"\2\2" + b"\xa0\x06\x01", "it has a field, or a number of an enum, that message Order lacks"),
        (head(number) + b"\2\2" + b"\x72\x03\xa0\x06\x01", "that message Order lacks"),  # inside `line`
        (head(number) + b"\2\2" + order(color=7).SerializeToString(), "field 'color' has 7, for which its enum has no"),
        (head(number) + b"\2\2" + order(at={"nanos": 2_000_000_000}).SerializeToString(), "2000000000 nanoseconds"),
    ]
    values = [good, *(value for value, _ in cases), good]
    found = await decoded(server, "protobuf", ORDERS, *values)
    assert found.rows["id"].to_pylist() == [1, 1]
    assert [one.record.offset for one in found.bad] == list(range(1, len(values) - 1))
    said = [(reason, one.reason) for (_, reason), one in zip(cases, found.bad, strict=True)]
    assert [pair for pair in said if pair[0] not in pair[1]] == []


@pytest.mark.parametrize(("depth", "fields", "reason"), [(16, "ab", "10000 fields"), (600, "a", "nested too deep")])
def test_a_message_whose_values_have_no_bounds_is_unusable(depth: int, fields: str, reason: str) -> None:
    """Each message holds the next one, twice or to a great depth."""
    file = descriptor_pb2.FileDescriptorProto(name="deep.proto", syntax="proto3")
    for number in range(depth):
        message = file.message_type.add(name=f"M{number}")
        for place, name in enumerate(fields, 1):
            field = message.field.add(name=name, number=place, label="LABEL_OPTIONAL")
            field.type = field.TYPE_INT32
            if number + 1 < depth:
                field.type, field.type_name = field.TYPE_MESSAGE, f".M{number + 1}"
    made = ProtobufSchema(base64.b64encode(file.SerializeToString()).decode())
    with pytest.raises(UnusableSchema, match=reason):
        made.split(b"\0")


async def test_a_schema_of_another_format_or_without_its_references_is_unusable(server: RegistryServer) -> None:
    avro = server.register(json.dumps(record("long")))
    server.register(COLOR, kind="PROTOBUF", subject="color")
    lacks = server.register(PROTO, kind="PROTOBUF", references=[("shop/color.proto", "color")])
    server.versions.clear()
    found = await registry(server, "protobuf").schemas([avro, lacks])
    assert "it is of AVRO, and ingest.format is protobuf" in str(found[avro])
    assert "there is no subject" in str(found[lacks])
    server.schemas[lacks] = type(server.schemas[lacks])("no", "PROTOBUF", (), "no base64")
    assert "it is no Protobuf schema" in str((await registry(server, "protobuf").schemas([lacks]))[lacks])


# The registry


async def test_a_schema_is_read_once_and_one_that_is_missing_again(server: RegistryServer) -> None:
    made = registry(server, "avro")
    number = server.register(json.dumps(record("long")))
    assert str((await made.schemas([number, 2]))[2]) == "the schema registry has no schema of id 2"
    server.register(json.dumps(record("int")))
    await made.schemas([number, 2])
    found = await made.schemas([number, 2])
    assert {type(one) for one in found.values()} == {AvroRows}
    assert sorted(server.requests) == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/2"]


async def test_schemas_are_kept_by_the_bytes_of_their_texts(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_KEPT_BYTES", 1000)
    made = registry(server, "avro")
    small = [server.register(json.dumps(record("long"))) for _ in range(2)]
    large = server.register(json.dumps({**record("long"), "doc": "x" * 2000}))
    for asked, expected in (
        (small, small),
        (small, []),
        ([large], [large]),  # it is kept, alone
        ([large], []),
        (small[:1], small[:1]),
        (small, small[1:]),
        ([large], [large]),
    ):
        server.requests.clear()
        await made.schemas(asked)
        assert server.requests == [f"/schemas/ids/{one}" for one in expected]
    assert made.lacks([*small, large, 99]) == {*small, 99}


async def test_unknown_ids_are_asked_for_at_a_pace(server: RegistryServer) -> None:
    made = registry(server, "avro")
    began = time.monotonic()
    found = await made.schemas(range(1000, 1150))
    assert time.monotonic() - began >= 0.95  # 100 at once, and then 50 a second
    assert {type(one) for one in found.values()} == {UnusableSchema}
    assert len(server.requests) == 150


def test_a_transaction_needs_few_schemas_that_are_unknown(server: RegistryServer) -> None:
    unread = registry(server, "avro")
    work = PartitionWork(
        Partition("t", 0),
        replace(PIPELINE, format="avro", flush=FlushLimits(rows=10_000, bytes=10**9, seconds=1)),
        source=cast("Any", None),
        table=cast("Any", None),
        topics=cast("Any", None),
        bad_records=cast("Any", None),
        figures=cast("Any", None),
        writing=asyncio.Semaphore(),
        registry=unread,
        freed=lambda: None,
    )
    work.buffer.add(Records.of([Record(number, 0, None, head(7), []) for number in range(1000)]), 0)
    work.buffer.add(Records.of([Record(number, 0, None, head(number), []) for number in range(1000, 2000)]), 0)
    fronts = []
    while work.buffer.records:
        most, ids = work.front(unread)
        taken = work.buffer.take(0, most)
        assert ids == schema_ids(taken.values)
        fronts.append(len(taken))
    assert sum(fronts) == 2000
    assert fronts[0] == 1050
    assert max(fronts[1:]) == 100


@pytest.mark.parametrize("wrong", [[{}], [7], {"name": "a"}, [{"name": "a", "subject": "b", "version": "x"}], [None]])
async def test_references_that_are_none_are_said(server: RegistryServer, wrong: Any) -> None:
    number = server.register(json.dumps(record("long")))
    server.schemas[number] = replace(server.schemas[number], references=wrong)
    with pytest.raises(RegistryUnavailable, match="gives a schema whose references are none"):
        await registry(server, "avro").schemas([number])


async def test_a_schema_and_those_that_it_refers_to_have_a_bound_together(server: RegistryServer) -> None:
    text = {**record("long"), "doc": "x" * 1_500_000}
    names = [(f"R{number}", f"below-{number}") for number in range(3)]
    for name, subject in names:
        server.register(json.dumps({**text, "name": name}), subject=subject)
    number = server.register(json.dumps(record("R0")), references=names)
    found = await registry(server, "avro").schemas([number])
    assert "with those that it refers to, it has more than 4 MiB" in str(found[number])


async def test_a_chain_of_references_has_a_bound(server: RegistryServer) -> None:
    names = [f"R{number}" for number in range(500)]
    for name, below in zip(names, [*names[1:], ""], strict=True):
        server.register(json.dumps(record(name)), subject=name, references=[(below, below)] if below else [])
    number = server.register(json.dumps(record("long")), references=[(names[0], names[0])])
    found = await registry(server, "avro").schemas([number])
    assert "its references come back to R100, or are more than 100" in str(found[number])


@pytest.mark.parametrize("status", [0, 404, 401, 429, 500, 302])
async def test_a_registry_that_gives_no_schemas_is_said(server: RegistryServer, status: int) -> None:
    server.status = status
    server.register(json.dumps(record("long")))
    made = registry(server, "avro", login=("anna", "geheim"))
    with pytest.raises(RegistryUnavailable) as found:
        await made.schemas([1])
    assert server.url in str(found.value)
    assert "geheim" not in str(found.value)
    assert f"status {status}" in str(found.value) if status else "can't be reached" in str(found.value)
    server.status = 200
    assert isinstance((await made.schemas([1]))[1], AvroRows)


async def test_a_registry_with_tls_and_a_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("registry", "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(issued.chain, issued.key)
    mine = authority.issue("me")
    known = ssl.create_default_context(cafile=authority.file)
    known.load_cert_chain(mine.chain, mine.key)
    with RegistryServer(login="anna:geheim", tls=context) as server:
        number = server.register(json.dumps(record("long")))
        found = await registry(server, "avro", login=("anna", "geheim"), tls=known).schemas([number])
        assert isinstance(found[number], AvroRows)
        with pytest.raises(RegistryUnavailable, match=r"status 401: set ingest.registry_username"):
            await registry(server, "avro", login=("anna", "falsch"), tls=known).schemas([number])
        with pytest.raises(RegistryUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await registry(server, "avro", login=("anna", "geheim")).schemas([number])
