"""A history of Debezium's changes beside a dict: does the table have, at its end, what the source has?

    make ingest-history
    make ingest-history ARGS="--changes 5000 --seed 7"

The source is a dict that a snapshot begins, and that inserts, updates, deletes, changes of keys and incremental
snapshots change; heartbeats and messages of the database's log stand between them. Twice it gets a column. The changes
are envelopes of Avro in a topic with four partitions, as Debezium's connectors write them; the schemas are in a
registry, and `schema_mode` is `merge`. Two processes of the pipeline and a committer are killed (SIGKILL) in turn
meanwhile. The exit code is 1 if the table and the dict differ.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from harness.child import Launch
from harness.kafka import KafkaBroker
from harness.registry_server import RegistryServer
from tests.acceptance.long_runs import Tell, long_run
from tests.ingest.running import Flow, flow_of, wait

_PARTITIONS = 4
_KILLS = 20
"""Points of a history at which a process is killed, at most; and there are at least so many changes between two."""
_BETWEEN_KILLS_MIN = 500
_KINDS = {"update": 50, "insert": 20, "delete": 15, "rekey": 5, "reread": 5, "heartbeat": 3, "message": 2}
"""What a change is, and how often beside the others."""
_DAY = {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("id", "long"),
    ("text", ["null", "string"]),
    ("amount", ["null", "double"]),
    ("day", ["null", _DAY]),
)
_VERSIONS = (2, 3, 4)
"""How many of the columns the source has, by and by."""
_END_SECONDS = 3600.0
_EPOCH = datetime.date(1970, 1, 1)


class History:
    """The source: a dict of rows by their keys, whose changes go to the topic."""

    def __init__(self, flow: Flow, registry: RegistryServer, *, seed: int, keys: int) -> None:
        """`keys`: how many there are, at most."""
        self._flow, self._chance, self._keys = flow, random.Random(seed), keys
        self.rows: dict[int, dict[str, Any]] = {}
        self.ends = [0] * _PARTITIONS
        """The offset behind the last record of each partition."""
        self.kinds: Counter[str] = Counter()
        self._columns = _VERSIONS[0]
        self._key = _Written(registry, _record("Key", _COLUMNS[:1]))
        self._beat = _Written(registry, _record("Heartbeat", (("ts_ms", "long"),)))
        self._envelopes = {count: _Written(registry, _envelope(count)) for count in _VERSIONS}

    def change(self, count: int) -> None:
        """Make so many changes, and send them."""
        for _ in range(count):
            kind = self._chance.choices(list(_KINDS), list(_KINDS.values()))[0]
            self.kinds[kind] += 1
            key = self._chance.randrange(self._keys)
            match kind:
                case "heartbeat":
                    self._send(key, self._beat.text({"ts_ms": 1}), named=False)
                case "message":
                    self._say("m", key, None, None)
                case "delete":
                    self._delete(key)
                case "rekey" if key in self.rows:  # as Debezium says it: the old row is deleted, and a new one created
                    row = self.rows[key]
                    self._delete(key)
                    self._put("c", self._chance.randrange(self._keys), {**row})
                case "reread" if key in self.rows:
                    self._say("r", key, None, self.rows[key])
                case _:
                    self._put("u" if key in self.rows else "c", key, self._row())
        self._flow.topic.flush()

    def snapshot(self) -> None:
        """Begin with a quarter of the keys."""
        for key in range(0, self._keys, 4):
            self._put("r", key, self._row())
        self._flow.topic.flush()

    def extend(self) -> None:
        """Give the source a column more, if it has not all."""
        self._columns = next((one for one in _VERSIONS if one > self._columns), self._columns)
        for row in self.rows.values():
            row.update({name: None for name, _ in _COLUMNS[1 : self._columns] if name not in row})

    def _row(self) -> dict[str, Any]:
        chance = self._chance
        made = {
            "text": chance.choice([None, "", f"{chance.random()}", "ä\0\U0001f600"]),
            "amount": chance.choice([None, chance.random(), 0.1, -0.0]),
            "day": chance.choice([None, chance.randrange(-40_000, 40_000)]),
        }
        return {name: made[name] for name, _ in _COLUMNS[1 : self._columns]}

    def _put(self, op: str, key: int, row: dict[str, Any]) -> None:
        before = self.rows.get(key)
        self.rows[key] = row
        self._say(op, key, before, row)

    def _delete(self, key: int) -> None:
        self._say("d", key, self.rows.pop(key, None), None)
        self._send(key, None)  # the tombstone

    def _say(self, op: str, key: int, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        sides = {
            side: None if row is None else {"id": key, **row} for side, row in (("before", before), ("after", after))
        }
        whole = {**sides, "source": {"table": "orders"}, "op": op, "ts_ms": 1}
        self._send(key, self._envelopes[self._columns].text(whole))

    def _send(self, key: int, value: bytes | None, *, named: bool = True) -> None:
        partition = key % _PARTITIONS
        self._flow.topic.send_value(value, key=self._key.text({"id": key}) if named else None, partition=partition)
        self.ends[partition] += 1

    def reached(self) -> bool:
        """Whether the table's marks are at the ends of the partitions."""
        found = self._flow.scene.table.metadata()
        marks = [json.loads(text)["version"] for name, text in found.items() if name.startswith("committerd.app.")]
        return sorted(marks) == sorted(self.ends)

    def expected(self) -> dict[int, dict[str, Any]]:
        """The rows that the table has when it is where the source is."""
        names = [name for name, _ in _COLUMNS[1 : self._columns]]
        return {key: {name: _as_read(name, row.get(name)) for name in names} for key, row in self.rows.items()}


