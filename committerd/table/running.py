"""Runs a decision that asks for facts: fetches what it needs, and goes on with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from committerd.table.heavy_work import Work, at_once
from committerd.table.needs import InThread, Need, Steps

_T = TypeVar("_T")

Fetch = Callable[[Need], Awaitable[Any]]
"""Reads the fact that answers a need, as its class says; raises the error of the read."""


async def run(steps: Steps[_T], fetch: Fetch, *, work: Work = at_once) -> _T:
    """Run a decision to its end; returns its result or raises its error.

    An error of a read is thrown into the decision, which refuses a record for it or raises it again. `work`: runs the
    steps that may take long.
    """
    step: Need | _End[_T] = _step(steps, partial(next, steps))
    while not isinstance(step, _End):
        try:
            if isinstance(step, InThread):
                step = await work(partial(_step, steps, partial(next, steps)), size=step.size)
                continue
            fact = await fetch(step)
        except Exception as error:  # noqa: BLE001  # the decision knows whose fault it is
            step = _step(steps, partial(steps.throw, error))
        else:
            step = _step(steps, partial(steps.send, fact))
    result: _T = step.result
    return result


class _End(NamedTuple, Generic[_T]):
    result: _T


def _step(steps: Steps[_T], advance: Callable[[], Need]) -> Need | _End[_T]:
    """Go on to the next need, or to the end."""
    try:
        return advance()
    except StopIteration as end:
        return _End(end.value)
