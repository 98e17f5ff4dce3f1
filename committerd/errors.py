"""Exceptions, grouped by what whoever catches them does next.

    CommitterError                  .code is stable snake_case: metric label and outcome reason; append-only
    ├── RequestError                this record can never be committed: refuse it, go on with the next
    │   ├── InvalidRequest            wrong: status INVALID, dead letter
    │   └── UnsupportedRequest        not ours to do: status UNSUPPORTED, dead letter
    ├── Unavailable                 nothing happened: back off and try again, keep the offset
    │   ├── StoreUnavailable
    │   │   └── ObjectUnreadable      perhaps only this object: its record's fault if the table can be read meanwhile
    │   └── QueueUnavailable
    ├── OutcomeUnknown              a put may have landed: read back before anything else
    ├── UnsupportedTable            the table needs a feature that we do not write: write nothing, say so, wait
    ├── CorruptTable                what is stored contradicts the format or our invariants: stop, page
    ├── RefusedToRun                table and topic contradict each other: stop, name the way out
    └── SettingsError               the operator's input is wrong: exit code 2

`OutcomeUnknown` is no `Unavailable` on purpose: a handler that retries blindly must not catch it.
"""

from __future__ import annotations

from committerd_common.errors import (
    CommitterError,
    CorruptTable,
    InvalidRequest,
    RequestError,
    UnsupportedRequest,
    UnsupportedTable,
)

__all__ = [
    "CommitterError",
    "CorruptTable",
    "InvalidRequest",
    "ObjectUnreadable",
    "OutcomeUnknown",
    "QueueUnavailable",
    "RefusedToRun",
    "RequestError",
    "SettingsError",
    "StoreUnavailable",
    "Unavailable",
    "UnsupportedRequest",
    "UnsupportedTable",
]


class Unavailable(CommitterError):
    """The other side did not answer and nothing happened there."""

    code = "unavailable"


class StoreUnavailable(Unavailable):
    """The object store refused or failed; no object was changed."""

    code = "store_unavailable"


class ObjectUnreadable(StoreUnavailable):
    """The store refuses to read one object: it may not be read, or is no regular file. Others may be readable."""


class QueueUnavailable(Unavailable):
    """Kafka refused or failed; nothing was published or acknowledged."""

    code = "queue_unavailable"


class OutcomeUnknown(CommitterError):
    """The answer to a put was lost; the object may exist."""

    code = "outcome_unknown"


class RefusedToRun(CommitterError):
    """Going on would lose, double or contradict something that was told. The code is the cause."""

    code = "refused"


class SettingsError(CommitterError):
    """A setting is missing, misspelt or contradicts another."""

    code = "settings"
