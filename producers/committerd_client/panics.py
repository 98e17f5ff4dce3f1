"""pylance's panics as errors, and which of its errors last.

Where Rust code of pylance panics, pyo3 raises `PanicException`. It is a `BaseException`, so it would pass every
`except Exception` and end the program, and with it work that has nothing to do with the panic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from anyio import to_thread

from committerd_client.errors import StagingError

_T = TypeVar("_T")

PANIC = "pylance_panic"
"""The code of the error."""


NOT_AS_BEFORE = "not_as_before"
"""The code of the error for rows that pylance has not written as they were."""
_OF_ROWS = re.compile(r"invalid user input|corrupt|not (yet )?(supported|implemented)|internal error", re.IGNORECASE)
"""What pylance says in an `OSError` that is about the rows, and not about the store."""


def is_lasting(error: Exception) -> bool:
    """Whether this error of pylance, or panic, would come at another time too: it is not about the store."""
    if isinstance(error, StagingError):
        return error.code in (PANIC, NOT_AS_BEFORE)
    if isinstance(error, OSError):
        return _OF_ROWS.search(str(error)) is not None
    return isinstance(error, ValueError | RuntimeError)


@contextmanager
def panics_raised() -> Iterator[None]:
    """Raise `StagingError` (`pylance_panic`) where pylance panics."""
    try:
        yield
    except BaseException as error:
        # The class can't be imported: each extension module of pyo3 has its own.
        if type(error).__name__ != "PanicException":
            raise
        raise StagingError(
            f"pylance panicked, which is a fault of pylance: {error}. Nothing was committed", code=PANIC
        ) from error


async def run_sync(function: Callable[[], _T]) -> _T:
    """As `anyio.to_thread.run_sync`, for functions that call pylance. Raises `StagingError` where pylance panics."""

    def run() -> _T:
        with panics_raised():
            return function()

    return await to_thread.run_sync(run)
