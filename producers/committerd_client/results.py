"""The result of a commit."""

from __future__ import annotations

from dataclasses import dataclass

from committerd_common.backports import StrEnum


class CommitStatus(StrEnum):
    """The status of a transaction that is in the table; both mean success."""

    COMMITTED = "COMMITTED"
    DUPLICATE = "DUPLICATE"
    """The transaction, or its app version, was committed before; nothing was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The transaction is in the table."""

    uuid: str
    status: CommitStatus
    version: int | None
    """The table version that holds it; None if that is not known any more (DUPLICATE only)."""
    offset: int
    """The record's offset in the staged topic; -1 if `resume` found that it was committed by hand, without a record."""
    operation: str
    """The operation's name in the Transaction message: `append`, `overwrite`, ..."""
    reason: str = ""
    """DUPLICATE: `uuid_seen` or `app_version_seen`."""
    message: str = ""
    transactions: int = 0
    """Number of transactions in the version; 0 = not known."""
    reserved: range | None = None
    """ReserveFragments: the fragment ids that the caller may use now; else None."""
    queued_ms: int = 0
    """Milliseconds from the record's timestamp until the committer began to process it; 0 = not known."""
    commit_ms: int = 0
    """Milliseconds from there until the version was durable; 0 = not known."""
    attempts: int = 1
    """Number of tries, re-executions included."""

    @property
    def duplicate(self) -> bool:
        """Whether it was committed before."""
        return self.status is CommitStatus.DUPLICATE
