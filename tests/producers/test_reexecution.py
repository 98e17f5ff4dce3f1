"""Re-executing refused work, against a real Kafka; and the bookkeeping alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from committerd_client import (
    ClientClosed,
    CommitClient,
    IncompatibleConflict,
    InvalidTransaction,
    Reexecution,
    RetryableConflict,
    Staged,
    Undecided,
    reexecution,
)
from committerd_client.headers import RecordOptions
from committerd_client.reexecution import Attempts, Executions
from committerd_common.messages import INCOMPATIBLE, INVALID, RETRYABLE, UNDECIDED, Outcome, Transaction
from committerd_common.request import AppUnit, decode_envelope
from tests.producers.answering import Answer, answering, append, committed

UUID = "5e1dcf7e-1f0c-4b6e-9f57-0d2f1b3a7c11"


def refusing(times: int, status: int = RETRYABLE) -> Answer:
    def answer(record: Any) -> Iterable[Outcome]:
        refused = {"status": status, "reason": "conflict", "conflicting_version": 4, "version": 0}
        return [committed(record, **(refused if record.offset < times else {}))]

    return answer


@pytest.mark.kafka
async def test_refused_work_is_done_again_until_it_is_committed(servers: str, dataset: str) -> None:
    asked: list[Reexecution] = []
    done: list[Transaction] = []
    deadline = datetime.now(UTC) + timedelta(hours=1)

    async def again(wanted: Reexecution) -> Transaction:
        asked.append(wanted)
        await asyncio.sleep(0)
        done.append(append())
        return done[-1]

    with answering(servers, dataset, refusing(2)) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            first = Staged(transaction=append(UUID), create_only=True, read_uuid=UUID)
            result = await client.commit(first, app=("a", 7, "r"), deadline=deadline, reexecute=again, timeout=60)
        await asyncio.to_thread(committer.wait_for, 3)
    assert (result.version, result.attempts) == (3, 3)
    assert [(w.attempt, w.attempts_max, w.error.conflicting_version) for w in asked] == [(2, 10, 4), (3, 10, 4)]
    assert all(w.seconds_left is not None and 0 < w.seconds_left < 60 for w in asked)
    assert [w.work for w in asked] == [first, done[0]]
    said = [decode_envelope(record.headers) for record in committer.records]
    assert [envelope.attempt for envelope in said] == [1, 2, 3]
    assert [envelope.retry_of for envelope in said] == [None, UUID, asked[1].error.uuid]
    # What belongs to the whole work stays; what belonged to the first transaction does not.
    assert {envelope.app for envelope in said} == {AppUnit(app_id="a", version=7, run="r")}
    assert {envelope.deadline_ms for envelope in said} == {int(deadline.timestamp() * 1000)}
    assert [envelope.create_only for envelope in said] == [True, False, False]
    assert [envelope.read_uuid for envelope in said] == [UUID, None, None]


@pytest.mark.kafka
async def test_a_plain_function_runs_in_a_worker_thread(servers: str, dataset: str) -> None:
    threads: list[threading.Thread] = []

    def again(_: Reexecution) -> Transaction:
        threads.append(threading.current_thread())
        return append()

    with answering(servers, dataset, refusing(1)):
        async with CommitClient(servers, dataset=dataset) as client:
            assert (await client.commit(append(), reexecute=again)).attempts == 2
            assert (await client.commit(append(), reexecute=again)).attempts == 1
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("status", "expected"),
    [(INCOMPATIBLE, IncompatibleConflict), (INVALID, InvalidTransaction), (UNDECIDED, Undecided)],
)
async def test_only_what_can_be_done_again_is(
    servers: str, dataset: str, status: int, expected: type[Exception]
) -> None:
    with answering(servers, dataset, refusing(9, status)):
        async with CommitClient(servers, dataset=dataset) as client:
            with pytest.raises(expected):
                await client.commit(append(), reexecute=lambda _: pytest.fail("it was asked to do the work again"))


@pytest.mark.kafka
async def test_the_number_of_tries_is_bounded_and_told(servers: str, dataset: str) -> None:
    with answering(servers, dataset, refusing(99)) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            with pytest.raises(RetryableConflict, match="given up after 3 attempts") as raised:
                await client.commit(append(), reexecute=lambda _: append(), attempts=3)
            assert raised.value.attempts == 3
            await asyncio.to_thread(committer.wait_for, 3)
            with pytest.raises(RetryableConflict, match="given up by reexecute after 1 attempts"):
                await client.commit(append(), reexecute=lambda _: None)
            with pytest.raises(ZeroDivisionError):
                await client.commit(append(), reexecute=lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
            with pytest.raises(ValueError, match="under a new uuid"):
                await client.commit(append(UUID), reexecute=lambda _: append(UUID))
            with pytest.raises(ValueError, match="attempts=0"):
                await client.commit(append(), attempts=0)


@pytest.mark.kafka
async def test_what_leaves_a_later_try_unknown_is_not_done_again_and_counts_the_tries(
    servers: str, dataset: str
) -> None:
    last = append()
    with answering(servers, dataset, lambda record: [] if record.offset else refusing(1)(record)) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            waiting = asyncio.create_task(client.commit(append(), reexecute=lambda _: last, timeout=None))
            await asyncio.to_thread(committer.wait_for, 2)
        with pytest.raises(ClientClosed, match="unknown, not failed") as raised:
            await waiting
    assert (raised.value.uuid, raised.value.attempts) == (last.uuid, 2)


# The bookkeeping alone


def conflict(uuid: str = UUID, operation: str = "append") -> RetryableConflict:
    error = RetryableConflict("refused", uuid=uuid)
    error.conflicting_operation = operation
    return error


def test_a_unit_whose_mark_has_moved_is_not_executed_again() -> None:
    moved = RetryableConflict("the mark has moved", code="mark_moved", uuid=UUID)
    with pytest.raises(RetryableConflict, match=r"^the mark has moved$"):
        Attempts(append(), RecordOptions(), most=9, reexecutes=True).after(moved, seconds_left=None)


def test_when_the_time_is_up_nothing_more_is_asked_or_sent() -> None:
    with pytest.raises(RetryableConflict, match="refused; the time was up after 1 attempts"):
        Attempts(append(), RecordOptions(), most=9, reexecutes=True).after(conflict(), seconds_left=0.0)
    tries = Attempts(append(), RecordOptions(), most=9, reexecutes=True)
    wanted = tries.after(conflict(), seconds_left=1.0)
    with pytest.raises(RetryableConflict, match="the re-execution that came then was not sent"):
        tries.take(append(), wanted, seconds_left=0.0)


def test_a_caller_that_counts_by_itself_is_continued() -> None:
    tries = Attempts(append(), RecordOptions(attempt=4, retry_of=UUID), most=9, reexecutes=True)
    wanted = tries.after(conflict(), seconds_left=None)
    again = append().SerializeToString()
    tries.take(again, wanted, seconds_left=None)
    assert tries.work == again
    assert (tries.asking.attempt, tries.asking.retry_of) == (5, UUID)


def test_bytes_under_the_old_uuid_are_noticed_too() -> None:
    tries = Attempts(append(), RecordOptions(), most=9, reexecutes=True)
    wanted = tries.after(conflict(), seconds_left=None)
    with pytest.raises(ValueError, match="under a new uuid"):
        tries.take(append(UUID).SerializeToString(), wanted, seconds_left=None)
    tries.take(b"\xff", wanted, seconds_left=None)
    assert tries.work == b"\xff", "said when it is submitted"


def current(can_catch_up: bool = True) -> Staged:
    return Staged(transaction=append(), can_catch_up=can_catch_up)


@pytest.mark.kafka
async def test_what_took_long_is_brought_up_to_date_before_it_is_sent(
    servers: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the executions take on this machine: 2 s, 0.4 s and nothing by the clock that is looked at."""
    asked: list[Reexecution] = []
    done = [current(), current(), current(can_catch_up=False)]
    now = 0.0
    monkeypatch.setattr(reexecution, "time", SimpleNamespace(monotonic=lambda: now))

    async def again(wanted: Reexecution) -> Staged:
        nonlocal now
        asked.append(wanted)
        now += (2.0, 0.4, 0)[len(asked) - 1]
        await asyncio.sleep(0.05)
        return done[len(asked) - 1]

    with answering(servers, dataset, refusing(1)) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            result = await client.commit(append(UUID), reexecute=again, timeout=60)
        await asyncio.to_thread(committer.wait_for, 2)
    assert (result.attempts, result.uuid) == (2, done[2].transaction.uuid)
    assert [wanted.work for wanted in asked[1:]] == done[:2], "what it has just done, and nobody was sent"
    assert {(wanted.attempt, wanted.error.uuid) for wanted in asked} == {(2, UUID)}
    left = [wanted.seconds_left or 0 for wanted in asked]
    assert left[0] > left[1] > left[2]
    assert [decode_envelope(record.headers).retry_of for record in committer.records] == [None, UUID]


