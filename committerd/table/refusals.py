"""How a request that is not committed is answered."""

from __future__ import annotations

from dataclasses import dataclass

from committerd.errors import CommitterError, RequestError, UnsupportedRequest
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.queue.ledger import Refused
from committerd.queue.outcomes import Status
from committerd.reasons import INVALID_REASONS

_SAID_CHARS_MAX = 150
"""Of the message of an unexpected error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(Refused):
    """A transaction that is not committed, and how that was found."""

    rule: str = ""
    """Name of the conflict rule that refuses it; empty = none does."""
    found: Comparison = NOTHING_FOUND


INTERNAL_ERROR = "internal_error"
"""The reason of a record on which committerd itself fails."""


def refused_by(error: RequestError, found: Comparison = NOTHING_FOUND) -> Rejected:
    """How a request that can never succeed is answered."""
    unsupported = isinstance(error, UnsupportedRequest)
    return Rejected(
        status=Status.UNSUPPORTED if unsupported else Status.INVALID,
        reason=error.code,
        message=str(error),
        found=found,
    )


def mishandled(error: Exception) -> Rejected:
    """The answer to a record on which committerd fails with an unexpected error.

    An error with a code that producers know keeps it: it says what is wrong better than `internal_error` does.
    """
    if isinstance(error, RequestError):
        return refused_by(error)
    code = error.code if isinstance(error, CommitterError) else ""
    return Rejected(
        status=Status.INVALID,
        reason=code if code in INVALID_REASONS else INTERNAL_ERROR,
        message=f"committerd failed on this record and has not committed it: {type(error).__name__}: "
        f"{str(error)[:_SAID_CHARS_MAX]}. The committer's log has the traceback; report the error",
    )
