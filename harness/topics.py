"""A dataset's topics, without committerd: stages like a producer in any language, reads, and does operators' work.

It uses nothing of committerd to read and write the topics except its Outcome message.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import (
    CoordinatorLoadInProgressError,
    KafkaError,
    NotCoordinatorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from committerd_common.messages import Outcome

OUTCOME_PARTITIONS = 8
_PATIENCE_SECONDS = 120

Header = tuple[str, bytes]
RecordId = tuple[str, int]
"""Topic id and offset, which identify a staged record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A record in the staged topic."""

    topic_id: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def record_id(self) -> RecordId:
        return self.topic_id, self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A record in the dead letter topic."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    def header(self, name: str) -> str:
        """The value of the last header with this name."""
        return dict(self.headers)[name].decode()


class Topics:
    """Clients of a dataset's topics; each is made when it is first needed."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers = servers
        roles = ("staged", "outcomes", "dead", "events")
        self.staged, self.outcomes, self.dead, self.events = (f"{name}.{role}" for role in roles)
        self.group = f"committerd.{name}"
        self.partition = TopicPartition(self.staged, 0)
        self.sent: list[Staged] = []
        """All records that were staged with this object, also those that the topic has lost since."""
        self.answers: dict[RecordId, Outcome] = {}
        """The first outcome of each record."""
        self._topic_id = ""
        self._producer: Any = None
        self._listener: Any = None
        self._admin: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close all clients; each is made again when it is needed."""
        for client in (self._producer, self._listener, self._admin):
            if client is not None:
                with contextlib.suppress(KafkaError):
                    client.close()
        self._producer = self._listener = self._admin = None

    # Staging

    def stage(
        self,
        *values: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] | Mapping[str, str] = (),
    ) -> list[int]:
        """Stage records with the same key and headers; returns their offsets when Kafka has acknowledged them."""
        if isinstance(headers, Mapping):
            headers = [(name, text.encode()) for name, text in headers.items()]
        given = list(headers)
        futures = [self.producer.send(self.staged, value=v, key=key, headers=given, partition=0) for v in values]
        self.producer.flush()
        offsets = [future.get(_PATIENCE_SECONDS).offset for future in futures]
        topic_id = self.topic_id()
        self.sent += [
            Staged(topic_id=topic_id, offset=offset, key=key, value=value, headers=given)
            for offset, value in zip(offsets, values, strict=True)
        ]
        return offsets

    @contextlib.contextmanager
    def transactional_producer(self) -> Iterator[Any]:
        """A transactional producer of kafka-python; `sent` does not include its records."""
        producer = KafkaProducer(bootstrap_servers=self.servers, transactional_id=self.group)
        try:
            producer.init_transactions()
            yield producer
        finally:
            producer.close()

    @property
    def producer(self) -> Any:
        if self._producer is None:
            self._producer = KafkaProducer(
                bootstrap_servers=self.servers, acks="all", linger_ms=0, max_block_ms=_PATIENCE_SECONDS * 1000
            )
        return self._producer

    # Outcomes

    def wait_answers(self, offsets: Sequence[int], *, topic_id: str = "", timeout: float = 120) -> list[Outcome]:
        """The first outcome of each of these records; waits for all. `topic_id`: default that of the current topic."""
        topic_id = topic_id or self.topic_id()
        deadline = time.monotonic() + timeout
        while missing := [o for o in offsets if (topic_id, o) not in self.answers]:
            assert time.monotonic() < deadline, f"{len(missing)} records have no outcome, {missing[:10]} among them"
            self.listen()
        return [self.answers[topic_id, o] for o in offsets]

    def listen(self, *, seconds: float = 0.1) -> None:
        """Read the outcomes that were published since the last call."""
        if self._listener is None:
            self._listener = self._consumer()
            partitions = [TopicPartition(self.outcomes, number) for number in range(OUTCOME_PARTITIONS)]
            self._listener.assign(partitions)
            self._listener.seek_to_beginning(*partitions)
        for records in self._listener.poll(timeout_ms=int(seconds * 1000)).values():
            for record in records:
                outcome = Outcome.FromString(record.value)
                self.answers.setdefault((outcome.topic_id, outcome.offset), outcome)

    # Whole topics

    def read_staged(self) -> list[Staged]:
        """All records in the staged topic."""
        topic_id = self.topic_id()
        return [
            Staged(topic_id=topic_id, offset=r.offset, key=r.key, value=r.value, headers=r.headers)
            for r in self._read([self.partition])
        ]

    def read_outcomes(self) -> list[Outcome]:
        """All published outcomes, in order within each partition."""
        partitions = [TopicPartition(self.outcomes, number) for number in range(OUTCOME_PARTITIONS)]
        return [Outcome.FromString(r.value) for r in self._read(partitions)]

    def read_letters(self) -> list[Letter]:
        """All dead letters."""
        records = self._read([TopicPartition(self.dead, 0)])
        return [Letter(key=r.key, value=r.value, headers=r.headers) for r in records]

    def read_events(self) -> list[Any]:
        """All records of the events topic, as kafka-python returns them."""
        return self._read([TopicPartition(self.events, 0)])

    def _read(self, partitions: Sequence[TopicPartition]) -> list[Any]:
        consumer = self._consumer()
        try:
            consumer.assign(list(partitions))
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(list(partitions))
            found: list[Any] = []
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while any(consumer.position(p) < end for p, end in ends.items()):
                assert time.monotonic() < deadline, f"{partitions[0].topic} can't be read to its end"
                for records in consumer.poll(timeout_ms=100).values():
                    found += records
            return found
        finally:
            consumer.close()

    def _consumer(self) -> Any:
        return KafkaConsumer(
            bootstrap_servers=self.servers,
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
        )

    def readable_end(self) -> int:
        """The offset up to which the staged topic can be read; the broker answers the end of a transaction before its
        mark is in the log.
        """
        ends = self.admin.list_partition_offsets({self.partition: OffsetSpec.LATEST}, isolation_level="read_committed")
        return int(ends[self.partition].offset)

    # Changes by operators and accidents

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.servers, client_id="operator")
        return self._admin

    def topic_id(self) -> str:
        """Id of the staged topic, as Kafka's own tools print it. It is cached: only this object replaces the topic."""
        if not self._topic_id:
            self._topic_id = self._ask_topic_id()
        return self._topic_id

    def _ask_topic_id(self) -> str:
        (described,) = self.admin.describe_topics([self.staged])
        assert described["error_code"] == 0, described
        return base64.urlsafe_b64encode(UUID(str(described["topic_id"])).bytes).rstrip(b"=").decode()

    def delete_staged(self) -> None:
        """Delete the staged topic; waits until the broker does not know it any more, which the controller tells it."""
        self.admin.delete_topics([self.staged])
        self._topic_id = ""
        for _ in _attempts():
            (described,) = self.admin.describe_topics([self.staged])
            if described["error_code"]:
                return

    def recreate_staged(self) -> str:
        """Delete the staged topic and create it again; returns its new id."""
        before = self.topic_id()
        self.delete_staged()
        self.make_staged()
        after = before
        for _ in _attempts():  # a broker may describe the old topic for a moment
            after = self._ask_topic_id()
            if after != before:
                break
        self._topic_id = after
        # The producer's sequence numbers belong to the old topic.
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        return after

    def make_staged(self) -> None:
        """Create the staged topic as the daemon does; waits until Kafka has deleted an older one."""
        configs = {
            "compression.type": "uncompressed",
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": str(14 * 24 * 3600 * 1000),
        }
        wanted = {self.staged: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}
        for _ in _attempts():
            try:
                self.admin.create_topics(wanted)
                break
            except TopicAlreadyExistsError:
                continue
        for _ in _attempts():
            with contextlib.suppress(UnknownTopicOrPartitionError):
                self.admin.wait_for_topics([self.staged])
                return

    def truncate(self, before: int) -> None:
        """Delete the records below an offset."""
        self.admin.delete_records({self.partition: before})

    def forget_group_offset(self) -> None:
        """Delete the group's offset; the group must have no member."""
        for _ in _attempts():
            try:
                self.admin.delete_group_offsets(self.group, [self.partition])
            except KafkaError:
                continue  # Kafka has not noticed yet that the member has left
            if self.group_offset() is None:
                return

    def group_offset(self) -> int | None:
        """The offset that the group has committed; waits while a broker that has just started loads it."""
        for _ in _attempts():
            with contextlib.suppress(CoordinatorLoadInProgressError, NotCoordinatorError):
                found = self.admin.list_group_offsets({self.group: [self.partition]})[self.group].get(self.partition)
                return None if found is None or found.offset < 0 else int(found.offset)
        raise AssertionError("unreachable")


def _attempts() -> Iterator[None]:
    """Yields attempts, a tenth of a second apart; raises an error when the time is over."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)
    raise AssertionError("Kafka did not come round")
