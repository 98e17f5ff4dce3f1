"""What an open Kafka transaction holds back: nothing behind its first record can be read until it ends."""

from __future__ import annotations

from typing import Protocol

from committerd.queue.port import Record


class StagedLog(Protocol):
    """The staged partition, as far as a look at it needs. Each method may raise `QueueUnavailable`."""

    async def end(self) -> int:
        """The offset after the last record, whether it can be read or not."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """Log start and log end: the half-open range of readable offsets."""
        ...

    async def first_held_back(self, offset: int) -> Record | None:
        """The first record at or after this offset, even if it can't be read yet; None = none."""
        ...


class HeldBack:
    """The records that are held back, as of the last `look`."""

    def __init__(self, log: StagedLog) -> None:
        self._log = log
        self._offsets = 0
        self._first: tuple[int, int] | None = None
        """Offset and timestamp (Unix milliseconds) of the first of them."""

    def current(self) -> tuple[int, int] | None:
        """Number of offsets that are held back, and the timestamp of the first (Unix ms); None if there are none."""
        return None if self._first is None else (self._offsets, self._first[1])

    def forget(self) -> None:
        """Nothing is known to be held back."""
        self._first = None

    async def look(self) -> None:
        """Look at the log. Reads the first record only if another record was the first before."""
        end = await self._log.end()
        # This request comes last: records of a transaction that was committed meanwhile are not held back.
        _, readable = await self._log.bounds()
        if readable >= end:
            self._first = None
            return
        self._offsets = end - readable
        if self._first is None or self._first[0] != readable:
            first = await self._log.first_held_back(readable)
            self._first = None if first is None else (readable, first.timestamp_ms)
