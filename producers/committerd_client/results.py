"""What a commit returns."""

from __future__ import annotations

from dataclasses import dataclass

from committerd_common.backports import StrEnum


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
