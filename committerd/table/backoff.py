"""Exponential backoff with jitter."""

from __future__ import annotations

import random

import anyio

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
