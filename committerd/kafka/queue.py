"""The `Queue` port on Kafka: one dataset's three topics, as a member of the group serves them.

Outcomes and dead letters have a producer each, because an error in one topic kills a producer for all its topics.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import TopicPartition, errors

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.assignment import Delivery
from committerd.kafka.clients import in_words
from committerd.kafka.consumer import GroupMember, MembershipState, Share
from committerd.kafka.contact import KafkaContact
from committerd.kafka.held_back import HeldBack
from committerd.kafka.options import RECORD_OVERHEAD_BYTES, Topics
from committerd.kafka.producer import RecordSender
from committerd.kafka.reader import RangeReader
from committerd.kafka.topics import survey_topics
from committerd.queue.dead_letter import OVERHEAD_BYTES, smaller_letter, smaller_outcome
from committerd.queue.port import READ_BYTES_MAX, Acknowledged, Fetched, Publication, QueueEvent, Record, TopicIdentity
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_REBALANCE_PAUSE_SECONDS = 0.05
_END_OFFSET_SECONDS = 2.0
_UNREAD_SECONDS = 30.0
_HELD_BACK_SECONDS = 10.0
_CLOSE_SECONDS_MAX = 10.0

Result = TypeVar("Result")


class KafkaQueue:
    """`committerd.queue.port.Queue` on Kafka; `KafkaMember.serving` makes it."""

    def __init__(
        self, settings: KafkaSettings, topics: Topics, name: str, *, admin: TopicAdmin, member: GroupMember
    ) -> None:
        self.topics = topics
        self._staged = TopicPartition(topics.staged, 0)
        # Longer than the threads' own timeouts, so that they normally end first.
        self._seconds_max = 2 * settings.request_timeout_ms / 1000 + 1
        self._publish_seconds_max = 2 * ((settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000 + 1)
        self._member = member
        self._share = Share(member, self._staged, deliver=self._take)
        self._admin = admin
        self._reader = RangeReader(settings, topics, name, admin=admin)
        # The client refuses what the topic would refuse: a producer does not survive the broker's refusal.
        letter_bytes_max = settings.max_record_bytes + OVERHEAD_BYTES - RECORD_OVERHEAD_BYTES
        self._outcomes, self._letters = (
            RecordSender(settings, role, name, topic=topic, record_bytes_max=size, smaller=smaller)
            for role, topic, size, smaller in (
                ("outcomes", topics.outcomes, settings.max_record_bytes, smaller_outcome),
                ("dead", topics.dead, letter_bytes_max, smaller_letter),
            )
        )
        self._contact = KafkaContact(settings, name, staged=self._staged)
        self._deliveries: collections.deque[Delivery] = collections.deque()
        self._arrived = anyio.Event()
        self._acknowledged: int | None = None
        self._oldest_unread: Record | None = None
        self._retention_ms: int | None = None
        self._held_back = HeldBack(self)
        self._topic_problems: Sequence[str] = ()
        self._settings = settings
        self._name = name
        self._lanes = {
            resource: CapacityLimiter(1) for resource in (self._admin, self._reader, self._outcomes, self._letters)
        }

    # For metrics, probes and commands

    @property
    def owner_turned_at(self) -> float:
        """When the thread that owns the consumer last ran through its loop (`time.monotonic`)."""
        return self._member.turned_at

    def member_state(self) -> MembershipState:
        """active: a member that owns the partition. standby: a member without it. joining: not a member yet."""
        return self._share.state

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
        return time.monotonic() - self._contact.responded_at

    def silence_reason(self) -> str:
        """Why Kafka does not respond, as far as its client knows; empty if it responds."""
        return self._contact.failure

    # The port; `committerd.queue.port.Queue` documents each method

    async def next_event(self) -> QueueEvent:
        while True:
            while self._deliveries:
                delivery = self._deliveries.popleft()
                if not isinstance(delivery.event, Fetched) or self._share.assignment.is_current(delivery):
                    return delivery.event
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def identity(self) -> TopicIdentity:
        ask = partial(self._admin.identity, self.topics.staged, self._member.leader(self._staged))
        return await self._in_thread(self._admin, ask, "asking for the topic's identity")

    async def bounds(self) -> tuple[int, int]:
        ask = partial(self._admin.bounds, [self._staged])
        return (await self._in_thread(self._admin, ask, "asking for bounds"))[self._staged]

    async def end(self) -> int:
        """The offset after the last staged record, whether it can be read or not."""
        ask = partial(self._admin.end, self._staged)
        return await self._in_thread(self._admin, ask, "asking for the topic's end")

    async def first_held_back(self, offset: int) -> Record | None:
        """The first staged record at or after this offset, even if an open Kafka transaction holds it back."""
        look = partial(self._reader.held_back, offset)
        return await self._in_thread(self._reader, look, "reading what is held back")

    async def time_ms(self) -> int | None:
        return await self._in_thread(self._admin, self._admin.time_ms, "asking for the brokers' time")

    async def acknowledged(self) -> Acknowledged | None:
        ask = partial(self._admin.acknowledged, self.topics.group, self._staged)
        found = await self._in_thread(self._admin, ask, "asking for the group's offset")
        if found is not None:
            self._acknowledged = found.offset
        return found

    async def acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        with self._no_longer_than(self._seconds_max, "acknowledging"):
            while True:
                try:
                    taken = await self._member.acknowledge(self._share, generation, offset, metadata)
                except errors.KafkaError as error:
                    raise QueueUnavailable(f"acknowledging {self._staged.topic}: {in_words(error)}") from error
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

    async def done(self, generation: int, records: int, size: int) -> None:
        self._member.settle(self._share, generation, records, size)

    async def read(self, start: int, end: int, *, bytes_max: int = READ_BYTES_MAX) -> list[Record]:
        ask = partial(self._reader.staged, start, end, bytes_max)
        return await self._in_thread(self._reader, ask, "reading staged records")

    async def outcomes_tail(self, limit: int) -> list[bytes]:
        ask = partial(self._reader.outcomes_tail, limit)
        return await self._in_thread(self._reader, ask, "reading outcomes")

    async def publish(self, outcomes: Sequence[Publication]) -> None:
        await self._send(self._outcomes, outcomes, "publishing outcomes")

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        await self._send(self._letters, letters, "publishing dead letters")

    # Background tasks

    def join(self) -> None:
        """Serve the dataset as a member of the group, until `leave`."""
        self._member.add(self._share)

    async def watch_end(self) -> None:
        """Keep `end_offset` up to date while nothing is fetched."""
        while True:
            await anyio.sleep(_END_OFFSET_SECONDS)
            if self._share.assignment.idle:
                with suppress(QueueUnavailable):
                    self._share.end_offset = (await self.bounds())[1]

    async def watch_contact(self) -> None:
        """Keep `silent_seconds` up to date."""
        await self._contact.run()

    async def watch_unread(self) -> None:
        """Keep `unread_since_ms` and `retention_ms` up to date."""
        while True:
            with suppress(QueueUnavailable):
                ask = partial(self._admin.retention_ms, self.topics.staged)
                self._retention_ms = await self._in_thread(self._admin, ask, "asking for the topic's retention")
                if self._share.assignment.owned:
                    self._oldest_unread = await self._first_unread()
            await anyio.sleep(_UNREAD_SECONDS)

    async def watch_held_back(self) -> None:
        """Keep `held_back` up to date."""
        while True:
            if self._share.assignment.owned:
                with suppress(QueueUnavailable):
                    await self._held_back.look()
            else:
                self._held_back.forget()
            await anyio.sleep(_HELD_BACK_SECONDS)

    async def watch_topics(self) -> None:
        """Check the topics' settings now and then, because somebody may alter them at any time."""
        while True:
            await anyio.sleep(self._settings.topics_recheck_seconds)
            with suppress(QueueUnavailable, SettingsError):
                look = partial(survey_topics, self._admin, self._settings, self._name, create=False)
                survey = await self._in_thread(self._admin, look, "checking the topics")
                found = tuple(check.problem for check in survey.checks if check.problem)
                if found and found != self._topic_problems:
                    _log.error("kafka.topics_changed", extra={"problems": found})
                self._topic_problems = found

    async def _first_unread(self) -> Record | None:
        first, end = await self.bounds()
        if self._acknowledged is None:
            await self.acknowledged()
        start = max(self._acknowledged or 0, first)
        found = await self.read(start, start + 1) if start < end else []
        return found[0] if found else None

    def trouble(self) -> str:
        """Why this process can't serve the dataset; empty if it is a member of the group, or is joining."""
        return self._member.trouble or self._share.trouble

    def leave(self) -> None:
        """Give up the partition now, so that another member of the group takes it over."""
        self._member.remove(self._share)

    async def close(self) -> None:
        """Close all connections; call no other method afterwards."""
        with anyio.move_on_after(_CLOSE_SECONDS_MAX, shield=True):
            async with anyio.create_task_group() as tasks:
                for resource in (self._outcomes, self._letters, self._contact):
                    # Without the client's lane: a thread that hangs in it must not delay this.
                    tasks.start_soon(partial(to_thread.run_sync, resource.close, abandon_on_cancel=True))

    def _take(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self._arrived.set()

    async def _send(self, sender: RecordSender, publications: Sequence[Publication], doing: str) -> None:
        if publications:
            with self._no_longer_than(self._publish_seconds_max, doing):
                await to_thread.run_sync(sender.send, publications, limiter=self._lanes[sender], abandon_on_cancel=True)

    async def _in_thread(self, resource: TopicAdmin | RangeReader, work: Callable[[], Result], doing: str) -> Result:
        with self._no_longer_than(self._seconds_max, doing):
            return await to_thread.run_sync(work, limiter=self._lanes[resource], abandon_on_cancel=True)

    @contextmanager
    def _no_longer_than(self, seconds: float, doing: str) -> Iterator[None]:
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError as error:
            raise QueueUnavailable(f"{doing}: no response from Kafka in {seconds:g} s") from error
