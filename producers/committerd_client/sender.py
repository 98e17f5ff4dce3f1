"""The thread that sends records to Kafka and reports the results to the event loop.

kafka-python's producer may block its caller (for a topic's metadata, for a connection), so the event loop never calls
it. It batches by itself: records that arrive while a batch is in flight form the next one.

A producer of kafka-python 3.0.12 can die, in some cases silently:

* After an error that is not retriable it refuses all later records, whichever record caused the error.
* After a batch was sent, failed and then reached the delivery timeout, the producer drops its producer id and never
  requests another one. Without one it neither sends nor expires anything: all its records wait forever. This happens
  if a broker is away for longer than `delivery_timeout_ms` while a batch is in flight; a producer that is idle when
  the broker goes away survives.
* The broker's response may be lost on a connection that stays open.

So this module does not rely on the producer to notice. It keeps all unacknowledged records. If Kafka has acknowledged
none of them for a few seconds, it connects another producer. If that succeeds, Kafka is there and the old producer is
at fault: the new one replaces it and sends the unacknowledged records again. If it fails, Kafka is away, and the next
attempt follows at once. A record that is sent twice keeps its uuid, and the committer commits it once.

A producer that waits because a quota of Kafka limits it is not at fault, and stays.
"""

from __future__ import annotations

import contextlib
import logging
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
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
)

from committerd_client.connection import Connection
from committerd_client.errors import ClientClosed, ClientError, SubmitFailed, TransactionTooLarge
from committerd_client.headers import StagedRecord
from committerd_client.in_flight import Submission
from committerd_client.kafka_repairs import abandon_producer, connect, is_throttled, leave_to_parent
from committerd_client.results import CommitResult
from committerd_login.causes import gets_no_producer_id

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 0.1
_RECONNECT_MS = 5_000
_LOOK_SECONDS = 0.5
"""Time between two checks of the producer's progress."""
_PATIENCE_SECONDS = 4.0
"""How long records may wait without any acknowledgement before another producer is tried."""
_PATIENCE_SECONDS_MAX = 30.0
"""Upper bound of that time. If Kafka is reachable but slow, it doubles with each replaced producer."""
_TOGETHER_MAX = 2
"""After an error that may be the producer's own, a record is sent again with others at most this many times."""
_NOT_THE_RECORD = (AuthorizationError, SaslAuthenticationFailedError)
_OF_A_RECORD = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    CorruptRecordError,
    PolicyViolationError,
)
"""A broker's errors about a single record. kafka-python reports them for all records in the producer."""


@dataclass(frozen=True, slots=True)
class SenderStarted:
    """The producer is connected and logged in."""


@dataclass(frozen=True, slots=True)
class SenderFailed:
    """The first producer could not connect, and the thread has ended."""

    error: Exception


@dataclass(frozen=True, slots=True)
class RecordAcknowledged:
    """Kafka has acknowledged the record."""

    submission: Submission
    offset: int | None


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """The sender has given the record up."""

    submission: Submission
    error: ClientError


@dataclass(frozen=True, slots=True)
class SenderStopped:
    """The thread has ended."""


SendEvent = SenderStarted | SenderFailed | RecordAcknowledged | RecordFailed | SenderStopped


