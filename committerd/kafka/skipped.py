"""Reads records again that a committer has skipped, while the member's consumer goes on at the end of the log.

For each broker there is a consumer of its own, so that a broker that hangs holds up no partition of another. It joins
no group, and needs no coordinator. It is opened when a record is first read again, and stays open. A read usually
continues where the last one ended, so its records have already been fetched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import KafkaConsumer, TopicPartition, errors

from committerd.errors import CommitterError, QueueUnavailable
from committerd.kafka.clients import OpenClient, close_consumer, in_words, open_client
from committerd.kafka.consumer import UNREADABLE
from committerd.kafka.records import to_record
from committerd.kafka.repairs import connections, without_haste
from committerd.parts import Parts
from committerd.queue.port import Record
from committerd_login.access import denied

_BYTES_MAX = 256 * 1024
"""Bytes of a response: about what a version takes of a flood. A batch that is larger comes whole."""
_POLL_MS = 200


class Unreadable(Exception):
    """The records can't be read, now or later."""


class SkippedReaders:
    """The readers of a member, by the broker that leads the partition."""

    def __init__(self, options: Mapping[str, Any], *, request_seconds: float, parts: Parts) -> None:
        """`options`: of consumers that read ranges (`range_options`). `request_seconds`: timeout of a request."""
        self._options = {**options, "group_id": None, "max_partition_fetch_bytes": _BYTES_MAX}
        self._request_seconds = request_seconds
        self._parts = parts
        self._readers: dict[int | None, _Reader] = {}
        self._turns: dict[int | None, anyio.Lock] = {}

    async def read(
        self, leader: int | None, staged: TopicPartition, seeks: int, offset: int, *, records_max: int
    ) -> tuple[Sequence[Record], object]:
        """The next records from this offset on, at least one and at most so many, and the connection they came by.

        `leader`: node id of the broker; None = not known. `seeks`: how often the partition was sought: records that
        were fetched before the last seek are not used.

        Raises `QueueUnavailable` if none comes, and `Unreadable`.
        """
        async with self._turns.setdefault(leader, anyio.Lock()):
            reader = self._readers.setdefault(leader, _Reader(self._options, self._request_seconds))
            read = partial(reader.read, staged, seeks, offset, records_max)
            try:
                # Longer than the timeouts of the client, so that they normally end first.
                with anyio.fail_after(2 * self._request_seconds + 1):
                    return await to_thread.run_sync(read, limiter=CapacityLimiter(1), abandon_on_cancel=True)
            except BaseException as error:
                self._drop(leader, reader)
                if isinstance(error, QueueUnavailable | Unreadable) or not isinstance(error, Exception):
                    raise
                if not isinstance(error, CommitterError | TimeoutError):
                    self._parts.failed("reader", error)
                why = "no response from Kafka" if isinstance(error, TimeoutError) else repr(error)
                raise QueueUnavailable(f"reading {staged.topic} again: {why}") from error

    def forget(self, staged: TopicPartition) -> None:
        """Read this partition no more: its dataset leaves."""
        for leader, reader in list(self._readers.items()):
            if reader.knows(staged):
                self._drop(leader, reader)

    def close(self) -> None:
        """Close all connections. Blocks, but waits for no read that is under way."""
        for reader in list(self._readers.values()):
            reader.end()

    def _drop(self, leader: int | None, reader: _Reader) -> None:
        if self._readers.get(leader) is reader:
            del self._readers[leader]
        threading.Thread(target=reader.end, name="ends-a-reader", daemon=True).start()


class _Reader:
    """Reads again from the partitions that one broker leads. One read at a time; after an error it can't be used."""

    def __init__(self, options: Mapping[str, Any], request_seconds: float) -> None:
        self._options = options
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._reads = self._has_ended = False
        self._opened: OpenClient[Any] | None = None
        self._seeks: dict[TopicPartition, int] = {}
        """By partition that was read, how often it was sought before its last read."""

    def knows(self, staged: TopicPartition) -> bool:
        """Whether it has read this partition, and so requests the metadata of its topic."""
        return staged in self._seeks

    def read(
        self, staged: TopicPartition, seeks: int, offset: int, records_max: int
    ) -> tuple[Sequence[Record], object]:
        """Blocks; as `SkippedReaders.read`."""
        with self._lock:
            if self._has_ended:
                raise QueueUnavailable(f"reading {staged.topic} again: the connection was closed")
            self._reads = True
        try:
            return self._read(staged, seeks, offset, records_max)
        except BaseException as error:
            self._has_ended = True
            if isinstance(error, UNREADABLE):
                raise Unreadable(f"{staged.topic}: {error}") from error
            if isinstance(error, errors.KafkaError):
                why = denied(error, "Read", topic=staged.topic) or in_words(error)
                raise QueueUnavailable(f"reading {staged.topic} again: {why}") from error
            raise
        finally:
            with self._lock:
                self._reads = False
                has_ended = self._has_ended
            if has_ended:
                self._close()

    def end(self) -> None:
        """Close the connection: now, or soon if a read is under way."""
        with self._lock:
            self._has_ended = True
            reads = self._reads
        if not reads:
            self._close()

    def _read(
        self, staged: TopicPartition, seeks: int, offset: int, records_max: int
    ) -> tuple[Sequence[Record], object]:
        if self._seeks.get(staged, seeks) != seeks:
            self._close()
        if self._opened is None:
            self._opened = open_client(KafkaConsumer, self._options)
            without_haste(self._opened.network)
        consumer, cluster = self._opened.client, self._opened.network.cluster
        if consumer.assignment() != {staged}:
            cluster.add_topic(staged.topic)  # `assign` would forget the others, and request them again
            consumer.assign([staged])
            consumer.seek(staged, offset)
        elif _position(consumer, staged) != offset:
            consumer.seek(staged, offset)
        self._seeks[staged] = seeks
        # Aborted transactions and markers move the position although no record comes.
        place: int | None = offset
        moved_at = time.monotonic()
        while not (polled := consumer.poll(timeout_ms=_POLL_MS, max_records=records_max)):
            if staged.topic in cluster.unauthorized_topics:
                raise errors.TopicAuthorizationFailedError(staged.topic)
            if (position := _position(consumer, staged)) != place:
                place, moved_at = position, time.monotonic()
            if self._has_ended or time.monotonic() - moved_at > self._request_seconds:
                raise errors.KafkaTimeoutError
        connection = connections(self._opened.network).get(cluster.leader_for_partition(staged))
        return [to_record(each) for each in polled[staged]], connection

    def _close(self) -> None:
        with self._lock:
            opened, self._opened, self._seeks = self._opened, None, {}
        if opened is not None:
            close_consumer(opened)


def _position(consumer: Any, staged: TopicPartition) -> int | None:
    return consumer.position(staged, timeout_ms=_POLL_MS)  # type: ignore[no-any-return]
