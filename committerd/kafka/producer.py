"""Publishes outcomes and dead letters: sends a batch, and returns when the broker has acknowledged all of it.

All datasets of a member share a producer for outcomes and one for dead letters, and send at the same time. A producer
of kafka-python 3.0.12 can die, for all topics and forever (docs/upstream/refusing-producer.md and silent-producer.md):

* After one error that is not retriable, such as a single record that is too large for its topic, it refuses all other
  records.
* After a batch was sent, failed and then reached the delivery timeout, the producer drops its producer id and never
  requests another id: it raises nothing, and neither sends nor expires its records.

So a producer is replaced if a record fails, and also if a dataset's records wait and the broker has acknowledged none
of them for some seconds. What other datasets have sent through it goes on: it is closed when nobody waits for it.

Who sent the record that a broker refuses is not known at first, because the records of all fail. Each dataset whose
records failed sends them again through a second producer, one dataset at a time: those of the innocent pass at once,
and only the other dataset goes on there, record by record, so a bad record fails alone. It comes back to the first
producer when all of its records pass.

Kafka may hold a record twice; readers identify it by its key.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import KafkaProducer, errors

from committerd.errors import CommitterError, QueueUnavailable
from committerd.kafka.clients import OpenClient, in_words, open_client
from committerd.kafka.options import producer_options
from committerd.kafka.repairs import abandon, partitions_known, request_topic, without_haste
from committerd.parts import Parts
from committerd.queue.port import Publication
from committerd.settings.kafka import KafkaSettings
from committerd_login.access import denied

_log = logging.getLogger(__name__)

_REOPEN_BOOTSTRAP_MS = 5_000
_PATIENCE_SECONDS = 4.0
"""How long records may wait without any acknowledgement before the producer is replaced."""
_METADATA_SECONDS = (0.02, 0.5)
"""How long to wait before the metadata of a topic is requested again: at first, and at most."""
_SUSPECT_SECONDS = 5.0
"""How long a dataset sends through the second producer after a record was refused: longer than the publisher waits
until it sends that record again. Other records may pass meanwhile.
"""
_THREADS = 4
"""Threads that hand records over to the producers of a member. They never wait for Kafka."""

_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_NOT_ALLOWED = (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError)
"""Errors that are about all records of a topic."""

Smaller = Callable[[Publication], Publication | None]
Failure = tuple[Publication, Exception]


@dataclass(eq=False, slots=True)
class _Lent:
    """A producer, and how many wait for it."""

    opened: OpenClient[Any]
    users: int = 0
    retired: bool = False


class SharedProducer:
    """A producer for all datasets, which is replaced when it has died. Its methods run on the event loop."""

    def __init__(self, settings: KafkaSettings, role: str, name: str, *, record_bytes_max: int, parts: Parts) -> None:
        self._parts = parts
        self._options = producer_options(settings, role, name, record_bytes_max=record_bytes_max)
        self._opening = anyio.Lock()
        self._current: _Lent | None = None
        self._closed = False
        self.replaced = 0
        """Number of producers that were replaced so far."""

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[_Lent]:
        """The producer, for as long as the block runs. It is replaced if the block raises what it should not.

        Raises `QueueUnavailable` then, and if no broker can be used.
        """
        async with self._opening:
            if self._closed:
                raise QueueUnavailable("the Kafka producer is closed")
            if self._current is None:
                self._current = _Lent(await to_thread.run_sync(self._open, abandon_on_cancel=False))
            lent = self._current
            lent.users += 1
        try:
            yield lent
        except CommitterError:
            raise
        except Exception as error:
            self.retire(lent)
            self._parts.failed("producer", error)
            raise QueueUnavailable(f"the Kafka producer has failed, and is replaced: {error!r}") from error
        finally:
            lent.users -= 1
            self._close_unused(lent)

    def retire(self, lent: _Lent) -> None:
        """Open another producer for the next who asks. Those who wait for this one may go on."""
        if self._current is lent:
            self._current = None
            self.replaced += 1
        lent.retired = True

    def close(self) -> None:
        """Close the connections; a send that is still running fails."""
        self._closed = True
        if (lent := self._current) is not None:
            self._current = None
            abandon(lent.opened.client)

    def _open(self) -> OpenClient[Any]:
        options = self._options
        if self.replaced:
            options = options | {"bootstrap_timeout_ms": _REOPEN_BOOTSTRAP_MS}
        opened = open_client(KafkaProducer, options)
        without_haste(opened.network)
        return opened

    def _close_unused(self, lent: _Lent) -> None:
        if lent.retired and not lent.users:
            abandon(lent.opened.client)


class Producers:
    """The producers of a member for one kind of record: outcomes, or dead letters."""

    def __init__(self, settings: KafkaSettings, role: str, name: str, *, record_bytes_max: int, parts: Parts) -> None:
        self.all = SharedProducer(settings, role, name, record_bytes_max=record_bytes_max, parts=parts)
        """For every dataset."""
        self.suspects = SharedProducer(settings, role, name, record_bytes_max=record_bytes_max, parts=parts)
        """For a dataset whose records failed, perhaps because of another dataset's."""
        self.one_suspect = anyio.Lock()
        self.threads = CapacityLimiter(_THREADS)
        # A live producer gives up by itself within this time.
        self.patience_max = (settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000
        self.metadata_seconds = settings.request_timeout_ms / 1000

    def close(self) -> None:
        """Close the connections; sends that are still running fail."""
        self.all.close()
        self.suspects.close()


class RecordSender:
    """Sends the records of one dataset to one topic. While some of them fail, it sends one batch at a time."""

    def __init__(
        self, producers: Producers, *, topic: str, smaller: Smaller = lambda _: None, in_order: bool = False
    ) -> None:
        """`smaller`: returns a smaller form of a record that is too large for the topic; None if there is none.

        `in_order`: send no record behind a refused record.
        """
        self._producers = producers
        self._topic = topic
        self._smaller = smaller
        self._in_order = in_order
        # If Kafka is reachable but slow, the time doubles with each replaced producer.
        self._patience = self._patience_min = min(_PATIENCE_SECONDS, producers.patience_max)
        self._one = anyio.Lock()
        self._suspect = False
        self._refused_at = float("-inf")
        """When a record was refused last, in monotonic seconds."""

    async def send(self, publications: Sequence[Publication]) -> None:
        """Send all records and wait until the broker has acknowledged each.

        Raises `QueueUnavailable` otherwise, with code `record_refused` if a retry can't help: a record is larger than
        the topic allows, or this user may not write to the topic.
        """
        if not self._suspect:
            failed = await self._attempt(self._producers.all, publications)
            if not failed:
                return
            self._raise_retriable(failed)
            publications = [publication for publication, _ in failed]
            self._suspect = True
        async with self._one:
            failed = await self._attempt_alone(publications)
            if failed:
                self._raise_retriable(failed)
                await self._send_one_by_one(failed)
            self._suspect = time.monotonic() - self._refused_at < _SUSPECT_SECONDS

    async def _send_one_by_one(self, failed: Sequence[Failure]) -> None:
        refused: list[Failure] = []
        publications = [publication for publication, _ in failed]
        while publications:
            publication = publications.pop(0)
            error = await self._send_one(publication)
            if error is not None:
                refused.append((publication, error))
            if isinstance(error, _NOT_ALLOWED) or (error is not None and self._in_order):
                refused += [(each, error) for each in publications]
                break
        if refused:
            self._refused_at = time.monotonic()
            first, error = refused[0]
            size = len(first.value) + len(first.key or b"")
            why = denied(error, "Write", topic=self._topic) or (
                f"the first has {size} bytes of key and value: {in_words(error)}. Check the topic's max.message.bytes"
            )
            raise QueueUnavailable(
                f"{self._topic} refuses {len(refused)} of {len(failed)} records: {why}", code="record_refused"
            ) from error

    async def _send_one(self, publication: Publication) -> Exception | None:
        """Send one record, or its smaller form; returns the error if the broker refuses it."""
        left: Publication | None = publication
        error: Exception | None = None
        while left is not None:
            failed = await self._attempt_alone([left])
            if not failed:
                if left is not publication:
                    _log.warning(
                        "kafka.record_cut",
                        extra={"topic": self._topic, "bytes": len(publication.value), "error": str(error)},
                    )
                return None
            self._raise_retriable(failed)
            _, error = failed[0]
            if not isinstance(error, _TOO_LARGE):
                return error
            left = self._smaller(left)
        return error

    def _raise_retriable(self, failed: Sequence[Failure]) -> None:
        _, error = failed[0]
        if isinstance(error, errors.RetriableError) or not isinstance(error, errors.KafkaError):
            raise QueueUnavailable(f"writing to {self._topic}: {in_words(error)}") from error

    async def _attempt_alone(self, publications: Sequence[Publication]) -> list[Failure]:
        """Send the records while no other dataset sends through the same producer."""
        async with self._producers.one_suspect:
            return await self._attempt(self._producers.suspects, publications)

    async def _attempt(self, shared: SharedProducer, publications: Sequence[Publication]) -> list[Failure]:
        """Send the records; returns the records that were not acknowledged, with their errors."""
        async with shared.lent() as lent:
            try:
                partitions = await self._partitions(lent.opened)
            except errors.KafkaError as error:
                return [(publication, error) for publication in publications]
            batch = _Batch(lent.opened.client, self._topic, partitions, asyncio.get_running_loop())
            refused = await to_thread.run_sync(batch.send, publications, limiter=self._producers.threads)
            failed = await self._undelivered(batch)
            if failed:
                cause = in_words(failed[-1][1])
                _log.warning(
                    "kafka.producer_replaced",
                    extra={"topic": self._topic, "error": cause, "records": len(failed)},
                )
                shared.retire(lent)
            return refused + failed

    async def _partitions(self, opened: OpenClient[Any]) -> set[int]:
        """The topic's partitions. Raises KafkaError if they are not known in time."""
        until = time.monotonic() + self._producers.metadata_seconds
        pause, most = _METADATA_SECONDS
        asked = False
        while True:
            partitions = partitions_known(opened.client, self._topic)
            if partitions:
                return partitions
            if partitions is not None and asked:
                raise errors.TopicAuthorizationFailedError({self._topic})
            if time.monotonic() >= until:
                raise errors.KafkaTimeoutError(f"the partitions of {self._topic} are not known")
            request_topic(opened.client, self._topic)
            await anyio.sleep(pause)
            pause, asked = min(2 * pause, most), True

    async def _undelivered(self, batch: _Batch) -> list[Failure]:
        """Wait until Kafka has acknowledged all, or makes no progress; returns the others, with their errors."""
        began, patience = time.monotonic(), self._patience
        while not batch.done.is_set() and (left := batch.progress_at + patience - time.monotonic()) > 0:
            with anyio.move_on_after(left):
                await batch.done.wait()
        failed: list[Failure] = []
        stalled = False
        for publication, future in batch.waiting:
            if not future.is_done:
                stalled = True
                failed.append((publication, errors.KafkaTimeoutError(f"no response in {patience:g} s")))
            elif not future.succeeded():
                failed.append((publication, future.exception))
        if stalled:
            self._patience = max(self._patience, min(patience * 2, self._producers.patience_max))
        elif time.monotonic() - began < self._patience_min:
            self._patience = self._patience_min
        return failed


class _Batch:
    """Records on their way through a producer."""

    def __init__(self, producer: Any, topic: str, partitions: set[int], loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._loop = loop
        self._lock = threading.Lock()
        self._left = 1
        """Number of records without a response; one more until all are sent."""
        self.waiting: list[tuple[Publication, Any]] = []
        self.done = anyio.Event()
        self.progress_at = time.monotonic()

    def send(self, publications: Sequence[Publication]) -> list[Failure]:
        """Hand the records over, in a worker thread; returns those that the client refuses."""
        refused: list[Failure] = []
        for publication in publications:
            partition = publication.partition if publication.partition in self._partitions else 0
            try:
                future = self._producer.send(
                    self._topic,
                    key=publication.key,
                    value=publication.value,
                    headers=list(publication.headers),
                    partition=partition,
                )
            except errors.KafkaError as error:  # too large for the client: the producer stays alive
                refused.append((publication, error))
                continue
            self.waiting.append((publication, future))
            with self._lock:
                self._left += 1
            future.add_both(self._one_done)
        self._one_done(None)
        return refused

    def _one_done(self, _: object) -> None:
        """Called in the producer's thread; it must not wait."""
        self.progress_at = time.monotonic()
        with self._lock:
            self._left -= 1
            done = not self._left
        if done:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self.done.set)
