"""Concurrent calls: one for each of many items, or one alongside another; and a bound on the memory of tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
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
    """Call `work` for every item, at most `at_once` at a time.

    After a `CommitterError` no further call starts. When all running calls have ended, the first such error is raised,
    not wrapped in an exception group.
    """
    errors: list[CommitterError] = []
    given = list(items)
    left = iter(given)
    if len(given) <= 1:  # most calls: without tasks
        for item in left:
            await work(item)
        return

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


async def map_each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[_T]], *, at_once: int = _AT_ONCE_MAX
) -> list[_T]:
    """As `for_each`; returns the results, in the order of the items."""
    given, found = list(items), dict[int, _T]()

    async def put(place: int) -> None:
        found[place] = await work(given[place])

    await for_each(range(len(given)), put, at_once=at_once)
    return [found[place] for place in range(len(given))]


async def in_order(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[_T]],
    take: Callable[[Item, _T], Awaitable[bool]],
    *,
    at_once: int,
    size: Callable[[Item], int] = lambda _: 1,
) -> None:
    """Call `work` for every item, several at a time, and `take` with each item and its result, in their order.

    `work` goes on with the next items while `take` runs. Those that were begun and not taken have at most the size
    `at_once` together, unless it is a single one. Once `take` returns False, or one of the two raises a
    `CommitterError`, no further call starts. That error is raised when all running calls have ended, as by `for_each`.
    """
    left, running, together = deque(items), deque[tuple[Item, Concurrently[_T], anyio.Event]](), 0
    failed: CommitterError | None = None

    async def run(call: Concurrently[_T], ended: anyio.Event) -> None:
        await call.run()
        ended.set()

    async with anyio.create_task_group() as tasks:
        while left or running:
            while left and (not together or together + size(left[0]) <= at_once):
                together += size(left[0])
                running.append((left[0], Concurrently(partial(work, left.popleft())), anyio.Event()))
                tasks.start_soon(run, *running[-1][1:])
            item, call, ended = running.popleft()
            await ended.wait()
            try:
                if not await take(item, call.required()):
                    break
            except CommitterError as error:
                failed = error
                break
            together -= size(item)
    if failed is not None:
        raise failed


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `work` in a task while the block lasts, and cancel it at the end of the block.

    An error of the block or of `work` is not wrapped in an exception group; that of `work` cancels the block.
    """
    errors: list[Exception] = []

    async def run() -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # raised below, outside the group
            errors.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield
        except Exception as error:  # noqa: BLE001  # as above
            errors.insert(0, error)
        finally:
            tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]


class Concurrently(Generic[_Own]):
    """A call that runs concurrently with another one. Its error does not cancel the other call."""

    def __init__(self, call: Callable[[], Awaitable[_Own]]) -> None:
        self._call = call
        self._results: list[_Own] = []
        self.failed: CommitterError | None = None

    @property
    def done(self) -> bool:
        """Whether the call has returned a result."""
        return bool(self._results)

    @property
    def result(self) -> _Own:
        """The call's result. Valid only if `done`."""
        return self._results[0]

    def required(self) -> _Own:
        """Return the call's result, or raise its error, once `of` has returned."""
        if self.failed is not None:
            raise self.failed
        return self.result

    async def of(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Run both calls and wait for both; return the result of `call`, or raise its error.

        A `CommitterError` is not wrapped in an exception group. The concurrent call's error is in `failed`.
        """
        results: list[_T] = []
        error: CommitterError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.run)
            try:
                await anyio.lowlevel.checkpoint()  # starts the other first: `call` may compute long before it awaits
                results.append(await call())
            except CommitterError as raised:  # raised below, outside the group
                error = raised
        if error is not None:
            raise error
        return results[0]

    async def run(self) -> None:
        """Make the call by itself; its result or error is in `required`."""
        try:
            self._results.append(await self._call())
        except CommitterError as error:
            self.failed = error


class ByteBudget:
    """A bound on the memory of concurrent tasks, in bytes. A task that needs more than the bound runs alone."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._given_back = anyio.Event()

    @asynccontextmanager
    async def taking(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` bytes are free, and reserve them while the block runs."""
        while self._taken and self._taken + size > self._bytes_max:
            await self._given_back.wait()
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            self._given_back.set()
            self._given_back = anyio.Event()
