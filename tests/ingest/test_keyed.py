"""Upserts and deletes by key, beside a dict: with a real Kafka, a real committer, pylance, and kills."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import lance
import pyarrow as pa
import pytest

from committerd_batch.target import Mode
from committerd_ingest.avro import AvroRows
from committerd_ingest.decoding import Decoded, RecordColumns, WrongColumns
from committerd_ingest.keyed import OP, ORDER, KeyedDecoder, ids_of
from committerd_ingest.records import Record
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import SCHEMA, Flow, flow_of, stopping, wait
from tests.ingest.test_source import PIPELINE

TWO_KEYS = pa.schema(
    [pa.field("a", pa.int64()), pa.field("b", pa.string()), pa.field("v", pa.float64(), nullable=False)]
)


def decoded(schema: pa.Schema, keys: list[str], *records: tuple[bytes | None, bytes | None], **options: Any) -> Decoded:
    made = KeyedDecoder(
        schema,
        **{"mode": Mode.UPSERT, "format": "json", "key_format": "json", **options},
        keys=keys,
        columns=RecordColumns(),
        topic="t",
        partition=0,
    )
    return made.decode([Record(number, 0, key, value) for number, (key, value) in enumerate(records)])


def changes(found: Decoded) -> list[tuple[Any, ...]]:
    """(offset, kind of change, values), in the order of the offsets."""
    rows = sorted(found.rows.to_pylist(), key=lambda row: row[ORDER])
    return [(row[ORDER], row[OP], *[row[one] for one in row if one not in (ORDER, OP)]) for row in rows]


def test_a_value_puts_its_row_in_and_a_tombstone_takes_that_of_its_key_out() -> None:
    found = decoded(
        TWO_KEYS,
        ["a", "b"],
        (b"any", b'{"a":1,"b":"x","v":2}'),
        (b'{"a":1,"b":"x"}', None),
        (b'{"b":"y","a":2}', None),
    )
    assert changes(found) == [
        (0, "upsert", 1, "x", 2.0),
        (1, "delete", 1, "x", None),
        (2, "delete", 2, "y", None),
    ]


def test_records_that_name_no_row_are_bad_and_say_why() -> None:
    cases: list[tuple[bytes | None, bytes | None, str]] = [
        (b"1", b'{"a":1,"v":2}', "column 'b' may not be null"),
        (b"1", b'{"a":1,"b":null,"v":2}', "column 'b' may not be null"),
        (b"1", b'{"a":1,"b":"x"}', "column 'v' may not be null"),
        (None, None, "the record has no key"),
        (b"", None, "the key: the value is not JSON"),
        (b"1", None, "the key: the value is a JSON number"),
        (b'{"a":1}', None, "the key: column 'b' may not be null"),
        (b'{"a":1,"b":"x","c":1}', None, "the key: field 'c' is not in the table"),
        (b'{"a":1.5,"b":"x"}', None, "the key: "),
    ]
    good = (b'{"a":1,"b":"x"}', None)
    found = decoded(TWO_KEYS, ["a", "b"], good, *((key, value) for key, value, _ in cases), good)
    assert [one[0] for one in changes(found)] == [0, len(cases) + 1]
    said = [(reason, one.reason) for (*_, reason), one in zip(cases, found.bad, strict=True)]
    assert [pair for pair in said if pair[0] not in pair[1]] == []


@pytest.mark.parametrize(
    ("kind", "format", "key", "expected"),
    [
        (pa.int64(), "json", b"7", 7),
        (pa.int64(), "json", b' {"id":7}', 7),
        (pa.string(), "json", b'"x"', "x"),
        (pa.int64(), "json", b'7,"id":8', None),
        (pa.int64(), "json", b'7,"v":8', None),
        (pa.int64(), "json", b"7}", None),
        (pa.string(), "raw", b"x", "x"),
        (pa.string(), "raw", b"\xff", None),
        (pa.binary(), "raw", b"\xff", b"\xff"),
        (pa.string(), "raw", b"", ""),
        (pa.string(), "raw", None, None),
    ],
)
def test_with_one_key_column_a_key_may_be_its_value_alone(
    kind: Any, format: str, key: bytes | None, expected: Any
) -> None:
    schema = pa.schema([("id", kind), ("v", pa.int64())])
    found = decoded(schema, ["id"], (key, b'{"no":"matter"}'), mode=Mode.DELETE, key_format=format)
    assert changes(found) == ([] if expected is None else [(0, "delete", expected, None)])
    assert len(found.bad) == (expected is None)


def test_key_columns_that_the_table_does_not_have_are_said() -> None:
    with pytest.raises(WrongColumns, match=r"no columns \['c'\], which are ingest.keys"):
        decoded(TWO_KEYS, ["a", "c"])
    with pytest.raises(WrongColumns, match="fills one column"):
        decoded(TWO_KEYS, ["a", "b"], key_format="raw")


def test_columns_with_the_names_that_changes_use_are_refused_and_never_added() -> None:
    for name in (OP, ORDER):
        with pytest.raises(
            WrongColumns, match=f"has columns .*{name}.*, names that upserts and deletes use themselves"
        ):
            decoded(TWO_KEYS.append(pa.field(name, pa.string())), ["a"])
    for name, kind in ((OP, "string"), (ORDER, "long")):
        fields = [{"name": "a", "type": "long"}, {"name": name, "type": kind}, {"name": "new", "type": "long"}]
        whole = {"type": "record", "name": "R", "fields": fields}
        stream = io.BytesIO()
        value = {"a": 1, name: "x" if kind == "string" else 1, "new": 2}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(whole), value)
        records = [Record(0, 0, None, b"\0\0\0\0\1" + stream.getvalue())]
        schemas = {1: AvroRows(json.dumps(whole))}
        for table in (pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64()), ("new", pa.int64())])):
            made = KeyedDecoder(
                table,
                mode=Mode.UPSERT,
                keys=["a"],
                format="avro",
                key_format="avro",
                columns=RecordColumns(),
                topic="t",
                partition=0,
                merge=True,
            )
            new = made.new_columns(records, schemas)
            assert (None if new is None else new.names) == (None if "new" in table.names else ["new"])
            found = made.decode(records, schemas)
            assert found.rows.num_rows == 0
            assert [one.stops for one in found.bad] == [True]
            assert "new" not in table.names or name in found.bad[0].reason


# Debezium


ROWS = pa.schema([("id", pa.int64()), ("v", pa.decimal128(20, 10))])


def envelope(op: str, after: str = "null", *, schema: bool = False) -> bytes:
    text = f'{{"before": null, "after":{after} , "source":{{"table":"t"}}, "op":"{op}","ts_ms":1}}'
    return (f'{{"schema":{{"type":"struct"}},"payload":{text}}}' if schema else text).encode()


def test_envelopes_of_debezium_do_what_they_say() -> None:
    row = '{"id": 1,"v":0.1234567890}'
    records: list[tuple[bytes | None, bytes | None]] = [
        (b'{"id":1}', envelope("r", row)),
        (b'{"id":1}', envelope("c", row, schema=True)),
        (b'{"schema":{},"payload":{"id":1}}', envelope("d")),
        (b'{"id":1}', None),
        (b'{"id":1}', envelope("u", row)),
        (None, b'{"ts_ms":1}'),
        (None, envelope("m")),
        (None, b'{"status":"BEGIN","id":"1"}'),
        (None, b'{"source":{},"databaseName":"x","ddl":"CREATE"}'),
    ]
    found = decoded(ROWS, ["id"], *records, mode=Mode.CDC)
    assert not found.bad
    kinds = ["upsert", "upsert", "delete", "delete", "upsert"]
    value = decimal.Decimal("0.1234567890")
    assert changes(found) == [(n, op, 1, value if op == "upsert" else None) for n, op in enumerate(kinds)]


def test_envelopes_that_change_no_row_by_its_key_are_bad_and_say_why() -> None:
    cases: list[tuple[bytes | None, bytes, str]] = [
        (b'{"id":1}', envelope("t"), "has truncated its table"),
        (b'{"id":1}', envelope("x"), "op is 'x', which is none of c, r, u, d, m, t"),
        (b'{"id":1}', envelope("u"), "no row in after"),
        (None, envelope("d"), "the record has no key"),
        (b"[" * 100_000, envelope("d"), "the key: the value is JSON that is nested too deep"),
        (b'{"id":1}', envelope("u", '{"id":1,"w":1}'), "field 'w' is not in the table"),
        (b'{"id":1}', envelope("u", '{"v":1}'), "column 'id' may not be null"),
        (b'{"id":1}', b'{"id":1,"v":1}', "no envelope of Debezium"),
        (b'{"id":1}', b'{"schema":{},"payload":null}', "no envelope of Debezium"),
        (b'{"id":1}', b"[]", "JSON array"),
        (b'{"id":1}', b'{"op":"c"', "not JSON"),
        (b'{"id":1}', b"\xff", "not UTF-8"),
    ]
    found = decoded(ROWS, ["id"], *((key, value) for key, value, _ in cases), mode=Mode.CDC)
    assert found.rows.num_rows == 0
    said = [(reason, one.reason) for (*_, reason), one in zip(cases, found.bad, strict=True)]
    assert [pair for pair in said if pair[0] not in pair[1]] == []


def test_envelopes_in_avro_are_read_by_the_schema_of_the_row() -> None:
    day = {"type": "int", "connect.name": "io.debezium.time.Date"}
    at = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "day", "type": day},
        {"name": "at", "type": ["null", at]},
    ]
    value = {"type": "record", "name": "Value", "fields": fields}
    whole: dict[str, Any] = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
        ],
    }
    key: dict[str, Any] = {"type": "record", "name": "Key", "fields": fields[:1]}
    beat: dict[str, Any] = {"type": "record", "name": "Heartbeat", "fields": [{"name": "ts_ms", "type": "long"}]}
    schemas = {number: AvroRows(json.dumps(one)) for number, one in enumerate((whole, key, beat))}

    def written(number: int, given: Any) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema([whole, key, beat][number]), given)
        return bytes([0, 0, 0, 0, number]) + stream.getvalue()

    row = {"id": 5, "day": 1, "at": 2}
    table = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us"))])

    def decoder(schema: pa.Schema) -> KeyedDecoder:
        return KeyedDecoder(
            schema,
            mode=Mode.CDC,
            keys=["id"],
            format="avro",
            key_format="avro",
            columns=RecordColumns(),
            topic="t",
            partition=0,
        )

    made = decoder(table)
    values = [
        written(0, {"before": None, "after": row, "op": "c"}),
        written(0, {"before": row, "after": None, "op": "d"}),
        written(2, {"ts_ms": 1}),
        written(0, {"before": row, "after": None, "op": "t"}),
    ]
    records = [Record(number, 0, written(1, {"id": 5}), one) for number, one in enumerate(values)]
    found = made.decode(records, schemas)
    at_2 = datetime.datetime(1970, 1, 1, 0, 0, 0, 2)  # noqa: DTZ001  # the source's column has no zone
    assert changes(found) == [(0, "upsert", 5, datetime.date(1970, 1, 2), at_2), (1, "delete", 5, None, None)]
    assert ["truncated" in one.reason for one in found.bad] == [True]
    new = decoder(table.remove(2)).new_columns(records, schemas)
    assert new is not None
    assert new.names == ["at"]


def test_the_schema_of_a_key_is_read_wherever_the_key_may_be() -> None:
    pipeline = replace(PIPELINE, format="avro", key_format="avro", keys=("id",))
    records = [Record(0, 0, b"\0\0\0\0\1", b"\0\0\0\0\2"), Record(1, 0, b"\0\0\0\0\3", None)]
    found = {mode: ids_of(replace(pipeline, mode=mode), records) for mode in (Mode.UPSERT, Mode.DELETE, Mode.CDC)}
    assert found == {Mode.UPSERT: {2, 3}, Mode.DELETE: {1, 3}, Mode.CDC: {1, 2, 3}}
    assert ids_of(replace(pipeline, mode=Mode.APPEND, keys=()), records) == {2}


@pytest.fixture
def flow(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> Iterator[Flow]:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=2) as made:
        yield made


class History:
    """Changes of 40 keys, and what is left of them. A key has its partition."""

    def __init__(self, flow: Flow, seed: int) -> None:
        self._flow, self._chance = flow, random.Random(seed)
        self.rows: dict[int, str] = {}
        self.ends = [0] * flow.topic.partitions

    def send(self, count: int) -> None:
        for number in range(count):
            key = self._chance.randrange(40)
            partition = key % self._flow.topic.partitions
            value: bytes | None = None
            if self._chance.random() < 0.7:
                self.rows[key] = f"{number}-{self._chance.random()}"
                value = json.dumps({"id": key, "text": self.rows[key]}).encode()
            else:
                self.rows.pop(key, None)
            self._flow.topic.send_value(value, key=b'{"id":%d}' % key, partition=partition)
            self.ends[partition] += 1
        self._flow.topic.flush()

    def reached(self) -> bool:
        """Whether the table's marks are at the ends of the partitions."""
        marks = [
            json.loads(text)["version"]
            for name, text in sorted(self._flow.scene.table.metadata().items())
            if name.startswith("committerd.app.")
        ]
        return sorted(marks) == sorted(self.ends)

    def check(self) -> None:
        wait(self.reached, seconds=240, what=lambda: f"{self._flow.scene.table.metadata()}, not {self.ends}")
        assert {row["id"]: row["text"] for row in self._flow.rows()} == self.rows
        assert self._flow.count() == len(self.rows)


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
def test_upserts_and_deletes_leave_what_a_dict_has_over_kills(flow: Flow) -> None:
    """`cdc` has a test of its own (`test_history.py`)."""
    history = History(flow, 7)
    processes = [flow.ingest(INGEST__MODE="upsert", INGEST__KEYS="id", INGEST__FLUSH_ROWS="50") for _ in range(2)]
    with stopping(processes):
        for one in processes:
            one.start()
        history.send(300)
        history.check()
        for one in processes:  # each in the midst of its work
            history.send(300)
            wait(lambda: flow.scene.table.version > 3)
            one.kill()
            one.start()
        history.check()
        lance.dataset(flow.scene.table.uri).add_columns({"more": "cast(null as string)"})
        history.send(50)
        history.check()


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
def test_deletes_by_key_take_rows_out_and_change_nothing_where_there_is_none(flow: Flow) -> None:
    lance.write_dataset(
        pa.table({"id": range(20), "text": ["x"] * 20, "partition": [0] * 20, "offset": range(20)}, SCHEMA),
        flow.scene.table.uri,
        mode="append",
    )
    for key in (3, 30, 4, 3):
        flow.topic.send_value(b"no matter", key=b"%d" % key, partition=key % 2)
    flow.topic.flush()
    assert "ingest.keys" not in flow.command("ingest", "--dry-run", INGEST__MODE="delete", INGEST__KEYS="id")
    lacks = flow.command("ingest", "--dry-run", good=False, INGEST__MODE="delete")
    assert "mode upsert, delete or cdc needs keys" in lacks
    ingest = flow.ingest(INGEST__MODE="delete", INGEST__KEYS="id")
    with stopping([ingest]):
        ingest.start()
        wait(lambda: flow.count() == 18)
        flow.topic.send_value(None, key=b"5", partition=1)  # the marks have passed the key that is not there
        flow.topic.flush()
        wait(lambda: flow.count() == 17)
    assert sorted(row["id"] for row in flow.rows()) == [0, 1, 2, *range(6, 20)]
