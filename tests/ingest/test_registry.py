"""Avro and Protobuf from a real Kafka into a table, with a registry that goes away."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from committerd_ingest.dead_letters import Letter, Origin, headers_of
from committerd_ingest.records import Partition, Record
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.registry_server import RegistryServer
from tests.ingest.running import SCHEMA, Flow, Topic, flow_of, stopping, wait

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

LOGIN = {"INGEST__REGISTRY_USERNAME": "anna", "INGEST__REGISTRY_PASSWORD": "geheim-7"}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer(login="anna:geheim-7") as made:
        yield made


@pytest.fixture
def flow(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> Iterator[Flow]:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=2) as made:
        yield made


def order(kind: str) -> dict[str, Any]:
    """A schema whose ids are of this type."""
    fields = [{"name": "id", "type": kind}, {"name": "text", "type": ["null", "string"], "default": None}]
    return {"type": "record", "name": "Order", "fields": fields}


def send(flow: Flow, number: int, count: int, partition: int, *, price: Any = None) -> None:
    """Send the next records, written with the schema of this id."""
    text = order("long") if price is None else json.loads(extended("string" if price == "dear" else "double", "price"))
    schema = fastavro.parse_schema(text)  # an int and a long have the same bytes
    for place in range(flow.topic.sent, flow.topic.sent + count):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, {"id": place, "text": "x", "price": price})
        flow.topic.send_value(b"\0" + number.to_bytes(4, "big") + stream.getvalue(), partition=partition)
    flow.topic.sent += count
    flow.topic.flush()


def test_a_registry_that_is_away_stops_only_the_partition_that_needs_it_and_loses_nothing(
    flow: Flow, registry: RegistryServer
) -> None:
    first, second = (registry.register(json.dumps(order(kind))) for kind in ("int", "long"))
    settings = {"INGEST__FORMAT": "avro", "INGEST__REGISTRY_URL": registry.url, **LOGIN}
    ingest = flow.ingest(**settings)
    send(flow, first, 30, 0)
    send(flow, first, 30, 1)
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(60)
        registry.status = 0
        send(flow, second, 30, 0)
        said = ingest.wait_line("ingest.partition_stopped", reason="registry_unavailable")
        assert said["partition"] == f"{flow.topic.name}-0"
        assert f"the schema registry at {registry.url} can't be reached" in said["error"]
        send(flow, first, 30, 1)
        flow.wait_rows(90)  # its schema is known
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 1)
        assert "registry" in ingest.wait_ready(text="stopped")
        assert flow.count() == 90
        bad = Topic(flow.scene.topics.servers, partitions=1)
        letter = Letter("", Origin(Partition(flow.topic.name, 0), "of an older topic"), Record(1000, 0, None, None), "")
        bad.send_value(b"\0" + second.to_bytes(4, "big"), headers=headers_of(letter))
        bad.flush()
        bad.close()
        replayed = flow.command("ingest", "replay", good=False, INGEST__DEAD_LETTER_TOPIC=bad.name, **settings)
        assert f"the schema registry at {registry.url} can't be reached" in replayed
        assert "can't read the table" not in replayed
        registry.status = 200
        flow.wait_rows(120)
        flow.check()
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 0)
        ingest.stop()
    assert "geheim-7" not in ingest.log.read_text()


def test_messages_of_protobuf_become_rows_and_a_dry_run_shows_them(flow: Flow, registry: RegistryServer) -> None:
    text = 'syntax = "proto3"; message Order { int64 id = 1; optional string text = 2; }'
    number = registry.register(text, kind="PROTOBUF")
    for place in range(20):
        flow.topic.send_value(b"\0" + number.to_bytes(4, "big") + bytes([0, 8, place]), partition=place % 2)
    flow.topic.send_value(b"\0" + number.to_bytes(4, "big") + b"\0\xff")
    flow.topic.flush()
    flow.topic.sent = 20
    settings: dict[str, Any] = {"INGEST__FORMAT": "protobuf", "INGEST__REGISTRY_URL": registry.url, **LOGIN}
    said = flow.command("ingest", "--dry-run", **settings)
    assert "21 records make 20 rows; 1 are bad. Nothing was written." in said
    mistaken = {**settings, "INGEST__REGISTRY_PASSWORD": "falsch-8"}
    wrong = flow.command("ingest", "--dry-run", good=False, **mistaken)
    assert "status 401: set ingest.registry_username" in wrong
    assert "falsch-8" not in wrong
    lacks = flow.command("ingest", "--dry-run", good=False, INGEST__FORMAT="protobuf")
    assert "format avro or protobuf needs registry_url" in lacks
    ingest = flow.ingest(INGEST__ON_ERROR="skip", **settings)
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(20)
        wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 1)
        flow.check()


# The schema of the table


def extended(kind: str, name: str) -> str:
    """The schema of an order with one field more."""
    made = order("long")
    made["fields"].append({"name": name, "type": ["null", kind], "default": None})
    return json.dumps(made)


def test_new_versions_of_a_schema_bring_their_columns_and_what_cannot_be_merged_stops_its_partition(
    flow: Flow, registry: RegistryServer
) -> None:
    first = registry.register(json.dumps(order("long")))
    second = registry.register(extended("double", "price"))
    third = registry.register(extended("string", "price"))
    settings: dict[str, Any] = {"INGEST__FORMAT": "avro", "INGEST__REGISTRY_URL": registry.url, **LOGIN}
    settings["INGEST__SCHEMA_MODE"] = "merge"
    processes = [flow.ingest(**settings) for _ in range(2)]
    send(flow, first, 20, 0)
    for partition in (0, 1):  # both add the column, perhaps at once
        send(flow, second, 20, partition, price=1.5)
    assert "Its new columns:\n  price: double\n" in flow.command("ingest", "--dry-run", **settings)
    with stopping(processes):
        for one in processes:
            one.start()
        flow.wait_rows(60)
        assert flow.schema().names == [*SCHEMA.names, "price"]
        flow.check()
        send(flow, second, 10, 0, price=1.5)
        send(flow, third, 10, 0, price="dear")
        send(flow, second, 10, 1, price=1.5)
        flow.wait_rows(80)
        wait(lambda: any(True for one in processes for _ in one.lines("ingest.partition_stopped")))
        stops = [line for one in processes for line in one.lines("ingest.partition_stopped")]
        assert {line["reason"] for line in stops} == {"schema_differs"}
        assert "the record at offset 50 can't be merged into the table's: column 'price' is double" in stops[0]["error"]
    rows = flow.rows()
    assert len(rows) == 80
    assert [row["price"] for row in sorted(rows, key=lambda row: row["id"])] == [None] * 20 + [1.5] * 60


def test_a_table_is_created_from_the_registry_or_from_a_file(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch, registry: RegistryServer
) -> None:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=2, schema=None) as flow:
        number = registry.register(json.dumps(order("long")), subject=f"{flow.topic.name}-value")
        settings: dict[str, Any] = {"INGEST__FORMAT": "avro", "INGEST__REGISTRY_URL": registry.url, **LOGIN}
        processes = [flow.ingest(INGEST__CREATE_FROM="registry", **settings) for _ in range(2)]
        for partition in (0, 1):
            send(flow, number, 20, partition)
        dry = flow.command("ingest", "--dry-run", INGEST__CREATE_FROM="registry", **settings)
        assert "would have these columns:\n  id: int64\n" in dry
        assert "40 records make 40 rows; 0 are bad. Nothing was written." in dry
        assert not flow.exists()
        with stopping(processes):
            for one in processes:  # both create it, perhaps at once
                one.start()
            wait(flow.exists)
            flow.wait_rows(40)
        assert flow.schema().equals(pa.schema([field.with_nullable(True) for field in SCHEMA]))
        flow.check()
    folder = tmp_path / "second"
    folder.mkdir()
    file = folder / "schema.arrow"
    file.write_bytes(SCHEMA.serialize().to_pybytes())
    with flow_of(kafka.bootstrap_servers, folder, launch, partitions=1, schema=None) as flow:
        flow.topic.send(20)
        ingest = flow.ingest(INGEST__CREATE_FROM=str(file))
        with stopping([ingest]):
            ingest.start()
            wait(flow.exists)
            flow.wait_rows(20)
        assert flow.schema().equals(SCHEMA)
        flow.check()
        lacks = flow.command("ingest", "--dry-run", good=False, INGEST__CREATE_FROM=str(folder / "none"))
        assert "has no schema of Arrow" in lacks
        lacks = flow.command("ingest", "--dry-run", good=False, INGEST__SCHEMA_MODE="merge")
        assert "schema_mode merge and create_from registry need format avro or protobuf" in lacks
