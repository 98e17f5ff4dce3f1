"""Faults between a process and its surroundings, all drawn from one seed.

Each call of a port is a journey: the request travels, takes effect, and the response travels back. The request may be
refused before the effect, the response may be lost with or without the effect, the effect may come later, and the
process may die or stand still anywhere on the way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Result = TypeVar("Result")
When = Literal["before", "after"]
Step = Callable[[str, When], Awaitable[None]]
"""Called before each call of a port leaves and before its response is taken; may wait, and may never return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The probability of each fault, from 0 to 1; times in seconds."""

    refused: float = 0.0
    """The call has no effect, and its caller learns that."""
    lost: float = 0.0
    """The call may have its effect or not, or later, and its caller learns that this is unknown."""
    doubled: float = 0.0
    """A client library repeats the call and meets its own first attempt."""
    latency: float = 0.0
    """The mean time of one way."""
    slow: float = 0.0
    """The share of calls that take up to `slow_seconds`."""
    slow_seconds: float = 0.0


CALM = Rates()


async def no_step(call: str, when: When) -> None:
    """Used outside of a simulation."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The planned course of one call."""

    there: float
    back: float
    ends: Literal["well", "refused", "lost", "lost_before", "lost_late", "doubled"]
    survives: bool
    """Whether a request in flight arrives although its sender has died."""


@dataclass(slots=True)
class Weather:
    """The fates of one process's calls. Without faults by default."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    rates: Rates = CALM
    step: Step = no_step
    note: Callable[[str], None] = lambda line: None
    """Takes a line for the trace."""

    def draw(self) -> Fate:
        """Draw the fate of the next call."""
        rates, rng = self.rates, self.rng
        if rates == CALM:
            return Fate(0.0, 0.0, "well", False)
        there, back = (rng.expovariate(1 / rates.latency) if rates.latency else 0.0 for _ in range(2))
        if rng.random() < rates.slow:
            there += rng.uniform(0, rates.slow_seconds)
        if rng.random() < rates.slow:
            back += rng.uniform(0, rates.slow_seconds)
        roll, survives = rng.random(), rng.random() < 0.5
        if roll < rates.refused:
            return Fate(there, back, "refused", survives)
        if roll < rates.refused + rates.lost:
            how: Literal["lost", "lost_before", "lost_late"] = rng.choice(("lost", "lost_before", "lost_late"))
            return Fate(there, back, how, survives)
        if roll < rates.refused + rates.lost + rates.doubled:
            return Fate(there, back, "doubled", survives)
        return Fate(there, back, "well", survives)

    async def journey(self, call: str, effect: Callable[[], Result]) -> tuple[Result, Fate]:
        """Send a request and wait for its response; the result may be `doubled`. Raises `Refused` or `Lost`."""
        await self.step(call, "before")
        fate = self.draw()
        await _travel(fate.there, arrives=effect if fate.survives else None)
        if fate.ends == "refused":
            self.note(f"{call} refused")
            raise Refused(call)
        if fate.ends == "lost_late":
            asyncio.get_running_loop().call_later(self.rng.expovariate(1 / 5), effect)
        if fate.ends.startswith("lost_"):
            self.note(f"{call} {fate.ends}")
            await _travel(fate.back)
            raise Lost(call)
        result = effect()
        self.note(f"{call} {fate.ends}")
        await _travel(fate.back)
        await self.step(call, "after")
        if fate.ends == "lost":
            raise Lost(call)
        return result, fate


class Refused(Exception):
    """The call had no effect."""


class Lost(Exception):
    """It is unknown whether the call had an effect."""


async def _travel(seconds: float, *, arrives: Callable[[], object] | None = None) -> None:
    """Wait for the time of one way. If the process dies meanwhile, the request may still arrive."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if arrives is not None:
            asyncio.get_running_loop().call_later(seconds, arrives)
        raise