@dataclass(slots=True, eq=False)
class _PendingRecord:
    """A record that Kafka has not acknowledged yet."""

    submission: Submission
    record: StagedRecord
    at: float
    """When a producer last got it (monotonic clock, seconds)."""
    producer: int = 0
    """The number of the producer that last got it."""
    together: int = 0
    """How often it was sent again, together with others, after an error."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    pending: _PendingRecord
    error: Exception
    producer: int


@dataclass(frozen=True, slots=True)
class _Stop:
    seconds: float


@dataclass(frozen=True, slots=True)
class _AllAcknowledged:
    """Kafka has acknowledged all records."""


class Sender:
    """Owns the producer and its thread. `submit` and `stop` may be called from any thread."""

    def __init__(self, connection: Connection, post: Callable[[SendEvent], None]) -> None:
        self._connection = connection
        self._post = post
        self._queue: queue.SimpleQueue[Submission | _Refusal | _Stop | _AllAcknowledged] = queue.SimpleQueue()
        self._producer: Any = None
        self._deadline: float | None = None
        """When to give up (monotonic clock, seconds); `stop` sets it."""
        self._away = False
        """Whether the last attempt to connect a producer failed."""
        self._producers = 0
        """Number of producers so far. It tells the errors of one producer from those of the next."""
        self._guard = threading.Lock()
        self._unacknowledged: dict[_PendingRecord, None] = {}
        """Records that Kafka has not acknowledged, in the order of their first send."""
        self._progress_at = 0.0
        """When Kafka last acknowledged a record, or when the first waiting record was sent (monotonic clock)."""
        self._looked_at = 0.0
        self._away_was_said = False
        self._patience = _PATIENCE_SECONDS
        self._thread = threading.Thread(target=self._run, name=f"{connection.client_id}-sender", daemon=True)

    @property
    def replaced(self) -> int:
        """Number of producers that were replaced so far."""
        return max(self._producers - 1, 0)

    def start(self) -> None:
        """Connect, and post `SenderStarted` or `SenderFailed`."""
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Send the record; the thread then posts `RecordAcknowledged` or `RecordFailed`."""
        self._queue.put(submission)

    def stop(self, seconds: float) -> None:
        """Ask the thread to send all submitted records, wait at most `seconds` for Kafka, and close.

        It then posts `SenderStopped`.
        """
        if self._deadline is None:
            self._deadline = time.monotonic() + seconds
        self._queue.put(_Stop(seconds))

    def leave_to_parent(self) -> None:
        """In a forked process, keep the producer from closing its sockets: they are the parent's."""
        producer = self._producer
        if producer is not None:
            leave_to_parent(producer)

    def _run(self) -> None:
        try:
            self._connect()
        except Exception as error:  # noqa: BLE001  # whoever starts the client gets every error
            self._post(SenderFailed(error))
            return
        self._post(SenderStarted())
        stopping = False
        while not stopping:
            stopping = self._turn()
        self._drain()
        self._close()
        self._post(SenderStopped())

    def _turn(self, seconds: float | None = None) -> bool:
        """Process the next item of the queue, then check the producer; returns whether to stop.

        `seconds`: how long to wait for an item.
        """
        if seconds is None and self._unacknowledged:
            seconds = _LOOK_SECONDS
        with contextlib.suppress(queue.Empty):
            item = self._queue.get(timeout=seconds)
            if isinstance(item, _Stop):
                return True
            if isinstance(item, Submission):
                assert item.record is not None, "Kafka has it already"
                self._send(_PendingRecord(item, item.record, time.monotonic()))
            elif isinstance(item, _Refusal):
                self._refused(item)
        self._look_after_producer()
        return False

    # Producers

    def _connect(self, **options: Any) -> Any:
        self._away = True
        self._producer = connect(KafkaProducer, {**self._connection.producer_config(), **options})
        self._away = False
        self._producers += 1
        self._progress_at = time.monotonic()
        return self._producer

    def _reconnect(self) -> Any:
        """Connect another producer, within a short time. Raises what kafka-python raises."""
        left_ms = _RECONNECT_MS if self._deadline is None else int((self._deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            raise KafkaTimeoutError("the client is being closed and Kafka is away")
        return self._connect(bootstrap_timeout_ms=min(_RECONNECT_MS, left_ms))

    def _look_after_producer(self) -> None:
        """Replace the producer if Kafka acknowledges nothing although it can be reached."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        if self._producer is None:
            return
        if is_throttled(self._producer):
            self._progress_at = now  # so that it has all of its patience once it may send again
            return
        if not self._is_stalled(now):
            return
        old, progress_at = self._producer, self._progress_at
        try:
            self._reconnect()
        except Exception as error:  # noqa: BLE001  # as in _send
            if not self._away_was_said:
                _log.warning(
                    "Kafka has acknowledged nothing for %.0f s and can't be reached: %s. The client keeps trying",
                    now - progress_at,
                    error,
                )
            self._away_was_said = True
            return
        self._away_was_said = False
        if self._unacknowledged:
            _log.warning(
                "Kafka can be reached and has acknowledged nothing for %.0f s: the producer is replaced, and %d "
                "records are sent again",
                now - progress_at,
                len(self._unacknowledged),
            )
        self._patience = min(self._patience * 2, _PATIENCE_SECONDS_MAX)
        abandon_producer(old)
        self._send_again()

    def _is_stalled(self, now: float) -> bool:
        return bool(self._unacknowledged) and now - self._progress_at >= self._patience

    def _send_again(self) -> None:
        """Send all unacknowledged records with the present producer."""
        with self._guard:
            waiting = list(self._unacknowledged)
        for pending in waiting:
            if pending not in self._unacknowledged:
                continue
            if isinstance(pending.submission.result, CommitResult):
                self._acknowledged(pending, None)  # the committer has read it, so Kafka holds it
            else:
                self._send(pending)

    def _discard(self) -> None:
        """Abandon a dead producer; the next record connects another one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            abandon_producer(producer)

    # Records

    def _send(self, pending: _PendingRecord) -> None:
        with self._guard:
            if not self._unacknowledged:
                self._progress_at = time.monotonic()
            self._unacknowledged[pending] = None
        try:
            future = self._hand_over(pending)
        except Exception as error:  # noqa: BLE001  # an error must not end the thread
            pending.producer = self._producers
            # An error that is not retriable concerns this record, or an earlier one that has killed the producer.
            if self._may_try_again(pending, error) or (isinstance(error, KafkaError) and not _retriable(error)):
                self._queue.put(_Refusal(pending, error, self._producers))
            else:
                self._fail(pending, error)
            return
        future.add_callback(partial(self._note_acknowledgement, pending))
        future.add_errback(partial(self._note_refusal, pending, pending.producer))

    def _may_try_again(self, pending: _PendingRecord, error: Exception) -> bool:
        if not _retriable(error) or not pending.submission.wanted or self._deadline is not None:
            return False
        time.sleep(_AGAIN_SECONDS)
        return True

    def _hand_over(self, pending: _PendingRecord) -> Any:
        if self._producer is None and self._deadline is not None and self._away:
            raise KafkaTimeoutError("the client is being closed and Kafka is away")
        producer = self._producer or self._reconnect()
        pending.at, pending.producer = time.monotonic(), self._producers
        record = pending.record
        return producer.send(
            self._connection.staged_topic,
            value=record.value,
            key=record.uuid.encode(),
            headers=record.headers,
            partition=0,
        )

    # The producer's own thread calls the next two, so they must be quick.

    def _note_acknowledgement(self, pending: _PendingRecord, metadata: Any) -> None:
        now = self._progress_at = time.monotonic()
        if now - pending.at < _PATIENCE_SECONDS:
            self._patience = _PATIENCE_SECONDS
        self._acknowledged(pending, metadata.offset if metadata.offset >= 0 else None)

    def _note_refusal(self, pending: _PendingRecord, producer: int, error: Exception) -> None:
        self._queue.put(_Refusal(pending, error, producer))

    def _acknowledged(self, pending: _PendingRecord, offset: int | None) -> None:
        """Note an acknowledgement. The first one counts: a record that was sent twice has two."""
        if self._take(pending):
            self._post(RecordAcknowledged(pending.submission, offset))

    def _take(self, pending: _PendingRecord) -> bool:
        """Remove the record from the unacknowledged ones; returns False if another call has removed it already."""
        with self._guard:
            if pending not in self._unacknowledged:
                return False
            del self._unacknowledged[pending]
            drained = not self._unacknowledged
        if drained and self._deadline is not None:
            self._queue.put(_AllAcknowledged())
        return True

    def _refused(self, refusal: _Refusal) -> None:
        pending, error = refusal.pending, refusal.error
        if pending not in self._unacknowledged or pending.producer != refusal.producer:
            return  # it has been sent again since
        if _retriable(error):
            if pending.submission.wanted:
                self._send(pending)
            else:
                self._fail(pending, error)
            return
        # The producer is dead. kafka-python fails all its records with the same error.
        with self._guard:
            suspects = [other for other in self._unacknowledged if other.producer == refusal.producer]
        if refusal.producer == self._producers:
            self._discard()
        for suspect in suspects:
            if isinstance(error, _NOT_THE_RECORD):
                self._fail(suspect, error)
            elif isinstance(error, _OF_A_RECORD) or suspect.together >= _TOGETHER_MAX:
                self._send_alone(suspect)
            else:
                suspect.together += 1
                self._send(suspect)

    def _send_alone(self, pending: _PendingRecord) -> None:
        """Send the record with no other in flight, so that an error is about this record."""
        patience = _PATIENCE_SECONDS
        while pending in self._unacknowledged:
            try:
                left = patience if self._deadline is None else max(self._deadline - time.monotonic(), 0)
                metadata = self._hand_over(pending).get(timeout=min(patience, left))
            except Exception as error:  # noqa: BLE001  # as in _send
                if isinstance(error, KafkaTimeoutError) or not _retriable(error):
                    self._discard()
                    patience = min(patience * 2, _PATIENCE_SECONDS_MAX)
                if not self._may_try_again(pending, error):
                    self._fail(pending, error)
            else:
                self._note_acknowledgement(pending, metadata)

    # Closing

    def _drain(self) -> None:
        """Go on until Kafka has acknowledged all records, or the time to close is over."""
        while self._unacknowledged or not self._queue.empty():
            assert self._deadline is not None
            left = self._deadline - time.monotonic()
            if left <= 0:
                return
            self._turn(min(left, _LOOK_SECONDS))

    def _close(self) -> None:
        if self._producer is not None:
            abandon_producer(self._producer)
        with self._guard:
            left = [pending.submission for pending in self._unacknowledged]
            self._unacknowledged.clear()
        while not self._queue.empty():
            item = self._queue.get()
            if isinstance(item, Submission):
                left.append(item)
        for submission in left:
            error = ClientClosed(
                f"the client was closed before Kafka acknowledged transaction {submission.uuid}: unknown, not failed. "
                "Commit the same transaction again to learn what became of it",
                uuid=submission.uuid,
            )
            self._post(RecordFailed(submission, error))

    def _fail(self, pending: _PendingRecord, error: Exception) -> None:
        if not self._take(pending):
            return
        submission = pending.submission
        failed = self._explain(submission, error)
        failed.__cause__ = error
        self._post(RecordFailed(submission, failed))

    def _explain(self, submission: Submission, error: Exception) -> ClientError:
        topic, uuid = self._connection.staged_topic, submission.uuid
        if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            return TransactionTooLarge(
                f"Kafka refused transaction {uuid}: a record of {submission.size} bytes is more than topic {topic} "
                "takes (max.message.bytes). Set max_record_bytes to 1 KiB less than that, and commit in smaller parts",
                uuid=uuid,
            )
        why = str(error)
        if isinstance(error, TopicAuthorizationFailedError) or gets_no_producer_id(error):
            why = f"the user has no ACL Write on it ({error})"
        return SubmitFailed(
            f"Kafka did not take transaction {uuid} for topic {topic}: {why}. When that is repaired, commit the same "
            "transaction again",
            uuid=uuid,
        )


def _retriable(error: Exception) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)
