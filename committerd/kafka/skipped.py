"""Reads records again that a committer has skipped, while the member's consumer goes on at the end of the log.

For each broker there is a consumer of its own, so that a broker that hangs holds up no partition of another. It joins
no group, and needs no coordinator. It is opened when a record is first read again, and stays open: mostly a read goes
on where the last one ended, and its records were fetched meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import KafkaConsumer, TopicPartition, errors

from committerd.errors import CommitterError, QueueUnavailable
from committerd.kafka.access import denied
from committerd.kafka.clients import OpenClient, in_words, open_client
from committerd.kafka.consumer import UNREADABLE
from committerd.kafka.records import to_record
from committerd.kafka.repairs import connections, without_haste
from committerd.parts import Parts
from committerd.queue.port import Record

_BYTES_MAX = 256 * 1024
"""Bytes of a response: about what a version takes of a flood. A batch that is larger comes whole."""
_POLL_MS = 200
_CLOSE_MS_MAX = 1_000


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
        self, leader: int | None, staged: TopicPartition, since: object, offset: int, *, records_max: int
    ) -> tuple[Sequence[Record], object]:
        """The next records from this offset on, at least one and at most so many, and the connection they came by.

        `leader`: node id of the broker; None = not known. `since`: another object than at the last read if records
        that were fetched then must not be used.

        Raises `QueueUnavailable` if none comes, and `Unreadable`.
        """
        async with self._turns.setdefault(leader, anyio.Lock()):
            reader = self._readers.setdefault(leader, _Reader(self._options, self._request_seconds))
            read = partial(reader.read, staged, since, offset, records_max)
            try:
                # Longer than the timeouts of the client, so that they normally end first.
                with anyio.fail_after(2 * self._request_seconds + 1):
                    return await to_thread.run_sync(read, limiter=CapacityLimiter(1), abandon_on_cancel=True)
            except BaseException as error:
                del self._readers[leader]
                threading.Thread(target=reader.end, name="ends-a-reader", daemon=True).start()
                if isinstance(error, TimeoutError):
                    raise QueueUnavailable(f"reading {staged.topic} again: no response from Kafka") from error
                if isinstance(error, Exception) and not isinstance(error, CommitterError | Unreadable):
                    self._parts.failed("reader", error)
                    raise QueueUnavailable(f"reading {staged.topic} again: {error!r}") from error
                raise

    def close(self) -> None:
        """Close all connections. Blocks, but waits for no read that is under way."""
        for reader in list(self._readers.values()):
            reader.end()


class _Reader:
    """Reads again from the partitions that one broker leads. One read at a time; after an error it can't be used."""

    def __init__(self, options: Mapping[str, Any], request_seconds: float) -> None:
        self._options = options
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._reads = self._has_ended = False
        self._opened: OpenClient[Any] | None = None
        self._place: tuple[TopicPartition, object] | None = None
        """The partition of the last read, and its `since`."""

    def read(
        self, staged: TopicPartition, since: object, offset: int, records_max: int
    ) -> tuple[Sequence[Record], object]:
        """Blocks; as `SkippedReaders.read`."""
        with self._lock:
            self._reads = True
        try:
            return self._read(staged, since, offset, records_max)
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
        self, staged: TopicPartition, since: object, offset: int, records_max: int
    ) -> tuple[Sequence[Record], object]:
        if self._place is not None and self._place[0] == staged and self._place[1] is not since:
            self._close()
        if self._opened is None:
            self._opened = open_client(KafkaConsumer, self._options)
            without_haste(self._opened.network)
        consumer, network = self._opened.client, self._opened.network
        if self._place != (staged, since):
            network.cluster.add_topic(staged.topic)  # `assign` would forget the others, and request them again
            consumer.assign([staged])
            consumer.seek(staged, offset)
            self._place = staged, since
        elif consumer.position(staged) != offset:
            consumer.seek(staged, offset)
        # Aborted transactions and markers move the position although no record comes.
        place, moved_at = offset, time.monotonic()
        while not (polled := consumer.poll(timeout_ms=_POLL_MS, max_records=records_max)):
            if (position := consumer.position(staged)) != place:
                place, moved_at = position, time.monotonic()
            if self._has_ended or time.monotonic() - moved_at > self._request_seconds:
                raise errors.KafkaTimeoutError
        connection = connections(network).get(network.cluster.leader_for_partition(staged))
        return [to_record(each) for each in polled[staged]], connection

    def _close(self) -> None:
        opened, self._opened, self._place = self._opened, None, None
        if opened is None:
            return
        try:
            with suppress(errors.KafkaError):
                opened.client.close(autocommit=False, timeout_ms=_CLOSE_MS_MAX)
        finally:
            opened.network.close()
