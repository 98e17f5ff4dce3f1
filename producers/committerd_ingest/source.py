"""Reads topics as a member of a consumer group: one thread that owns one consumer of kafka-python.

The thread polls all the time, since a consumer that isn't polled leaves its group. Calls run between two polls, and
events go to the event loop. A partition that is assigned is paused until `seek`, which alone says where it begins:
the group's offsets decide nothing. Each seek counts, and records that were fetched before it are dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kafka import TopicPartition, errors
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata

from committerd_client.kafka_repairs import hidden_topics
from committerd_ingest.batches import fetched, poll, read_in_columns
from committerd_ingest.futures import fail, succeed
from committerd_ingest.records import Partition, Records
from committerd_login.access import denied, lacking

_log = logging.getLogger(__name__)

_POLL_MS = 50
_POLL_BATCHES_MAX = 8
"""After which the records of no other partition are read before the next poll."""
_REOPEN_SECONDS = 1.0
_CLOSE_MS_MAX = 5_000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group has given these partitions to this process."""

    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class Revoked:
    """They belong to this process no longer."""

    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class Sought:
    """A partition is read from another offset on; what arrives from now on has this number."""

    partition: Partition
    seek: int
    by: object
    """Who asked for it."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Records of a partition."""

    partition: Partition
    seek: int
    """The number of the seek after which they were fetched."""
    records: Records
    more: int = 0
    """How many more of them Kafka has, about."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A partition can't be read on."""

    partition: Partition
    why: str
    """What is wrong with the records that come next; empty = Kafka does not have the next offset."""
    not_allowed: bool = False
    """Whether the user may not read them. `why` names the ACL."""


Event: TypeAlias = Assigned | Revoked | Sought | Arrived | Unreadable


