"""Reads settled records from the log again, a bounded part at a time: they may be large, and many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from committerd.queue.port import Queue, Record


async def read_parts(queue: Queue, offsets: Sequence[int]) -> AsyncIterator[Sequence[Record]]:
    """Yield the records at these offsets (ascending) that still exist, in parts as large as `Queue.read` returns them.

    No part is empty. Raises `QueueUnavailable`.
    """
    wanted, place = frozenset(offsets), 0
    while place < len(offsets):
        records = await queue.read(offsets[place], offsets[-1] + 1)
        if not records:
            return
        place = bisect_right(offsets, records[-1].offset)
        found = [record for record in records if record.offset in wanted]
        if found:
            yield found
