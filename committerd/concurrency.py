"""Calls at the same time: for each of many items, or one beside another; and how much memory they may take together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from committerd.errors import CommitterError

_AT_ONCE_MAX = 16

Item = TypeVar("Item")
_T = TypeVar("_T")
_Own = TypeVar("_Own")


async def for_each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int = _AT_ONCE_MAX
) -> None:
    """Do `work` for every item, `at_once` items at a time at most.

    When work fails with a `CommitterError`, no more is begun. The first such error is raised, by itself and not in a
    group, as soon as all work under way has ended.
    """
    errors: list[CommitterError] = []
    given = list(items)
    left = iter(given)

    async def take_turns() -> None:
        for item in left:
            try:
                await work(item)
            except CommitterError as error:
                errors.append(error)
            if errors:
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, len(given))):
            tasks.start_soon(take_turns)
    if errors:
        raise errors[0]


class Beside(Generic[_Own]):
    """A call that is made at the same time as another one. Its error doesn't end the other; both are waited for."""

    def __init__(self, call: Callable[[], Awaitable[_Own]]) -> None:
        self._call = call
        self._results: list[_Own] = []
        self.failed: CommitterError | None = None

    @property
    def done(self) -> bool:
        """Whether it has returned."""
        return bool(self._results)

    @property
    def result(self) -> _Own:
        """What it returned. Only for a call that is `done`."""
        return self._results[0]

    async def of(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make both calls; returns what `call` returns, or raises what it raises, by itself and not in a group."""
        results: list[_T] = []
        error: CommitterError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            try:
                await anyio.lowlevel.checkpoint()  # it begins first: `call` may have much to do before it waits
                results.append(await call())
            except CommitterError as raised:  # not as a group
                error = raised
        if error is not None:
            raise error
        return results[0]

    async def _run(self) -> None:
        try:
            self._results.append(await self._call())
        except CommitterError as error:
            self.failed = error


class ByteBudget:
    """Bytes that tasks may have in memory together. A task that needs more than all of them runs when no other does."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._given_back = anyio.Event()

    @asynccontextmanager
    async def taking(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` bytes are free, and hold them for the time of the block."""
        while self._taken and self._taken + size > self._bytes_max:
            await self._given_back.wait()
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            self._given_back.set()
            self._given_back = anyio.Event()
