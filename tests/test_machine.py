"""Which errors are of the process or the machine, and of no record."""

from __future__ import annotations

import errno
import ssl
import threading
from collections.abc import Callable

import numpy as np
import pytest

from committerd.errors import InvalidRequest, MachineUnavailable, StoreUnavailable
from committerd.machine import Machine, shortage_of, unavailable


def caused(error: Exception, by: BaseException) -> Exception:
    error.__cause__ = by
    return error


def raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # any
        return error
    raise AssertionError


def in_handler() -> None:
    try:
        raise MemoryError
    except MemoryError:
        raise KeyError("while it was handled")  # noqa: B904  # as a bug does it


def in_retry() -> None:
    try:
        raise BlockingIOError(errno.EAGAIN, "try again")
    except BlockingIOError:
        raise TimeoutError  # noqa: B904  # as asyncio does it


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), "memory"),
        (raised(lambda: np.zeros(2**50, np.uint64)), "memory"),
        (OSError(errno.ENOMEM, "no memory"), "memory"),
        (RuntimeError("can't start new thread"), "threads"),
        (OSError(errno.EAGAIN, "no process"), "threads"),
        (OSError(errno.EMFILE, "too many open files"), "files"),
        (OSError(errno.ENFILE, "too many open files"), "files"),
        (OSError(errno.ENOSPC, "full"), "disk"),
        (raised(lambda: __import__("no_such_module")), "imports"),
        (raised(lambda: ssl.create_default_context(cadata="x")), "certificates"),
        (ssl.SSLCertVerificationError("unable to get local issuer certificate"), "certificates"),
        (caused(StoreUnavailable("can't read x"), OSError(errno.EMFILE, "too many open files")), "files"),
        (ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [MemoryError()])]), "memory"),
        (raised(in_handler), "memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_errors_of_the_machine(error: Exception, lacks: str) -> None:
    assert shortage_of(error) == lacks
    failure = unavailable(error)
    assert failure is not None
    assert (failure.code, type(error).__name__ in str(failure)) == ("machine_unavailable", True)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a bug"),
        RecursionError("too deep"),
        RuntimeError("anything else"),
        OSError("no number"),
        OSError(errno.EACCES, "not permitted"),
        ssl.SSLEOFError("the peer has gone"),
        StoreUnavailable("no answer"),
        caused(InvalidRequest("the file can't be read", code="file_unreadable"), OSError(errno.EIO, "an error")),
        raised(in_retry),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors(error: Exception) -> None:
    assert shortage_of(error) is None
    assert unavailable(error) is None


def test_an_error_that_led_to_itself() -> None:
    one, other = KeyError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert shortage_of(one) is None


def test_what_is_said_already_is_not_said_twice() -> None:
    error = MachineUnavailable("there is no memory")
    assert unavailable(error) is error


def test_pythons_message_where_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classification knows this error by its message alone."""
    before = threading.stack_size(2**47)
    try:
        assert shortage_of(raised(threading.Thread(target=int).start)) == "threads"
    finally:
        threading.stack_size(before)


def test_trouble_lasts_until_work_succeeds() -> None:
    counted: list[str] = []
    machine = Machine(counted.append)
    machine.note(StoreUnavailable("no answer"))
    assert machine.trouble == ""
    machine.note(MemoryError("1 GiB"))
    machine.note(ImportError("no pyarrow"))
    assert machine.trouble == "a module can't be imported here: ImportError: no pyarrow"
    assert counted == ["memory", "imports"]
    machine.works()
    assert machine.trouble == ""
