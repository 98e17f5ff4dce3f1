"""The errors of a commit, grouped by what the caller does next.

    ClientError                     .code is stable snake_case, .uuid is the transaction's, the message is for people
    ├── NotCommitted                the committer refused it: it is not in the table, and will never be
    │   ├── CommitConflict            also lance.commit.CommitConflictError, if pylance is imported
    │   │   ├── RetryableConflict       do the work again on the latest version, under a new uuid
    │   │   │   └── TableExists           of a create: the table exists
    │   │   └── IncompatibleConflict    doing it again can't help
    │   ├── InvalidTransaction        invalid in itself or for this table
    │   ├── UnsupportedTransaction    this committer does not support it
    │   └── Expired                   the committer reached it after its deadline
    ├── Undecided                   the committer can't tell whether it is in the table: a person has to look
    ├── CommitTimeout               no outcome in time: unknown, not failed. Also TimeoutError
    │   └── OutcomeNotFound           `resume` found no outcome anywhere: unknown as well
    ├── ClientClosed                the client was closed before the outcome came: unknown as well
    ├── SubmitFailed                Kafka refused the record, or did not respond
    │   ├── TransactionTooLarge       larger than a record may be
    │   └── InFlightFull              no room among the records in flight in time; nothing was sent. Also TimeoutError
    ├── StagingError                the change can't be made a transaction; nothing was sent. Also ValueError
    ├── TableMissing                there is no table at the URI; nothing was sent
    └── KafkaUnavailable            the client could not connect

`commit_many` raises a `CommitManyFailed`, an `ExceptionGroup` of them.

After an error that leaves the outcome unknown, commit *the same transaction* again, with its uuid: if it was committed
before, it gets DUPLICATE. The same data under a new uuid may be committed twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from committerd_client.results import CommitResult
from committerd_common.backports import ExceptionGroup, Self
from committerd_common.errors import CommitterError


class ClientError(CommitterError):
    """Base of all errors of this package, except those for wrong arguments (`ValueError`, `TypeError`)."""

    offset: int | None = None
    """The record's offset in the staged topic; None if it was not sent, or Kafka has not acknowledged it."""
    attempts: int = 1
    """Number of tries, re-executions included; the error is that of the last try."""
    work: Any = None
    """The transaction of the last try, or None if nothing was staged. If the outcome is unknown, `client.commit(work)`
    is always safe: it is in the table once."""

    unknown: bool = False
    """Whether the transaction may be in the table, or may get there later. If not, it is not there and never will be.
    """

    def __init__(self, message: str, *, code: str | None = None, uuid: str = "") -> None:
        super().__init__(message, code=code)
        self.uuid = uuid

    def __reduce__(self) -> tuple[Callable[..., ClientError], tuple[Any, ...]]:
        # The default would lose the fields outside `args`, and could not find a class that `_also_pylance` has made.
        declared = getattr(type(self), "_declared", type(self))
        return _rebuild, (declared, self.args, dict(self.__dict__))


class NotCommitted(ClientError):
    """The committer refused the transaction. `code` is the outcome's reason, such as `concurrent_overwrite`."""

    operation: str = ""
    read_version: int = 0
    conflicting_version: int | None = None
    """The committed version that this transaction conflicts with, if that is the reason."""
    conflicting_operation: str = ""
    commit_ms: int = 0
    """Milliseconds from when the committer began to process it until its refusal was durable; 0 = not known."""


class CommitConflict(NotCommitted):
    """The transaction conflicts with one that was committed since its read version."""

    retryable: bool
    """Whether the work can be done again on the latest version; pylance's error has the same attribute."""

    def __new__(cls, message: str, **_fields: Any) -> Self:
        made = _also_pylance(cls)
        # pylance 14.0.2: CommitConflictError is an OSError, which takes its arguments here. 4.0.0: a plain Exception.
        maker: Any = OSError if issubclass(made, OSError) else Exception
        error: Self = maker.__new__(made, message)
        return error

    def __init__(self, message: str, *, code: str | None = None, uuid: str = "") -> None:
        super().__init__(message, code=code, uuid=uuid)
        self.retryable = isinstance(self, RetryableConflict)


class RetryableConflict(CommitConflict):
    """Do the work again on the latest version: new fragments, new read version, new uuid."""

    code = "conflict"


class TableExists(RetryableConflict):
    """A create was refused because the table exists."""

    code = "table_exists"


class IncompatibleConflict(CommitConflict):
    """The same work can't be committed any more, however often it is tried."""

    code = "conflict"


class InvalidTransaction(NotCommitted):
    """The transaction is invalid; the message says what and where.

    It is also a dead letter, unless the client itself refused it.
    """

    code = "invalid"


class UnsupportedTransaction(NotCommitted):
    """The transaction is well-formed, but this committer does not support its operation or a feature of it.

    It is also a dead letter.
    """

    code = "unsupported"


class Expired(NotCommitted):
    """The deadline had passed when the committer reached the record."""

    code = "expired"


class Undecided(ClientError):
    """The committer can't tell whether the table holds the transaction. Look before you do the work again."""

    unknown = True
    code = "undecided"


