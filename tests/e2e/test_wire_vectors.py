"""docs/wire-vectors.json holds what a real committer takes and says, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from committerd.lance.format.kind import Kind
from committerd.lance.operations.permissions import DEFAULT_OPERATIONS
from committerd_common.messages import Outcome, Status
from committerd_common.request import decode_envelope, decode_transaction
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka

ROOT = Path(__file__).resolve().parents[2]
CONTENT: dict[str, Any] = json.loads((ROOT / "docs" / "wire-vectors.json").read_text(encoding="utf-8"))
RECORDS: list[dict[str, Any]] = CONTENT["records"]
VARYING = ("cluster_id", "topic", "topic_id", "queued_ms", "commit_ms", "message")
"""Fields of an outcome that differ from run to run."""


def headers_of(record: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(name, bytes.fromhex(value)) for name, value in record["headers"]]


def test_every_operation_and_every_status_is_there() -> None:
    outcomes = [Outcome.FromString(bytes.fromhex(record["outcome"]["value"])) for record in RECORDS]
    assert {one.operation for one in outcomes} == {*Kind, ""}
    committed = {one.operation for one in outcomes if one.status == Status.COMMITTED}
    assert committed == {kind.value for kind in DEFAULT_OPERATIONS}
    statuses = {Status.Name(one.status) for one in outcomes}
    assert statuses == set(Status.keys()) - {"STATUS_UNSPECIFIED"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_headers_and_value_are_decoded_as_they_are_shown(record: dict[str, Any]) -> None:
    envelope = decode_envelope(headers_of(record))
    assert envelope.producer == "vectors"
    value = bytes.fromhex(record["value"])
    if record["transaction"] is not None and value:
        decoded = decode_transaction(value, bytes_max=10_000)
        assert decoded.uuid == bytes.fromhex(record["key"]).decode()
        assert decoded.SerializeToString(deterministic=True) == value
        assert record["transaction"] == text_format.MessageToString(decoded).splitlines()


class Producer:
    """A stranger: it has the bytes and a Kafka client."""

    def __init__(self, kafka: str, dataset: str) -> None:
        self._topic = f"{dataset}.staged"
        self._producer = KafkaProducer(bootstrap_servers=kafka)
        self._consumer = KafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
        self._consumer.assign([TopicPartition(f"{dataset}.outcomes", 0)])

    def outcome(self, record: dict[str, Any]) -> Any:
        """Stage it, and wait for the next outcome."""
        sent = self._producer.send(
            self._topic,
            key=bytes.fromhex(record["key"]) or None,
            value=bytes.fromhex(record["value"]),
            headers=headers_of(record),
            partition=0,
        )
        assert sent.get(timeout=60).offset == record["offset"]
        return next(self._consumer)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table's folder, with the files that the records name."""
    folder = tmp_path / "events.lance"
    for file in CONTENT["files"]:
        path = folder / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(file.get("content", "")) or bytes(file["placeholder_bytes"]))
    return folder


@pytest.fixture
def committer(kafka: KafkaBroker | RunningKafka, dataset: str, table: Path) -> Iterator[Daemon]:
    settings = {"DATASET__ALIASES": CONTENT["table"]}
    log = table.parent / "daemon.log"
    with Daemon(name=dataset, uri=str(table), kafka=kafka.bootstrap_servers, settings=settings, log=log) as daemon:
        daemon.wait_ready(text="active")
        yield daemon


@pytest.fixture
def producer(kafka: KafkaBroker | RunningKafka, dataset: str, committer: Daemon) -> Iterator[Producer]:
    made = Producer(kafka.bootstrap_servers, dataset)
    yield made
    made.close()


def clean_up(committer: Daemon, table: Path, last: int) -> None:
    """Delete the versions up to this one while the committer is away."""
    committer.stop()
    for version in range(1, last + 1):
        (table / "_versions" / f"{2**64 - 1 - version}.manifest").unlink()
    committer.start()
    committer.wait_ready(text="active")


@pytest.mark.kafka
@pytest.mark.slow
def test_a_committer_gives_each_record_the_outcome_that_is_shown(
    committer: Daemon, table: Path, producer: Producer
) -> None:
    for record in RECORDS:
        if "cleaned_up_to" in record:
            clean_up(committer, table, record["cleaned_up_to"])
        found = producer.outcome(record)
        wanted = Outcome.FromString(bytes.fromhex(record["outcome"]["value"]))
        said = Outcome.FromString(found.value)
        for name in VARYING:
            setattr(said, name, getattr(wanted, name))
        assert (found.key or b"").hex() == record["outcome"]["key"], record["name"]
        assert said == wanted, record["name"]
        headers = dict(found.headers)
        assert headers["offset"].hex() == dict(record["outcome"]["headers"])["offset"]
