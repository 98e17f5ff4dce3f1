"""The thread that reads the client's own partition of the outcomes topic.

A kafka-python consumer belongs to one thread. It is assigned, not subscribed: no group, no rebalance, nothing
acknowledged. It starts where the partition ends before the first record is sent, so it can miss no answer.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from kafka import KafkaConsumer, TopicPartition

from committerd.format.messages import STATUS_UNSPECIFIED, Outcome
from committerd_client.connection import Connection, connect
from committerd_client.errors import KafkaUnavailable

_log = logging.getLogger(__name__)

_POLL_MS = 200  # how long closing may take; new records are returned at once
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Reading:
    """Answers can be taken from this partition from now on."""

    partition: int


@dataclass(frozen=True, slots=True)
class CannotRead:
    """They can't."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Answered:
    """Some outcomes; others' as well as ours."""

    outcomes: list[Outcome]


@dataclass(frozen=True, slots=True)
class ReadingStopped:
    """The thread is at its end."""


ReadEvent = Reading | CannotRead | Answered | ReadingStopped


class Reader:
    """Owns the consumer."""

    def __init__(self, connection: Connection, post: Callable[[ReadEvent], None]) -> None:
        self._connection = connection
        self._post = post
        self._stop = threading.Event()
        self.trouble = ""
        """Why answers can't be read at the moment; empty while they can."""
        self.next_offset = 0
        """All answers before this one have been read."""
        self._thread = threading.Thread(target=self._run, name=f"{connection.client_id}-reader", daemon=True)

    def start(self) -> None:
        """Connect, and post `Reading` or `CannotRead`."""
        self._thread.start()

    def stop(self) -> None:
        """Post `ReadingStopped` soon; from any thread."""
        self._stop.set()

    def _run(self) -> None:
        consumer: Any = None
        try:
            consumer = connect(KafkaConsumer, self._connection.consumer_config())
            partition = self._begin(consumer)
        except Exception as error:  # noqa: BLE001  # whatever it is, whoever starts the client has to hear it
            if consumer is not None:
                consumer.close(autocommit=False, timeout_ms=1000)
            self._post(CannotRead(error))
            return
        self._post(Reading(partition))
        while not self._stop.is_set():
            self._poll(consumer)
        consumer.close(autocommit=False, timeout_ms=1000)
        self._post(ReadingStopped())

    def _begin(self, consumer: Any) -> int:
        """Choose a partition, and stand at its end."""
        connection = self._connection
        deadline = time.monotonic() + connection.connect_timeout
        self._partitions(consumer, connection.staged_topic, deadline)
        partitions = sorted(self._partitions(consumer, connection.outcomes_topic, deadline))
        chosen = partitions[zlib.crc32(connection.partition_key.encode()) % len(partitions)]
        place = TopicPartition(connection.outcomes_topic, chosen)
        consumer.assign([place])
        left_ms = max(int((deadline - time.monotonic()) * 1000), 1000)
        self.next_offset = consumer.end_offsets([place], timeout_ms=left_ms)[place]
        consumer.seek(place, self.next_offset)
        return chosen

    def _partitions(self, consumer: Any, topic: str, deadline: float) -> set[int]:
        while True:
            partitions: set[int] = consumer.partitions_for_topic(topic)
            if partitions:
                return partitions
            if time.monotonic() >= deadline or self._stop.is_set():
                raise KafkaUnavailable(
                    f"topic {topic!r} does not exist (or may not be seen by this user). The committer makes the topics "
                    "of its dataset when it first starts: start it, or check dataset and topic_prefix, which must be "
                    "those of its settings",
                    code="topic_missing",
                )
            self._stop.wait(_AGAIN_SECONDS)

    def _poll(self, consumer: Any) -> None:
        try:
            polled = consumer.poll(timeout_ms=_POLL_MS)
        except Exception as error:  # noqa: BLE001  # an error here must not end the thread: nobody else would hear of it
            if not self.trouble:
                _log.warning("outcomes can't be read: %s", error)
            self.trouble = f"; outcomes can't be read at the moment: {error}"
            self._stop.wait(_AGAIN_SECONDS)
            return
        self.trouble = ""
        for records in polled.values():
            self.next_offset = records[-1].offset + 1
        decoded = [self._decode(record) for records in polled.values() for record in records]
        outcomes = [outcome for outcome in decoded if outcome is not None]
        if outcomes:
            self._post(Answered(outcomes))

    def _decode(self, record: Any) -> Outcome | None:
        try:
            outcome = Outcome.FromString(record.value or b"")
        except DecodeError as error:
            _log.warning("topic %s offset %d holds no outcome: %s", record.topic, record.offset, error)
            return None
        # Without uuid it is known by its offset, which means something in one topic only.
        here = outcome.uuid or outcome.topic == self._connection.staged_topic
        return outcome if here and outcome.status != STATUS_UNSPECIFIED else None
