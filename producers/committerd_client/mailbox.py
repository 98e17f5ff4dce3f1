"""Passes items from threads to an event loop; one call delivers all items that have gathered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Delivers items in the order in which they were posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._lock = threading.Lock()
        self._items: list[T] = []

    def post(self, item: T) -> None:
        """Add an item, from any thread. Never blocks. Drops the item if the loop is closed."""
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
