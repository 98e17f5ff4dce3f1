"""Doing refused work again: who is asked for it, how often, and what the committer is told.

An upsert contradicts every Append since its read version, so under a stream of them its first try is often refused. A
re-execution names the refused transaction (headers `attempt`, `retry-of`): the committer lets it go before waiting
records, and from the second refusal on commits nothing else for a moment until it arrives.

While the first re-execution takes its time, more is committed that it contradicts. So work that can be brought up to
date (`Staged.can_catch_up`) is handed back to the function before it is sent, when it took long: the next try then has
little to look through, and is done while the hold lasts.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import anyio.to_thread

from committerd_client.errors import ClientError, RetryableConflict
from committerd_client.headers import Asking, Staged
from committerd_client.results import CommitResult
from committerd_common.messages import DECODE_ERRORS, Transaction

ATTEMPTS_MAX = 10
"""Tries of one commit, the first included, unless the caller says otherwise."""
_SECONDS_SHORT = 0.3
"""What an execution may take without being followed by another one: little is committed meanwhile."""
_HELD_FROM = 3
"""The attempt from which on nothing else is committed meanwhile: there is nothing to catch up with."""

Work = Transaction | bytes | Staged
"""What can be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reexecution:
    """What `reexecute` is asked: read the latest version, do the work again, return it under a new uuid."""

    error: RetryableConflict
    """Why the try before was refused: `uuid`, `code`, `conflicting_version`, `conflicting_operation`, ..."""
    work: Work
    """What was refused, as it was given to `commit` or returned by `reexecute`; or what `reexecute` has just returned
    and was not sent yet, since it took long and can be brought up to date."""
    attempt: int
    """Number of the try that is wanted; the first execution was 1. Stays while work is brought up to date."""
    attempts_max: int
    seconds_left: float | None
    """Until `timeout`; None = no limit."""


Reexecute = Callable[[Reexecution], Work | None]
"""Returns the work done again, None to give up."""
AsyncReexecute = Callable[[Reexecution], Work | Awaitable[Work | None] | None]


class Attempts:
    """The tries of one commit. Holds no clock and does no I/O: both faces of the client drive it."""

    def __init__(self, work: Work, asking: Asking, *, most: int) -> None:
        if most < 1:
            raise ValueError(f"attempts={most}: the first execution counts, so at least 1 is needed")
        self.work, self.asking = work, asking
        """Of the try that is due."""
        self._most = most
        self._count = 1
        self._first = asking.attempt or 1

    def counted(self, result: CommitResult) -> CommitResult:
        """The result, with the number of tries in it."""
        return result if self._count == 1 else replace(result, attempts=self._count)

    def after(self, error: ClientError, *, seconds_left: float | None) -> Reexecution:
        """What to ask for next. Raises the error itself when no further try may follow it."""
        if not isinstance(error, RetryableConflict):
            raise self._ended(error, "")
        if self._count >= self._most:
            raise self._ended(error, f"; given up after {self._count} attempts")
        if seconds_left is not None and seconds_left <= 0:
            raise self._ended(error, f"; the time was up after {self._count} attempts")
        return Reexecution(
            error=error,
            work=self.work,
            attempt=self._first + self._count,
            attempts_max=self._most,
            seconds_left=seconds_left,
        )

    def take(self, work: Work | None, asked: Reexecution, *, seconds_left: float | None) -> None:
        """The next try is this work. Raises the refusal when there is none, or the time is up."""
        if work is None:
            raise self._ended(asked.error, f"; given up by reexecute after {self._count} attempts")
        if seconds_left is not None and seconds_left <= 0:
            raise self._ended(
                asked.error,
                f"; the time was up after {self._count} attempts, and the re-execution that came then was not sent",
            )
        if _uuid(work) == asked.error.uuid:
            raise ValueError(
                f"reexecute returned transaction {asked.error.uuid} again, which was refused for good: do the work "
                "again on the latest version, under a new uuid"
            )
        self._count += 1
        # How a table is made and at which version it was read belong to the transaction, and this is another one.
        self.asking = Asking(
            app=self.asking.app,
            deadline=self.asking.deadline,
            traceparent=self.asking.traceparent,
            attempt=asked.attempt,
            retry_of=asked.error.uuid,
        )
        self.work = work

    def _ended(self, error: ClientError, said: str) -> ClientError:
        error.attempts = self._count
        if said:
            error.args = (f"{error}{said}",)
        return error


class Rounds:
    """The executions of which one try is made: the one that is asked for, and those that bring it up to date.

    These go on while each takes at most half of the time of the one before, and a quarter of what was left until
    `timeout`, so that half of it is left in the end. To be driven as `Attempts` is: `wanted` is what to ask for, until
    it is None and `work` is to be sent.
    """

    def __init__(self, wanted: Reexecution) -> None:
        self.wanted: Reexecution | None = wanted
        self.work: Work | None = None
        self._took_before: float | None = None

    def done(self, work: Work | None, *, took: float, seconds_left: float | None) -> None:
        """It was executed, in so many seconds."""
        assert self.wanted is not None
        asked, before = self.wanted, self._took_before
        self.wanted, self.work, self._took_before = None, work, took
        if not isinstance(work, Staged) or not work.can_catch_up or asked.attempt >= _HELD_FROM:
            return
        if took <= _SECONDS_SHORT or (before is not None and took > before / 2):
            return
        if asked.seconds_left is None or took <= asked.seconds_left / 4:
            self.wanted = replace(asked, work=work, seconds_left=seconds_left)


async def ask(
    function: Callable[[Reexecution], Any], wanted: Reexecution, left: Callable[[], float | None]
) -> Work | None:
    """A coroutine function in the event loop, a plain one in a worker thread: it may read and write for seconds.

    `left`: seconds until `timeout`.
    """
    rounds = Rounds(wanted)
    while rounds.wanted is not None:
        began = time.monotonic()
        made = (
            function(rounds.wanted)
            if inspect.iscoroutinefunction(function)
            else await anyio.to_thread.run_sync(function, rounds.wanted)
        )
        work = cast("Work | None", await made if inspect.isawaitable(made) else made)
        rounds.done(work, took=time.monotonic() - began, seconds_left=left())
    return rounds.work


def ask_here(function: Reexecute, wanted: Reexecution, left: Callable[[], float | None]) -> Work | None:
    """As `ask`, of a plain function in this thread."""
    rounds = Rounds(wanted)
    while rounds.wanted is not None:
        began = time.monotonic()
        work = function(rounds.wanted)
        rounds.done(work, took=time.monotonic() - began, seconds_left=left())
    return rounds.work


def _uuid(work: Work) -> str:
    if isinstance(work, bytes):
        with contextlib.suppress(*DECODE_ERRORS):  # said better when it is submitted
            return Transaction.FromString(work).uuid
    transaction = work.transaction if isinstance(work, Staged) else work
    return transaction.uuid if isinstance(transaction, Transaction) else ""
