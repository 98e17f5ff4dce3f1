"""An error on one record refuses that record only, and no other record notices."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from committerd.committer import containing, deciding, decoding, members, starting
from committerd.errors import CorruptTable, StoreUnavailable
from committerd.queue import grouping
from committerd.table import judge as real_judge
from committerd.table import prepare
from committerd_common import request
from committerd_common.messages import COMMITTED, INVALID, Outcome, Transaction
from committerd_common.paths import data_key
from tests.simulation.staging import Staged
from tests.simulation.world import Report, Scenario, World, simulate

ERRORS: Sequence[Callable[[], Exception]] = (
    lambda: RecursionError("maximum recursion depth exceeded"),
    lambda: KeyError("\ud800 is no text"),
    lambda: CorruptTable("the next version would not be sound", code="index_field"),
    lambda: ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [TypeError("two")])]),
)


def is_poisoned(transaction: Transaction) -> bool:
    """Whether it is a bad record, or a version that holds one."""
    return any(file.path.startswith("bad") for one in transaction.append.fragments for file in one.files)


def bad(staged: Staged) -> Staged:
    """The transaction with a file by whose name the tests recognise it."""
    transaction = Transaction.FromString(staged.value)
    path = f"bad-{transaction.append.fragments[0].files[0].path}"
    transaction.append.fragments[0].files[0].path = path
    return Staged(value=transaction.SerializeToString(), headers=staged.headers, files=[path])


def run(
    plan: Callable[[World], list[Staged]], *, records: int = 20, **settings: object
) -> tuple[Report, list[tuple[bool, Outcome]]]:
    """Stage a plan; return whether each record is a bad one, and its outcome."""

    def prepared(world: World) -> None:
        world.producers.plan = plan(world)
        world.auditor.may_fail_inside = True

    report = simulate(1, Scenario(records=records, seconds=2.0, settings=settings), prepare=prepared)
    assert report.violation is None, report.text()
    topic_id = report.world.broker.topic_id
    assert topic_id is not None
    answers = report.world.auditor.answers
    return report, [(b"bad-" in s.value, answers[topic_id, r.offset]) for s, r in report.world.producers.records]


def some_are_bad(world: World) -> list[Staged]:
    """Two bad records, one after the other."""
    plain = [world.producers.plain() for _ in range(20)]
    return [bad(one) if number in (3, 8, 9, 17) else one for number, one in enumerate(plain)]


def require_contained(answers: Sequence[tuple[bool, Outcome]], reason: str = "internal_error") -> None:
    assert sum(is_bad for is_bad, _ in answers) == 4
    for is_bad, answer in answers:
        expected = (INVALID, reason) if is_bad else (COMMITTED, "")
        assert (answer.status, answer.reason) == expected, answer


@pytest.mark.parametrize("make", ERRORS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("coalesce", ["all", "none"])
def test_what_fails_while_it_is_judged_is_refused(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception], coalesce: str
) -> None:

    def failing(history: Any, latest: Any, transaction: Transaction, **options: Any) -> Any:
        if is_poisoned(transaction):
            raise make()
        return (yield from real_judge.judge(history, latest, transaction, **options))

    monkeypatch.setattr(deciding, "judge", failing)
    require_contained(run(some_are_bad, coalesce=coalesce)[1])


@pytest.mark.parametrize("make", ERRORS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("coalesce", ["all", "none"])
def test_who_can_not_be_built_with_others_is_found_out(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception], coalesce: str
) -> None:

    def failing(latest: Any, judged: Any, **options: Any) -> Any:
        if is_poisoned(judged.transaction):
            raise make()
        return (yield from prepare.build_version(latest, judged, **options))

    monkeypatch.setattr(members, "build_version", failing)
    require_contained(run(some_are_bad, coalesce=coalesce)[1])


def test_looking_for_many_culprits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other of 400 records: each costs a few builds of few records, not one of all waiting records."""
    built = 0

    def failing(latest: Any, judged: Any, **options: Any) -> Any:
        nonlocal built
        built += len(judged.transaction.append.fragments)
        if is_poisoned(judged.transaction):
            raise KeyError
        return (yield from prepare.build_version(latest, judged, **options))

    def every_other(world: World) -> list[Staged]:
        plain = [world.producers.plain() for _ in range(400)]
        return [bad(one) if number % 2 else one for number, one in enumerate(plain)]

    monkeypatch.setattr(members, "build_version", failing)
    _, answers = run(every_other, records=400)
    assert [answer.status for _, answer in answers] == [INVALID if is_bad else COMMITTED for is_bad, _ in answers]
    assert built < 6_000


