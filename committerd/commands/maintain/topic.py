"""The staged topic as maintenance reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from committerd.kafka.operator import TopicOperator
from committerd.maintenance.waiting import LETTERS_MAX, CommitterProgress
from committerd.queue.dead_letter import Letter, decode_letter
from committerd.queue.port import Record, TopicIdentity
from committerd.queue.start import OUTCOMES_TAIL, decode_outcomes


class OperatorsTopic:
    """`maintenance.waiting.StagedTopic` on Kafka."""

    def __init__(self, operator: TopicOperator) -> None:
        self._operator = operator

    async def published(self) -> CommitterProgress:
        """As the port says."""
        return CommitterProgress(
            group=await self._operator.acknowledged(),
            outcomes=decode_outcomes(await self._operator.outcomes_tail(OUTCOMES_TAIL)),
        )

    async def identity(self) -> TopicIdentity:
        """As the port says."""
        return await self._operator.identity()

    async def bounds(self) -> tuple[int, int]:
        """As the port says."""
        return (await self._operator.bounds(self._operator.topics.staged, held_back=True))[0]

    async def records(self, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
        """As the port says."""
        topic = self._operator.topics.staged
        readable = min(max((await self._operator.bounds(topic))[0][1], start), end)
        # Below `readable` only committed records count; from there on it is not known yet which will be committed.
        for bounds, held_back in (((start, readable), False), ((readable, end), True)):
            async with aclosing(self._operator.stream(topic, {0: bounds}, held_back=held_back)) as batches:
                async for batch in batches:
                    yield [record for _, record in batch]

    async def letters(self, since_ms: int) -> AsyncIterator[Sequence[Letter]]:
        """As the port says."""
        dead = self._operator.topics.dead
        start, end = (await self._operator.since(dead, max(since_ms, 0)))[0]
        async with aclosing(self._operator.stream(dead, {0: (max(start, end - LETTERS_MAX), end)})) as batches:
            async for batch in batches:
                found = [decode_letter(record) for _, record in batch]
                yield [one for one in found if one is not None]
