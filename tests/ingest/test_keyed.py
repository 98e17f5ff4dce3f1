"""Upserts and deletes by key, beside a dict: with a real Kafka, a real committer, pylance, and kills."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd_batch.target import Mode
from committerd_ingest.decoding import Decoded, RecordColumns, WrongColumns
from committerd_ingest.keyed import OP, ORDER, KeyedDecoder
from committerd_ingest.records import Record
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import SCHEMA, Flow, flow_of, stopping, wait

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
        (None, None, "the key: the value is not JSON"),
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
    ],
)
def test_with_one_key_column_a_key_may_be_its_value_alone(kind: Any, format: str, key: bytes, expected: Any) -> None:
    schema = pa.schema([("id", kind), ("v", pa.int64())])
    found = decoded(schema, ["id"], (key, b'{"no":"matter"}'), mode=Mode.DELETE, key_format=format)
    assert changes(found) == ([] if expected is None else [(0, "delete", expected, None)])
    assert len(found.bad) == (expected is None)


def test_key_columns_that_the_table_does_not_have_are_said() -> None:
    with pytest.raises(WrongColumns, match=r"no columns \['c'\], which are ingest.keys"):
        decoded(TWO_KEYS, ["a", "c"])
    with pytest.raises(WrongColumns, match="fills one column"):
        decoded(TWO_KEYS, ["a", "b"], key_format="raw")


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
            self._flow.topic.send_value(value, key=b"%d" % key, partition=partition)
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
def test_upserts_and_tombstones_leave_what_a_dict_has_over_kills(flow: Flow) -> None:
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
    assert "mode upsert or delete needs keys" in lacks
    ingest = flow.ingest(INGEST__MODE="delete", INGEST__KEYS="id")
    with stopping([ingest]):
        ingest.start()
        wait(lambda: flow.count() == 18)
        flow.topic.send_value(None, key=b"5", partition=1)  # the marks have passed the key that is not there
        flow.topic.flush()
        wait(lambda: flow.count() == 17)
    assert sorted(row["id"] for row in flow.rows()) == [0, 1, 2, *range(6, 20)]
