"""An event loop on which waiting costs nothing: its clock jumps to the next timer.

It is asyncio's own loop with another selector. Where a real selector would wait, this one moves the clock on, so hours
pass in milliseconds, and in the same order every time. It detects two kinds of bugs at once: nothing is left that could
ever happen (`Deadlock`), and tasks run without the clock moving (`Livelock`). It also detects a step that keeps the
loop busy for long, by CPU time (`TurnTooLong`).
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

Result = TypeVar("Result")

TURNS_MAX = 200_000
"""Turns of the loop within one instant: a hundred active committers need a thousand."""


class Deadlock(Exception):
    """Every task waits, and no timer will wake any of them."""


class Livelock(Exception):
    """Tasks keep each other busy while no time passes."""


TURN_SECONDS_MAX = 5.0
"""CPU seconds of one turn of the loop. Records are a few kilobytes here, and a turn takes milliseconds."""


class TurnTooLong(Exception):
    """A step kept the loop busy for so long that no other task could run."""


class _ClockSelector(selectors.DefaultSelector):
    """Moves the clock instead of waiting. There are no files to wait for, except the loop's own wake-up pipe."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0
        self._turned = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        before, self._turned = self._turned, time.thread_time()
        if self._turned - before > TURN_SECONDS_MAX:
            raise TurnTooLong(f"one turn of the loop took {self._turned - before:.1f} s at {self._loop.time():.6f} s")
        if timeout is None:
            ready = super().select(0)
            if not ready:
                raise Deadlock(f"every task waits at {self._loop.time():.6f} s, and no timer is set")
            return ready
        if timeout > 0:
            self._turns = 0
            self._loop.skip(timeout)
            return []
        self._turns += 1
        if self._turns > TURNS_MAX:
            self._turns = 0
            raise Livelock(f"{TURNS_MAX} turns of the loop at {self._loop.time():.6f} s")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a clock that starts at 0 and moves only when every task waits."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_ClockSelector(self))

    def time(self) -> float:
        return self._now

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


def run_virtual(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run an async function on a loop of its own. Raises its errors, `Deadlock` and `Livelock`."""
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})
