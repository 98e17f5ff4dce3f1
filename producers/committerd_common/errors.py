"""Exceptions that the client and the committer share.

    CommitterError                  .code is stable snake_case: metric label and outcome reason; append-only
    ├── RequestError                this record can never be committed
    │   ├── InvalidRequest            it is wrong
    │   └── UnsupportedRequest        it asks for something that committerd does not do
    ├── UnsupportedTable            the table needs a feature that committerd does not write
    └── CorruptTable                what is stored contradicts the format

The client's own errors are in `committerd_client.errors`, the committer's in `committerd.errors`.
"""

from __future__ import annotations


class CommitterError(Exception):
    """Base of all; `code` is for machines, the message for people."""

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class RequestError(CommitterError):
    """A request that can never succeed. The code is the outcome's reason."""


class InvalidRequest(RequestError):
    """It does not parse, or contradicts itself or the table."""

    code = "invalid"


class UnsupportedRequest(RequestError):
    """It is well-formed, but asks for something that committerd does not do."""

    code = "unsupported"


class UnsupportedTable(CommitterError):
    """The table uses a feature that committerd must not write over."""

    code = "unsupported_table"


class CorruptTable(CommitterError):
    """What is stored breaks the format, or what we were about to store would."""

    code = "corrupt_table"
