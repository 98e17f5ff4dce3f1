"""Which fragments the Rewrites replace that wait in the queue."""

from __future__ import annotations

from contextlib import aclosing

from committerd.kafka.operator import TopicOperator
from committerd.maintenance.staged import StagedReader
from committerd.queue.port import Record
from committerd.queue.position import decode_position
from committerd.table.versions import Table


class WaitingRewrites:
    """The Rewrites that wait for the committer of one table, of this process and of others."""

    def __init__(self, operator: TopicOperator, table: Table, *, bytes_max: int) -> None:
        """`bytes_max`: setting commit.transaction_bytes_max."""
        self._operator, self._table = operator, table
        self._reader = StagedReader(store=table.store, bytes_max=bytes_max)

    async def fragments(self) -> frozenset[int]:
        """The ids of the fragments that they replace.

        Raises `QueueUnavailable`, `StoreUnavailable`, and `RefusedToRun` (`topic_gone`).
        """
        latest = await self._table.latest()
        position = None if latest is None else decode_position(latest.outline.table_metadata)
        if position is not None and position.topic_id != (await self._operator.identity()).topic_id:
            position = None
        topic = self._operator.topics.staged
        start, end = (await self._operator.bounds(topic))[0]
        first = start if position is None else max(position.next_offset, start)
        found: set[int] = set()
        if first < end:
            async with aclosing(self._operator.stream(topic, {0: (first, end)})) as batches:
                async for batch in batches:
                    for _, record in batch:
                        if position is None or not position.passes(record.offset):
                            found |= await self._replaced(record)
        return frozenset(found)

    async def _replaced(self, record: Record) -> set[int]:
        """The ids of the fragments that the record's transaction replaces if it is a Rewrite."""
        transaction, _ = await self._reader.transaction(record)
        groups = () if transaction is None else transaction.rewrite.groups
        return {one.id for group in groups for one in group.old_fragments}