@pytest.mark.kafka
async def test_what_can_not_be_brought_up_to_date_is_sent_after_one_execution(servers: str, dataset: str) -> None:
    asked: list[Reexecution] = []

    async def again(wanted: Reexecution) -> Transaction:
        asked.append(wanted)
        await asyncio.sleep(0.4)
        return append()

    with answering(servers, dataset, refusing(2)):
        async with CommitClient(servers, dataset=dataset) as client:
            assert (await client.commit(append(), reexecute=again)).attempts == 3
    assert [wanted.attempt for wanted in asked] == [2, 3]


def rounds_of(
    executions: Iterable[tuple[Staged | Transaction | None, float]],
    *,
    attempt: int = 2,
    seconds: float | None = None,
    operation: str = "append",
) -> tuple[int, Any]:
    """The number of executions, and the work that is sent. Each execution takes this many seconds.

    `operation`: what the refused work conflicts with.
    """
    first = Attempts(append(), RecordOptions(attempt=attempt - 1), most=9, reexecutes=True).after(
        conflict(operation=operation), seconds_left=seconds
    )
    rounds = Executions(first)
    for count, (work, took) in enumerate(executions, 1):
        seconds = None if seconds is None else seconds - took
        rounds.done(work, took=took, seconds_left=seconds)
        if rounds.wanted is None:
            return count, rounds.work
        assert (rounds.wanted.work, rounds.wanted.seconds_left) == (work, seconds)
        assert rounds.wanted.attempt == attempt
    raise AssertionError("more executions are asked for")


