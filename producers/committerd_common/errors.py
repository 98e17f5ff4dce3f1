"""Exceptions that the client and the committer share.

    CommitterError                  .code is stable snake_case: metric label and outcome reason; append-only
    ├── RequestError                this record can never be committed
    │   ├── InvalidRequest            it is malformed, or contradicts itself or the table
    │   ├── OutdatedRequest           the same work can be committed if it is done again on the latest version
    │   └── UnsupportedRequest        it asks for something that committerd does not do
    ├── UnsupportedTable            the table needs a feature that committerd does not write
    └── CorruptTable                the stored table violates the format

The client's own errors are in `committerd_client.errors`, the committer's in `committerd.errors`.
"""

from __future__ import annotations


class CommitterError(Exception):
    """Base class of all these errors. `code` is for machines, the message for people."""

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class RequestError(CommitterError):
    """A request that can never succeed. The code is the outcome's reason."""


class InvalidRequest(RequestError):
    """The request can't be decoded, or contradicts itself or the table."""

    code = "invalid"


class OutdatedRequest(RequestError):
    """Something of the version that the request was made for is gone: do the work again on the latest version."""

    code = "read_version_gone"


class UnsupportedRequest(RequestError):
    """The request is well-formed, but asks for something that committerd does not do."""

    code = "unsupported"


class UnsupportedTable(CommitterError):
    """The table uses a feature that committerd must not write over."""

    code = "unsupported_table"


class CorruptTable(CommitterError):
    """The stored table violates the format, or the version that committerd was about to store would."""

    code = "corrupt_table"
