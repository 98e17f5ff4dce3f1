"""What the queues of a member ask Kafka when a table starts and before it is written, for many tables in one request.

The identity of a topic, its bounds, its last records, the group's offset, the time. Each question waits for a broker by
itself (`Together`), so that a broker that hangs holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from anyio import CapacityLimiter
from kafka import TopicPartition

from committerd.kafka.admin import TopicAdmin
from committerd.kafka.reader import read_batches
from committerd.kafka.records import to_record
from committerd.kafka.together import Together
from committerd.parts import Parts
from committerd.queue.port import Acknowledged, Record, TopicIdentity

_REQUESTS_AT_ONCE = 8
_READS_AT_ONCE = 4

Item = TypeVar("Item")
Result = TypeVar("Result")
Bounds = Mapping[TopicPartition, tuple[int, int]]


class Lanes:
    """Bounds the threads that wait for requests: some for each broker, so that one that hangs takes no other's."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int | None], CapacityLimiter] = {}

    def of(self, leader: int | None, *, reads: bool) -> CapacityLimiter:
        """The lane of requests, or of reads, to this broker (None = not known)."""
        at_once = _READS_AT_ONCE if reads else _REQUESTS_AT_ONCE
        return self._lanes.setdefault((at_once, leader), CapacityLimiter(at_once))


class Questions:
    """The questions of one member. `leader`: node id of the broker that leads the staged partition; None = not known.

    All raise `QueueUnavailable` if Kafka does not respond; `TopicAdmin` says what else.
    """

    def __init__(
        self, admin: TopicAdmin, group: str, lanes: Lanes, options: Mapping[str, Any], *, parts: Parts
    ) -> None:
        """`options`: of the consumers that read records (`reader_options`)."""
        self._admin = admin
        self._parts = parts
        self._group = group
        self._lanes = lanes
        self._options = options
        self._asked: dict[tuple[str, int | None], Together[Any, Any]] = {}

    async def identity(self, topic: str, leader: int | None) -> TopicIdentity:
        """The cluster's id and the topic's, as its leader knows them."""
        one, many = partial(self._admin.identity, leader=leader), partial(self._admin.identities, leader=leader)
        return await self._about("identity", topic, leader, one=one, many=many)

    async def bounds(self, staged: TopicPartition, leader: int | None) -> tuple[int, int]:
        """Log start and end of a partition: the half-open range of readable offsets."""
        many = partial(self._admin.all_bounds, leader=leader)
        return await self._about("bounds", staged, leader, one=self._bounds_of, many=many)

    async def time_ms(self) -> int | None:
        """The brokers' clock; as `TopicAdmin.time_ms`."""

        def ask(_: None) -> int | None:
            return self._admin.time_ms()

        return await self._about("time", None, None, one=ask, many=lambda _: {})

    async def acknowledged(self, staged: TopicPartition) -> Acknowledged | None:
        """The group's committed offset; None if it has none."""

        def many(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Acknowledged | None]:
            found = self._admin.all_acknowledged(self._group, partitions)
            return {partition: found.get(partition) for partition in partitions}

        one = partial(self._admin.acknowledged, self._group)
        return await self._about("acknowledged", staged, None, one=one, many=many)

    async def tail(self, topic: str, limit: int, leader: int | None) -> list[bytes]:
        """Values of the last records of a topic, at most `limit` of each partition."""

        def one(asked: tuple[str, int]) -> list[bytes]:
            return self._tails({asked: self._admin.partitions(asked[0])})[asked]

        def many(asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], list[bytes]]:
            partitions = self._admin.all_partitions([topic for topic, _ in asked])
            return self._tails({each: partitions[each[0]] for each in asked if each[0] in partitions})

        return await self._about("tail", (topic, limit), leader, one=one, many=many, reads=True)

    async def record(self, staged: TopicPartition, offset: int, leader: int | None) -> list[Record]:
        """The record at this offset; empty if the log has none there that can be read."""

        def one(asked: tuple[TopicPartition, int]) -> list[Record]:
            return self._records([asked], self._admin.bounds([asked[0]]))[asked]

        def many(asked: Sequence[tuple[TopicPartition, int]]) -> dict[tuple[TopicPartition, int], list[Record]]:
            first = dict(reversed(asked))  # one offset of each partition
            bounds = self._admin.all_bounds(list(first), leader=leader)
            return self._records([each for each in first.items() if each[0] in bounds], bounds)

        return await self._about("record", (staged, offset), leader, one=one, many=many, reads=True)

    async def _about(
        self,
        question: str,
        item: Item,
        leader: int | None,
        *,
        one: Callable[[Item], Result],
        many: Callable[[Sequence[Item]], Mapping[Item, Result]],
        reads: bool = False,
    ) -> Result:
        key = (question, leader)
        if key not in self._asked:
            self._asked[key] = Together(one=one, many=many, lane=self._lanes.of(leader, reads=reads), parts=self._parts)
        return cast(Result, await self._asked[key].of(item))

    def _bounds_of(self, staged: TopicPartition) -> tuple[int, int]:
        return self._admin.bounds([staged])[staged]

    def _tails(self, asked: Mapping[tuple[str, int], Sequence[TopicPartition]]) -> dict[tuple[str, int], list[bytes]]:
        limits = {partition: limit for (_, limit), partitions in asked.items() for partition in partitions}
        bounds: Bounds = self._admin.bounds(list(limits)) if limits else {}
        ranges = {found: (max(first, last - limits[found]), last) for found, (first, last) in bounds.items()}
        values: dict[str, list[bytes]] = {}
        for batch in read_batches(self._options, ranges):
            for one in batch:
                values.setdefault(one.topic, []).append(one.value or b"")
        return {each: values.get(each[0], []) for each in asked}

    def _records(
        self, asked: Sequence[tuple[TopicPartition, int]], bounds: Bounds
    ) -> dict[tuple[TopicPartition, int], list[Record]]:
        ranges = {
            staged: (max(offset, bounds[staged][0]), min(offset + 1, bounds[staged][1])) for staged, offset in asked
        }
        found: dict[str, list[Record]] = {}
        for batch in read_batches(self._options, ranges):
            for one in batch:
                found.setdefault(one.topic, []).append(to_record(one))
        return {(staged, offset): found.get(staged.topic, []) for staged, offset in asked}
