"""The bound on records in flight, and the match of outcomes with submissions."""

from __future__ import annotations

import asyncio
import gc

import pytest

from committerd_client import ClientClosed, CommitResult, InFlightFull, InvalidTransaction
from committerd_client.headers import StagedRecord
from committerd_client.in_flight import InFlightLimit, Submission, Submissions
from committerd_common.messages import COMMITTED, INVALID, Outcome


def submission(uuid: str = "a") -> Submission:
    return Submission(StagedRecord(uuid=uuid, value=b"x", headers=[]), size=1)


def outcome(uuid: str, offset: int, version: int = 1) -> Outcome:
    return Outcome(uuid=uuid, offset=offset, version=version, status=COMMITTED)


def version_of(one: Submission) -> int | None:
    assert isinstance(one.result, CommitResult)
    return one.result.version


async def started(room: InFlightLimit, size: int) -> asyncio.Task[None]:
    task = asyncio.create_task(room.take(size, 5))
    await asyncio.sleep(0)
    return task


async def test_room_is_bounded_in_records() -> None:
    room = InFlightLimit(records_max=2, bytes_max=1000)
    await room.take(1, 0)
    await room.take(1, 0)
    third = await started(room, 1)
    assert not third.done()
    room.give_back(1)
    await third
    with pytest.raises(InFlightFull, match="2 records of 2 bytes wait"):
        await room.take(1, 0.01)


async def test_room_is_bounded_in_bytes_but_one_always_fits() -> None:
    room = InFlightLimit(records_max=10, bytes_max=100)
    await room.take(500, 0)
    second = await started(room, 1)
    assert not second.done()
    room.give_back(500)
    await second


async def test_room_is_given_in_the_order_of_asking() -> None:
    room = InFlightLimit(records_max=10, bytes_max=100)
    await room.take(60, 0)
    large, small = await started(room, 90), await started(room, 1)
    assert not small.done(), "a small one must not pass a large one, which would wait for ever"
    room.give_back(60)
    await large
    await small


async def test_room_is_not_lost_to_those_who_stop_waiting() -> None:
    room = InFlightLimit(records_max=1, bytes_max=100)
    await room.take(1, 0)
    cancelled, late, next_one = await started(room, 1), asyncio.create_task(room.take(1, 0)), await started(room, 1)
    cancelled.cancel()
    with pytest.raises(InFlightFull):
        await late
    room.give_back(1)
    await next_one
    room.give_back(1)
    await room.take(1, 0)


async def test_room_given_to_a_task_that_is_cancelled_at_that_moment_is_given_back() -> None:
    room = InFlightLimit(records_max=1, bytes_max=100)
    await room.take(1, 0)
    waiting = await started(room, 1)
    room.give_back(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await room.take(1, 0)


async def test_closing_sends_away_who_waits_for_room() -> None:
    room = InFlightLimit(records_max=1, bytes_max=100)
    await room.take(1, 0)
    waiting = await started(room, 1)
    room.close()
    with pytest.raises(ClientClosed, match="nothing was sent"):
        await waiting
    room.give_back(1)
    await room.take(1, 0)


def test_the_first_answer_counts() -> None:
    table, one = Submissions(), submission()
    table.add(one)
    table.received(outcome("a", 5, version=8))
    table.received(outcome("a", 5, version=9))
    assert version_of(one) == 8
    assert one.offset == 5


def test_answers_to_others_are_left_alone() -> None:
    table, one = Submissions(), submission()
    table.add(one)
    table.received(outcome("b", 5))
    assert one.result is None


def test_two_submissions_of_one_transaction_get_the_same_answer() -> None:
    table, first, second = Submissions(), submission(), submission()
    table.add(first)
    table.add(second)
    assert list(table) == [second, first]
    table.received(outcome("a", 5, version=8))
    assert version_of(first) == version_of(second) == 8


def test_repeating_a_submission_does_not_keep_those_that_were_given_up() -> None:
    table, given_up = Submissions(), submission()
    table.add(given_up)
    given_up.wanted = False
    again = submission()
    table.add(again)
    assert again.namesake is None


@pytest.mark.parametrize("acknowledged_first", [True, False])
def test_an_answer_without_uuid_is_matched_by_offset(acknowledged_first: bool) -> None:
    table, one, other = Submissions(), submission("a"), submission("b")
    table.add(one)
    table.add(other)
    table.staged(other, 6)
    answer = Outcome(offset=5, status=INVALID, reason="header_invalid")
    if acknowledged_first:
        table.staged(one, 5)
        table.received(answer)
    else:
        table.received(answer)
        table.staged(one, 5)
    assert isinstance(one.result, InvalidTransaction)
    assert one.result.uuid == "a"
    assert other.result is None


def test_early_answers_of_others_do_not_pile_up() -> None:
    table = Submissions()
    for offset in range(5_000):
        table.received(Outcome(offset=offset, status=INVALID))
    assert len(table._early) == 1_000


def test_a_submission_that_nobody_waits_for_is_forgotten() -> None:
    table, one = Submissions(), submission()
    table.add(one)
    table.staged(one, 5)
    assert list(table) == [one]
    del one
    gc.collect()
    assert list(table) == []


async def test_every_waiter_has_its_own_patience() -> None:
    one = submission()
    assert not await one.wait_result(0.01)
    patient = asyncio.create_task(one.wait_result(5))
    cancelled = asyncio.create_task(one.wait_result(5))
    await asyncio.sleep(0)
    cancelled.cancel()
    one.stage(3)
    await asyncio.sleep(0)
    assert not patient.done(), "staged is not answered"
    table = Submissions()
    table.add(one)
    table.received(outcome("a", 3))
    assert await patient
    assert await one.wait_result(0)
