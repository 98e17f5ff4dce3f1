"""The thread that hands records to Kafka and tells the event loop what became of them.

kafka-python's producer may block its caller (for a topic's metadata, for a connection), so it is never called in the
event loop. It batches by itself: what is handed over while a batch is under way makes the next one.

A producer that meets an error which repeating can't cure is dead for all later records, whichever of them was at fault
(kafka-python 3.0.12: the idempotent producer's state turns fatal). It is replaced, and what it had not acknowledged is
sent again one by one, so that only the culprit fails. A record that is sent twice for that reason keeps its uuid, and
the committer counts it once.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka import KafkaProducer
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    SaslAuthenticationFailedError,
)

from committerd_client.connection import Connection, connect
from committerd_client.errors import ClientClosed, ClientError, SubmitFailed, TransactionTooLarge
from committerd_client.in_flight import Submission

_AGAIN_SECONDS = 0.1
_RECONNECT_MS = 5_000
_NOT_THE_RECORD = (AuthorizationError, SaslAuthenticationFailedError)


@dataclass(frozen=True, slots=True)
class Ready:
    """Kafka answered, and took the login."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """It did not."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Kafka holds the record."""

    submission: Submission
    offset: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """It is not tried any more."""

    submission: Submission
    error: ClientError


@dataclass(frozen=True, slots=True)
class Stopped:
    """The thread is at its end."""


SendEvent = Ready | NotReady | Acknowledged | Failed | Stopped


@dataclass(frozen=True, slots=True)
class _Refusal:
    submission: Submission
    error: Exception
    producer: int


@dataclass(frozen=True, slots=True)
class _Stop:
    seconds: float


