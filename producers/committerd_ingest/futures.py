"""Ends futures of an event loop with what another thread has found. A future that was cancelled stays as it is."""

from __future__ import annotations

import asyncio
from typing import TypeVar

_T = TypeVar("_T")


def succeed(future: asyncio.Future[_T], result: _T) -> None:
    """Give the future its result."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[_T], error: Exception) -> None:
    """Give the future its error."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody may wait for it
