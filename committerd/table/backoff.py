"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from committerd.errors import StoreUnavailable

_T = TypeVar("_T")

_SECONDS_MIN = 0.05
_SECONDS_MAX = 2.5


class Backoff:
    """Delays that double from 50 ms up to 2.5 s. Each wait lasts between half and all of its delay, at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seconds = _SECONDS_MIN

    async def wait(self) -> None:
        await anyio.sleep(self._seconds * self._rng.uniform(0.5, 1.0))
        self._seconds = min(self._seconds * 2, _SECONDS_MAX)


async def until_done(
    call: Callable[[], Awaitable[_T]], backoff: Backoff, failed: Callable[[StoreUnavailable], None]
) -> _T:
    """Call the store until it does what it is asked for, and return its result. `failed` is told of each failure."""
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            failed(error)
            await backoff.wait()