@pytest.mark.parametrize(
    ("took", "count"),
    [
        pytest.param([0.3], 1, id="short"),
        pytest.param([0.31, 0.1], 2, id="long, then short"),
        pytest.param([4.0, 2.0, 1.0, 0.5, 0.2], 5, id="half of the time each"),
        pytest.param([4.0, 2.1], 2, id="more than half: it always takes as long"),
        pytest.param([4.0, 5.0], 2, id="longer"),
    ],
)
def test_how_often_work_is_brought_up_to_date(took: list[float], count: int) -> None:
    works = [current() for _ in took]
    assert rounds_of(zip(works, took, strict=True)) == (count, works[count - 1])


@pytest.mark.parametrize("operation", ["delete", "update"])
def test_what_ends_while_its_rows_are_reserved_is_sent_at_once(operation: str) -> None:
    work = current()
    assert rounds_of([(work, 1.0)], operation=operation) == (1, work)
    assert rounds_of([(work, 1.1), (work, 0.5)], operation=operation) == (2, work)


def test_what_can_not_catch_up_or_is_given_up_is_not_asked_for_again() -> None:
    work, other, plain = current(), current(can_catch_up=False), append()
    assert rounds_of([(work, 9.0), (other, 4.0)]) == (2, other)
    assert rounds_of([(plain, 9.0)]) == (1, plain)
    assert rounds_of([(None, 9.0)]) == (1, None)
    assert rounds_of([(work, 9.0), (None, 4.0)]) == (2, None)


def test_while_others_are_held_nothing_is_asked_for_again() -> None:
    work = current()
    assert rounds_of([(work, 9.0)], attempt=3) == (1, work)


def test_after_bringing_up_to_date_half_of_the_time_is_left() -> None:
    work = current()
    assert rounds_of([(work, 5.0), (work, 0.1)], seconds=20.0) == (2, work)
    assert rounds_of([(work, 5.1)], seconds=20.0) == (1, work), "another one may take as long"
    assert rounds_of([(work, 6.0), (work, 3.0), (work, 0.1)], seconds=24.0) == (3, work)
    assert rounds_of([(work, 6.0), (work, 3.0), (work, 1.5), (work, 0.1)], seconds=24.0) == (4, work)