class _Written:
    """A schema of the registry, and values that are written with it."""

    def __init__(self, registry: RegistryServer, schema: dict[str, Any]) -> None:
        self._head = b"\0" + registry.register(json.dumps(schema)).to_bytes(4, "big")
        self._schema = fastavro.parse_schema(schema)

    def text(self, value: Any) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self._schema, value)
        return self._head + stream.getvalue()


def _record(name: str, columns: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in columns]}


def _envelope(columns: int) -> dict[str, Any]:
    fields: tuple[tuple[str, Any], ...] = (
        ("before", ["null", _record("Value", _COLUMNS[:columns])]),
        ("after", ["null", "Value"]),
        ("source", _record("Source", (("table", "string"),))),
        ("op", "string"),
        ("ts_ms", ["null", "long"]),
    )
    return _record("Envelope", fields)


def _as_read(name: str, value: Any) -> Any:
    return value if name != "day" or value is None else _EPOCH + datetime.timedelta(days=value)


def run(changes: int, seed: int, *, servers: str, folder: Path, launch: Launch, tell: Tell) -> list[str]:
    """Run against a Kafka, and return what is wrong."""
    chance, wrong = random.Random(seed), list[str]()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    with (
        RegistryServer() as registry,
        flow_of(servers, folder, launch, partitions=_PARTITIONS, schema=schema) as flow,
        ExitStack() as stack,
    ):
        assert flow.committer is not None
        settings = {
            "INGEST__MODE": "cdc",
            "INGEST__KEYS": "id",
            "INGEST__FORMAT": "avro",
            "INGEST__REGISTRY_URL": registry.url,
            "INGEST__SCHEMA_MODE": "merge",
            "INGEST__PARTITION_COLUMN": "",
            "INGEST__OFFSET_COLUMN": "",
        }
        ingests = [flow.ingest(**settings) for _ in range(2)]
        for one in ingests:
            stack.callback(one.kill)
            one.start()
        history = History(flow, registry, seed=seed, keys=max(changes // 20, 40))
        history.snapshot()
        parts = max(min(changes // _BETWEEN_KILLS_MIN, _KILLS), 1)
        for part in range(parts):
            if part in (parts // 3, 2 * parts // 3):
                history.extend()
            version = flow.scene.table.version
            history.change(changes // parts)
            wait(partial(_beyond, flow, version), seconds=600)  # they are in the midst of it
            victim = chance.choice([*ingests, flow.committer])
            victim.kill()
            victim.start()
            tell(f"{sum(history.kinds.values())} changes sent, {flow.count()} rows")
        if not _holds(history.reached):
            wrong.append(f"the table's marks are not at {history.ends}: {flow.scene.table.metadata()}")
        found = flow.rows()
        by_key = {row.pop("id"): row for row in found}
        expected = history.expected()
        if len(by_key) < len(found):
            wrong.append(f"{len(found) - len(by_key)} keys are in the table more than once")
        differ = [key for key in {*by_key, *expected} if by_key.get(key) != expected.get(key)]
        wrong += [f"key {key} is {by_key.get(key)}, and not {expected.get(key)}" for key in sorted(differ)[:10]]
        tell(f"{sum(history.ends)} records in Kafka, {len(expected)} rows; {dict(history.kinds)}")
    return wrong


def _beyond(flow: Flow, version: int) -> bool:
    return flow.scene.table.version > version


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        wait(condition, seconds=_END_SECONDS)
    except AssertionError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=100_000, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of changes and kills; default %(default)s")
    chosen = parser.parse_args()

    def started(broker: KafkaBroker, folder: Path, launch: Launch, tell: Tell) -> list[str]:
        servers = broker.bootstrap_servers
        return run(chosen.changes, chosen.seed, servers=servers, folder=folder, launch=launch, tell=tell)

    return long_run("ingest-history", started, good="the table has what the source has")


if __name__ == "__main__":
    sys.exit(main())
