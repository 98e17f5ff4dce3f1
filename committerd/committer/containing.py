"""Containment: an error on one record refuses that record, and the committer continues with the next one.

This holds for every `Exception`, including RecursionError and MemoryError, except four kinds that belong to no record:
the store or the queue is unavailable, a put result is unknown, table and topic contradict each other, or the committer
must do Start again. Cancellation is not an `Exception` and propagates.

The table is at fault only if nothing at all can be built on it. The committer checks that before it judges a record
(`judge.vet`), and when it builds a version that holds only refusals.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from committerd.committer.head import StartAgain
from committerd.errors import PutUnknown, RefusedToRun, RequestError, Unavailable
from committerd.table.refusals import Rejected, mishandled
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

Stage = Literal["decode", "judge", "build", "create", "start"]

_COMMITTERS_OWN = (Unavailable, PutUnknown, RefusedToRun, StartAgain)


@dataclass(frozen=True, slots=True)
class Containment:
    """Turns errors into refusals; logs and counts the unexpected ones."""

    telemetry: Telemetry | None
    """None = unexpected errors are not counted."""

    def refuse(self, error: Exception, *, stage: Stage, offset: int) -> Rejected:
        """Return the refusal of the record at `offset`, on which this error was raised.

        Raises an error that belongs to no record. Call it in the exception handler, so that the log line has the
        traceback.
        """
        require_contained(error)
        refused = mishandled(error)
        if not isinstance(error, RequestError):
            _log.error(
                "record.internal_error",
                extra={"offset": offset, "stage": stage, "reason": refused.reason, "error": repr(error)},
                exc_info=error,
            )
            if self.telemetry is not None:
                self.telemetry.internal_errors.add(stage=stage)
        return refused


UNCOUNTED = Containment(None)


def require_contained(error: Exception) -> None:
    """Return if the error belongs to a record; else raise it, or the first such error of an exception group."""
    for one in _members(error):
        if isinstance(one, _COMMITTERS_OWN):
            raise one


def _members(error: Exception) -> Iterator[Exception]:
    """Yield the errors of an exception group, recursively; for any other error, the error itself."""
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from _members(one)
    else:
        yield error
