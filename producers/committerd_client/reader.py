"""The thread that reads the client's own partition of the outcomes topic.

A kafka-python consumer belongs to one thread. The partition is assigned, not subscribed to: no group, no rebalance, no
offset commits. The consumer starts at the end of the partition before the first record is sent and misses no outcome.

A broker responds to every fetch within half a second, even if there are no new records. If no broker has sent anything
for a few seconds, the thread connects another consumer. If that succeeds, it replaces the old one; if it fails, Kafka
is away, and the next attempt follows.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from committerd_client.connection import Connection
from committerd_client.errors import KafkaUnavailable
from committerd_client.kafka_repairs import connect, heard_at, partitions_of
from committerd_common.messages import DECODE_ERRORS, STATUS_UNSPECIFIED, Outcome
from committerd_login.access import hidden, naming_acl

_log = logging.getLogger(__name__)

_POLL_MS = 200  # the longest delay of `stop`; new records are returned at once
_AGAIN_SECONDS = 0.2
_SILENCE_SECONDS = 4.0
"""How long Kafka may send nothing before another consumer is tried."""
_RECONNECT_MS = 5_000
_RECONNECT_SECONDS = 1.0
"""The least time between two attempts."""


@dataclass(frozen=True, slots=True)
class ReaderStarted:
    """The thread reads outcomes from this partition from now on."""

    partition: int


@dataclass(frozen=True, slots=True)
class ReaderFailed:
    """The thread could not begin to read outcomes, and has ended."""

    error: Exception


@dataclass(frozen=True, slots=True)
class OutcomesReceived:
    """Some outcomes, for this client and for others."""

    outcomes: list[Outcome]


@dataclass(frozen=True, slots=True)
class ReaderStopped:
    """The thread has ended."""


ReadEvent = ReaderStarted | ReaderFailed | OutcomesReceived | ReaderStopped


class Reader:
    """Owns the consumer and its thread."""

    def __init__(self, connection: Connection, post: Callable[[ReadEvent], None]) -> None:
        self._connection = connection
        self._post = post
        self._stop = threading.Event()
        self.trouble = ""
        """Why outcomes can't be read at the moment; empty while they can."""
        self.next_offset = 0
        """The next offset to read; all outcomes before it have been read."""
        config = connection.consumer_config()
        self._silence = max(_SILENCE_SECONDS, 3 * config.get("fetch_max_wait_ms", 500) / 1000)
        self._place: Any = None
        self._connect_seconds = connection.connect_timeout
        self._opened_at = self._tried_at = 0.0
        self._unusable = False
        """Whether the consumer has failed with an error that a retry doesn't cure, such as a refused login."""
        self.replaced = 0
        """Number of consumers that were replaced so far."""
        self._thread = threading.Thread(target=self._run, name=f"{connection.client_id}-reader", daemon=True)

    def start(self, seconds: float) -> None:
        """Connect within so many seconds, and post `ReaderStarted` or `ReaderFailed`."""
        self._connect_seconds = seconds
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it then posts `ReaderStopped`. May be called from any thread."""
        self._stop.set()

    def _run(self) -> None:
        consumer: Any = None
        try:
            deadline = time.monotonic() + self._connect_seconds
            config = {**self._connection.consumer_config(), "bootstrap_timeout_ms": int(self._connect_seconds * 1000)}
            consumer = connect(KafkaConsumer, config)
            partition = self._begin(consumer, deadline)
        except Exception as error:  # noqa: BLE001  # whoever starts the client gets every error
            if consumer is not None:
                consumer.close(autocommit=False, timeout_ms=1000)
            self._post(ReaderFailed(error))
            return
        self._post(ReaderStarted(partition))
        self._opened_at = time.monotonic()
        while not self._stop.is_set():
            self._poll(consumer)
            if self._unusable or self._is_silent(consumer):
                consumer = self._replaced(consumer)
        consumer.close(autocommit=False, timeout_ms=1000)
        self._post(ReaderStopped())

    def _begin(self, consumer: Any, deadline: float) -> int:
        """Choose a partition, and seek to its end."""
        connection = self._connection
        self._partitions(consumer, connection.staged_topic, "Write", deadline)
        partitions = sorted(self._partitions(consumer, connection.outcomes_topic, "Read", deadline))
        chosen = partitions[zlib.crc32(connection.partition_key.encode()) % len(partitions)]
        self._place = place = TopicPartition(connection.outcomes_topic, chosen)
        consumer.assign([place])
        left_ms = max(int((deadline - time.monotonic()) * 1000), 1000)
        self.next_offset = consumer.end_offsets([place], timeout_ms=left_ms)[place]
        consumer.seek(place, self.next_offset)
        return chosen

    def _partitions(self, consumer: Any, topic: str, operation: str, deadline: float) -> set[int]:
        """Wait until the topic has partitions that this user may see; `operation`: the ACL that the client needs."""
        while True:
            partitions = partitions_of(consumer, topic, deadline=deadline)
            if partitions:
                return partitions
            if time.monotonic() >= deadline or self._stop.is_set():
                raise KafkaUnavailable(
                    f"{hidden(operation, repr(topic))}. The committer creates the topics of its dataset when it first "
                    "starts: start it, or check dataset and topic_prefix, which must be those of its settings",
                    code="topic_missing",
                )
            self._stop.wait(_AGAIN_SECONDS)

    def _is_silent(self, consumer: Any) -> bool:
        return bool(time.monotonic() - max(heard_at(consumer), self._opened_at) > self._silence)

    def _replaced(self, consumer: Any) -> Any:
        """A new consumer at the same offset, if Kafka can be reached, else the same one."""
        if time.monotonic() - self._tried_at < _RECONNECT_SECONDS:
            return consumer
        try:
            fresh = connect(
                KafkaConsumer, {**self._connection.consumer_config(), "bootstrap_timeout_ms": _RECONNECT_MS}
            )
        except Exception as error:  # noqa: BLE001  # an error must not end the thread unnoticed
            self._note_trouble(error)
            return consumer
        finally:
            self._tried_at = time.monotonic()
        fresh.assign([self._place])
        fresh.seek(self._place, self.next_offset)
        _log.warning("outcomes are read over a new connection: the old one was silent or had failed")
        self._opened_at, self._unusable = time.monotonic(), False
        self.replaced += 1
        close = threading.Thread(target=_close, args=(consumer,), name="closes-a-consumer", daemon=True)
        close.start()
        return fresh

    def _note_trouble(self, error: Exception) -> None:
        if not self.trouble:
            _log.warning("outcomes can't be read: %s", error)
        self.trouble = f"; outcomes can't be read at the moment: {error}"

    def _poll(self, consumer: Any) -> None:
        try:
            with naming_acl("Read"):
                polled = consumer.poll(timeout_ms=_POLL_MS)
        except Exception as error:  # noqa: BLE001  # an error must not end the thread unnoticed
            self._note_trouble(error)
            self._unusable = not getattr(error, "retriable", False)
            self._stop.wait(_AGAIN_SECONDS)
            return
        if not self._is_silent(consumer):
            self.trouble = ""
        for records in polled.values():
            self.next_offset = records[-1].offset + 1
        decoded = [self._decode(record) for records in polled.values() for record in records]
        outcomes = [outcome for outcome in decoded if outcome is not None]
        if outcomes:
            self._post(OutcomesReceived(outcomes))

    def _decode(self, record: Any) -> Outcome | None:
        try:
            outcome = Outcome.FromString(record.value or b"")
        except DECODE_ERRORS as error:
            _log.warning("topic %s offset %d holds no outcome: %s", record.topic, record.offset, error)
            return None
        # An outcome without a uuid is identified by its offset, which is valid in one topic only.
        here = outcome.uuid or outcome.topic == self._connection.staged_topic
        return outcome if here and outcome.status != STATUS_UNSPECIFIED else None


def _close(consumer: Any) -> None:
    try:
        consumer.close(autocommit=False, timeout_ms=1000)
    except KafkaError as error:
        _log.info("the old consumer could not be closed in order: %s", error)
