"""Which fragments the Rewrites replace that wait in the queue."""

from __future__ import annotations

from contextlib import aclosing

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.kafka.operator import TopicOperator
from committerd.queue.port import Record
from committerd.queue.position import decode_position
from committerd.stores.port import ObjectStore
from committerd.table.versions import Table
from committerd_common.paths import transaction_key
from committerd_common.request import decode_envelope, decode_transaction

_BYTES_MAX = 2**31 - 1


class WaitingRewrites:
    """The Rewrites that wait for the committer of one table, of this process and of others."""

    def __init__(self, operator: TopicOperator, table: Table) -> None:
        self._operator, self._table = operator, table

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
                            found |= await _replaced(record, self._table.store)
        return frozenset(found)


async def _replaced(record: Record, store: ObjectStore) -> set[int]:
    """The ids of the fragments that the record's transaction replaces if it is a Rewrite."""
    try:
        envelope = decode_envelope(record.headers)
        body: bytes | None = record.value
        if envelope.claim is not None:
            body = await store.get(transaction_key(envelope.claim.name))
        if body is None:
            return set()
        rewrite = decode_transaction(body, bytes_max=_BYTES_MAX).rewrite
    except (InvalidRequest, UnsupportedRequest):
        return set()  # the committer refuses it
    return {one.id for group in rewrite.groups for one in group.old_fragments}