class Sender:
    """Owns the producer. `submit` and `stop` may be called from any thread."""

    def __init__(self, connection: Connection, post: Callable[[SendEvent], None]) -> None:
        self._connection = connection
        self._post = post
        self._queue: queue.SimpleQueue[Submission | _Refusal | _Stop] = queue.SimpleQueue()
        self._producer: Any = None
        self._stopping = False
        self._away = False
        """Whether Kafka did not answer when a producer was last made: at the end that is not tried again."""
        self._producers = 0
        """How many there have been: tells the refusals of one from those of the next."""
        self._thread = threading.Thread(target=self._run, name=f"{connection.client_id}-sender", daemon=True)

    def start(self) -> None:
        """Connect, and post `Ready` or `NotReady`."""
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Send it; posts `Acknowledged` or `Failed`."""
        self._queue.put(submission)

    def stop(self, seconds: float) -> None:
        """Send what was submitted, wait at most so long for Kafka, close, and post `Stopped`."""
        self._stopping = True
        self._queue.put(_Stop(seconds))

    def leave_to_parent(self) -> None:
        """In a forked process: the producer's sockets are the parent's, and must not be closed from here."""
        producer = self._producer
        if producer is not None:
            producer._unregister_cleanup()  # kafka-python 3.0.12: closes at the process's end
            producer._closed = True

    def _run(self) -> None:
        try:
            self._connect()
        except Exception as error:  # noqa: BLE001  # whatever it is, whoever starts the client has to hear it
            self._post(NotReady(error))
            return
        self._post(Ready())
        while True:
            item = self._queue.get()
            if isinstance(item, Submission):
                self._send(item)
            elif isinstance(item, _Refusal):
                self._refused(item)
            else:
                self._close(item.seconds)
                self._post(Stopped())
                return

    def _connect(self, **options: Any) -> Any:
        self._away = True
        self._producer = connect(KafkaProducer, {**self._connection.producer_config(), **options})
        self._away = False
        self._producers += 1
        return self._producer

    def _send(self, submission: Submission) -> None:
        try:
            future = self._hand_over(submission)
        except Exception as error:  # noqa: BLE001  # an error here must not end the thread for all others
            if self._may_try_again(submission, error):
                self._queue.put(submission)
            elif isinstance(error, KafkaError) and not _retriable(error):
                # Of this record, or of the one before that the producer died of.
                self._refused(_Refusal(submission, error, self._producers))
            else:
                self._fail(submission, error)
            return
        future.add_callback(partial(self._acknowledged, submission))
        future.add_errback(partial(self._note_refusal, submission, self._producers))

    def _may_try_again(self, submission: Submission, error: Exception) -> bool:
        if not _retriable(error) or not submission.wanted or self._stopping:
            return False
        time.sleep(_AGAIN_SECONDS)
        return True

    def _hand_over(self, submission: Submission) -> Any:
        if self._producer is None and self._stopping and self._away:
            raise KafkaTimeoutError("the client is being closed and Kafka is away")
        producer = self._producer or self._connect(bootstrap_timeout_ms=_RECONNECT_MS)
        record = submission.record
        assert record is not None, "sent again after Kafka took it"
        return producer.send(
            self._connection.staged_topic,
            value=record.value,
            key=record.uuid.encode(),
            headers=record.headers,
            partition=0,
        )

    # The next two are called in the producer's own thread: no work here.

    def _acknowledged(self, submission: Submission, metadata: Any) -> None:
        self._post(Acknowledged(submission, metadata.offset if metadata.offset >= 0 else None))

    def _note_refusal(self, submission: Submission, producer: int, error: Exception) -> None:
        self._queue.put(_Refusal(submission, error, producer))

    def _refused(self, refusal: _Refusal) -> None:
        submission, error = refusal.submission, refusal.error
        retriable = _retriable(error)
        if not retriable and refusal.producer == self._producers:
            self._discard()
        if isinstance(error, _NOT_THE_RECORD):
            self._fail(submission, error)
        elif not retriable:
            self._send_alone(submission)
        elif submission.wanted:
            self._send(submission)
        else:
            self._fail(submission, error)

    def _send_alone(self, submission: Submission) -> None:
        """With nothing else under way, so that an error is this record's own."""
        while True:
            try:
                metadata = self._hand_over(submission).get(timeout=60)
            except Exception as error:  # noqa: BLE001  # as in _send
                if self._may_try_again(submission, error):
                    continue
                if not _retriable(error):
                    self._discard()
                self._fail(submission, error)
            else:
                self._acknowledged(submission, metadata)
            return

    def _discard(self) -> None:
        """Leave a producer that is dead; the next record makes another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            _close_producer(producer, seconds=1)

    def _close(self, seconds: float) -> None:
        if self._producer is not None:
            _close_producer(self._producer, seconds=seconds)
        while not self._queue.empty():
            item = self._queue.get()
            if isinstance(item, _Stop):
                continue
            submission = item if isinstance(item, Submission) else item.submission
            error = ClientClosed(
                f"the client was closed before Kafka acknowledged transaction {submission.uuid}: unknown, not failed. "
                "Commit the same transaction again to learn what became of it",
                uuid=submission.uuid,
            )
            self._post(Failed(submission, error))

    def _fail(self, submission: Submission, error: Exception) -> None:
        failed = self._explain(submission, error)
        failed.__cause__ = error
        self._post(Failed(submission, failed))

    def _explain(self, submission: Submission, error: Exception) -> ClientError:
        topic, uuid = self._connection.staged_topic, submission.uuid
        if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            return TransactionTooLarge(
                f"Kafka refused transaction {uuid}: a record of {submission.size} bytes is more than topic {topic} "
                "takes (max.message.bytes). Set max_record_bytes to 1 KiB less than that, and commit in smaller parts",
                uuid=uuid,
            )
        return SubmitFailed(
            f"Kafka did not take transaction {uuid} for topic {topic}: {error}. When that is repaired, commit the same "
            "transaction again",
            uuid=uuid,
        )


def _retriable(error: Exception) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)


def _close_producer(producer: Any, *, seconds: float) -> None:
    try:
        producer.close(timeout=seconds)
    except KafkaTimeoutError:
        # kafka-python 3.0.12: close() leaves its thread running when it can't flush in time.
        producer._sender.force_close()
        with contextlib.suppress(KafkaError):
            producer.close(timeout=seconds)
