"""The queues of the contract tests, with the actions of producers, readers and operators on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from anyio import to_thread
from kafka import KafkaConsumer, TopicPartition

from committerd.kafka.member import open_kafka_queue, opened_member
from committerd.kafka.options import Topics, topics_of
from committerd.queue.port import Queue
from committerd.settings.kafka import KafkaSettings
from tests.kafka.staging import Header, create_topic, delete_topic, operator, stage_records
from tests.simulation.queue import FakeBroker, FakeQueue

Written = tuple[bytes | None, bytes, Sequence[Header]]
"""Key, value and headers."""


class Cluster(Protocol):
    """One dataset's topics. They exist as soon as the first member has joined."""

    patience: float
    """Seconds within which everything arrives."""

    def member(self, *, outstanding_records_max: int = 10_000) -> AbstractAsyncContextManager[Queue]:
        """A member of the group, inside the block."""
        ...

    async def stage(self, values: Sequence[bytes], headers: Sequence[Header] = ()) -> None:
        """Append records with key `key`."""
        ...

    async def outcomes(self, partition: int) -> list[Written]:
        """The records in a partition of the outcomes topic."""
        ...

    async def letters(self) -> list[Written]:
        """The records in the dead letter topic."""
        ...

    async def delete_before(self, offset: int) -> None:
        """Retention deletes the staged records below an offset."""
        ...

    async def delete_topic(self) -> None:
        """Delete the staged topic."""
        ...

    async def recreate_topic(self) -> None:
        """Delete the staged topic and create it again."""
        ...


class MemoryCluster:
    """The fake."""

    patience = 0.05

    def __init__(self) -> None:
        self._broker = FakeBroker(metadata_seconds=0.5)

    @asynccontextmanager
    async def member(self, *, outstanding_records_max: int = 10_000) -> AsyncIterator[Queue]:
        queue = FakeQueue(self._broker, outstanding_records_max=outstanding_records_max)
        self._broker.join(queue)
        try:
            yield queue
        finally:
            self._broker.leave(queue)

    async def stage(self, values: Sequence[bytes], headers: Sequence[Header] = ()) -> None:
        for value in values:
            self._broker.stage(value, key=b"key", headers=headers)

    async def outcomes(self, partition: int) -> list[Written]:
        return [(p.key, p.value, p.headers) for p in self._broker.outcomes[partition]]

    async def letters(self) -> list[Written]:
        return [(p.key, p.value, p.headers) for p in self._broker.dead]

    async def delete_before(self, offset: int) -> None:
        self._broker.expire(offset)

    async def delete_topic(self) -> None:
        self._broker.delete_topic()

    async def recreate_topic(self) -> None:
        self._broker.recreate_topic()


class KafkaCluster:
    """Apache Kafka."""

    patience = 0.6

    def __init__(self, settings: KafkaSettings, dataset: str, *, others: int = 0) -> None:
        """`others`: how many other datasets each member serves."""
        self._settings = settings
        self._dataset = dataset
        self._others = [f"{dataset}-{number}" for number in range(others)]
        self._topics: Topics = topics_of(settings, dataset)

    @asynccontextmanager
    async def member(self, *, outstanding_records_max: int = 10_000) -> AsyncIterator[Queue]:
        settings = self._settings.model_copy(update={"outstanding_records_max": outstanding_records_max})
        if not self._others:
            async with open_kafka_queue(settings, self._dataset) as queue:
                yield queue
            return
        async with AsyncExitStack() as stack:
            member = await stack.enter_async_context(opened_member(settings, self._topics.group, name=self._dataset))
            for other in self._others:
                await stack.enter_async_context(member.serving(other))
            yield await stack.enter_async_context(member.serving(self._dataset))

    async def stage(self, values: Sequence[bytes], headers: Sequence[Header] = ()) -> None:
        await to_thread.run_sync(stage_records, self._topics.staged, self._settings, values, headers)

    async def outcomes(self, partition: int) -> list[Written]:
        return await to_thread.run_sync(self._written, self._topics.outcomes, partition)

    async def letters(self) -> list[Written]:
        return await to_thread.run_sync(self._written, self._topics.dead, 0)

    async def delete_before(self, offset: int) -> None:
        await to_thread.run_sync(self._delete_before, offset)

    async def delete_topic(self) -> None:
        await to_thread.run_sync(delete_topic, self._topics.staged, self._settings)

    async def recreate_topic(self) -> None:
        await self.delete_topic()
        await to_thread.run_sync(create_topic, self._topics.staged, self._settings)

    def _written(self, topic: str, partition: int) -> list[Written]:
        consumer = KafkaConsumer(bootstrap_servers=list(self._settings.bootstrap_servers))
        try:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, 0)
            end, written = consumer.end_offsets([place])[place], []
            while consumer.position(place) < end:
                written += [(r.key, r.value, r.headers) for r in consumer.poll(100).get(place, [])]
            return written
        finally:
            consumer.close(autocommit=False)

    def _delete_before(self, offset: int) -> None:
        with operator(self._settings) as admin:
            admin.delete_records({TopicPartition(self._topics.staged, 0): offset})
