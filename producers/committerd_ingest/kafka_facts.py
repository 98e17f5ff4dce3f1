"""What a process asks Kafka besides reading: which topic a name means, where its partitions begin and end, and where
bad records go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kafka import TopicPartition, errors
from kafka.admin import OffsetSpec

from committerd_ingest.calls import Calls
from committerd_ingest.dead_letters import Letter, Origin, headers_of
from committerd_ingest.decoding import BadRecord
from committerd_ingest.records import Partition
from committerd_login.access import naming_acl

_SILENT_SECONDS = 10.0
"""How long Kafka may take none of the bad records that are published. They hold memory meanwhile."""

Result = TypeVar("Result")


class Topics:
    """Asks which topics there are, for their identity, and for the bounds of their partitions."""

    def __init__(self, open_admin: Callable[[], Any], *, operation: str = "Read") -> None:
        """`operation`: the ACL that the user needs on a topic. Read includes Describe, which is enough to ask."""
        self._operation = operation
        self._admin = _Admin(open_admin)
        self._leaders = _Admin(open_admin)
        """With a connection of its own: a leader that does not respond holds up no look at a topic."""
        self._cluster = ""

    async def identity(self, topic: str) -> tuple[str, str]:
        """Cluster id and topic id, as a broker says now; an empty topic id if there is no such topic.

        Raises KafkaError.
        """
        with naming_acl(self._operation, topic=topic):
            return await asyncio.to_thread(self._identity, topic)

    async def names(self) -> Sequence[str]:
        """The names of all topics, in order, without those of Kafka itself. Raises KafkaError."""
        found = await asyncio.to_thread(self._admin.ask, lambda admin: admin.describe_topics())
        return sorted(str(one["name"]) for one in found if not one["is_internal"])

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        """The offset of the partition's first record, and that behind its last one. Raises KafkaError.

        Without a leader nobody knows them: `LeaderNotAvailableError`, at once.
        """
        with naming_acl(self._operation, topic=partition.topic):
            return await asyncio.to_thread(self._leaders.ask, partial(_bounds, partition=partition))

    def _identity(self, topic: str) -> tuple[str, str]:
        if not self._cluster:
            self._cluster = self._admin.ask(lambda admin: str(admin.describe_cluster()["cluster_id"]))
        (found,) = self._admin.ask(lambda admin: admin.describe_topics([topic]))
        if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
            return self._cluster, ""
        if found["error_code"]:
            raise errors.for_code(found["error_code"])(topic)
        return self._cluster, str(found["topic_id"])

    def close(self) -> None:
        self._admin.close()
        self._leaders.close()


class _Admin:
    """A connection that is opened when it is needed, and anew after an error; several threads may ask."""

    def __init__(self, open_admin: Callable[[], Any]) -> None:
        self._open = open_admin
        self._admin: Any = None
        self._one = threading.Lock()

    def ask(self, question: Callable[[Any], Result]) -> Result:
        with self._one:
            try:
                if self._admin is None:
                    self._admin = self._open()
                return question(self._admin)
            except errors.KafkaError:
                self._close()
                raise

    def close(self) -> None:
        with self._one:
            self._close()

    def _close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def _bounds(admin: Any, *, partition: Partition) -> tuple[int, int]:
    (topic,) = admin.describe_topics([partition.topic])
    leaders = {one["partition_index"]: one["leader_id"] for one in topic["partitions"]}
    if partition.number not in leaders:
        raise errors.UnknownTopicOrPartitionError(f"Kafka has no partition {partition}")
    if leaders[partition.number] < 0:  # kafka-python would ask again and again, for the time of a request
        raise errors.LeaderNotAvailableError(f"partition {partition} has no leader: a broker is away")
    place = TopicPartition(*partition)
    start, end = (
        admin.list_partition_offsets({place: spec}, isolation_level="read_committed")[place].offset
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return int(start), int(end)


class BadRecords:
    """Publishes bad records with the same key, value and headers, and those of `dead_letters`.

    Their timestamp is the time of the publication: brokers refuse a timestamp that lies ahead, and delete records whose
    timestamp is old.

    At least once: a process that is killed may publish them again.
    """

    def __init__(
        self, open_producer: Callable[[], Any], topic: str, *, pipeline: str, abandon: Callable[[Any], None]
    ) -> None:
        """`pipeline`: its name, which the records get, so that its replays find them. `abandon`: closes a producer
        without waiting for its records."""
        self._open, self._abandon, self._topic, self._pipeline = open_producer, abandon, topic, pipeline
        self._calls = Calls()
        self._producer: Any = None
        self._failed_at = 0.0
        """When Kafka last took no records (monotonic seconds)."""
        self._error: Exception | None = None
        """What was wrong then."""

    async def publish(self, origin: Origin, bad: Sequence[BadRecord]) -> None:
        """Returns when Kafka has them. Raises KafkaError, also if Kafka takes none of them for ten seconds, and what
        `open_producer` raises.

        One call goes on after the other, in a thread of their own. Calls that wait meanwhile fail with one that fails
        because nothing is taken, so none waits longer the more there are.
        """
        await self._calls(partial(self._publish, origin, bad, time.monotonic()))

    def close(self) -> None:
        """Returns at once. What is not published then is published by whoever reads it again."""
        self._calls.end(self._close)

    def _publish(self, origin: Origin, bad: Sequence[BadRecord], asked_at: float) -> None:
        if self._error is not None and self._failed_at > asked_at:
            raise self._error
        try:
            with naming_acl("Write", topic=self._topic):
                if self._producer is None:
                    self._producer = self._open()
                self._send(self._producer, origin, bad)
        except Exception as error:
            if self._producer is None or isinstance(error, errors.RetriableError):
                self._failed_at, self._error = time.monotonic(), error
            # After a fatal error or the delivery timeout it sends nothing any more (docs/upstream/silent-producer.md).
            self._close()
            raise

    def _send(self, producer: Any, origin: Origin, bad: Sequence[BadRecord]) -> None:
        sent = [
            producer.send(
                self._topic,
                key=one.record.key,
                # kafka-python sends no record without key and value.
                value=b"" if one.record.key is None and one.record.value is None else one.record.value,
                headers=headers_of(Letter(self._pipeline, origin, one.record, one.reason)),
            )
            for one in bad
        ]
        for future in sent:
            future.get(_SILENT_SECONDS)

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._abandon(producer)
