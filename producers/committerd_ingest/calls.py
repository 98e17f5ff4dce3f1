"""Calls that may take any time, raise anything, or never return: into the code of a reader, and of Kafka's producer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from committerd_ingest.futures import fail, succeed

_T = TypeVar("_T")

_NAME = "ingest-calls"


class Calls:
    """One call after the other, in a thread of their own. A call that never returns keeps no process from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def __call__(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, or the error that it raises; in place of an error that would end a process or a
        coroutine, `RuntimeError`."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        result: asyncio.Future[_T] = loop.create_future()

        def call() -> None:
            try:
                found = context.run(work)
            except BaseException as error:  # noqa: BLE001  # it is code of others
                self._tell(loop, fail, result, _ordinary(error))
            else:
                self._tell(loop, succeed, result, found)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return await result

    def end(self, last: Callable[[], object] | None = None) -> None:
        """No call comes any more but `last`, of which nobody learns the result."""

        def call() -> None:
            with contextlib.suppress(BaseException):  # it is code of others
                if last is not None:
                    last()

        self._calls.put(call)
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _tell(self, loop: asyncio.AbstractEventLoop, tell: Callable[..., None], *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(tell, *values)


def calls_left() -> bool:
    """Whether a call has not returned."""
    return any(one.name == _NAME for one in threading.enumerate())


def _ordinary(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    made = RuntimeError(f"the reader raised {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
