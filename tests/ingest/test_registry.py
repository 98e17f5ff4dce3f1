"""Avro and Protobuf from a real Kafka into a table, with a registry that goes away."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.registry_server import RegistryServer
from tests.ingest.running import Flow, flow_of, stopping, wait

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


def send(flow: Flow, number: int, count: int, partition: int) -> None:
    """Send the next records, written with the schema of this id."""
    schema = fastavro.parse_schema(order("long"))  # an int and a long have the same bytes
    for place in range(flow.topic.sent, flow.topic.sent + count):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, {"id": place, "text": "x"})
        flow.topic.send_value(b"\0" + number.to_bytes(4, "big") + stream.getvalue(), partition=partition)
    flow.topic.sent += count
    flow.topic.flush()


def test_a_registry_that_is_away_stops_only_the_partition_that_needs_it_and_loses_nothing(
    flow: Flow, registry: RegistryServer
) -> None:
    first, second = (registry.register(json.dumps(order(kind))) for kind in ("int", "long"))
    ingest = flow.ingest(INGEST__FORMAT="avro", INGEST__REGISTRY_URL=registry.url, **LOGIN)
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
