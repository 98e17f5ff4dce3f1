"""For programs of the tests to which something happens at a step, in a process of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def around(
    reach: Callable[[str], None], call: Callable[P, Awaitable[T]], *, before: str = "", after: str = ""
) -> Callable[P, Awaitable[T]]:
    """`call`, which tells `reach` the steps before and after it; an empty text is no step."""

    async def stepped(*args: P.args, **options: P.kwargs) -> T:
        if before:
            reach(before)
        result = await call(*args, **options)
        if after:
            reach(after)
        return result

    return stepped
