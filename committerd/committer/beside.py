"""Two calls at once, where the error of one must not end the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from committerd.errors import CommitterError

_T = TypeVar("_T")
_Own = TypeVar("_Own")


class Beside(Generic[_Own]):
    """A call that is made beside another one. Both are waited for."""

    def __init__(self, call: Callable[[], Awaitable[_Own]]) -> None:
        self._call = call
        self._results: list[_Own] = []
        self.failed: CommitterError | None = None

    @property
    def done(self) -> bool:
        """Whether it has returned."""
        return bool(self._results)

    @property
    def result(self) -> _Own:
        """What it returned; asked for when it is done."""
        return self._results[0]

    async def of(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """What `call` returns or raises."""
        results: list[_T] = []
        error: CommitterError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            try:
                await anyio.lowlevel.checkpoint()  # it begins first: `call` may have much to do before it waits
                results.append(await call())
            except CommitterError as raised:  # not as a group
                error = raised
        if error is not None:
            raise error
        return results[0]

    async def _run(self) -> None:
        try:
            self._results.append(await self._call())
        except CommitterError as error:
            self.failed = error
