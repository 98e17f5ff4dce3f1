"""pylance's panics as errors.

Where Rust code of pylance panics, pyo3 raises `PanicException`. It is a `BaseException`, so it would pass every
`except Exception` and end the program, and with it work that has nothing to do with the panic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from anyio import to_thread

from committerd_client.errors import StagingError

_T = TypeVar("_T")

PANIC = "pylance_panic"
"""The code of the error."""


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
