"""Runs heavy work in a thread, so that the event loop serves probes, Kafka and the store meanwhile.

Nothing ends a call: what it may take is bounded before it begins, by the bytes of a record, its messages
(`lance.format.decoded_size`), and the fragments, keys and rows that it names. `make hostile` measures these bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from committerd.memory import return_freed_memory

_LARGE_RECORD_BYTES = 1024 * 1024
"""After a call for a record of at least this size, the next one begins by returning freed memory to the system."""

T = TypeVar("T")


class HeavyThread:
    """`table.heavy_work.HeavyWork` in a thread: one call at a time, so that the memory of two is never needed."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        self._has_freed_much = False

    async def __call__(self, call: Callable[[], T], *, size: int) -> T:
        """Run `call`; returns its result or raises its error."""
        results: list[T] = []
        async with self._limiter:
            if self._has_freed_much:
                # Otherwise records one after the other take far more memory than the largest of them.
                await to_thread.run_sync(return_freed_memory)
            self._has_freed_much = size >= _LARGE_RECORD_BYTES
            error = await to_thread.run_sync(_error_of, call, results)
        try:
            if error is not None:
                raise error
            return results[0]
        finally:
            del error  # its traceback refers to this frame


def _error_of(call: Callable[[], T], results: list[T]) -> BaseException | None:
    """Call it, and return its error.

    anyio would keep an error that was raised in the thread, and with it all that the call has made, until Python
    collects garbage, which is rare in a daemon.
    """
    try:
        results.append(call())
    except BaseException as error:  # noqa: BLE001  # the caller raises it
        return error
    return None
