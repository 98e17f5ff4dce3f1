"""Says who does not answer while a command waits for a service.

Requests to Kafka and to a store wait long before they fail, and repeat what is safe to repeat. Whoever waits at a
terminal wants to know much earlier whom the command waits for. A daemon has metrics and `/readyz` for that, and tells
nobody here.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SILENT_SECONDS = 4.0
"""A request that waits longer than this is told."""
_AGAIN_SECONDS = 30.0
"""Time between two sentences about the same service."""
_LOOK_SECONDS = 0.25


class _Watch:
    """The requests that wait now, and the thread that looks at them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._since: dict[int, tuple[str, float]] = {}
        self._ids = itertools.count()
        self._told_at: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def on(self, whom: str) -> Iterator[None]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="waiting", daemon=True)
            self._thread.start()
        number = next(self._ids)
        self._since[number] = whom, time.monotonic()
        try:
            yield
        finally:
            del self._since[number]

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            now = time.monotonic()
            for whom, since in list(self._since.values()):
                if now - since < SILENT_SECONDS or now - self._told_at.get(whom, float("-inf")) < _AGAIN_SECONDS:
                    continue
                self._told_at[whom] = now
                self._tell(f"{whom} has not answered for {now - since:.0f} s; still waiting")


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """While the block lasts, call `tell` with a sentence about each service that does not answer; in another thread."""
    watch = _Watch(tell)
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
        watch.end()


@contextmanager
def waiting_for(whom: str) -> Iterator[None]:
    """Count the block as a request to `whom`. Without `told`, it does nothing."""
    watch = _watch.get()
    if watch is None:
        yield
        return
    with watch.on(whom):
        yield
