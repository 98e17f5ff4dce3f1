"""The results of commits."""

from __future__ import annotations

from dataclasses import dataclass, field

from committerd_common.backports import StrEnum

APP_VERSION_SEEN = "app_version_seen"
"""The reason of a DUPLICATE whose version of the application another transaction has brought."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What a call such as `append` or `upsert` did to the table."""

    version: int | None
    """The table version that holds the change, or that was read if there was nothing to change; None if that is not
    known any more (a duplicate only)."""
    num_inserted_rows: int = 0
    num_updated_rows: int = 0
    num_deleted_rows: int = 0
    """Rows that an `overwrite` or a `restore` replaces are not counted."""
    attempts: int = 1
    """How often it was executed: 1, and 1 more after each refusal."""
    duplicate: bool = False
    """Whether the table has the unit `app`, or a later one of that application, so that this call added nothing. If
    `version` is None, it is below the last unit, and its rows need not be in the table."""
    commit: CommitResult | None = field(default=None, repr=False)
    """The commit; None if there was nothing to change, and nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAlone:
    """Fragments that stay as they are, because pylance can't rewrite them."""

    fragments: tuple[int, ...]
    """Their ids."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The result of a compaction."""

    version: int | None = None
    """The table version that holds the new fragments; None if there was nothing to compact."""
    fragments_removed: int = 0
    fragments_added: int = 0
    attempts: int = 1
    """Number of executions, the first included."""
    reindexed: tuple[str, ...] = ()
    """Names of the indices that were optimized to cover the moved rows, because they could not be rewritten."""
    stale: tuple[str, ...] = ()
    """Names of the indices that don't cover the moved rows, because `reindex` was off or pylance can't update them:
    queries scan these rows."""
    bytes_written: int = 0
    """Size of the new data files."""
    left_alone: tuple[LeftAlone, ...] = ()
    """Fragments that pylance can't rewrite, and why; they stay as they are."""
