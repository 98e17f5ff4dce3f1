"""The turns of those that write: only so many write at once, and who waits for somebody else gives its turn back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turn:
    """Of one that writes. As a context manager, it waits for the turn, and gives it back at the end of the block."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        """`turns`: has a turn for each that may write at the same time."""
        self._turns = turns
        self._is_mine = False

    async def __aenter__(self) -> None:
        await self._turns.acquire()
        self._is_mine = True

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    @asynccontextmanager
    async def given_back(self) -> AsyncIterator[None]:
        """Let others write during the block, at the end of which it waits for a turn again."""
        self._give_back()
        try:
            yield
        finally:
            await self.__aenter__()

    def _give_back(self) -> None:
        if self._is_mine:  # it is not while a cancelled block waits for it
            self._is_mine = False
            self._turns.release()