class CommitTimeout(ClientError, TimeoutError):
    """No outcome came in time. The transaction may have been committed, or may be committed later."""

    unknown = True
    code = "timeout"
    why: str = ""
    """The cause: `kafka` (it does not respond), `no_topic`, `no_committer`, `refuses` (the committer refuses to run),
    `no_table`, `paused` (an operator has paused the queue), `open_transaction`, `behind` (other records are ahead),
    `passed` (it has an outcome, which was not read), `stalled`, or "" (not known). The message has the details."""


class OutcomeNotFound(CommitTimeout):
    """Neither the outcomes topic nor the table's history has the outcome."""

    code = "outcome_not_found"


class ClientClosed(ClientError):
    """The client was closed. The outcome of a submitted transaction is unknown; it may be committed."""

    code = "client_closed"

    def __init__(self, message: str, *, code: str | None = None, uuid: str = "") -> None:
        super().__init__(message, code=code, uuid=uuid)
        self.unknown = bool(uuid)  # without a uuid nothing was sent


class SubmitFailed(ClientError):
    """Kafka did not accept the record; `__cause__` is kafka-python's error."""

    unknown = True
    code = "submit_failed"


class TransactionTooLarge(SubmitFailed):
    """The transaction is larger than a record may be."""

    unknown = False
    code = "transaction_too_large"


class InFlightFull(SubmitFailed, TimeoutError):
    """The records in flight left no room for another one until the caller's timeout; nothing was sent."""

    unknown = False
    code = "in_flight_full"


class KafkaUnavailable(ClientError):
    """No broker responded, the login failed, or the dataset's topics don't exist."""

    code = "kafka_unavailable"


class StagingError(ClientError, ValueError):
    """The change can't be turned into a transaction. Nothing was sent; the message says what to do instead.

    Codes: `blob_columns`, `branch`, `column`, `detached_version`, `duplicate_keys`, `files_elsewhere`, `fragment`,
    `fragments_reserved`, `index`, `key_type`, `keys_missing`, `legacy_files`, `not_as_before`, `nothing_to_stage`,
    `null_keys`, `null_values`, `predicate_not_deterministic`, `pylance_panic`, `reserved_property`, `schema_differs`,
    `table_unknown_fields`, `unknown_to_committerd`, `version`.
    """


class TableMissing(ClientError):
    """There is no table at the URI. Nothing was sent."""

    code = "table_missing"


class CommitManyFailed(ExceptionGroup[ClientError]):
    """Some of many transactions were refused, or have no known outcome.

    The group holds their errors; `results` holds the result or error of each transaction, in order. `error.unknown`
    tells the two kinds apart: commit transactions of unknown outcome again as they are, and do refused work anew.
    """

    results: Sequence[CommitResult | ClientError]

    @classmethod
    def of(cls, results: Sequence[CommitResult | ClientError]) -> Self:
        """The group for these results, of which at least one is an error."""
        errors = [result for result in results if isinstance(result, ClientError)]
        unknown = sum(error.unknown for error in errors)
        counts = {"were refused": len(errors) - unknown, "have no known outcome": unknown}
        told = " and ".join(f"{count} of {len(results)} transactions {what}" for what, count in counts.items() if count)
        made = cls(told, errors)
        made.results = results
        return made

    @property
    def refused(self) -> list[ClientError]:
        """The errors of transactions that are not in the table and never will be."""
        return [error for error in self.results if isinstance(error, ClientError) and not error.unknown]

    @property
    def unknown(self) -> list[ClientError]:
        """The errors of transactions that may be in the table, or may get there later."""
        return [error for error in self.results if isinstance(error, ClientError) and error.unknown]

    def derive(self, excs: Sequence[ClientError], /) -> CommitManyFailed:  # type: ignore[override]
        # For `except*` and `split`: a part keeps the results of all.
        part = CommitManyFailed(self.message, excs)
        part.results = self.results
        return part


def _also_pylance(cls: type[CommitConflict]) -> type[CommitConflict]:
    """`cls` itself, or a subclass of it and of pylance's CommitConflictError.

    The lookup happens when an error is made, and only if `lance.commit` is imported already. Otherwise no `except` can
    name its class, and an import here would cost a third of a second.
    """
    theirs = getattr(sys.modules.get("lance.commit"), "CommitConflictError", None)
    return _combined(cls, theirs) if isinstance(theirs, type) and not issubclass(cls, theirs) else cls


_COMBINED: dict[tuple[type, type], type[CommitConflict]] = {}


def _combined(cls: type[CommitConflict], theirs: type) -> type[CommitConflict]:
    made = _COMBINED.get((cls, theirs))
    if made is None:
        fields = {"__module__": cls.__module__, "__doc__": cls.__doc__, "_declared": cls}
        made = _COMBINED.setdefault((cls, theirs), type(cls.__name__, (cls, theirs), fields))
    return made


def _rebuild(cls: type[ClientError], args: tuple[Any, ...], fields: dict[str, Any]) -> ClientError:
    error = cls(*args)
    error.__dict__.update(fields)
    return error
