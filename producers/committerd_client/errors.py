"""What a commit can raise, grouped by what whoever catches it does next.

    ClientError                     .code is stable snake_case, .uuid the transaction's, the message is for people
    ├── NotCommitted                the committer has answered: it is not in the table, and will never be
    │   ├── CommitConflict            also lance.commit.CommitConflictError, where pylance is imported
    │   │   ├── RetryableConflict       do the work again on the latest version, under a new uuid
    │   │   └── IncompatibleConflict    doing it again can't help
    │   ├── InvalidTransaction        wrong in itself or for this table
    │   ├── UnsupportedTransaction    not the committer's to do
    │   └── Expired                   the committer got to it after its deadline
    ├── Undecided                   the committer can't tell whether it is in the table: a person has to look
    ├── CommitTimeout               no answer in time: unknown, not failed. Also TimeoutError
    │   └── OutcomeNotFound           `resume` found no answer anywhere: unknown as well
    ├── ClientClosed                closed before the answer came: unknown as well
    ├── SubmitFailed                Kafka refused the record, or could not be asked
    │   ├── TransactionTooLarge       larger than a record may be; nothing was sent
    │   └── InFlightFull              no room among the sends in flight in time; nothing was sent. Also TimeoutError
    └── KafkaUnavailable            the client could not start

`commit_many` raises them together, as a `CommitManyFailed`, which is an `ExceptionGroup`.

After anything that leaves the outcome unknown, commit *the same transaction* again, with its uuid: it is answered
DUPLICATE when it was committed before. The same data under a new uuid would be committed twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from committerd_client.results import CommitResult
from committerd_common.backports import ExceptionGroup, Self
from committerd_common.errors import CommitterError


class ClientError(CommitterError):
    """Base of all that this package raises, wrong arguments (`ValueError`, `TypeError`) aside."""

    offset: int | None = None
    """Of the record in the staged topic; None when nothing was sent, or Kafka has not acknowledged it."""
    attempts: int = 1
    """How often it was tried, with `reexecute`; the error is about the last try."""

    def __init__(self, message: str, *, code: str | None = None, uuid: str = "") -> None:
        super().__init__(message, code=code)
        self.uuid = uuid

    def __reduce__(self) -> tuple[Callable[..., ClientError], tuple[Any, ...]]:
        # The default would lose what is not in `args`, and look for the class made below under the name of its parent.
        declared = getattr(type(self), "_declared", type(self))
        return _rebuild, (declared, self.args, dict(self.__dict__))


class NotCommitted(ClientError):
    """Refused. `code` is the outcome's reason, such as `concurrent_overwrite`."""

    operation: str = ""
    read_version: int = 0
    conflicting_version: int | None = None
    """The committed version that this transaction could not pass, where that was the reason."""
    conflicting_operation: str = ""


class CommitConflict(NotCommitted):
    """It contradicts what was committed since its read version."""

    retryable: bool
    """As on pylance's error: whether the work can be done again on the latest version."""

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


class IncompatibleConflict(CommitConflict):
    """The same work can't be done any more, however often it is tried."""

    code = "conflict"


class InvalidTransaction(NotCommitted):
    """Wrong; the message says what and where. Also a dead letter, unless the client itself refused it."""

    code = "invalid"


class UnsupportedTransaction(NotCommitted):
    """Well-formed, but an operation or feature that this committer does not serve. Also a dead letter."""

    code = "unsupported"


class Expired(NotCommitted):
    """Its deadline had passed when its turn came."""

    code = "expired"


class Undecided(ClientError):
    """It can be neither found in the table nor ruled out. Never do the work again without looking."""

    code = "undecided"


class CommitTimeout(ClientError, TimeoutError):
    """Unknown, not failed: it may have been committed, or be committed later."""

    code = "timeout"
    why: str = ""
    """What was found missing: `kafka` (it does not answer), `no_topic`, `no_committer`, `no_table`, `open_transaction`,
    `behind` (other records are ahead), `passed` (answered, but the answer was not read), `stalled`, or "" (not known).
    The message has the details."""


class OutcomeNotFound(CommitTimeout):
    """Neither the outcomes nor the table's history tell what became of it."""

    code = "outcome_not_found"


class ClientClosed(ClientError):
    """The client was closed. For a transaction that was submitted: unknown, not failed."""

    code = "client_closed"


class SubmitFailed(ClientError):
    """Kafka did not take the record; the cause is its error."""

    code = "submit_failed"


class TransactionTooLarge(SubmitFailed):
    """Larger than one record may be."""

    code = "transaction_too_large"


class InFlightFull(SubmitFailed, TimeoutError):
    """Too much was waiting for Kafka's acknowledgement for as long as the caller would wait."""

    code = "in_flight_full"


class KafkaUnavailable(ClientError):
    """No broker answered, login failed, or the dataset's topics are not there."""

    code = "kafka_unavailable"


class CommitManyFailed(ExceptionGroup[ClientError]):
    """Some of many were not committed: the group holds their errors, `results` what became of each, in order."""

    results: Sequence[CommitResult | ClientError]

    @classmethod
    def of(cls, results: Sequence[CommitResult | ClientError]) -> Self:
        """The group for these results, at least one of them an error."""
        errors = [result for result in results if isinstance(result, ClientError)]
        made = cls(f"{len(errors)} of {len(results)} transactions were not committed", errors)
        made.results = results
        return made

    def derive(self, excs: Sequence[ClientError], /) -> CommitManyFailed:  # type: ignore[override]
        # For `except*` and `split`: a part knows the results of all.
        part = CommitManyFailed(self.message, excs)
        part.results = self.results
        return part


def _also_pylance(cls: type[CommitConflict]) -> type[CommitConflict]:
    """`cls` as it is, or a subclass of it and of pylance's CommitConflictError.

    Looked up when an error is made, and only where `lance.commit` is imported already: nobody can have named its
    class in an `except` otherwise, and an import here would cost those a third of a second who don't use it.
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
