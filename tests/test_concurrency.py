"""Concurrent calls whose results are taken in order."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from committerd.concurrency import in_order
from committerd.errors import StoreUnavailable


class Calls:
    """Calls that end when the test says so; their results are taken."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.begun: list[int] = []
        self.taken: list[int] = []
        self.failing: dict[int, Exception] = {}
        self.last: int | None = None
        """`take` returns False for this item."""
        self._ends = [anyio.Event() for _ in sizes]

    async def work(self, item: int) -> str:
        self.begun.append(item)
        await self._ends[item].wait()
        if item in self.failing:
            raise self.failing[item]
        return str(item)

    async def take(self, item: int, result: str) -> bool:
        assert result == str(item)
        self.taken.append(item)
        return item != self.last

    async def run(self, at_once: int) -> None:
        await in_order(range(len(self.sizes)), self.work, self.take, at_once=at_once, size=self.sizes.__getitem__)

    async def end(self, *items: int) -> None:
        for item in items:
            self._ends[item].set()
        await anyio.wait_all_tasks_blocked()


async def test_results_are_taken_in_order_while_the_next_calls_run() -> None:
    calls = Calls([1] * 6)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run, 3)
        await calls.end(1, 2)
        assert (calls.begun, calls.taken) == ([0, 1, 2], [])
        await calls.end(0)
        assert (calls.begun, calls.taken) == ([0, 1, 2, 3, 4, 5], [0, 1, 2])
        await calls.end(3, 4, 5)
    assert calls.taken == [0, 1, 2, 3, 4, 5]


async def test_sizes_bound_what_was_begun_and_a_large_item_is_alone() -> None:
    calls = Calls([2, 2, 9, 1, 1])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run, 4)
        await calls.end()
        assert calls.begun == [0, 1]
        await calls.end(0)
        assert calls.begun == [0, 1]
        await calls.end(1)
        assert calls.begun == [0, 1, 2]
        await calls.end(2)
        assert calls.begun == [0, 1, 2, 3, 4]
        await calls.end(3, 4)


async def test_once_enough_is_taken_no_further_call_starts_and_those_that_run_end() -> None:
    calls = Calls([1] * 5)
    calls.last = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run, 2)
        await calls.end(0)
        assert (calls.begun, calls.taken) == ([0, 1], [0])
        await calls.end(1)
    assert (calls.begun, calls.taken) == ([0, 1], [0])


async def test_the_first_error_by_order_is_raised_and_what_was_before_it_is_taken() -> None:
    calls = Calls([1] * 5)
    calls.failing = {1: StoreUnavailable("first"), 2: StoreUnavailable("second")}
    await calls.end(0, 1, 2, 3, 4)
    with pytest.raises(StoreUnavailable, match="first"):
        await calls.run(3)
    assert calls.taken == [0]
