"""Plays the committer: reads a staged topic of a real Kafka and publishes outcomes as the test says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from committerd_common.messages import COMMITTED, Outcome, Transaction

Answer = Callable[[Any], Iterable[Outcome]]
"""From one record of the staged topic to the outcomes to publish for it."""


def make_topics(servers: str, dataset: str, *, staged: dict[str, str] | None = None) -> None:
    """Make the topics of a dataset, as its committer does; `staged`: settings of the staged topic."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics(
            [
                NewTopic(f"{dataset}.staged", num_partitions=1, replication_factor=1, topic_configs=staged or {}),
                NewTopic(f"{dataset}.outcomes", num_partitions=8, replication_factor=1),
            ]
        )
    finally:
        admin.close()


def committed(record: Any, **fields: Any) -> Outcome:
    """The outcome of a committed record; the version is derived from its offset, so tests can tell outcomes apart."""
    uuid = Transaction.FromString(record.value).uuid
    fields = {"status": COMMITTED, "version": record.offset + 1, "transactions": 1, "operation": "append", **fields}
    return Outcome(uuid=uuid, topic=record.topic, offset=record.offset, **fields)


def all_committed(record: Any) -> Iterable[Outcome]:
    """Commit every record."""
    return [committed(record)]


def never(_: Any) -> Iterable[Outcome]:
    """Publish nothing, like a committer that is away."""
    return []


class Answering:
    """A running committer. `records` are those that it has read, in order."""

    def __init__(self, servers: str, dataset: str, answer: Answer) -> None:
        self._servers, self._dataset, self._answer = servers, dataset, answer
        self.records: list[Any] = []
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._arrived = threading.Condition()
        self._producer = KafkaProducer(bootstrap_servers=servers, allow_auto_create_topics=False)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60), "the answering consumer did not start"

    def headers(self, index: int = -1) -> dict[str, str]:
        """The headers of a record that it has read."""
        return {name: value.decode() for name, value in self.records[index].headers}

    def publish(self, record: Any, outcomes: Iterable[Outcome]) -> None:
        """Publish the outcome of a record now."""
        partition = int(dict(record.headers)["outcome-partition"])
        for outcome in outcomes:
            self._producer.send(
                f"{self._dataset}.outcomes",
                key=outcome.uuid.encode(),
                value=outcome.SerializeToString(),
                partition=partition,
            )

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Wait until this many records have been read."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.records) >= count, seconds), (
                f"{len(self.records)} of {count} records arrived"
            )

    def close(self) -> None:
        """Stop; published outcomes stay. After an outage it takes a while until the producer is connected again."""
        self._stop.set()
        self._thread.join(60)
        self._producer.close(timeout=180)  # by then it has published them or given up

    def _run(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers,
            max_poll_records=5_000,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumer.assign([TopicPartition(f"{self._dataset}.staged", 0)])
        self._ready.set()
        while not self._stop.is_set():
            for records in consumer.poll(timeout_ms=50).values():
                for record in records:
                    self.publish(record, self._answer(record))
                with self._arrived:
                    self.records.extend(records)
                    self._arrived.notify_all()
        consumer.close(autocommit=False, timeout_ms=2_000)


@contextlib.contextmanager
def answering(servers: str, dataset: str, answer: Answer = all_committed) -> Iterator[Answering]:
    """Publish outcomes inside the block."""
    running = Answering(servers, dataset, answer)
    try:
        yield running
    finally:
        running.close()


def append(uuid: str | None = None, *, size: int = 0) -> Transaction:
    """A small Append; `size` bytes of file name make it larger."""
    transaction = Transaction(uuid=uuid or str(uuid4()))
    fragment = transaction.append.fragments.add(physical_rows=1)
    fragment.files.add(path="x" * size + ".lance", fields=[0], column_indices=[0], file_major_version=2)
    return transaction


def staged_values(servers: str, dataset: str) -> list[bytes]:
    """The values of all records in the staged topic."""
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, isolation_level="read_committed")
    place = TopicPartition(f"{dataset}.staged", 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end, values = consumer.end_offsets([place])[place], []
    while consumer.position(place) < end:
        values += [record.value for record in consumer.poll(timeout_ms=200).get(place, [])]
    consumer.close(autocommit=False)
    return values
