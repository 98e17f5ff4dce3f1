"""Containment: an error on one record refuses that record, and the committer continues with the next one.

Whose fault an error is (docs/decisions/whose-fault.md):

    the store, the queue, the machine    `Unavailable`, or an error of `committerd.machine`: the records wait
    table and topic, a put, Start        the committer's own errors: they are raised
    a record                             any other `Exception`, RecursionError too: the record is refused
    this release                         three of the latter in a row, and a failed self-trial: it refuses to run

A record that meets an error of the machine is judged alone from then on. If it meets three, and each self-trial between
them passes, it is refused: no record can stop the queue in this way.

The table is at fault only if nothing at all can be built on it. The committer checks that before it judges a record
(`judge.require_buildable`), and when it builds a version that holds only refusals.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio

from committerd.committer.head import Head, StartAgain
from committerd.committer.intake import Pending
from committerd.errors import CommitterError, CorruptTable, PutUnknown, RefusedToRun, RequestError, Unavailable
from committerd.machine import Machine, shortage_of, unavailable
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.table.refusals import mishandled
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

Stage = Literal["decode", "judge", "build", "create", "start"]

_COMMITTERS_OWN = (Unavailable, PutUnknown, RefusedToRun, StartAgain)
_IN_A_ROW = 3
"""Unexpected errors, with no transaction that is built between them, after which the committer tries itself."""
_ALONE = 3
"""Errors of the machine on a record that is judged alone, after which it is refused."""
_APART_SECONDS = 2.0
"""The least time between two of these that count."""


@dataclass(slots=True)
class Containment:
    """Turns errors into refusals, counts them, and decides whether they are the records' fault."""

    telemetry: Telemetry | None = None
    """None = unexpected errors are not counted."""
    machine: Machine = field(default_factory=Machine)
    judges_alone: bool = False
    """Whether the next record is judged alone, because there was an error of the machine."""
    _in_a_row: int = 0
    _last: str = ""
    """The last unexpected error, and the offset of its record."""
    _only: int | None = None
    """The offset of the record that is judged alone."""
    _met: int = 0
    """The errors of the machine that this record has met alone, as far as they count."""
    _met_at: float = float("-inf")

    def refuse(self, error: Exception, *, stage: Stage, offset: int) -> Refused:
        """Return the refusal of the record at `offset`, on which this error was raised.

        Raises an error that belongs to no record, as `require_contained`. Call it in the exception handler, so that the
        log line has the traceback.
        """
        require_contained(error)
        refused = mishandled(error)
        if not isinstance(error, RequestError):
            self._in_a_row += 1
            self._last = f"{type(error).__name__}: {error} at offset {offset}"
            _log.error(
                "record.internal_error",
                extra={"offset": offset, "stage": stage, "reason": refused.reason, "error": repr(error)},
                exc_info=error,
            )
            if self.telemetry is not None:
                self.telemetry.internal_errors.add(stage=stage)
        return refused

    def formed(self, transactions: int) -> None:
        """Note that a version was formed without an error of the machine, and how many transactions it commits."""
        self.judges_alone, self._only = False, None
        if transactions:
            self._in_a_row = 0

    @property
    def in_doubt(self) -> bool:
        """Whether the committer has to try itself before it blames the records of a version."""
        return self._in_a_row >= _IN_A_ROW

    def tried(self, failed: Exception | None) -> None:
        """Note the result of a self-trial that was due: what has failed; None = nothing.

        Raises an error that belongs to no record, or else `RefusedToRun` (`internal_errors`).
        """
        if failed is not None:
            require_contained(failed)
            raise RefusedToRun(
                f"committerd fails on records (the last error is {self._last}), and on a change of its own too "
                f"({type(failed).__name__}: {failed}). So this release is at fault, or the machine, and the records "
                "wait. Run the release before this one, and report both errors",
                code="internal_errors",
            ) from failed
        self._in_a_row = 0

    def to_judge(self, ordered: Sequence[Pending]) -> Sequence[Pending]:
        """Return the waiting records that are judged now: all, or the first one after an error of the machine."""
        if not self.judges_alone or not ordered:
            return ordered
        if self._only != ordered[0].offset:
            self._only, self._met, self._met_at = ordered[0].offset, 0, float("-inf")
        return ordered[:1]

    def refused_alone(self, pending: Pending) -> Refused | None:
        """Return the refusal of the record that is judged alone, if it has met too many errors of the machine."""
        if self._only != pending.offset or self._met < _ALONE:
            return None
        _log.error("record.too_heavy", extra={"offset": pending.offset, "reason": "budget_exceeded"})
        return Refused(
            status=Status.INVALID,
            reason="budget_exceeded",
            message=f"the machine failed {_ALONE} times under this record, and not under a change of the committer's "
            f"own: {self.machine.trouble}. Commit in smaller parts",
        )

    async def note(self, error: Unavailable, self_trial: Callable[[], Awaitable[Exception | None]]) -> None:
        """Note an error that made work on records fail and belongs to none of them. `self_trial` returns what fails."""
        self.machine.note(error)
        if shortage_of(error) is None:
            return
        now = anyio.current_time()
        counts = self.judges_alone and self._only is not None and now - self._met_at >= _APART_SECONDS
        if counts and await self_trial() is None:
            self._met, self._met_at = self._met + 1, now
        self.judges_alone = True


def require_contained(error: Exception) -> None:
    """Return if the error belongs to a record; else raise it, or the first such error of an exception group.

    Raises `MachineUnavailable` instead of an error of the process or the machine.
    """
    for one in _members(error):
        if isinstance(one, _COMMITTERS_OWN):
            raise one
    failure = unavailable(error)
    if failure is not None:
        raise failure from error


def as_unavailable(error: Exception) -> Unavailable | None:
    """The error as an `Unavailable`, if it is of the store, the queue or the machine; None for any other error."""
    for one in _members(error):
        if isinstance(one, Unavailable):
            return one
        if isinstance(one, CommitterError | StartAgain):
            return None
    failure = unavailable(error)
    if failure is not None:
        failure.__cause__ = error
    return failure


def _members(error: Exception) -> Iterator[Exception]:
    """Yield the errors of an exception group, recursively; for any other error, the error itself."""
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from _members(one)
    else:
        yield error


def nothing_can_follow(head: Head, error: Exception) -> Exception:
    """Return the error to raise when not even a version without transactions can be built.

    The table is at fault, or committerd itself.
    """
    if isinstance(error, RequestError):
        return CorruptTable(f"nothing can be built upon version {head.version}: {error}", code=error.code)
    if isinstance(error, CommitterError):
        return error
    return RefusedToRun(
        f"committerd can't build a version on version {head.version}, not even one without transactions: "
        f"{type(error).__name__}: {error}. Run the release before this one, and report the error",
        code="internal_errors",
    )
