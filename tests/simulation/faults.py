"""What goes wrong on the way between a process and its surroundings, all of it drawn from one seed.

Each call of a port is a journey: the request travels, takes effect, and the answer travels back. It may be refused
before the effect, its answer may be lost with or without the effect, the effect may come later, and the process may
die or stand still anywhere on the way.
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
"""Told of each call of a port before it leaves and before its answer is taken; may wait, and may never come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often each thing happens, from 0 to 1; times in seconds."""

    refused: float = 0.0
    """Nothing happens there, and the caller is told so."""
    lost: float = 0.0
    """The effect may be there or not, or come later, and the caller is told that it isn't known."""
    doubled: float = 0.0
    """A client library that tries again meets its own first try."""
    latency: float = 0.0
    """Mean time of one way."""
    slow: float = 0.0
    """Calls that take `slow_seconds` at most."""
    slow_seconds: float = 0.0


CALM = Rates()


async def no_step(call: str, when: When) -> None:
    """Outside of a simulation."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What is going to happen to one call."""

    there: float
    back: float
    ends: Literal["well", "refused", "lost", "lost_before", "lost_late", "doubled"]
    survives: bool
    """Whether a request that is on its way arrives although its sender has died."""


@dataclass(slots=True)
class Weather:
    """Fates for the calls of one process. Calm unless told otherwise."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    rates: Rates = CALM
    step: Step = no_step
    note: Callable[[str], None] = lambda line: None
    """Takes a line for the trace."""

    def draw(self) -> Fate:
        """The fate of the next call."""
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
        """Send a request and wait for its answer. Raises `Refused` or `Lost`; what it returns may be `doubled`."""
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
    """Nothing happened."""


class Lost(Exception):
    """It is not known whether anything happened."""


async def _travel(seconds: float, *, arrives: Callable[[], object] | None = None) -> None:
    """Be on the way. When the process dies meanwhile, a request may arrive all the same."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if arrives is not None:
            asyncio.get_running_loop().call_later(seconds, arrives)
        raise