class Source:
    """The topics. `tell` gets the events on the event loop, in order."""

    def __init__(
        self,
        open_consumer: Callable[[], Any],
        *,
        topics: Sequence[str],
        tell: Callable[[Event], None],
    ) -> None:
        """`open_consumer`: connects; it raises what `start` raises. `topics`: those to read, maybe none yet."""
        self._open, self._tell = open_consumer, tell
        self.topics = tuple(topics)
        """The topics to read."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """For what runs in other threads, and what that starts: its log lines name the dataset."""
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._seeks: dict[TopicPartition, int] = {}
        self._owned: set[TopicPartition] = set()
        self._ended = asyncio.Event()
        self.turned_at = time.monotonic()
        """When the thread last polled (monotonic seconds)."""
        self.joined = False
        """Whether the group has given this process its share, which may be none."""
        self.trouble = ""
        """Names the ACL that the user lacks on the group or on a topic; empty if none is known to be missing."""
        self._fetches = True

    async def start(self) -> None:
        """Connect, and begin to poll. Raises what `open_consumer` raises."""
        consumer = await asyncio.to_thread(self._open)
        threading.Thread(
            target=self._context.copy().run, args=(self._run, consumer), name="ingest-source", daemon=True
        ).start()

    async def stop(self) -> None:
        """Leave the group."""
        self._stopping.set()
        await self._ended.wait()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on, which may be none."""
        self.topics = tuple(topics)

    async def call(self, work: Callable[[Any], Result]) -> Result:
        """Let the thread call `work` with its consumer. Raises KafkaError."""
        future: asyncio.Future[Result] = self._loop.create_future()
        self._calls.put((work, future))
        return await future

    async def seek(self, partition: Partition, offset: int, *, by: object) -> None:
        """Read the partition from this offset on, if it is assigned; `Sought` comes before its records.

        The partition may be revoked and assigned again before that happens, so `Sought.by` says who asked.
        """
        place = TopicPartition(*partition)

        def work(consumer: Any) -> None:
            if place in self._owned:
                consumer.seek(place, offset)
                if self._fetches:
                    consumer.resume(place)
                self._seeks[place] += 1
                self._later(self._tell, Sought(partition, self._seeks[place], by))

        await self.call(work)

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Fetch no more of these partitions."""
        self._on_owned(partitions, "pause")

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Go on with them."""
        if self._fetches:
            self._on_owned(partitions, "resume")

    def fetch_no_more(self) -> None:
        """From now on, fetch nothing of any partition, whoever seeks or resumes it; stay in the group."""
        self._fetches = False

        def work(consumer: Any) -> None:
            for place in self._owned:
                consumer.pause(place)

        self._calls.put((work, self._loop.create_future()))

    def _on_owned(self, partitions: Sequence[Partition], method: str) -> None:
        def work(consumer: Any) -> None:
            for one in partitions:
                if TopicPartition(*one) in self._owned:
                    getattr(consumer, method)(TopicPartition(*one))

        self._calls.put((work, self._loop.create_future()))

    def note(self, partition: Partition, offset: int) -> None:
        """Commit the group's offset, for tools that show lag. Nothing depends on it."""
        place = TopicPartition(*partition)

        def work(consumer: Any) -> None:
            if place in self._owned:
                consumer.commit_async({place: OffsetAndMetadata(offset, "", -1)}, callback=lambda *_: None)

        self._calls.put((work, self._loop.create_future()))

    async def ends(self) -> Mapping[Partition, int]:
        """The offset behind the last record of each assigned partition, as last fetched."""

        def ask(consumer: Any) -> Mapping[Partition, int]:
            found = {}
            for place in self._owned:
                with suppress(errors.KafkaError, KeyError):
                    end = consumer.highwater(place)
                    if end is not None:
                        found[Partition(*place)] = int(end)
            return found

        return await self.call(ask)

    # The thread

    def _run(self, consumer: Any) -> None:
        try:
            while consumer is not None:
                try:
                    self._serve(consumer)
                except errors.GroupAuthorizationFailedError:
                    self._note_trouble(lacking("Read", "Group", consumer.config["group_id"]))
                except Exception:  # noqa: BLE001  # whatever it is, another consumer is opened
                    _log.exception("ingest.consumer_failed")
                finally:
                    self._give_up()
                    with suppress(errors.KafkaError):
                        consumer.close(autocommit=False, timeout_ms=_CLOSE_MS_MAX)
                consumer = self._open_again()
        finally:
            self._drop_calls()
            self._later(self._ended.set)

    def _open_again(self) -> Any:
        while not self._stopping.wait(_REOPEN_SECONDS):
            self.turned_at = time.monotonic()
            self._drop_calls()
            try:
                return self._open()
            except Exception as error:  # noqa: BLE001  # whatever it is: Kafka may be there the next time
                _log.warning("ingest.kafka_unavailable", extra={"error": str(error)})
        return None

    def _serve(self, consumer: Any) -> None:
        listener = _Listener(self, consumer)
        read_in_columns(consumer)
        subscribed: tuple[str, ...] = ()
        while not self._stopping.is_set():
            self.turned_at = time.monotonic()
            self._run_calls(consumer)
            topics = self.topics
            if topics != subscribed:
                subscribed = topics
                if topics:
                    consumer.subscribe(topics, listener=listener)
                else:
                    consumer.unsubscribe()
                    self._give_up()
            if not subscribed:  # kafka-python polls no consumer without topics
                self._stopping.wait(_POLL_MS / 1000)
                continue
            try:
                polled = poll(consumer, timeout_ms=_POLL_MS, batches_max=_POLL_BATCHES_MAX)
            except errors.OffsetOutOfRangeError as error:
                places = error.args[0] if error.args and isinstance(error.args[0], dict) else list(self._owned)
                self._unreadable(consumer, places, "")
                continue
            except errors.RetriableError as error:
                _log.warning("ingest.kafka_no_response", extra={"error": str(error)})
                self._stopping.wait(_POLL_MS / 1000)
                continue
            except errors.KafkaError as error:
                place = getattr(error, "committerd_partition", None)  # set by committerd.kafka.repairs
                if place is None:
                    raise
                acl = denied(error, "Read", topic=place.topic)
                self._unreadable(
                    consumer, [place], acl or f"{type(error).__name__}: {error}", not_allowed=acl is not None
                )
                continue
            self._look_at_rights(consumer)
            for place, found in polled.items():
                if place in self._owned and found:
                    records = fetched(found)
                    more = (consumer.highwater(place) or 0) - records.offsets[-1] - 1
                    self._later(self._tell, Arrived(Partition(*place), self._seeks[place], records, more))

    def _look_at_rights(self, consumer: Any) -> None:
        """Note a topic that the user may not see: it has no partition here that could be stopped."""
        hidden = sorted(hidden_topics(consumer).intersection(self.topics))
        if hidden or self.joined:
            self._note_trouble(lacking("Read", "Topic", hidden[0]) if hidden else "")

    def _note_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.error("ingest.not_allowed", extra={"error": trouble})
        self.trouble = trouble

    def _unreadable(
        self, consumer: Any, places: Iterable[TopicPartition], why: str, *, not_allowed: bool = False
    ) -> None:
        """Read no more of these partitions, and say so; the others go on."""
        for place in self._owned.intersection(places):
            consumer.pause(place)
            consumer.seek(place, 0)
            self._seeks[place] += 1
            self._later(self._tell, Unreadable(Partition(*place), why, not_allowed))

    def assigned(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        """From the listener: `places` are this process's now."""
        for place in places:
            consumer.pause(place)
            consumer.seek(place, 0)  # never read: it is paused until it is told where it begins
            self._owned.add(place)
            self._seeks[place] = self._seeks.get(place, 0) + 1
        self.joined = True
        self._later(self._tell, Assigned([Partition(*one) for one in places]))

    def revoked(self, places: Sequence[TopicPartition]) -> None:
        """From the listener: `places` are another's, or nobody's."""
        self._owned -= set(places)
        self._later(self._tell, Revoked([Partition(*one) for one in places]))

    def _give_up(self) -> None:
        self.joined = False
        if self._owned:
            self.revoked(list(self._owned))

    def _run_calls(self, consumer: Any) -> None:
        with suppress(queue.Empty):
            while True:
                work, future = self._calls.get_nowait()
                try:
                    result = work(consumer)
                except Exception as error:  # noqa: BLE001  # the caller gets it
                    self._later(fail, future, error)
                else:
                    self._later(succeed, future, result)

    def _drop_calls(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._later(fail, self._calls.get_nowait()[1], errors.NodeNotReadyError("the consumer is closed"))

    def _later(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments, context=self._context)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, source: Source, consumer: Any) -> None:
        self._source, self._consumer = source, consumer

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self._source.assigned(self._consumer, list(assigned))

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self._source.revoked(list(revoked))

    def on_partitions_lost(self, lost: Sequence[TopicPartition]) -> None:
        self._source.revoked(list(lost))
