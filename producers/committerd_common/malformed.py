"""Errors for bytes that can't be decoded.

The error depends on where the bytes are from. In the table they stop its committer (`CorruptTable`). In a staged
transaction, or a file that it adds, they are the producer's fault: the record is refused (`InvalidRequest`), and the
next one is taken. So decoders of such bytes have a parameter `staged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from committerd_common.errors import CorruptTable, InvalidRequest


class MalformedError(ValueError):
    """The fault in the bytes. It never leaves the decoder; `blamed` replaces it."""


@contextmanager
def blamed(what: str, *, code: str, staged: bool) -> Iterator[None]:
    """Raise `InvalidRequest` (if `staged`) or else `CorruptTable` in place of `MalformedError`.

    The message is `what`, a colon and the fault.
    """
    try:
        yield
    except MalformedError as error:
        blame = InvalidRequest if staged else CorruptTable
        raise blame(f"{what}: {error}", code=code) from error
