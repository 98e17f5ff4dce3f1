"""Several calls of a port at once, which fail as one call would, and take a bounded amount of memory together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from committerd.errors import CommitterError

_AT_ONCE_MAX = 16

Item = TypeVar("Item")


async def for_each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int = _AT_ONCE_MAX
) -> None:
    """Do `work` for every item, at most so many `at_once`.

    Raises the first `CommitterError` as it is, and not as a group, once those under way have ended.
    """
    errors: list[CommitterError] = []
    limit = anyio.CapacityLimiter(at_once)

    async def one(item: Item) -> None:
        async with limit:
            if errors:
                return
            try:
                await work(item)
            except CommitterError as error:
                errors.append(error)

    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(one, item)
    if errors:
        raise errors[0]


class Budget:
    """Bytes that several tasks may have in memory at the same time. One that needs more than all has them alone."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._given_back = anyio.Event()

    @asynccontextmanager
    async def taking(self, size: int) -> AsyncIterator[None]:
        """Wait until so many bytes are free, and have them in here."""
        while self._taken and self._taken + size > self._bytes_max:
            await self._given_back.wait()
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            self._given_back.set()
            self._given_back = anyio.Event()
