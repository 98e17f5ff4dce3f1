"""Where the pure work on one record runs: on the event loop if it is light, else elsewhere, within a budget.

The event loop also serves probes, Kafka and the store. Work that may take longer than about 50 ms goes through
`World.work`, and this module decides which work that is. Its implementation (threads, in a daemon) limits time and
memory, and raises `InvalidRequest` with code `budget_exceeded` where a record needs more.
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
"""Of a transaction. Checking, footprint and build of one take a few milliseconds."""
LIGHT_FRAGMENTS_MAX = 500
"""Of an Append."""
LIGHT_FRAGMENT_BYTES_MAX = 1024
"""Of each fragment of an Append beyond `LIGHT_BYTES_MAX`: one that brings row ids or row versions has many more."""
LIGHT_MANIFEST_BYTES_MAX = 1024 * 1024
"""Of the fragments that there are, for operations that look at them: 10,000 or so, fewer where rows have ids."""


class Work(Protocol):
    """Runs a function that does no I/O."""

    async def __call__(self, call: Callable[[], T], *, size: int) -> T:
        """What `call` returns or raises. `size` is that of the record in bytes, for what it may take."""
        ...


async def at_once(call: Callable[[], T], *, size: int) -> T:
    """Runs it on the spot: for commands, tests and light work."""
    return call()


def heavy_size(transaction: Transaction, latest: ManifestFile | None) -> int:
    """The size in bytes of a transaction that may take long on this version; 0 for one that does not."""
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
