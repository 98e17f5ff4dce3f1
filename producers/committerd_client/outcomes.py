"""Turns a published outcome into a result to return or an error to raise."""

from __future__ import annotations

from committerd_client.errors import (
    ClientError,
    Expired,
    IncompatibleConflict,
    InvalidTransaction,
    NotCommitted,
    RetryableConflict,
    TableExists,
    Undecided,
    UnsupportedTransaction,
)
from committerd_client.results import CommitResult, CommitStatus
from committerd_common.messages import (
    COMMITTED,
    DUPLICATE,
    EXPIRED,
    INCOMPATIBLE,
    INVALID,
    RETRYABLE,
    UNDECIDED,
    UNSUPPORTED,
    Outcome,
)


def interpret(outcome: Outcome) -> CommitResult | ClientError:
    """The result to return, or the error to raise, for an outcome."""
    if outcome.status in (COMMITTED, DUPLICATE):
        reserved = range(outcome.reserved_first, outcome.reserved_first + outcome.reserved_count)
        return CommitResult(
            uuid=outcome.uuid,
            status=CommitStatus.DUPLICATE if outcome.status == DUPLICATE else CommitStatus.COMMITTED,
            version=outcome.version or None,
            offset=outcome.offset,
            operation=outcome.operation,
            reason=outcome.reason,
            message=outcome.message,
            transactions=outcome.transactions,
            reserved=reserved if outcome.reserved_count else None,
            queued_ms=outcome.queued_ms,
            commit_ms=outcome.commit_ms,
        )
    kind = _REFUSALS.get(outcome.status)
    if kind is None:
        return _undecided(outcome)
    if outcome.reason == TableExists.code and kind is RetryableConflict:
        kind = TableExists
    error = kind(_message(outcome), code=outcome.reason or None, uuid=outcome.uuid)
    error.offset = outcome.offset
    error.operation = outcome.operation
    error.read_version = outcome.read_version
    error.conflicting_version = outcome.conflicting_version or None
    error.conflicting_operation = outcome.conflicting_operation
    error.commit_ms = outcome.commit_ms
    return error


_REFUSALS: dict[int, type[NotCommitted]] = {
    RETRYABLE: RetryableConflict,
    INCOMPATIBLE: IncompatibleConflict,
    INVALID: InvalidTransaction,
    UNSUPPORTED: UnsupportedTransaction,
    EXPIRED: Expired,
}


def _undecided(outcome: Outcome) -> Undecided:
    message, code = _message(outcome), outcome.reason or None
    if outcome.status != UNDECIDED:
        message = f"status {outcome.status} is newer than this client: update it. {message}"
        code = "status_unknown"
    error = Undecided(message, code=code, uuid=outcome.uuid)
    error.offset = outcome.offset
    return error


def _message(outcome: Outcome) -> str:
    """One line for a log: the transaction, its place, and the committer's message."""
    said = outcome.message or outcome.reason or "no reason given"
    what = f"{outcome.operation or 'transaction'} {outcome.uuid or 'without uuid'}"
    return f"{what} (offset {outcome.offset} of {outcome.topic}): {said}"
