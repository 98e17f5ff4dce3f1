"""What the committer answered: a result to return or an error to raise."""

from __future__ import annotations

from dataclasses import dataclass

from committerd_client.errors import (
    ClientError,
    Expired,
    IncompatibleConflict,
    InvalidTransaction,
    NotCommitted,
    RetryableConflict,
    Undecided,
    UnsupportedTransaction,
)
from committerd_common.backports import StrEnum
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


class CommitStatus(StrEnum):
    """How the transaction came to be in the table; both are success."""

    COMMITTED = "COMMITTED"
    DUPLICATE = "DUPLICATE"
    """It, or its app version, had been committed before; nothing was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The transaction is in the table."""

    uuid: str
    status: CommitStatus
    version: int | None
    """The table version that holds it; None where that is not known any more (DUPLICATE only)."""
    offset: int
    """Of its record in the staged topic; -1 where `resume` found it committed without one, by hand."""
    operation: str
    """As in the Transaction message: `append`, `overwrite`, ..."""
    reason: str = ""
    """DUPLICATE: `uuid_seen` or `app_version_seen`."""
    message: str = ""
    transactions: int = 0
    """How many transactions the version holds; 0 = not known."""
    reserved: range | None = None
    """ReserveFragments: the fragment ids that are now the caller's."""
    queued_ms: int = 0
    """From the record's timestamp until the committer looked at it; 0 = not known."""
    commit_ms: int = 0
    """From there until the version was durable; 0 = not known."""
    attempts: int = 1
    """How often it was tried, with `reexecute`."""

    @property
    def duplicate(self) -> bool:
        """Whether it had been committed before."""
        return self.status is CommitStatus.DUPLICATE


def interpret(outcome: Outcome) -> CommitResult | ClientError:
    """The result to return, or the error to raise."""
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
    error = kind(_message(outcome), code=outcome.reason or None, uuid=outcome.uuid)
    error.offset = outcome.offset
    error.operation = outcome.operation
    error.read_version = outcome.read_version
    error.conflicting_version = outcome.conflicting_version or None
    error.conflicting_operation = outcome.conflicting_operation
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
    """One line that stands alone in a log: which transaction, what was said."""
    said = outcome.message or outcome.reason or "no reason given"
    what = f"{outcome.operation or 'transaction'} {outcome.uuid or 'without uuid'}"
    return f"{what} (offset {outcome.offset} of {outcome.topic}): {said}"
