"""Exceptions, grouped by the handler's next step.

    CommitterError                  .code is stable snake_case: metric label and outcome reason; append-only
    ├── RequestError                this record can never be committed: refuse it, continue with the next
    │   ├── InvalidRequest            wrong: status INVALID, dead letter
    │   ├── OutdatedRequest           made for a version of which something is gone: status RETRYABLE
    │   └── UnsupportedRequest        not supported: status UNSUPPORTED, dead letter
    ├── Unavailable                 nothing happened: back off and retry, keep the offset
    │   ├── StoreUnavailable
    │   │   └── ObjectUnreadable      may concern only this object: the record's fault if the table itself is readable
    │   ├── QueueUnavailable
    │   └── MachineUnavailable        this process or its machine lacks memory, threads, files, disk, a module
    ├── PutUnknown                  a put may have landed: read back before anything else
    ├── UnsupportedTable            the table needs a feature that committerd does not have: write nothing, report, wait
    ├── CorruptTable                stored data contradicts the format or our invariants: stop, page
    ├── RefusedToRun                table and topic contradict each other, or committerd fails on its own change: stop,
    │                               tell the operator how to resolve it
    ├── SourceError                 an input file of a command can't be read or does not fit: exit code 1
    └── SettingsError               the operator's input is wrong: exit code 2

`PutUnknown` is deliberately not an `Unavailable`: a handler that retries blindly must not catch it.
"""

from __future__ import annotations

from committerd_common.errors import (
    CommitterError,
    CorruptTable,
    InvalidRequest,
    OutdatedRequest,
    RequestError,
    UnsupportedRequest,
    UnsupportedTable,
)

__all__ = [
    "CommitterError",
    "CorruptTable",
    "InvalidRequest",
    "MachineUnavailable",
    "ObjectUnreadable",
    "OutdatedRequest",
    "PutUnknown",
    "QueueUnavailable",
    "RefusedToRun",
    "RequestError",
    "SettingsError",
    "SourceError",
    "StoreUnavailable",
    "Unavailable",
    "UnsupportedRequest",
    "UnsupportedTable",
]


class Unavailable(CommitterError):
    """A service failed or did not respond, and nothing changed there."""

    code = "unavailable"


class StoreUnavailable(Unavailable):
    """The object store refused or failed; no object was changed."""

    code = "store_unavailable"


class ObjectUnreadable(StoreUnavailable):
    """The store refuses to read or delete an object: no permission, or not a regular file. Others may be readable."""


class QueueUnavailable(Unavailable):
    """Kafka refused or failed; nothing was published or acknowledged."""

    code = "queue_unavailable"


class MachineUnavailable(Unavailable):
    """This process or its machine lacks something that the work needs (`committerd.machine`); no record is at fault."""

    code = "machine_unavailable"


class PutUnknown(CommitterError):
    """The response to a put was lost; the object may exist."""

    code = "outcome_unknown"


class RefusedToRun(CommitterError):
    """To continue would lose a record, commit it twice, or contradict a published outcome. The code is the cause."""

    code = "refused"


class SourceError(CommitterError):
    """A file that a command is to read can't be read, or does not fit the table. The message names it."""

    code = "file"


class SettingsError(CommitterError):
    """A setting or argument is missing, misspelt, or contradicts another."""

    code = "settings"


def single_error(error: Exception) -> Exception:
    """The error itself, if it is a group with a single error inside."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
