"""The ports `Queue` and `EventTopic` on Kafka: a dataset's topics, by the clients that a member's datasets share."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import TopicPartition, errors

from committerd.errors import QueueUnavailable, RefusedToRun
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.assignment import Delivery
from committerd.kafka.clients import in_words
from committerd.kafka.consumer import GroupMember, MembershipState, Share
from committerd.kafka.contact import Contact
from committerd.kafka.held_back import HeldBack
from committerd.kafka.options import Topics
from committerd.kafka.producer import Producers, RecordSender
from committerd.kafka.questions import Lanes, Questions
from committerd.kafka.reader import RangeReader
from committerd.kafka.skipped import SkippedReaders, Unreadable
from committerd.queue.dead_letter import smaller_letter, smaller_outcome
from committerd.queue.port import (
    READ_BYTES_MAX,
    Acknowledged,
    Fetched,
    FetchFailed,
    Publication,
    QueueEvent,
    Record,
    TopicIdentity,
)
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_REBALANCE_PAUSE_SECONDS = 0.05

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedClients:
    """What the datasets of a member share."""

    settings: KafkaSettings
    admin: TopicAdmin
    consumer: GroupMember
    outcomes: Producers
    letters: Producers
    events: Producers
    lanes: Lanes
    questions: Questions
    skipped: SkippedReaders
    event_lane: CapacityLimiter
    """Bounds the threads that wait for requests about change events."""


class KafkaQueue:
    """`committerd.queue.port.Queue` and `EventTopic` on Kafka; `KafkaMember.serving` makes it."""

    def __init__(self, shared: SharedClients, topics: Topics, name: str) -> None:
        """`name`: of the dataset."""
        settings = shared.settings
        self.topics = topics
        self.name = name
        self.partition = TopicPartition(topics.staged, 0)
        # Longer than the threads' own timeouts, so that they normally end first.
        self._seconds_max = 2 * settings.request_timeout_ms / 1000 + 1
        self._publish_seconds_max = 2 * ((settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000 + 1)
        self._member = shared.consumer
        self._share = Share(self._member, self.partition, name, deliver=self._take)
        self._admin = shared.admin
        self._lanes = shared.lanes
        self._questions = shared.questions
        self._skipped = shared.skipped
        self._connection: object = None
        """The connection by which records were last read again."""
        self._reader = RangeReader(settings, topics, name, admin=self._admin)
        self._outcomes = RecordSender(shared.outcomes, topic=topics.outcomes, smaller=smaller_outcome)
        self._letters = RecordSender(shared.letters, topic=topics.dead, smaller=smaller_letter)
        self._event_lane = shared.event_lane
        self._event_reader = RangeReader(settings, topics, name, admin=self._admin)
        self._events = RecordSender(shared.events, topic=topics.events, in_order=True)
        self._deliveries: collections.deque[Delivery] = collections.deque()
        self._arrived = anyio.Event()
        self._unbroken = True
        """As `Fetched.unbroken`, of deliveries that were dropped."""
        self._acknowledged: int | None = None
        self._responded_at = time.monotonic()
        self._silence = ""
        self._readable: int | None = None
        self._oldest_unread: Record | None = None
        self._looks_at_unread = False
        self._retention_ms: int | None = None
        self._log = _SeenLog(self)
        self._held_back = HeldBack(self._log)
        self._topic_problems: Sequence[str] = ()

    # For metrics, probes and commands

    @property
    def owner_turned_at(self) -> float:
        """When the thread that owns the consumer last ran through its loop (`time.monotonic`)."""
        return self._member.turned_at

    def member_state(self) -> MembershipState:
        """active: a member that owns the partition. standby: a member without it. joining: not a member yet."""
        return self._share.state

    def begins(self, generation: int) -> None:
        """Note that the dataset has begun to be served: the group moves it to another member less readily."""
        self._share.assignment.begin(generation)

    def end_offset(self) -> int | None:
        """End of the staged partition, at most a few seconds old; None before the first assignment."""
        return self._member.end_offset(self._share)

    def unread_since_ms(self) -> int | None:
        """Timestamp (Unix milliseconds) of the oldest record that is not acknowledged, at most a few seconds old.

        None if there is none, or if this member does not own the partition.
        """
        oldest = self._oldest_unread
        if oldest is None or not self._share.assignment.owned or oldest.offset < (self._acknowledged or 0):
            return None
        return oldest.timestamp_ms

    def retention_ms(self) -> int | None:
        """Retention of the staged topic in milliseconds, at most a few seconds old; None = unlimited, or not known."""
        return self._retention_ms

    def held_back(self) -> tuple[int, int] | None:
        """Number of offsets that an open Kafka transaction holds back, and the timestamp of the first (Unix ms).

        At most a few seconds old. None if there are none, or if this member does not own the partition.
        """
        return self._held_back.current() if self._share.assignment.owned else None

    def topic_problems(self) -> Sequence[str]:
        """Problems with the topics, a sentence with its remedy each; at most a few minutes old."""
        return self._topic_problems

    def silent_seconds(self) -> float:
        """Seconds since Kafka last responded; up to a few seconds even if all is well."""
        return time.monotonic() - self._responded_at

    def silence_reason(self) -> str:
        """Why Kafka does not respond, as far as its client knows; empty if it responds."""
        return self._silence

    # The port; `committerd.queue.port.Queue` documents each method

    async def next_event(self) -> QueueEvent:
        while True:
            while self._deliveries:
                delivery = self._deliveries.popleft()
                event = delivery.event
                if not isinstance(event, Fetched):
                    return event
                unbroken, self._unbroken = self._unbroken and event.unbroken, True
                if self._share.assignment.is_current(delivery):
                    return replace(event, unbroken=unbroken)
                self._unbroken = unbroken  # what is dropped may be all that tells of it
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def identity(self) -> TopicIdentity:
        asked = self._questions.identity(self.topics.staged, self._leader)
        return await self._answer(asked, "asking for the topic's identity")

    async def bounds(self) -> tuple[int, int]:
        return await self._answer(self._questions.bounds(self.partition, self._leader), "asking for bounds")

    async def first_held_back(self, offset: int) -> Record | None:
        """The first staged record at or after this offset, even if an open Kafka transaction holds it back."""
        look = partial(self._reader.held_back, offset)
        return await self._request(look, "reading what is held back", reads=True)

    async def time_ms(self) -> int | None:
        return await self._answer(self._questions.time_ms(), "asking for the brokers' time")

    async def acknowledged(self) -> Acknowledged | None:
        found = await self._answer(self._questions.acknowledged(self.partition), "asking for the group's offset")
        if found is not None:
            self._acknowledged = found.offset
        return found

    async def acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        with self._no_longer_than(self._seconds_max, "acknowledging"):
            while True:
                try:
                    taken = await self._member.acknowledge(self._share, generation, offset, metadata)
                except errors.KafkaError as error:
                    raise QueueUnavailable(f"acknowledging {self.partition.topic}: {in_words(error)}") from error
                if taken is not None:
                    break
                # A member joins or leaves. We keep the partition, but for now Kafka accepts no offset.
                await anyio.sleep(_REBALANCE_PAUSE_SECONDS)
        if taken:
            self._acknowledged = offset
        return taken

    async def seek(self, generation: int, offset: int) -> None:
        number = self._share.assignment.begin_seek(generation)
        if number is None:
            return
        call = self._member.submit(
            partial(self._share.assignment.seek, generation=generation, number=number, offset=offset)
        )
        with self._no_longer_than(self._seconds_max, "seeking"):
            await call.result()

    async def read_again(self, generation: int, offset: int, *, records_max: int) -> Fetched | FetchFailed:
        assignment, seeks = self._share.assignment, self._share.assignment.seeks
        try:
            records, connection = await self._skipped.read(
                self._leader, self.partition, seeks, offset, records_max=records_max
            )
        except Unreadable as error:
            return FetchFailed(generation=generation, reason=str(error))
        unbroken, self._connection = connection is not None and connection is self._connection, connection
        assignment.add(generation, seeks, records)
        return Fetched(generation=generation, records=records, unbroken=unbroken)

    async def done(self, generation: int, records: int, size: int) -> None:
        self._member.settle(self._share, generation, records, size)

    async def read(self, start: int, end: int, *, bytes_max: int = READ_BYTES_MAX) -> list[Record]:
        if end == start + 1:
            return await self._answer(
                self._questions.record(self.partition, start, self._leader), "reading a staged record"
            )
        ask = partial(self._reader.staged, start, end, bytes_max)
        return await self._request(ask, "reading staged records", reads=True)

    async def outcomes_tail(self, limit: int) -> list[bytes]:
        asked = self._questions.tail(self.topics.outcomes, limit, self._leader)
        return await self._answer(asked, "reading outcomes")

    async def publish(self, outcomes: Sequence[Publication]) -> None:
        await self._send(self._outcomes, outcomes, "publishing outcomes")

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        await self._send(self._letters, letters, "publishing dead letters")

    async def events_topic_id(self) -> str:
        ask = partial(self._admin.identity, self.topics.events, None)
        try:
            found = await self._through(self._event_lane, ask, "asking for the events topic's identity")
        except RefusedToRun as error:
            remedy = "`committerd topics create` creates it"
            if error.code == "topic_gone":
                raise QueueUnavailable(f"there is no topic {self.topics.events}: {remedy}") from error
            raise QueueUnavailable(
                f"{self.topics.events} must have 1 partition: delete it, and {remedy} anew"
            ) from error
        return found.topic_id

    async def events_tail(self, limit: int) -> list[bytes]:
        read = partial(self._event_reader.events_tail, limit)
        return await self._through(self._event_lane, read, "reading change events")

    async def publish_events(self, events: Sequence[Publication]) -> None:
        await self._send(self._events, events, "publishing change events")

    # From the member

    def join(self) -> None:
        """Serve the dataset as a member of the group, until `leave`."""
        self._member.add(self._share)

    def note_contact(self, contact: Contact) -> None:
        """Note whether Kafka responds, and the end of the staged partition."""
        self._silence = contact.failure
        if contact.failure:
            return
        self._responded_at = contact.at
        if contact.readable is None:
            return
        self._readable = contact.readable
        # A partition that is fetched knows its end better.
        if self._share.end_offset is None or self._share.assignment.idle or not self._share.assignment.owned:
            self._share.end_offset = contact.readable
        if contact.end is not None:
            self._log.seen = (contact.end, contact.readable)

    def holds_back(self) -> bool:
        """Whether an open Kafka transaction may hold records back, or did when it was last looked at."""
        if not self._share.assignment.owned:
            self._held_back.forget()
            return False
        end, readable = self._log.seen
        return end > readable or self._held_back.current() is not None

    async def look_at_held_back(self) -> None:
        """Bring `held_back` up to date."""
        await self._held_back.look()

    def acknowledged_unknown(self) -> bool:
        """Whether this member owns the partition, and does not know what the group has committed."""
        return self._share.assignment.owned and self._acknowledged is None

    def note_acknowledged(self, found: Acknowledged | None) -> None:
        """Note what the group has committed, unless it is known better."""
        if self._acknowledged is None:
            self._acknowledged = 0 if found is None else found.offset

    def has_unread(self) -> bool:
        """Whether there may be a record that is not acknowledged."""
        owned, end = self._share.assignment.owned, self._readable
        return owned and end is not None and (self._acknowledged or 0) < end and not self._looks_at_unread

    async def look_at_unread(self) -> None:
        """Bring `unread_since_ms` up to date."""
        self._looks_at_unread = True
        try:
            first, end = await self.bounds()
            start = max(self._acknowledged or 0, first)
            found = await self.read(start, start + 1) if start < end else []
            self._oldest_unread = found[0] if found else None
        finally:
            self._looks_at_unread = False

    def note_retention(self, milliseconds: int | None) -> None:
        """Note the retention of the staged topic; None = unlimited."""
        self._retention_ms = milliseconds

    def note_topic_problems(self, problems: Sequence[str]) -> None:
        """Note the problems with the topics, as sentences."""
        found = tuple(problems)
        if found and found != self._topic_problems:
            _log.error("kafka.topics_changed", extra={"dataset": self.name, "problems": found})
        self._topic_problems = found

    def trouble(self) -> str:
        """Why this process can't serve the dataset; empty if it is a member of the group, or is joining."""
        return self._member.trouble or self._share.trouble

    def leave(self) -> None:
        """Give up the partition now, so that another member of the group takes it over."""
        self._skipped.forget(self.partition)
        self._member.remove(self._share)

    def _take(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self._arrived.set()

    async def _send(self, sender: RecordSender, publications: Sequence[Publication], doing: str) -> None:
        if publications:
            with self._no_longer_than(self._publish_seconds_max, doing):
                await sender.send(publications)

    @property
    def _leader(self) -> int | None:
        return self._member.leader(self.partition)

    async def _answer(self, asked: Awaitable[Result], doing: str) -> Result:
        with self._no_longer_than(self._seconds_max, doing):
            return await asked

    async def _request(self, work: Callable[[], Result], doing: str, *, reads: bool = False) -> Result:
        return await self._through(self._lanes.of(self._leader, reads=reads), work, doing)

    async def _through(self, lane: CapacityLimiter, work: Callable[[], Result], doing: str) -> Result:
        with self._no_longer_than(self._seconds_max, doing):
            return await to_thread.run_sync(work, limiter=lane, abandon_on_cancel=True)

    @contextmanager
    def _no_longer_than(self, seconds: float, doing: str) -> Iterator[None]:
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError as error:
            raise QueueUnavailable(f"{doing}: no response from Kafka in {seconds:g} s") from error


class _SeenLog:
    """The staged partition as the member last saw it."""

    def __init__(self, queue: KafkaQueue) -> None:
        self._queue = queue
        self.seen = (0, 0)
        """The end, and the readable end."""

    async def end(self) -> int:
        """The offset after the last record, whether it can be read or not."""
        return self.seen[0]

    async def bounds(self) -> tuple[int, int]:
        """0, and the offset after the last record that can be read."""
        return 0, self.seen[1]

    async def first_held_back(self, offset: int) -> Record | None:
        """The first record at or after this offset, even if it can't be read yet; None = none."""
        return await self._queue.first_held_back(offset)
