"""From threads into an event loop: whatever gathers until the loop gets to it is delivered in one call."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items in the order in which they were posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._lock = threading.Lock()
        self._items: list[T] = []

    def post(self, item: T) -> None:
        """From any thread; never blocks. What arrives after the loop was closed is dropped."""
        with self._lock:
            self._items.append(item)
            if len(self._items) > 1:
                return  # a delivery is on its way
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        self._deliver(items)
