"""Several calls of a port at once, which fail as one call would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from committerd.errors import CommitterError

_AT_ONCE_MAX = 16

Item = TypeVar("Item")


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]]) -> None:
    """Do `work` for every item, at most 16 at once.

    Raises the first `CommitterError` as it is, and not as a group, once those under way have ended.
    """
    errors: list[CommitterError] = []
    limit = anyio.CapacityLimiter(_AT_ONCE_MAX)

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
