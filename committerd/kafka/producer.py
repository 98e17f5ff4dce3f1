"""Publishes outcomes and dead letters: sends a batch, and returns when the broker has acknowledged all of it.

A producer of kafka-python 3.0.12 can die, for all topics and forever (docs/upstream/refusing-producer.md and
silent-producer.md):

* After one error that is not retriable, such as a single record that is too large for its topic, it refuses all other
  records.
* After a batch was sent, failed and then reached the delivery timeout, the producer drops its producer id and never
  requests another id: it raises nothing, and neither sends nor expires its records.

So a producer is replaced if a record fails, and also if records wait and the broker has acknowledged none for some
seconds. Its undelivered records are sent again; after an error that may be about one record they are sent one by one,
so a bad record fails alone. Kafka may then hold a record twice; readers identify it by its key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer, errors

from committerd.errors import QueueUnavailable
from committerd.kafka.access import denied
from committerd.kafka.clients import OpenClient, in_words, open_client
from committerd.kafka.options import producer_options
from committerd.kafka.repairs import abandon
from committerd.queue.port import Publication
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_REOPEN_BOOTSTRAP_MS = 5_000
_PATIENCE_SECONDS = 4.0
"""How long records may wait without any acknowledgement before the producer is replaced."""

_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)

Smaller = Callable[[Publication], Publication | None]
Failure = tuple[Publication, errors.KafkaError]


class RecordSender:
    """One topic's producer. Methods block, and run one at a time."""

    def __init__(
        self,
        settings: KafkaSettings,
        role: str,
        name: str,
        *,
        topic: str,
        record_bytes_max: int,
        smaller: Smaller = lambda _: None,
    ) -> None:
        """`smaller`: returns a smaller form of a record that is too large for the topic; None if there is none."""
        self._topic = topic
        self._smaller = smaller
        self._options = producer_options(settings, role, name, record_bytes_max=record_bytes_max)
        # A live producer gives up by itself within this time.
        self._patience_max = (settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000
        # If Kafka is reachable but slow, the time doubles with each replaced producer.
        self._patience = self._patience_min = min(_PATIENCE_SECONDS, self._patience_max)
        self._one = threading.Lock()
        self._closed = False
        self._opened: OpenClient[Any] | None = None
        self.replaced = 0
        """Number of producers that were replaced so far."""

    def send(self, publications: Sequence[Publication]) -> None:
        """Send all records and wait until the broker has acknowledged each.

        Raises `QueueUnavailable` otherwise, with code `record_refused` if a retry can't help: a record is larger than
        the topic allows, or this user may not write to the topic.
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
        """Close the connections; a send that is still running fails."""
        self._closed = True
        self._discard()

    def _send_one_by_one(self, publications: Sequence[Publication]) -> None:
        refused: list[Failure] = []
        for publication in publications:
            error = self._send_one(publication)
            if error is not None:
                refused.append((publication, error))
        if refused:
            first, error = refused[0]
            size = len(first.value) + len(first.key or b"")
            why = denied(error, "Write", topic=self._topic) or (
                f"the first has {size} bytes of key and value: {in_words(error)}. Check the topic's max.message.bytes"
            )
            raise QueueUnavailable(
                f"{self._topic} refuses {len(refused)} of {len(publications)} records: {why}",
                code="record_refused",
            ) from error

    def _send_one(self, publication: Publication) -> errors.KafkaError | None:
        """Send one record, or its smaller form; returns the error if the broker refuses it."""
        left: Publication | None = publication
        error: errors.KafkaError | None = None
        while left is not None:
            failed = self._attempt([left])
            if not failed:
                if left is not publication:
                    _log.warning(
                        "kafka.record_cut",
                        extra={"topic": self._topic, "bytes": len(publication.value), "error": str(error)},
                    )
                return None
            _, error = failed[0]
            if isinstance(error, errors.RetriableError):
                raise QueueUnavailable(f"writing to {self._topic}: {in_words(error)}") from error
            if not isinstance(error, _TOO_LARGE):
                return error
            left = self._smaller(left)
        return error

    def _attempt(self, publications: Sequence[Publication]) -> list[Failure]:
        """Send the records; returns the records that were not acknowledged, with their errors."""
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
            except errors.KafkaError as error:  # too large for the client: the producer stays alive
                failed.append((publication, error))
            else:
                waiting.append((publication, future))
        refused = len(failed)
        failed += self._undelivered(waiting)
        if len(failed) > refused:
            cause = in_words(failed[-1][1])
            _log.warning(
                "kafka.producer_replaced",
                extra={"topic": self._topic, "error": cause, "records": len(failed) - refused},
            )
            self._discard()
        return failed

    def _undelivered(self, waiting: Sequence[tuple[Publication, Any]]) -> list[Failure]:
        """Wait until Kafka has acknowledged all, or makes no progress; returns the others, with their errors."""
        failed: list[Failure] = []
        began = progress_at = time.monotonic()
        for publication, future in waiting:
            while not future.is_done and (left := progress_at + self._patience - time.monotonic()) > 0:
                with suppress(errors.KafkaError):  # handled below
                    future.get(left)
            if future.succeeded():
                progress_at = time.monotonic()
            elif future.is_done:
                failed.append((publication, future.exception))
            else:
                failed.append((publication, errors.KafkaTimeoutError(f"no response in {self._patience:g} s")))
        stalled = any(not future.is_done for _, future in waiting)
        if stalled:
            self._patience = min(self._patience * 2, self._patience_max)
        elif time.monotonic() - began < self._patience_min:
            self._patience = self._patience_min
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
        abandon(opened.client)
