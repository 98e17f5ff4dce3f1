"""The commit protocol: put a version, and find out what became of it.

    the store says        then
    created               it is ours
    taken                 read back what is there: it may be our own earlier try
    nothing               unknown: read back; while nothing is there, put the same bytes again
    unavailable           nothing was sent: wait, and put the same bytes again

A version whose put was unknown once stays so until its number is occupied. Until then nobody may form another one for
what it holds, and nothing that was staged is deleted. The queue's committer, `committerd commit` and the operator's
commands all commit in this way; they differ in what they put and in how they tell their own version from another's.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from committerd.errors import OutcomeUnknown, Unavailable
from committerd.table.backoff import Backoff

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Landing(Protocol, Generic[R_co]):
    """One version, or several that follow each other, on the way to their numbers."""

    async def put(self) -> R_co | None:
        """Put it; the result when it was created, None when the number is taken.

        Raises `OutcomeUnknown` when the store did not answer, and an `Unavailable` when nothing was put.
        """

    async def read_back(self, *, taken: bool) -> R_co | None:
        """Whose version has the number; None when there is none, or when it can't be read now.

        `taken`: the store said that there is one.
        """

    def failed(self, error: OutcomeUnknown | Unavailable, *, may_be_there: bool) -> None:
        """Note what `put` raised.

        `may_be_there`: this put or an earlier one may have created it. Only where it can't be there may this raise the
        error again, to give up.
        """


async def land(landing: Landing[R], backoff: Backoff) -> R:
    """Try until it is known whose version has the number. Raises what else `put` and `read_back` raise."""
    may_be_there = False
    while True:
        try:
            result = await landing.put()
            if result is not None:
                return result
            taken = may_be_there = True
        except OutcomeUnknown as error:
            taken, may_be_there = False, True
            landing.failed(error, may_be_there=True)
        except Unavailable as error:
            landing.failed(error, may_be_there=may_be_there)
            await backoff.wait()
            continue
        result = await landing.read_back(taken=taken)
        if result is not None:
            return result
        await backoff.wait()
