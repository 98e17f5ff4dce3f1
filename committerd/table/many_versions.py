"""How many versions of a table are read at once: decided here, for whoever reads a long history.

A history is read in batches, which come in the order of its versions. While a batch is looked at, the next ones are
read, so the store is never idle. The batches grow from a single version, as most often the first ones are enough.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from committerd.concurrency import in_order

BATCH = 64
"""Versions of a batch."""
BATCHES_AT_ONCE = 4
"""Batches that are read at once: 256 versions, as many as an S3 client has connections (`s3.connections_max`). They
take 64 KiB of memory each, 16 MiB in all.
"""

_T = TypeVar("_T")


async def read_in_order(
    versions: Sequence[int],
    read: Callable[[Sequence[int]], Awaitable[Sequence[_T]]],
    take: Callable[[Sequence[int], Sequence[_T]], Awaitable[bool]],
) -> None:
    """Call `read` with batches of the versions, several at once, and `take` with each batch and its result, in order.

    Ends once `take` returns False. Raises what they raise.
    """
    await in_order(_batches(versions), read, take, at_once=BATCHES_AT_ONCE)


def _batches(versions: Sequence[int]) -> Iterator[Sequence[int]]:
    start, size = 0, 1
    while start < len(versions):
        yield versions[start : start + size]
        start, size = start + size, min(2 * size, BATCH)
