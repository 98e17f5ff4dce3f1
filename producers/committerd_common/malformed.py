"""Whose fault it is that bytes can't be decoded.

The same bytes mean different things by where they come from. In the table they stop the table
(`CorruptTable`); in a staged transaction or a file that it brings they are the producer's, who
gets an answer while the next record goes on (`InvalidRequest`). So decoders of such bytes take
`staged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from committerd_common.errors import CorruptTable, InvalidRequest


class MalformedError(ValueError):
    """What is wrong with the bytes. Never leaves the decoder: see `blamed`."""


@contextmanager
def blamed(what: str, *, code: str, staged: bool) -> Iterator[None]:
    """Turn `MalformedError` into `InvalidRequest` (staged) or `CorruptTable` (not).

    The message is `what`, a colon and the fault.
    """
    try:
        yield
    except MalformedError as error:
        blame = InvalidRequest if staged else CorruptTable
        raise blame(f"{what}: {error}", code=code) from error
