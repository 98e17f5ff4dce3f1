"""Decides whether the pure work on one record runs on the event loop or through `World.work`.

The event loop also serves probes, Kafka and the store. Work that may take longer than about 50 ms goes through
`World.work`. Its implementation (threads, in the daemon) limits time and memory, and raises `InvalidRequest` with code
`budget_exceeded` when a record needs more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, assert_never

from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import Cost
from committerd.lance.transactions.transaction import known_operation
from committerd_common.messages import Transaction

T = TypeVar("T")

LIGHT_BYTES_MAX = 64 * 1024
"""Largest light transaction, in bytes: validating it, computing its footprint and building it take a few ms."""
LIGHT_FRAGMENTS_MAX = 500
"""Most fragments of a light Append."""
LIGHT_FRAGMENT_BYTES_MAX = 1024
"""Bytes that a light Append may have for each fragment, on top of `LIGHT_BYTES_MAX`.

A fragment with inline row ids or row versions is much larger.
"""
LIGHT_MANIFEST_BYTES_MAX = 1024 * 1024
"""Most bytes of encoded fragments in the table for which an operation that reads them is light.

That is about 10,000 fragments, fewer with stable row ids.
"""


class Work(Protocol):
    """Runs a function that does no I/O, within limits on time and memory."""

    async def __call__(self, call: Callable[[], T], *, size: int) -> T:
        """Run `call` and return its result, or raise its exception.

        `size`: the record's size in bytes, from which an implementation derives its limits.
        """
        ...


async def at_once(call: Callable[[], T], *, size: int) -> T:
    """Call it directly, without limits: for commands and tests."""
    return call()


class Do(Protocol):
    """Runs a function as `Work` does, or directly if the record is light."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Run `call` and return its result, or raise its exception."""
        ...


def heavy_size(transaction: Transaction, latest: ManifestFile | None) -> int:
    """The size in bytes of a transaction whose work may take long on this version; 0 when its work is light."""
    operation = known_operation(transaction)
    size = transaction.ByteSize()
    return 0 if _is_light(transaction, size, Cost.MESSAGE if operation is None else operation.cost, latest) else size


def _is_light(transaction: Transaction, size: int, cost: Cost, latest: ManifestFile | None) -> bool:
    """Whether the work on a transaction of `size` bytes takes a few milliseconds."""
    match cost:
        case Cost.FRAGMENTS:
            fragments = len(transaction.append.fragments)
            return fragments <= LIGHT_FRAGMENTS_MAX and size <= LIGHT_BYTES_MAX + fragments * LIGHT_FRAGMENT_BYTES_MAX
        case Cost.MESSAGE:
            return size <= LIGHT_BYTES_MAX
        case Cost.TABLE:
            there = 0 if latest is None else sum(map(len, latest.fragments.bodies()))
            return size <= LIGHT_BYTES_MAX and there <= LIGHT_MANIFEST_BYTES_MAX
        case Cost.UNBOUNDED:
            return False
        case _:
            assert_never(cost)
