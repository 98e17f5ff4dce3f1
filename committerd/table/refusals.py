"""Refusals: the outcomes of requests that are not committed."""

from __future__ import annotations

from dataclasses import dataclass

from committerd.errors import CommitterError, OutdatedRequest, RequestError, UnsupportedRequest
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.lance.rows.change import RowsAndKeys
from committerd.queue.ledger import Refused
from committerd.queue.outcomes import Status
from committerd.reasons import INVALID_REASONS

_ERROR_CHARS_MAX = 150
"""Characters of an unexpected error's message that an outcome quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(Refused):
    """The refusal of a transaction, and the comparison behind it."""

    rule: str = ""
    """Name of the conflict rule that refuses it; empty = no conflict rule does."""
    found: Comparison = NOTHING_FOUND
    rows_and_keys: RowsAndKeys | None = None
    """The rows and keys of a Delete or Update that was refused because of another one; None if unknown or not
    requested.
    """


INTERNAL_ERROR = "internal_error"
"""The reason of a record on which committerd itself fails."""


def refused_by(error: RequestError, found: Comparison = NOTHING_FOUND) -> Rejected:
    """The refusal of a request that can never succeed: UNSUPPORTED, INVALID, or RETRYABLE if its work can be redone."""
    status = Status.INVALID
    if isinstance(error, UnsupportedRequest):
        status = Status.UNSUPPORTED
    elif isinstance(error, OutdatedRequest):
        status = Status.RETRYABLE
    return Rejected(
        status=status,
        reason=error.code,
        message=str(error),
        found=found,
    )


def mishandled(error: Exception) -> Rejected:
    """The refusal of a record on which committerd fails with an unexpected error.

    An error whose code is a documented reason keeps that code, which is more precise than `internal_error`.
    """
    if isinstance(error, RequestError):
        return refused_by(error)
    code = error.code if isinstance(error, CommitterError) else ""
    return Rejected(
        status=Status.INVALID,
        reason=code if code in INVALID_REASONS else INTERNAL_ERROR,
        message=f"committerd failed on this record and has not committed it: {type(error).__name__}: "
        f"{str(error)[:_ERROR_CHARS_MAX]}. The committer's log has the traceback; report the error",
    )
