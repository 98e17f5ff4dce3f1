"""Long work on the event loop is done in stretches of half a millisecond, and gives way to other work between them.

What many records need would otherwise hold the loop for tens of milliseconds, in several tasks at once, and each
response from the store or Kafka for another table would wait for all of them. So in each round of the loop one stretch
runs, of all tables of the process, and tables that have work take turns.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel

GiveWay = Callable[[], Awaitable[None]]
"""Awaited often in long work: returns at once within a stretch, and otherwise when it is the caller's turn."""

to_all: GiveWay = anyio.lowlevel.checkpoint
"""Gives way to other tasks at each call: for tests, and for commands that decode few versions."""

_STRETCH_SECONDS = 0.0005


class Stretches:
    """The turns of the tables of one process. All is called on the event loop."""

    def __init__(self, processor_time: Callable[[], float] = time.thread_time) -> None:
        """`processor_time`: of this thread, in seconds."""
        self._processor_time = processor_time
        self._ends_at = float("-inf")
        """The processor time at which the present stretch ends."""
        self._lines: OrderedDict[object, deque[anyio.Event]] = OrderedDict()
        """Who waits, for each table; the table whose turn is next comes first. No line is empty."""
        self._is_taken = False
        """Whether the next stretch has been given to a caller, which has not begun it yet."""

    def of_one(self) -> GiveWay:
        """For one table."""
        return partial(self._give_way, object())

    async def _give_way(self, table: object) -> None:
        if self._processor_time() < self._ends_at:
            return
        if not self._is_taken:
            self._is_taken = True
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                self._begin(table)
            return
        turn = anyio.Event()
        self._lines.setdefault(table, deque()).append(turn)
        try:
            await turn.wait()
        finally:
            if turn.is_set():
                self._begin(table)
            else:
                self._leave(table, turn)

    def _begin(self, table: object) -> None:
        """Begin a stretch; the next one, of another table if any waits, begins in the next round of the loop."""
        self._ends_at = self._processor_time() + _STRETCH_SECONDS
        if table in self._lines:
            self._lines.move_to_end(table)
        self._is_taken = bool(self._lines)
        if self._is_taken:
            following, line = self._lines.popitem(last=False)
            line.popleft().set()
            if line:
                self._lines[following] = line

    def _leave(self, table: object, turn: anyio.Event) -> None:
        line = self._lines[table]
        line.remove(turn)
        if not line:
            del self._lines[table]
