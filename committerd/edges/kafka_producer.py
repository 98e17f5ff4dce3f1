"""Writing answers: a batch goes to Kafka whole, and nothing is told before the broker has taken it.

kafka-python's idempotent producer is dead, for all topics and for ever, after one error that is not
to be retried: a single record that is too large for its topic is enough. So a producer with a failed
record is replaced, and what it had not delivered is sent again, record by record, so that a bad one
fails alone. A record may arrive twice that way; its readers go by its key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer, errors

from committerd.edges.kafka_clients import Opened, in_words, open_client
from committerd.edges.kafka_options import producer_options
from committerd.errors import QueueUnavailable
from committerd.ports import Publication
from committerd.settings_kafka import KafkaSettings

_log = logging.getLogger(__name__)

_REOPEN_BOOTSTRAP_MS = 5_000
_CLOSE_SECONDS = 1.0

Failure = tuple[Publication, errors.KafkaError]


class RecordSender:
    """One topic's producer. Blocking; callers of other threads wait."""

    def __init__(self, settings: KafkaSettings, role: str, name: str, *, topic: str, record_bytes_max: int) -> None:
        self._topic = topic
        self._options = producer_options(settings, role, name, record_bytes_max=record_bytes_max)
        # After this the producer has given up by itself.
        self._wait_seconds = (settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000
        self._one = threading.Lock()
        self._closed = False
        self._opened: Opened[Any] | None = None
        self.replaced = 0
        """Producers given up so far."""

    def send(self, publications: Sequence[Publication]) -> None:
        """Write all of them and wait until the broker has taken each.

        Raises `QueueUnavailable` otherwise, with code `record_refused` when trying again can't
        help: a record is larger than the topic takes, or we may not write there.
        """
        with self._one:
            failed = self._attempt(publications)
            if not failed:
                return
            _, error = failed[0]
            if isinstance(error, errors.RetriableError):
                raise QueueUnavailable(f"writing to {self._topic}: {in_words(error)}") from error
            self._send_one_by_one([publication for publication, _ in failed])

    def close(self) -> None:
        """Release the connections; what a thread is still sending fails."""
        self._closed = True
        self._discard()

    def _send_one_by_one(self, publications: Sequence[Publication]) -> None:
        refused: list[Failure] = []
        for publication in publications:
            for _, error in self._attempt([publication]):
                if isinstance(error, errors.RetriableError):
                    raise QueueUnavailable(f"writing to {self._topic}: {in_words(error)}") from error
                refused.append((publication, error))
        if refused:
            first, error = refused[0]
            size = len(first.value) + len(first.key or b"")
            raise QueueUnavailable(
                f"{self._topic} refuses {len(refused)} of {len(publications)} records; the first has "
                f"{size} bytes of key and value: {in_words(error)}. Check the topic's max.message.bytes and "
                "whether the user may write to it",
                code="record_refused",
            ) from error

    def _attempt(self, publications: Sequence[Publication]) -> list[Failure]:
        """Send; returns what was not taken, and why."""
        producer = self._producer()
        failed: list[Failure] = []
        waiting = []
        try:
            partitions = producer.partitions_for(self._topic)
        except errors.KafkaError as error:
            self._discard()
            return [(publication, error) for publication in publications]
        for publication in publications:
            try:
                future = producer.send(
                    self._topic,
                    key=publication.key,
                    value=publication.value,
                    headers=list(publication.headers),
                    partition=publication.partition if publication.partition in partitions else 0,
                )
            except errors.KafkaError as error:  # too large for the client: the producer lives on
                failed.append((publication, error))
            else:
                waiting.append((publication, future))
        refused = len(failed)
        for publication, future in waiting:
            try:
                future.get(self._wait_seconds)
            except errors.KafkaError as error:
                failed.append((publication, error))
        if len(failed) > refused:
            self._discard()
        return failed

    def _producer(self) -> Any:
        if self._closed:
            raise QueueUnavailable("the Kafka producer is closed")
        if self._opened is None:
            options = self._options
            if self.replaced:
                options = options | {"bootstrap_timeout_ms": _REOPEN_BOOTSTRAP_MS}
            self._opened = open_client(KafkaProducer, options)
        return self._opened.client

    def _discard(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        self.replaced += 1
        try:
            opened.client.close(timeout=_CLOSE_SECONDS)
        except errors.KafkaError as error:
            # `close` gives up while records are undelivered, and leaves its thread running.
            _log.info("kafka.producer_closed_by_force", extra={"error": str(error)})
            opened.client._sender.force_close()
            with suppress(errors.KafkaError):
                opened.client.close(timeout=_CLOSE_SECONDS)
