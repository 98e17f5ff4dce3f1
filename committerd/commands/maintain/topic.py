"""The staged topic as maintenance reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from committerd.kafka.operator import TopicOperator
from committerd.queue.port import Record
from committerd.queue.published import era_of
from committerd.queue.start import acknowledged_in


class OperatorsTopic:
    """`maintenance.waiting.StagedTopic` on Kafka."""

    def __init__(self, operator: TopicOperator) -> None:
        self._operator = operator

    async def bounds(self) -> tuple[int, int]:
        """As the port says."""
        return (await self._operator.bounds(self._operator.topics.staged))[0]

    async def topic_id(self) -> str:
        """As the port says."""
        return (await self._operator.identity()).topic_id

    async def acknowledged(self, era: int) -> int | None:
        """As the port says."""
        found = await self._operator.acknowledged()
        return None if found is None else acknowledged_in(era, found.offset, era_of(found))

    async def records(self, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
        """As the port says."""
        async with aclosing(self._operator.stream(self._operator.topics.staged, {0: (start, end)})) as batches:
            async for batch in batches:
                yield [record for _, record in batch]
