"""Kafka in memory: one dataset's three topics and its consumer group, as several members see them.

It has Kafka's unpleasant sides: a member that has not noticed the loss of its partition reads on, a topic of the same
name can be another one, the group's offset can be gone, an open transaction holds back what follows it and leaves
offsets without records, and an error of a producer says nothing about what was written.
"""

from __future__ import annotations

import asyncio
import base64
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any

import anyio

from committerd.errors import QueueUnavailable, RefusedToRun
from committerd.queue.port import (
    READ_BYTES_MAX,
    Acknowledged,
    Assigned,
    Fetched,
    FetchFailed,
    Publication,
    QueueEvent,
    Record,
    Revoked,
    TopicIdentity,
    record_size,
)
from tests.simulation.faults import Lost, Refused, Weather

_REJOIN_SECONDS = 1.0
_offset_of = attrgetter("offset")


@dataclass(slots=True, kw_only=True)
class KafkaTransaction:
    """A producer's open Kafka transaction."""

    first: Record
    offsets: set[int] = field(default_factory=set)


class FakeBroker:
    """The cluster: the staged log, the outcomes, the group. Every change happens in one moment."""

    def __init__(
        self,
        *,
        topic: str = "t.staged",
        now_ms: Callable[[], int] = lambda: 0,
        rng: random.Random | None = None,
        outcome_partitions: int = 8,
        metadata_seconds: float = 30.0,
    ) -> None:
        self.rng = rng or random.Random(0)
        self.now_ms = now_ms
        self.metadata_seconds = metadata_seconds
        """The time after which a member notices at the latest that the topic is another one."""
        self.cluster_id = "cluster"
        self.topic = topic
        self.topic_id: str | None = self._new_topic_id()
        self.log: list[Record] = []
        """By ascending offset. Offsets without a record: markers that end Kafka transactions, and aborted records."""
        self.log_start = self.log_end = 0
        self.transaction: KafkaTransaction | None = None
        self.leader_epoch = 0
        self.restarts = 0
        """How often members lost contact with it."""
        self.group: Acknowledged | None = None
        self.outcomes: list[list[Publication]] = [[] for _ in range(outcome_partitions)]
        self.dead: list[Publication] = []
        self.members: list[FakeQueue] = []
        self.owner: FakeQueue | None = None
        self.watch_outcome: Callable[[Publication], None] = lambda publication: None
        self.watch_acknowledged: Callable[[Acknowledged], None] = lambda acknowledged: None

    @property
    def readable_end(self) -> int:
        """The first offset that an open transaction holds back; the log's end if none is open."""
        return self.transaction.first.offset if self.transaction else self.log_end

    @property
    def records_end(self) -> int:
        """The offset after the last record."""
        return self.log[-1].offset + 1 if self.log else self.log_start

    # The producers' side

    def stage(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        in_transaction: bool = False,
    ) -> Record:
        """Append a record, with the broker's timestamp; in the open transaction, or in a new one if none is open."""
        record = Record(
            offset=self.log_end,
            value=value,
            key=key,
            headers=tuple(headers),
            timestamp_ms=self.now_ms(),
            leader_epoch=self.leader_epoch,
        )
        self.log.append(record)
        self.log_end += 1
        if in_transaction:
            self.transaction = self.transaction or KafkaTransaction(first=record)
            self.transaction.offsets.add(record.offset)
        self._wake()
        return record

    def end_transaction(self, *, commit: bool) -> set[int]:
        """End the open transaction. Its marker takes an offset. Returns the offsets whose records are gone."""
        assert self.transaction is not None
        gone = set() if commit else self.transaction.offsets
        self.log = [record for record in self.log if record.offset not in gone]
        self.transaction = None
        self.log_end += 1
        self._wake()
        return gone

    def records(self, start: int, end: int) -> list[Record]:
        """The existing records of the half-open range, whether they can be read or not."""
        return self.log[self._place(start) : self._place(end)]

    # The operators' side

    def recreate_topic(self) -> None:
        """Delete the staged topic and create it again; Kafka drops the group's offset too."""
        self.topic_id = self._new_topic_id()
        self.log, self.log_start, self.log_end, self.group, self.transaction = [], 0, 0, None, None
        for member in self.members:
            member.topic_changed()

    def delete_topic(self) -> None:
        """Delete the staged topic."""
        self.recreate_topic()
        self.topic_id = None

    def truncate(self, end: int) -> None:
        """A replica that lacks the records from `end` on becomes the leader."""
        self._cut(end)
        self.leader_epoch += 1
        self._wake()

    def roll_back(self, end: int, *, epoch: bool, noticed: bool) -> None:
        """The broker comes back with an earlier state of the log; `epoch`: and with a new leader epoch. `noticed`:
        members lost contact with it.
        """
        self._cut(end)
        self.leader_epoch += epoch
        self.restarts += noticed
        self._wake()

    def expire(self, start: int) -> None:
        """Retention deletes the records below `start`."""
        del self.log[: self._place(start)]
        self.log_start = start
        self._wake()

    def _cut(self, end: int) -> None:
        del self.log[self._place(end) :]
        self.log_end = end
        if self.transaction is not None and self.transaction.first.offset >= end:
            self.transaction = None

    def _place(self, offset: int) -> int:
        """The index of the first record at or after this offset."""
        return bisect_left(self.log, offset, key=_offset_of)

    # The group's side

    def join(self, member: FakeQueue) -> None:
        self.members.append(member)
        if self.owner is None:
            self.assign(member)

    def leave(self, member: FakeQueue) -> None:
        """The member closes, or its session is over."""
        if member in self.members:
            self.members.remove(member)
        if self.owner is member:
            self.owner = None
            if self.members:
                self.assign(self.members[0])

    def assign(self, member: FakeQueue, *, told: bool = True) -> None:
        """Give the partition to a member. With `told` False, the previous owner does not know yet."""
        before, self.owner = self.owner, member
        if before is not None and told:
            before.revoke(lost=False)
        member.assign()

    def _wake(self) -> None:
        for member in self.members:
            member.wake()

    def _new_topic_id(self) -> str:
        return base64.urlsafe_b64encode(self.rng.randbytes(16)).rstrip(b"=").decode()