def test_what_fails_while_it_is_decoded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:

    def failing(body: bytes, *, bytes_max: int) -> Transaction:
        if b"bad-" in body:
            raise RecursionError
        return request.decode_transaction(body, bytes_max=bytes_max)

    monkeypatch.setattr(decoding, "decode_transaction", failing)
    monkeypatch.setattr(starting, "decode_transaction", failing)
    require_contained(run(some_are_bad)[1])


def test_not_even_the_refusal_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:

    def failing(refused: Any, *, transaction: Transaction | None, **options: Any) -> Any:
        if transaction is not None and is_poisoned(transaction):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return grouping.refusal_of(refused, transaction=transaction, **options)

    def refusing(history: Any, latest: Any, transaction: Transaction, **options: Any) -> Any:
        if is_poisoned(transaction):
            raise KeyError
        return (yield from real_judge.judge(history, latest, transaction, **options))

    monkeypatch.setattr(deciding, "refusal_of", failing)
    monkeypatch.setattr(deciding, "judge", refusing)
    require_contained(run(some_are_bad)[1])


def test_an_outage_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outage comes alone, or in an exception group."""
    failed = 0

    def failing(history: Any, latest: Any, transaction: Transaction, **options: Any) -> Any:
        nonlocal failed
        if is_poisoned(transaction) and failed < 6:
            failed += 1
            error = StoreUnavailable("no answer")
            raise error if failed % 2 else ExceptionGroup("several", [ValueError("x"), error])
        return (yield from real_judge.judge(history, latest, transaction, **options))

    monkeypatch.setattr(deciding, "judge", failing)
    _, answers = run(some_are_bad)
    assert {answer.status for _, answer in answers} == {COMMITTED}
    assert failed == 6


@pytest.mark.parametrize("make", [MemoryError, lambda: OSError(errno.EMFILE, "too many open files")])
def test_an_error_of_the_machine_is_no_records_fault(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception]
) -> None:
    """The machine recovers after a while."""
    failed = 0

    def failing(history: Any, latest: Any, transaction: Transaction, **options: Any) -> Any:
        nonlocal failed
        failed += 1
        if 10 < failed <= 20:
            raise make()
        return (yield from real_judge.judge(history, latest, transaction, **options))

    monkeypatch.setattr(deciding, "judge", failing)
    _, answers = run(some_are_bad)
    assert {answer.status for _, answer in answers} == {COMMITTED}
    assert failed > 20


@pytest.mark.parametrize("stage", ["judge", "build", "decode"])
def test_a_record_under_which_only_the_machine_fails_is_refused(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def judging(history: Any, latest: Any, transaction: Transaction, **options: Any) -> Any:
        if is_poisoned(transaction):
            raise MemoryError
        return (yield from real_judge.judge(history, latest, transaction, **options))

    def building(latest: Any, judged: Any, **options: Any) -> Any:
        if is_poisoned(judged.transaction):
            raise MemoryError
        return (yield from prepare.build_version(latest, judged, **options))

    def decode(body: bytes, *, bytes_max: int) -> Transaction:
        if b"bad-" in body:
            raise MemoryError
        return request.decode_transaction(body, bytes_max=bytes_max)

    module, name, failing = {
        "judge": (deciding, "judge", judging),
        "build": (members, "build_version", building),
        "decode": (decoding, "decode_transaction", decode),
    }[stage]
    monkeypatch.setattr(module, name, failing)
    require_contained(run(some_are_bad)[1], "budget_exceeded")


@pytest.mark.parametrize(
    ("module", "function"), [(deciding, "judge"), (members, "build_version"), (decoding, "decode_transaction")]
)
def test_a_release_with_a_bug_does_not_empty_the_queue(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str
) -> None:
    """The bug is there for 30 s, as until another release runs."""
    good = getattr(module, function)

    def failing(*args: Any, **named: Any) -> Any:
        if anyio.current_time() < 30:
            raise KeyError("a bug")
        return good(*args, **named)

    def prepared(world: World) -> None:
        world.producers.plan = [world.producers.plain() for _ in range(60)]
        world.auditor.may_fail_inside = True
        world.causes.add("internal_errors")
        monkeypatch.setattr(module, function, failing)

    report = simulate(1, Scenario(records=60, seconds=2.0), prepare=prepared)
    assert report.violation is None, report.text()
    assert report.world.refused == {"internal_errors"}
    topic_id = report.world.broker.topic_id
    assert topic_id is not None
    answers = [report.world.auditor.answers[topic_id, r.offset] for _, r in report.world.producers.records]
    refused = [answer for answer in answers if answer.status != COMMITTED]
    assert len(refused) <= 2
    assert {answer.reason for answer in refused} <= {"internal_error"}


def test_hundreds_of_crafted_records_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(history: Any, latest: Any, transaction: Transaction, **options: Any) -> Any:
        if is_poisoned(transaction):
            raise KeyError
        return (yield from real_judge.judge(history, latest, transaction, **options))

    def plan(world: World) -> list[Staged]:
        plain = [world.producers.plain() for _ in range(304)]
        return [bad(one) if 2 <= number < 302 else one for number, one in enumerate(plain)]

    monkeypatch.setattr(deciding, "judge", failing)
    _, answers = run(plan, records=304)
    assert [answer.status for _, answer in answers] == [INVALID if is_bad else COMMITTED for is_bad, _ in answers]


def test_creates_that_can_not_be_committed_do_not_keep_a_good_one_from_making_the_table() -> None:
    """There are more of them, in front of it, than are kept in memory."""

    def plan(world: World) -> list[Staged]:
        wrong = []
        for _ in range(300):
            transaction = Transaction.FromString(world.producers.create().value)
            transaction.overwrite.fragments[0].files[0].path = "../outside"
            wrong.append(Staged(value=transaction.SerializeToString()))
        return [*wrong, world.producers.create(), world.producers.plain()]

    def prepared(world: World) -> None:
        world.producers.plan = plan(world)

    scenario = Scenario(records=302, seconds=5.0, table="made_by_queue")
    report = simulate(1, scenario, prepare=prepared)
    assert report.violation is None, report.text()
    topic_id = report.world.broker.topic_id
    assert topic_id is not None
    answers = [report.world.auditor.answers[topic_id, r.offset] for _, r in report.world.producers.records]
    assert [answer.status for answer in answers[-2:]] == [COMMITTED, COMMITTED]
    assert {answer.reason for answer in answers[:-2]} == {"path_outside"}
    # The create that could be committed has made the table, and not the one that ends the simulation.
    assert answers[-2].version == 1


def test_creates_that_had_to_go_from_memory_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's file arrives when 300 others have arrived behind it."""

    async def the_file_comes(world: World) -> None:
        world.bucket.put(data_key(file_of(world.producers.records[0][0])), bytes(100))
        await anyio.lowlevel.checkpoint()

    def file_of(staged: Staged) -> str:
        return Transaction.FromString(staged.value).overwrite.fragments[0].files[0].path

    def prepared(world: World) -> None:
        creates = [world.producers.create() for _ in range(301)]
        world.producers.plan = [Staged(value=one.value, headers=one.headers) for one in creates]

    monkeypatch.setattr(World, "_calm_down", the_file_comes)
    scenario = Scenario(records=301, seconds=5.0, table="made_by_queue", settings={"verify_files": "always"})
    report = simulate(1, scenario, prepare=prepared)
    assert report.violation is None, report.text()
    topic_id = report.world.broker.topic_id
    assert topic_id is not None
    answers = [report.world.auditor.answers[topic_id, r.offset] for _, r in report.world.producers.records]
    assert (answers[0].status, answers[0].version) == (COMMITTED, 1)
    assert {answer.reason for answer in answers[1:]} == {"table_exists"}


def test_the_committers_own_errors_are_raised() -> None:
    with pytest.raises(StoreUnavailable):
        containing.Containment().refuse(StoreUnavailable("no answer"), stage="judge", offset=1)
