"""Executes refused work again: calls the caller's function, counts the tries, and sets the headers for the committer.

An upsert conflicts with every Append since its read version, so under a stream of Appends its first try is often
refused. A re-execution names the refused transaction (headers `attempt`, `retry-of`). The committer puts it before
waiting records; from the second refusal on it commits nothing else for a moment, the hold, until the next try arrives.

While the first re-execution runs, more transactions are committed that it conflicts with. So if it took long, and its
work can be brought up to date (`Staged.can_catch_up`), the function gets that work once more before it is sent. The
next execution then has few new rows to read, and ends during the hold. After a conflict with a Delete or an Update the
committer reserves the rows and keys for a short time, and others wait in line for them. So a re-execution that ends in
that time is sent at once.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from committerd_client import arguments
from committerd_client.errors import ClientError, RetryableConflict
from committerd_client.headers import RecordOptions, Staged
from committerd_client.panics import run_sync
from committerd_client.results import CommitResult
from committerd_common.messages import DECODE_ERRORS, Transaction
from committerd_common.request import MARK_MOVED

ATTEMPTS_MAX = 10
"""Default of the number of tries of one commit, the first included."""
_SECONDS_SHORT = 0.3
"""An execution of at most this length is sent without another one: little is committed in that time."""
_SECONDS_RESERVED = 1.0
"""The same after a conflict with a Delete or an Update: half of the time for which the committer reserves rows and
keys by default.
"""
_HELD_FROM = 3
"""From this attempt on the committer commits nothing else during the execution, so nothing new has to be read."""

TransactionLike = Transaction | bytes | Staged
"""A transaction to commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reexecution:
    """The argument of `reexecute`.

    The function reads the latest version, does the work again, and returns it under a new uuid.
    """

    error: RetryableConflict
    """The refusal of the try before: `uuid`, `code`, `conflicting_version`, `conflicting_operation`, ..."""
    work: TransactionLike
    """The refused work, as it was given to `commit` or returned by `reexecute`. Or the work that `reexecute` has just
    returned and that was not sent yet, because it took long and can be brought up to date."""
    attempt: int
    """Number of the next try; the first execution is 1. It stays the same while work is brought up to date."""
    attempts_max: int
    seconds_left: float | None
    """Seconds until `timeout`; None = no limit."""


Reexecute = Callable[[Reexecution], TransactionLike | None]
"""Does the work again and returns it; returns None to give up."""
AsyncReexecute = Callable[[Reexecution], TransactionLike | Awaitable[TransactionLike | None] | None]


class Attempts:
    """The tries of one commit. Reads no clock and does no I/O; `CommitClient` drives it."""

    def __init__(self, work: TransactionLike, asking: RecordOptions, *, most: int, reexecutes: bool) -> None:
        """`reexecutes`: whether there is a function that executes the work again, at most `most` times in all."""
        self._most = arguments.attempts(most)
        self.work, self.asking = work, replace(asking, will_retry=True) if reexecutes and most > 1 else asking
        """The work and the options of the next try."""
        self._count = 1
        self._first = asking.attempt or 1

    def counted(self, result: CommitResult) -> CommitResult:
        """The result, with the number of tries."""
        return result if self._count == 1 else replace(result, attempts=self._count)

    def after(self, error: ClientError, *, seconds_left: float | None) -> Reexecution:
        """The next re-execution to ask for. Raises the error itself if no further try may follow."""
        if not isinstance(error, RetryableConflict) or error.code == MARK_MOVED:
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

    def take(self, work: TransactionLike | None, asked: Reexecution, *, seconds_left: float | None) -> None:
        """Make this work the next try. Raises the refusal if there is no work, or the time is up.

        Raises `ValueError` if the work has the refused uuid.
        """
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
        # The create options and the read uuid belong to one transaction, and this is another one.
        self.asking = RecordOptions(
            app=self.asking.app,
            deadline=self.asking.deadline,
            traceparent=self.asking.traceparent,
            attempt=asked.attempt,
            retry_of=asked.error.uuid,
            will_retry=self._count < self._most,
        )
        self.work = work

    def _ended(self, error: ClientError, said: str) -> ClientError:
        error.attempts = self._count
        if said:
            error.args = (f"{error}{said}",)
        return error


class Executions:
    """The executions behind one try: the re-execution itself, and those that bring its work up to date.

    They continue as long as each takes at most half the time of the one before, and at most a quarter of the time that
    was left until `timeout`, so half of that time is left at the end. Drive it like `Attempts`: execute `wanted` until
    it is None, then send `work`.
    """

    def __init__(self, wanted: Reexecution) -> None:
        self.wanted: Reexecution | None = wanted
        self.work: TransactionLike | None = None
        self._took_before: float | None = None

    def done(self, work: TransactionLike | None, *, took: float, seconds_left: float | None) -> None:
        """Note an execution: its work, how long it took, and the time left, both in seconds."""
        assert self.wanted is not None
        asked, before = self.wanted, self._took_before
        self.wanted, self.work, self._took_before = None, work, took
        if not isinstance(work, Staged) or not work.can_catch_up or asked.attempt >= _HELD_FROM:
            return
        of_rows = asked.error.conflicting_operation in ("delete", "update")
        short = _SECONDS_RESERVED if of_rows else _SECONDS_SHORT
        if took <= short or (before is not None and took > before / 2):
            return
        if asked.seconds_left is None or took <= asked.seconds_left / 4:
            self.wanted = replace(asked, work=work, seconds_left=seconds_left)


async def ask(
    function: Callable[[Reexecution], Any], wanted: Reexecution, left: Callable[[], float | None]
) -> TransactionLike | None:
    """Run the executions of one try; returns the work to send, or None if the function gives up.

    A coroutine function runs in the event loop, a plain one, which may take seconds, in a worker thread. `left`:
    returns the seconds until `timeout`.
    """
    rounds = Executions(wanted)
    while rounds.wanted is not None:
        began = time.monotonic()
        work = await execute_again(function, rounds.wanted)
        rounds.done(work, took=time.monotonic() - began, seconds_left=left())
    return rounds.work


async def execute_again(function: Callable[[Reexecution], Any], wanted: Reexecution) -> TransactionLike | None:
    """Call the function once; a plain one in a worker thread."""
    made = function(wanted) if inspect.iscoroutinefunction(function) else await run_sync(lambda: function(wanted))
    return cast("TransactionLike | None", await made if inspect.isawaitable(made) else made)


def _uuid(work: TransactionLike) -> str:
    if isinstance(work, bytes):
        with contextlib.suppress(*DECODE_ERRORS):  # `make_record` raises a better error
            return Transaction.FromString(work).uuid
    transaction = work.transaction if isinstance(work, Staged) else work
    return transaction.uuid if isinstance(transaction, Transaction) else ""