class FakeQueue:
    """`committerd.queue.port.Queue` as one member sees the broker."""

    def __init__(
        self, broker: FakeBroker, weather: Weather | None = None, *, outstanding_records_max: int = 10_000
    ) -> None:
        self._broker = broker
        self._weather = weather or Weather()
        self._most = outstanding_records_max
        self._events: deque[QueueEvent] = deque()
        self._changed = anyio.Event()
        self._generation = 0
        self._owned = False
        self._next: int | None = None
        """The next offset to deliver; None = parked."""
        self._seeks = 0
        self._outstanding = 0
        self._full = False
        self._restarts = broker.restarts
        self._restarts_again = -1
        """As `_restarts`, for the connection of `read_again`, which has no contact yet."""

    # What the broker reports

    def assign(self) -> None:
        self._generation += 1
        self._owned = True
        self._next, self._outstanding, self._full = None, 0, False
        self._events.append(Assigned(generation=self._generation))
        self.wake()

    def revoke(self, *, lost: bool) -> None:
        if self._owned:
            self._owned, self._next = False, None
            self._events.append(Revoked(generation=self._generation, lost=lost))
            self.wake()

    def topic_changed(self) -> None:
        """Fetches use the topic's name: the next one may be of another topic, until the metadata is refreshed."""
        self.wake()
        if self._owned:
            generation = self._generation
            asyncio.get_running_loop().call_later(
                self._broker.rng.uniform(0, self._broker.metadata_seconds),
                lambda: self._fail(generation, "the topic was deleted and recreated"),
            )

    def wake(self) -> None:
        self._changed.set()

    # The port

    async def next_event(self) -> QueueEvent:
        while True:
            self._changed = anyio.Event()
            event = self._events.popleft() if self._events else self._fetch()
            if event is None:
                await self._changed.wait()
                continue
            seeks = self._seeks
            await self._weather.step("queue.next_event", "after")
            await asyncio.sleep(self._weather.draw().back)
            if not isinstance(event, Fetched):
                return event
            if self._owns(event.generation) and seeks == self._seeks:
                return event
            if not event.unbroken:
                self._restarts = -1  # the next one tells of it

    async def identity(self) -> TopicIdentity:
        def asked() -> str | None:
            return self._broker.topic_id

        topic_id = await self._call("identity", asked)
        if topic_id is None:
            raise RefusedToRun(f"there is no topic {self._broker.topic}", code="topic_gone")
        return TopicIdentity(cluster_id=self._broker.cluster_id, topic=self._broker.topic, topic_id=topic_id)

    async def bounds(self) -> tuple[int, int]:
        def asked() -> tuple[int, int]:
            return self._broker.log_start, self._broker.readable_end

        found: tuple[int, int] = await self._call("bounds", asked)
        return found

    async def end(self) -> int:
        found: int = await self._call("end", lambda: self._broker.log_end)
        return found

    async def first_held_back(self, offset: int) -> Record | None:
        found: list[Record] = await self._call("held_back", lambda: self._broker.records(offset, self._broker.log_end))
        return found[0] if found else None

    async def time_ms(self) -> int | None:
        found: int = await self._call("time_ms", self._broker.now_ms)
        return found

    async def acknowledged(self) -> Acknowledged | None:
        found: Acknowledged | None = await self._call("acknowledged", lambda: self._broker.group)
        return found

    async def acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        if not self._owns(generation):
            return False

        def acknowledged() -> bool:
            if self._broker.owner is not self or not self._owns(generation):
                return False
            self._broker.group = Acknowledged(offset=offset, metadata=metadata)
            self._broker.watch_acknowledged(self._broker.group)
            return True

        taken: bool = await self._call(f"acknowledge {offset}", acknowledged)
        return taken

    async def seek(self, generation: int, offset: int) -> None:
        if not self._owns(generation):
            return
        self._seeks += 1
        self._next, self._outstanding = None, 0
        number = self._seeks

        def sought() -> None:
            if self._owns(generation) and number == self._seeks:
                self._next, self._full = offset, False
                self.wake()

        await self._call(f"seek {offset}", sought)

    async def read_again(self, generation: int, offset: int, *, records_max: int) -> Fetched | FetchFailed:
        seeks, broker = self._seeks, self._broker

        def asked() -> tuple[Sequence[Record], int] | None:
            if not broker.log_start <= offset < broker.log_end or broker.topic_id is None:
                return None
            waiting = broker.records(offset, broker.readable_end)[:records_max]
            return waiting[: self._weather.rng.randint(1, max(len(waiting), 1))], broker.restarts

        found: tuple[Sequence[Record], int] | None = await self._call(f"read_again {offset}", asked)
        if found is None:
            return FetchFailed(generation=generation, reason=f"offset {offset} is out of range")
        records, restarts = found
        if not records:
            raise QueueUnavailable(f"no records came from offset {offset}")
        unbroken, self._restarts_again = restarts == self._restarts_again, restarts
        if self._owns(generation) and seeks == self._seeks:
            self._outstanding += len(records)
        return Fetched(generation=generation, records=records, unbroken=unbroken)

    async def done(self, generation: int, records: int, size: int) -> None:
        if self._owns(generation):
            self._outstanding = max(0, self._outstanding - records)
            self.wake()

    async def read(self, start: int, end: int, *, bytes_max: int = READ_BYTES_MAX) -> list[Record]:
        def asked() -> list[Record]:
            there = self._broker.records(start, min(end, self._broker.readable_end))
            sizes = accumulate(map(record_size, there))
            return [
                one
                for place, (one, size) in enumerate(zip(there, sizes, strict=True))
                if not place or size <= bytes_max
            ]

        found: list[Record] = await self._call("read", asked)
        return found

    async def outcomes_tail(self, limit: int) -> list[bytes]:
        def read() -> list[bytes]:
            return [p.value for partition in self._broker.outcomes for p in partition[max(len(partition) - limit, 0) :]]

        found: list[bytes] = await self._call("outcomes_tail", read)
        return found

    async def publish(self, outcomes: Sequence[Publication]) -> None:
        def published() -> None:
            for outcome in outcomes:
                there = 0 <= outcome.partition < len(self._broker.outcomes)
                self._broker.outcomes[outcome.partition if there else 0].append(outcome)
                self._broker.watch_outcome(outcome)

        await self._call(f"publish {len(outcomes)}", published)

    async def dead_letter(self, letters: Sequence[Publication]) -> None:
        await self._call(f"dead_letter {len(letters)}", lambda: self._broker.dead.extend(letters))

    # How it works

    async def _call(self, call: str, effect: Callable[[], Any]) -> Any:
        try:
            result, _ = await self._weather.journey(f"queue.{call}", effect)
        except (Refused, Lost) as error:
            raise QueueUnavailable(str(error)) from error
        return result

    def _fetch(self) -> Fetched | None:
        """The next records, by the topic's name: a member that has lost the partition can still fetch."""
        if not self._owned or self._next is None:
            return None
        if self._full:
            self._full = self._outstanding * 4 > self._most * 3
        if self._full:
            return None
        if not self._broker.log_start <= self._next <= self._broker.log_end or self._broker.topic_id is None:
            self._fail(self._generation, f"offset {self._next} is out of range")
            return None
        waiting = self._broker.records(self._next, self._broker.readable_end)
        if not waiting and self._restarts == self._broker.restarts:
            return None
        records = waiting[: self._weather.rng.randint(1, len(waiting))] if waiting else []
        self._next = records[-1].offset + 1 if records else self._next
        self._outstanding += len(records)
        self._full = self._outstanding >= self._most
        unbroken, self._restarts = self._restarts == self._broker.restarts, self._broker.restarts
        return Fetched(generation=self._generation, records=records, unbroken=unbroken)

    def _fail(self, generation: int, reason: str) -> None:
        """The position can't be read from. The consumer is replaced: its member leaves, and joins again."""
        if not self._owns(generation):
            return
        self._next = None
        self._seeks += 1
        self._events.append(FetchFailed(generation=generation, reason=reason))
        self.wake()
        asyncio.get_running_loop().call_later(_REJOIN_SECONDS, self._join_again)

    def _join_again(self) -> None:
        if self in self._broker.members:
            self.revoke(lost=True)
            self._broker.leave(self)
            self._broker.join(self)

    def _owns(self, generation: int) -> bool:
        return self._owned and generation == self._generation
