"""Messages between the event loop and the thread that owns the consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from anyio import from_thread
from kafka import errors

from committerd.queue.port import QueueEvent

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way to the event loop."""

    event: QueueEvent
    seeks: int
    """Number of seeks before this delivery."""


class Call(Generic[Result]):
    """Work for the owner thread; the event loop creates and awaits it."""

    def __init__(self, work: Callable[[Any], Result]) -> None:
        self._work = work
        self._done = anyio.Event()
        self._results: list[Result] = []
        self._error: errors.KafkaError | None = None
        self._abandoned = False

    def execute(self, consumer: Any) -> None:
        """Execute the work, in the owner thread."""
        if self._abandoned:
            return
        try:
            self._results.append(self._work(consumer))
        except errors.KafkaError as error:
            self._error = error
        from_thread.run_sync(self._done.set)

    async def result(self) -> Result:
        """Await the result. Raises the KafkaError of the work. If cancelled, work that has not begun is dropped."""
        try:
            await self._done.wait()
        finally:
            self._abandoned = True
        if self._error is not None:
            raise self._error
        return self._results[0]
