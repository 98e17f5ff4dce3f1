"""The errors of the client: their hierarchy, their attributes, and their relation to pylance's."""

from __future__ import annotations

import pickle
import subprocess
import sys
import sysconfig

import pytest

import committerd_client
from committerd.errors import CommitterError
from committerd_client import (
    ClientError,
    CommitConflict,
    CommitResult,
    CommitStatus,
    CommitTimeout,
    Expired,
    IncompatibleConflict,
    InFlightFull,
    InvalidTransaction,
    NotCommitted,
    RetryableConflict,
    Undecided,
    UnsupportedTransaction,
    errors,
)
from committerd_client.outcomes import interpret
from committerd_common.messages import (
    COMMITTED,
    DUPLICATE,
    EXPIRED,
    INCOMPATIBLE,
    INVALID,
    RETRYABLE,
    UNDECIDED,
    UNSUPPORTED,
    Outcome,
    Status,
)
from tests.producers.old_pylance import ROOT, old_pylance

ERRORS = {
    RETRYABLE: RetryableConflict,
    INCOMPATIBLE: IncompatibleConflict,
    INVALID: InvalidTransaction,
    UNSUPPORTED: UnsupportedTransaction,
    EXPIRED: Expired,
    UNDECIDED: Undecided,
}


def outcome(status: Status.ValueType) -> Outcome:
    return Outcome(
        uuid="5e1d",
        status=status,
        version=9 if status in (COMMITTED, DUPLICATE) else 0,
        read_version=3,
        operation="append",
        reason="some_reason",
        message="in words",
        conflicting_version=7,
        conflicting_operation="overwrite",
        commit_ms=12,
        topic="d.staged",
        offset=41,
    )


def test_every_status_is_a_result_or_an_error() -> None:
    assert {*ERRORS, COMMITTED, DUPLICATE, 0} == set(Status.values())


@pytest.mark.parametrize("status", ERRORS)
def test_a_refusal_says_what_where_and_why(status: Status.ValueType) -> None:
    error = interpret(outcome(status))
    assert isinstance(error, ERRORS[status])
    assert (error.uuid, error.code, error.offset) == ("5e1d", "some_reason", 41)
    assert str(error) == "append 5e1d (offset 41 of d.staged): in words"
    if isinstance(error, NotCommitted):
        assert (error.operation, error.read_version) == ("append", 3)
        assert (error.conflicting_version, error.conflicting_operation) == (7, "overwrite")
        assert error.commit_ms == 12


def test_an_undecided_transaction_is_not_among_those_that_are_certainly_not_committed() -> None:
    assert not issubclass(Undecided, NotCommitted)
    assert not issubclass(CommitTimeout, NotCommitted)


def test_a_status_that_this_client_does_not_know_is_undecided() -> None:
    answer = outcome(UNDECIDED)
    answer.ParseFromString(answer.SerializeToString() + b"\x10\x63")  # status = 99
    error = interpret(answer)
    assert isinstance(error, Undecided)
    assert error.code == "status_unknown"
    assert "status 99 is newer than this client" in str(error)


@pytest.mark.parametrize("status", [COMMITTED, DUPLICATE])
def test_both_ways_of_being_in_the_table_are_results(status: Status.ValueType) -> None:
    result = interpret(outcome(status))
    assert isinstance(result, CommitResult)
    assert result.status == CommitStatus(Status.Name(status))
    assert result.duplicate == (status == DUPLICATE)
    assert (result.version, result.offset, result.reason) == (9, 41, "some_reason")


def test_a_version_that_is_not_known_any_more_is_none() -> None:
    answer = outcome(DUPLICATE)
    answer.version = 0
    result = interpret(answer)
    assert isinstance(result, CommitResult)
    assert result.version is None


def test_reserved_fragments_are_a_half_open_range() -> None:
    answer = outcome(COMMITTED)
    assert isinstance(none := interpret(answer), CommitResult)
    assert none.reserved is None
    answer.reserved_first, answer.reserved_count = 17, 3
    assert isinstance(some := interpret(answer), CommitResult)
    assert some.reserved is not None
    assert list(some.reserved) == [17, 18, 19]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip(" │├└─").split(" ")[0] if line.startswith("    ") else ""
        if name in vars(errors):
            depth = (len(line) - len(line.lstrip(" │├└─")) - 4) // 4
            path[depth:] = [name]
            drawn[name] = path[depth - 1] if depth else "CommitterError"
    classes = {
        name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, ClientError)
    }
    assert drawn == {name: cls.__bases__[0].__name__ for name, cls in classes.items()}
    assert set(classes) <= set(committerd_client.__all__)
    assert issubclass(ClientError, CommitterError)


@pytest.mark.parametrize("kind", [CommitTimeout, InFlightFull])
def test_what_took_too_long_is_a_timeout_error(kind: type[ClientError]) -> None:
    error = kind("too long", uuid="5e1d")
    assert isinstance(error, TimeoutError)
    assert str(error) == "too long"


@pytest.mark.parametrize("status", ERRORS)
def test_errors_travel_between_processes(status: Status.ValueType) -> None:
    import lance.commit  # the harder case: the class is made at run time  # noqa: F401

    error = interpret(outcome(status))
    assert isinstance(error, ClientError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.pylance
def test_conflicts_are_also_pylances_own_error() -> None:
    from lance.commit import CommitConflictError

    for status, kind in ERRORS.items():
        error = interpret(outcome(status))
        assert isinstance(error, CommitConflictError) == issubclass(kind, CommitConflict)
    retryable, incompatible = interpret(outcome(RETRYABLE)), interpret(outcome(INCOMPATIBLE))
    assert isinstance(retryable, CommitConflictError)
    assert isinstance(incompatible, CommitConflictError)
    assert (retryable.retryable, incompatible.retryable) == (True, False)


CONFLICT = """
import sys
sys.path[0:0] = {paths!r}
sys.path.append({packages!r})
from committerd_client import IncompatibleConflict, RetryableConflict
assert "lance" not in sys.modules
before = RetryableConflict("words", code="c", uuid="u")
assert "lance" not in sys.modules
from lance.commit import CommitConflictError
assert not isinstance(before, CommitConflictError)
try:
    raise RetryableConflict("words", code="c", uuid="u")
except CommitConflictError as error:
    assert (str(error), error.code, error.uuid, error.retryable) == ("words", "c", "u", True)
    assert isinstance(error, RetryableConflict)
try:
    raise IncompatibleConflict("words")
except RetryableConflict:
    raise AssertionError
except CommitConflictError as error:
    assert not error.retryable
"""


@pytest.mark.pylance
@pytest.mark.parametrize("old", [False, True])
def test_an_error_never_imports_pylance(old: bool) -> None:
    python = old_pylance() if old else sys.executable
    code = CONFLICT.format(paths=[str(ROOT), str(ROOT / "producers")], packages=sysconfig.get_path("platlib"))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
