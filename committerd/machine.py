"""Errors of the process or the machine: it lacks memory, threads, file handles, disk, a module or its certificates.

They belong to no record, even if they come while one is judged: the record waits. See docs/decisions/whose-fault.md.
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Literal, get_args

from committerd.errors import MachineUnavailable, RequestError

Shortage = Literal["memory", "threads", "files", "disk", "imports", "certificates"]
"""What the process or the machine lacks."""
SHORTAGES: tuple[Shortage, ...] = get_args(Shortage)

_OF_NUMBERS: dict[int, Shortage] = {
    errno.ENOMEM: "memory",
    errno.EAGAIN: "threads",  # fork, clone and mmap beyond a limit
    errno.EMFILE: "files",
    errno.ENFILE: "files",
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EROFS: "disk",
    errno.EIO: "disk",
}
_CERTIFICATE_FILE = re.compile(r"\[X509: |PEM lib|cadata does not contain a certificate")
"""What OpenSSL says of a file that should hold certificates or a key; other errors of TLS are of the connection."""
_NO_THREAD = "can't start new thread"
"""The message of Python's `RuntimeError` where the system starts no thread."""


def shortage_of(error: BaseException) -> Shortage | None:
    """What the process or the machine lacks, as the error says, or one of its group, or one that led to it.

    None = it says nothing of the kind. The error of a record says nothing, whatever led to it.
    """
    return next((found for one in _with_causes(error) if (found := _said_by(one)) is not None), None)


def unavailable(error: BaseException) -> MachineUnavailable | None:
    """The error to raise instead of one of the process or the machine; None for any other error."""
    if isinstance(error, MachineUnavailable):
        return error
    lacks = shortage_of(error)
    return None if lacks is None else MachineUnavailable(f"{_described(lacks)}: {type(error).__name__}: {error}")


def _said_by(error: BaseException) -> Shortage | None:
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, ImportError):
        return "imports"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return "threads"
    if isinstance(error, ssl.SSLError):
        of_peer = isinstance(error, ssl.SSLCertVerificationError)
        return "certificates" if of_peer or _CERTIFICATE_FILE.search(str(error)) else None
    return _OF_NUMBERS.get(error.errno or 0) if isinstance(error, OSError) else None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the members of a group, and the errors that led to each, once each."""
    seen, left = set[int](), [error]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, RequestError):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
        context = None if one.__suppress_context__ or isinstance(one.__context__, BlockingIOError) else one.__context__
        left += [led for led in (one.__cause__, context) if led is not None]


def _described(lacks: Shortage) -> str:
    match lacks:
        case "imports":
            return "a module can't be imported here"
        case "certificates":
            return "certificates can't be read or verified here"
        case "files":
            return "this process or its machine has no more file handles"
        case _:
            return f"this process or its machine has not enough {lacks}"


class Machine:
    """The errors of the process and the machine that a committer meets, for `/readyz` and the metrics."""

    def __init__(self, count: Callable[[Shortage], None] = lambda lacks: None) -> None:
        """`count`: called with what is lacking, once for each error."""
        self._count = count
        self.trouble = ""
        """What was lacking when work failed last; empty once work has succeeded."""

    def note(self, error: BaseException) -> None:
        """Note what is lacking, if the error says so."""
        lacks = shortage_of(error)
        if lacks is not None:
            self._count(lacks)
            self.trouble = str(unavailable(error))

    def works(self) -> None:
        """Note that work has succeeded."""
        self.trouble = ""
