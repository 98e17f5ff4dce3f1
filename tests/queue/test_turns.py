"""Turns: which records go first, how long the others wait, and that they wait for at most a quarter of the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.queue.port import TopicIdentity
from committerd.queue.position import start_of
from committerd.queue.turns import AHEAD_MAX, HELD_SHARE, TICKETS_MAX, WAITING_MAX, HoldEnding, Tickets, Turns
from tests.queue.turns_load import Load, run

START = start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0)


def held_for(turns: Turns, *uuids: str, now: float) -> list[str]:
    """Refuse each a second time, and begin the hold that is due."""
    for uuid in uuids:
        assert turns.refused(uuid, operation="update", attempt=2)
    return turns.begin(now)


def test_a_first_refusal_holds_nobody_up_and_is_told_at_once() -> None:
    turns = Turns(hold_max=2.0)
    assert not turns.refused("a", operation="update", attempt=1)
    assert turns.begin(10.0) == []
    assert turns.seconds_left(10.0) == 0
    assert turns.seconds_until(10.0) is None
    assert turns.end(["a"], 10.0) is None


def test_a_second_refusal_is_told_when_the_hold_begins_that_ends_with_its_next_try() -> None:
    turns = Turns(hold_max=2.0)
    assert held_for(turns, "a", now=10.0) == ["a"]
    assert turns.seconds_left(10.5) == 1.5
    assert turns.end(["other"], 10.5) is None
    assert turns.end(["other", "a"], 10.5) == (HoldEnding.ARRIVED, 0.5)
    assert turns.seconds_left(10.5) == 0


def test_a_hold_waits_for_all_that_were_refused_meanwhile() -> None:
    turns = Turns(hold_max=2.0)
    assert held_for(turns, "a", now=10.0) == ["a"]
    assert not turns.refused("b", operation="update", attempt=2), (
        "its next try may come in the same hold, so it is told at once"
    )
    assert not turns.refused("first", operation="update", attempt=1)
    assert turns.begin(10.1) == []
    assert turns.end(["a"], 10.5) is None
    assert turns.held_for == {"a", "b"}, "a may be committed although b is still missing"
    assert turns.seconds_left(10.5) == 1.5
    assert turns.end(["b"], 11.0) == (HoldEnding.ARRIVED, 1.0)
    assert not turns.held_for


def test_a_hold_ends_when_its_time_is_over() -> None:
    turns = Turns(hold_max=2.0)
    held_for(turns, "a", now=10.0)
    turns.refused("b", operation="update", attempt=3)
    assert turns.seconds_left(11.0) == 1.0
    assert turns.end([], 12.5) == (HoldEnding.EXPIRED, 2.0)


def test_after_a_hold_the_others_have_a_pause_of_three_times_as_long() -> None:
    turns = Turns(hold_max=2.0)
    held_for(turns, "a", now=0.0)
    assert turns.end(["a"], 0.5) == (HoldEnding.ARRIVED, 0.5)
    assert held_for(turns, "b", now=1.0) == []
    assert turns.seconds_until(1.0) == 1.0
    assert turns.begin(1.9) == []
    assert turns.begin(2.0) == ["b"]
    assert turns.seconds_until(2.0) is None
    assert turns.seconds_left(2.0) == 2.0, "whatever the last one took"


def test_the_pause_begins_when_those_that_were_waited_for_are_committed() -> None:
    turns = Turns(hold_max=2.0)
    held_for(turns, "a", now=0.0)
    assert turns.end(["a"], 0.5) == (HoldEnding.ARRIVED, 0.5)
    turns.pause(3.0)
    assert held_for(turns, "b", now=3.0) == []
    assert turns.seconds_until(3.0) == 1.5
    assert turns.begin(4.5) == ["b"]


def test_when_the_assignment_is_over_nobody_has_a_turn() -> None:
    turns = Turns(hold_max=2.0)
    held_for(turns, "a", now=0.0)
    turns.end(["a"], 1.0)
    held_for(turns, "b", now=8.0)
    assert turns.end(["b"], 10.0) == (HoldEnding.ARRIVED, 2.0)
    assert held_for(turns, "c", now=10.0) == []
    turns.forget()
    assert turns.begin(100.0) == []
    assert (turns.seconds_left(100.0), turns.seconds_until(100.0)) == (0, None)


def test_without_time_to_hold_nothing_is_held_and_all_is_told() -> None:
    turns = Turns(hold_max=0.0)
    assert not turns.refused("a", operation="update", attempt=2)
    assert turns.begin(0.0) == []


def test_no_more_than_so_many_refusals_wait() -> None:
    turns = Turns(hold_max=2.0)
    assert all(turns.refused(str(number), operation="update", attempt=2) for number in range(WAITING_MAX))
    assert not turns.refused("one more", operation="update", attempt=2)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), min_size=1, max_size=60))
def test_held_is_at_most_a_quarter_of_the_time_and_one_hold(steps: list[tuple[float, bool]]) -> None:
    turns, now, held = Turns(hold_max=2.0), 0.0, 0.0
    for number, (wait, arrives) in enumerate(steps):
        turns.refused(str(number), operation="update", attempt=2)
        turns.begin(now)
        assert turns.seconds_left(now) <= 2.0 + 1e-9
        now += wait
        ended = turns.end(list(turns.held_for) if arrives else [], now)
        held += ended[1] if ended else 0.0
    assert held <= 0.25 * now + 2.0 + 1e-6


@given(st.floats(0.1, 2), st.floats(0, 2), st.booleans())
def test_every_refusal_is_told_after_four_holds_time_at_the_latest(
    hold_max: float, seconds: float, arrives: bool
) -> None:
    turns = Turns(hold_max)
    held_for(turns, "a", now=0.0)
    ended_at = min(seconds, hold_max) if arrives else hold_max
    turns.end(["a"] if arrives else [], ended_at)
    turns.refused("b", operation="update", attempt=2)
    wait = turns.seconds_until(ended_at)
    assert wait is not None
    assert wait <= 4 * hold_max + 1e-9
    assert turns.begin(ended_at + wait + 1e-6) == ["b"]


def test_a_refusal_is_a_ticket_that_its_producer_uses_once() -> None:
    tickets = Tickets()
    tickets.give("a", "p")
    tickets.give("b", "")
    assert not tickets.take("a", "another")
    assert not tickets.take("a", "")
    assert not tickets.take("c", "p")
    assert [tickets.take("a", "p") for _ in range(3)] == [True, False, False]
    assert tickets.take("b", "")


def test_a_bounded_number_of_tickets_is_remembered() -> None:
    tickets = Tickets()
    for number in (0, *range(TICKETS_MAX + 1)):
        tickets.give(str(number), "p")
    assert not tickets.take("0", "p")
    assert all(tickets.take(str(number), "p") for number in range(1, TICKETS_MAX + 1))


def test_those_that_wait_together_are_of_one_operation() -> None:
    """A Rewrite and an Update would conflict, and one would be refused in its own turn."""
    turns = Turns(hold_max=2.0)
    assert turns.refused("compaction", operation="rewrite", attempt=2)
    assert turns.refused("upsert", operation="update", attempt=2)
    assert turns.begin(1.0) == ["compaction"]
    assert turns.held_for == {"compaction"}
    assert turns.refused("another upsert", operation="update", attempt=2)
    assert not turns.refused("another compaction", operation="rewrite", attempt=2)
    assert turns.held_for == {"compaction", "another compaction"}
    turns.end(["compaction", "another compaction"], 1.5)
    assert turns.begin(100.0) == ["upsert", "another upsert"]


def test_a_hold_is_for_all_that_wait_as_far_as_a_position_can_carry_them() -> None:
    turns, many = Turns(hold_max=2.0), [str(number) for number in range(AHEAD_MAX + 5)]
    assert held_for(turns, *many, now=0.0) == many[:AHEAD_MAX], "in the order of their refusals"
    assert turns.refused("late", operation="update", attempt=3), "this hold has enough to wait for"
    assert turns.end(many, 1.0) == (HoldEnding.ARRIVED, 1.0)
    assert turns.begin(4.0) == [*many[AHEAD_MAX:], "late"]


def test_the_operation_that_has_waited_longest_comes_first() -> None:
    turns = Turns(hold_max=2.0)
    held_for(turns, "a", now=0.0)
    turns.end([], 2.0)
    for uuid, operation in (("compaction", "rewrite"), ("b", "update"), ("another compaction", "rewrite")):
        assert turns.refused(uuid, operation=operation, attempt=2)
    assert turns.begin(8.0) == ["compaction", "another compaction"]
    assert turns.seconds_until(8.0) is None, "this hold comes first"
    turns.end([], 10.0)
    assert turns.begin(16.0) == ["b"]


@pytest.mark.parametrize("dying", [0.0, 0.03])
@pytest.mark.parametrize("seconds", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("upserters", [1, 2, 16, 64, 200])
def test_upserts_win_under_a_stream_of_appends(upserters: int, seconds: float, dying: float) -> None:
    load = Load(upserters=upserters, seconds_each=seconds, dying=dying)
    measured = run(load)
    assert measured.attempts_p99 <= 3
    assert measured.held_share <= HELD_SHARE + 2.0 / load.duration
    if not dying:  # three executions, a pause between the last two, and a commit for each upserter
        assert measured.a_second >= 0.8 * upserters / (3 * 1.5 * seconds + 3 * seconds + 0.02 * upserters + 0.1)
