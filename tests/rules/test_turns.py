"""Turns: who goes first, how long the others wait, and that they never wait for more than a quarter of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.format.messages import INVALID, RETRYABLE, Refusal
from committerd.ports import TopicIdentity
from committerd.rules.answers import Settled
from committerd.rules.ledger import Ledger
from committerd.rules.position import start_of
from committerd.rules.turns import AHEAD_MAX, HoldEnding, Turns, goes_ahead

START = start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0)


def test_a_first_refusal_holds_nobody_up() -> None:
    turns = Turns(hold_max=2.0)
    turns.refused("a", attempt=1, now=10.0)
    assert turns.seconds_left(10.0) == 0
    assert turns.end(["a"], 10.0) is None


def test_a_second_refusal_holds_until_its_next_try_arrives() -> None:
    turns = Turns(hold_max=2.0)
    turns.refused("a", attempt=2, now=10.0)
    assert turns.seconds_left(10.5) == 1.5
    assert turns.end(["other"], 10.5) is None
    assert turns.end(["other", "a"], 10.5) == (HoldEnding.ARRIVED, 0.5)
    assert turns.seconds_left(10.5) == 0


def test_a_hold_waits_for_all_that_were_refused_meanwhile() -> None:
    turns = Turns(hold_max=2.0)
    turns.refused("a", attempt=2, now=10.0)
    turns.refused("b", attempt=2, now=10.1)
    turns.refused("first", attempt=1, now=10.1)
    assert turns.end(["a"], 10.5) is None
    assert turns.promised == {"a", "b"}, "a may be committed although b is still missing"
    assert turns.seconds_left(10.5) == 1.5
    assert turns.end(["b"], 11.0) == (HoldEnding.ARRIVED, 1.0)
    assert not turns.promised


def test_a_hold_ends_when_its_time_is_over() -> None:
    turns = Turns(hold_max=2.0)
    turns.refused("a", attempt=3, now=10.0)
    turns.refused("b", attempt=2, now=11.0)
    assert turns.seconds_left(11.0) == 1.0
    assert turns.end([], 12.5) == (HoldEnding.EXPIRED, 2.0)


def test_after_a_full_hold_the_next_has_to_be_earned() -> None:
    turns = Turns(hold_max=2.0)
    turns.refused("a", attempt=2, now=0.0)
    turns.end([], 2.0)
    turns.refused("b", attempt=2, now=2.0)
    assert turns.seconds_left(2.0) <= 0.5
    turns.end([], 3.0)
    turns.refused("c", attempt=2, now=1000.0)
    assert turns.seconds_left(1000.0) == 2.0


def test_after_a_hold_in_vain_time_is_saved_up_for_a_full_one() -> None:
    turns = Turns(hold_max=2.0)
    turns.refused("a", attempt=2, now=0.0)
    assert turns.end([], 2.0) == (HoldEnding.EXPIRED, 2.0)
    turns.refused("b", attempt=2, now=6.0)
    assert turns.seconds_left(6.0) == 0, "one second would help nobody, and be gone"
    turns.refused("c", attempt=2, now=10.0)
    assert turns.seconds_left(10.0) == 2.0
    # It took 0.5 s: what may be held then is enough for another like it.
    assert turns.end(["c"], 10.5) == (HoldEnding.ARRIVED, 0.5)
    turns.refused("d", attempt=2, now=10.5)
    assert turns.seconds_left(10.5) == 1.5


def test_without_time_to_hold_nothing_is_held() -> None:
    turns = Turns(hold_max=0.0)
    turns.refused("a", attempt=2, now=0.0)
    assert turns.seconds_left(0.0) == 0


@given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), min_size=1, max_size=60))
def test_held_is_at_most_a_quarter_of_the_time_and_one_hold(steps: list[tuple[float, bool]]) -> None:
    turns, now, held = Turns(hold_max=2.0), 0.0, 0.0
    for number, (wait, arrives) in enumerate(steps):
        turns.refused(str(number), attempt=2, now=now)
        assert turns.seconds_left(now) <= 2.0 + 1e-9
        now += wait
        ended = turns.end([str(number)] if arrives else [], now)
        held += ended[1] if ended else 0.0
    assert held <= 0.25 * now + 2.0 + 1e-6


@pytest.mark.parametrize(("retry_of", "expected"), [("r", True), ("bad", False), ("unknown", False), (None, False)])
def test_only_what_was_refused_as_retryable_goes_ahead(retry_of: str | None, expected: bool) -> None:
    ledger = Ledger()
    refusals = [Refusal(uuid="r", status=RETRYABLE), Refusal(uuid="bad", status=INVALID)]
    ledger.add(Settled(version=3, uuid="v", operation="append", ours=True, refusals=refusals))
    assert goes_ahead(retry_of, START, ledger, ahead=0) is expected


def test_the_position_carries_a_bounded_number_ahead() -> None:
    ledger = Ledger()
    refusals = [Refusal(uuid="r", status=RETRYABLE)]
    ledger.add(Settled(version=3, uuid="v", operation="append", ours=True, refusals=refusals))
    full = replace(START, settled=tuple(range(5, 5 + AHEAD_MAX - 1)))
    assert goes_ahead("r", full, ledger, ahead=0)
    assert not goes_ahead("r", full, ledger, ahead=1)
