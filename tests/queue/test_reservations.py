"""Reservations: who goes first, what waits meanwhile and how long, and that a broken promise costs little."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from committerd.lance.conflicts.key_filter import KeyFilter
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowChange, RowsAndKeys, TouchedFragment
from committerd.queue.reservations import (
    COOLDOWN_FACTOR,
    EVERYTHING_LINE_MAX,
    EVERYTHING_MAX,
    ROWS_ATTEMPT_MAX,
    ROWS_LINE_MAX,
    ROWS_MAX,
    TICKETS_MAX,
    WAIT_FACTOR,
    Reservations,
    Retryable,
)
from tests.queue.reservations_load import Load, run


def change(
    rows: Mapping[int, Sequence[int]] | None = None,
    *,
    keys: Sequence[int] = (),
    changes: frozenset[int] | None = frozenset({1}),
) -> RowsAndKeys:
    """The rows and keys of an upsert that changes these rows, by fragment, and inserts keys with these hashes.

    `changes`: the fields that an Update without keys changes; None = it may insert rows.
    """
    return RowChange(
        kind=Kind.UPDATE,
        touched={id: TouchedFragment(rows=BitMap(some)) for id, some in (rows or {}).items()},
        keys=KeyFilter(field_ids=(0,), exact=frozenset(keys)) if keys else None,
        is_by_key=bool(keys),
        changes=None if keys else changes,
    ).rows_and_keys()


ROW = change({0: [7]})


class Queue:
    """Reservations of 2 s, and what is told of refused transactions."""

    def __init__(self, seconds_max: float = 2.0) -> None:
        self.now = 10.0
        self.value = Reservations(seconds_max=seconds_max)
        self._line: list[str] = []

    def refuse(
        self,
        *uuids: str,
        rows: RowsAndKeys | None = None,
        operation: str = "update",
        attempt: int = 2,
        retry_of: str = "",
    ) -> list[str]:
        """Refuse these; returns those whose outcomes wait in line."""
        some = [
            Retryable(
                uuid=uuid,
                producer="p",
                operation=operation,
                attempt=attempt,
                retry_of=retry_of or None,
                rows_and_keys=rows,
            )
            for uuid in uuids
        ]
        self.value = self.value.settled([retry_of] if retry_of else [], some, now=self.now)
        return [uuid for uuid in uuids if uuid in self.value.line]

    def refuse_rows(self, uuid: str, rows: RowsAndKeys = ROW, *, retry_of: str = "") -> bool:
        """Refuse one for its rows; returns whether its outcome waits."""
        return bool(self.refuse(uuid, rows=rows, attempt=2 if retry_of else 1, retry_of=retry_of))

    def settle(self, *retries: str) -> None:
        self.value = self.value.settled(retries, [], now=self.now)

    def at(self, now: float, *, arrived: Sequence[str] = ()) -> None:
        self.now = now
        self.value = self.value.at(now, arrived=arrived)

    @property
    def hold(self) -> list[str]:
        return list(self.value.hold)

    @property
    def reserved(self) -> list[str]:
        return list(self.value.reserved)

    def told(self) -> list[str]:
        """Those that have left the line since the last call."""
        before, self._line = self._line, list(self.value.line)
        return [uuid for uuid in before if uuid not in self._line]


class TestTickets:
    def test_a_refusal_is_one_for_a_record_of_its_producer_until_that_is_settled(self) -> None:
        queue = Queue(0.0)
        queue.refuse("a", attempt=1)
        assert queue.value.has_ticket("a", "p")
        assert not queue.value.has_ticket("a", "")
        assert not queue.value.has_ticket("b", "p")
        queue.settle("a")
        assert not queue.value.has_ticket("a", "p")
        assert not queue.reserved, "0 seconds turn reservations off"

    def test_a_bounded_number_is_remembered(self) -> None:
        queue = Queue()
        queue.refuse("0", attempt=1)
        queue.refuse("1", attempt=1)
        queue.refuse("0", *map(str, range(2, TICKETS_MAX + 1)), attempt=1)
        assert not queue.value.has_ticket("1", "p")
        assert all(queue.value.has_ticket(str(number), "p") for number in (0, *range(2, TICKETS_MAX + 1)))


class TestHolds:
    def test_a_first_refusal_reserves_nothing(self) -> None:
        queue = Queue()
        assert not queue.refuse("a", attempt=1)
        assert not queue.reserved
        assert queue.value.seconds_until(10.0) == math.inf
        assert queue.value.settled([], [], now=11.0) is queue.value

    def test_a_second_one_reserves_everything_until_its_next_try_is_settled(self) -> None:
        queue = Queue()
        assert not queue.refuse("a")
        assert queue.hold == ["a"]
        assert queue.value.seconds_until(10.5) == 1.5
        queue.settle("other")
        assert queue.hold == ["a"]
        queue.settle("a")
        assert not queue.hold

    def test_it_is_for_all_of_one_operation_that_are_refused_meanwhile(self) -> None:
        queue = Queue()
        queue.refuse("a")
        queue.now = 10.5
        assert not queue.refuse("b")
        assert queue.refuse("compaction", operation="rewrite") == ["compaction"]
        queue.settle("a")
        assert queue.hold == ["b"]
        queue.at(11.9)
        assert queue.hold == ["b"]
        queue.at(12.0)
        assert not queue.hold, "b's time began with that of a"

    def test_one_that_is_refused_again_in_it_stays_in_it(self) -> None:
        queue = Queue()
        queue.refuse("a")
        queue.now = 11.0
        assert not queue.refuse("a again", attempt=3, retry_of="a")
        assert queue.hold == ["a again"]
        queue.at(12.0)
        assert not queue.hold

    def test_it_has_room_for_so_many(self) -> None:
        queue, many = Queue(), [str(number) for number in range(EVERYTHING_MAX + 5)]
        assert queue.refuse(*many) == many[EVERYTHING_MAX:]
        assert queue.hold == many[:EVERYTHING_MAX]
        assert queue.refuse("late") == ["late"]
        queue.at(11.0, arrived=many)
        queue.settle(*many[:EVERYTHING_MAX])
        queue.at(14.0)
        assert queue.hold == [*many[EVERYTHING_MAX:], "late"]

    def test_no_more_than_so_many_wait_for_it(self) -> None:
        queue, many = Queue(), [str(number) for number in range(EVERYTHING_LINE_MAX + 1)]
        queue.refuse("compaction", operation="rewrite")
        assert queue.refuse(*many) == many[:-1]

    def test_a_cooldown_follows_that_is_three_times_as_long_as_the_wait(self) -> None:
        queue = Queue()
        queue.refuse("a")
        queue.at(10.2)
        queue.at(10.5, arrived=["a"])
        queue.at(10.6, arrived=["a"])
        assert queue.value.held_seconds(10.7) == 0.5, "its re-execution has arrived"
        queue.now = 11.0
        queue.settle("a")
        assert queue.value.held_seconds(11.0) == 0.0
        assert queue.refuse("b") == ["b"]
        assert queue.value.seconds_until(11.0) == COOLDOWN_FACTOR * 0.5
        queue.at(12.4)
        assert not queue.hold
        queue.at(12.5)
        assert queue.hold == ["b"]
        assert queue.value.seconds_until(12.5) == 2.0, "whatever the last one took"

    def test_the_operation_that_has_waited_longest_comes_first(self) -> None:
        queue = Queue()
        queue.refuse("a")
        queue.at(12.0)
        for uuid, operation in (("compaction", "rewrite"), ("b", "update"), ("another compaction", "rewrite")):
            assert queue.refuse(uuid, operation=operation) == [uuid]
        queue.at(18.0)
        assert queue.hold == ["compaction", "another compaction"]
        queue.at(20.0)
        queue.at(26.0)
        assert queue.hold == ["b"]

    def test_when_the_assignment_is_over_only_the_cooldown_is_left(self) -> None:
        queue = Queue()
        queue.refuse("a")
        queue.at(12.0)
        queue.refuse("b")
        queue.value = queue.value.forgotten()
        assert queue.value == Reservations(seconds_max=2.0, cooldown_until=18.0)

    @given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), min_size=1, max_size=60))
    def test_they_take_at_most_a_quarter_of_the_time_and_one_hold(self, steps: list[tuple[float, bool]]) -> None:
        value, now, held = Reservations(seconds_max=2.0), 0.0, 0.0
        for number, (wait, arrives) in enumerate(steps):
            refused = Retryable(uuid=str(number), producer="", operation="update", attempt=2)
            value = value.settled([], [refused], now=now).at(now, arrived=())
            now += min(wait, value.seconds_until(now))
            arrived = list(value.hold) if arrives else []
            for after in (value.at(now, arrived=arrived), value.settled(arrived, [], now=now)):
                held += value.held_seconds(now) if value.hold and not after.hold else 0.0
                value = after
        assert held <= 0.25 * now + 2.0 + 1e-6

    @pytest.mark.parametrize("dying", [0.0, 0.03])
    @pytest.mark.parametrize("seconds", [0.02, 0.2, 1.0])
    @pytest.mark.parametrize("upserters", [1, 2, 16, 64, 200])
    def test_upserts_win_under_a_stream_of_appends(self, upserters: int, seconds: float, dying: float) -> None:
        load = Load(upserters=upserters, seconds_each=seconds, dying=dying)
        measured = run(load)
        assert measured.attempts_p99 <= 3
        assert measured.held_share <= 0.25 + 2.0 / load.duration
        if not dying:  # three executions, a cooldown between the last two, and a commit for each upserter
            assert measured.a_second >= 0.8 * upserters / (3 * 1.5 * seconds + 3 * seconds + 0.02 * upserters + 0.1)


class TestRows:
    def test_the_first_one_is_told_at_once_and_goes_before_all_that_conflict_with_it(self) -> None:
        queue = Queue()
        assert queue.value.takes_rows(1)
        assert not queue.refuse_rows("a")
        assert queue.value.conflict_of(change({0: [1, 7]})) == ROW
        assert queue.value.conflict_of(change({0: [1], 1: [7]}, keys=[5])) is None
        assert not queue.hold
        queue.settle("another", "a")
        assert queue.value.conflict_of(ROW) is None
        assert queue.value.seconds_until(10.5) == math.inf

    def test_an_update_that_may_insert_any_key_waits_for_an_upsert_and_not_the_other_way_round(self) -> None:
        upsert, other = change({0: [7]}, keys=[5]), change({1: [9]}, changes=None)
        queue = Queue()
        assert not queue.refuse_rows("upsert", upsert)
        assert queue.value.conflict_of(other) == upsert
        assert queue.value.conflict_of(change({1: [9]})) is None, "it inserts no row"
        assert queue.refuse_rows("other", other), "executed again at once, it could be committed before the upsert"
        queue = Queue()
        assert not queue.refuse_rows("other", other)
        assert queue.value.conflict_of(upsert) is None
        assert queue.refuse_rows("upsert", upsert), "the other one may be committed while it is executed"

    def test_those_that_conflict_are_told_one_after_the_other(self) -> None:
        queue = Queue()
        assert [queue.refuse_rows(uuid) for uuid in "abc"] == [False, True, True]
        assert queue.told() == []
        queue.settle("a")
        assert (queue.told(), queue.reserved) == (["b"], ["b"])
        queue.settle("b")
        assert queue.told() == ["c"]

    def test_those_that_conflict_with_nothing_do_not_wait(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("a")
        assert not queue.refuse_rows("b", change({0: [8]}))
        assert queue.refuse_rows("c", change({0: [7, 9]}))
        assert queue.refuse_rows("d", change({0: [9]})), "it conflicts with c, which is before it in the line"
        assert not queue.refuse_rows("e", change(keys=[5]))
        queue.told()
        queue.settle("e")
        assert queue.told() == []
        queue.settle("a")
        assert queue.told() == ["c"]

    def test_one_that_is_refused_again_goes_before_those_that_wait_but_only_for_its_time(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("a")
        assert queue.refuse_rows("b")
        queue.now = 11.5
        assert not queue.refuse_rows("a again", retry_of="a")
        assert (queue.reserved, list(queue.value.line)) == (["a again"], ["b"])
        queue.at(12.0)
        assert not queue.reserved, "its time began with the first one"

    def test_one_that_is_refused_for_the_third_time_needs_everything(self) -> None:
        queue = Queue()
        assert not queue.value.takes_rows(ROWS_ATTEMPT_MAX + 1)
        assert not queue.refuse_rows("a")
        assert not queue.refuse("a at last", rows=ROW, attempt=ROWS_ATTEMPT_MAX + 1, retry_of="a")
        assert queue.hold == ["a at last"]

    def test_one_that_names_any_refused_transaction_does_not_jump_the_line(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("a")
        assert queue.refuse_rows("b", change({0: [7], 1: [1]}))
        assert queue.refuse_rows("c", change({1: [1]}), retry_of="another")

    def test_one_that_was_staged_twice_waits_once(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("a")
        assert not queue.refuse_rows("a", change({0: [8]}))
        assert queue.refuse_rows("b")
        assert queue.refuse_rows("b", change({0: [8]}))
        assert list(queue.value.line) == ["b"]

    def test_after_one_that_does_not_arrive_nothing_is_reserved_for_a_while(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("a")
        queue.now = 10.5
        assert queue.refuse_rows("b")
        queue.told()
        assert queue.value.seconds_until(10.5) == 1.5
        queue.at(11.9)
        assert queue.reserved == ["a"]
        queue.at(12.0)
        assert queue.told() == ["b"]
        assert queue.value.conflict_of(ROW) is None
        queue.at(12.0 + COOLDOWN_FACTOR * 2.0 - 0.1)
        assert not queue.refuse_rows("c")
        assert not queue.reserved
        queue.at(12.0 + COOLDOWN_FACTOR * 2.0)
        assert not queue.refuse_rows("d")
        assert queue.reserved == ["d"]

    def test_one_that_has_arrived_and_waits_to_be_judged_is_not_late(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("a")
        queue.now = 11.0
        assert queue.refuse_rows("b")
        queue.told()
        queue.at(15.0, arrived=["a"])
        assert queue.value.conflict_of(ROW) == ROW
        assert queue.value.seconds_until(15.0) == 4.0
        queue.settle("a")
        assert queue.told() == ["b"]

    def test_none_waits_for_longer_than_a_few_turns(self) -> None:
        queue = Queue()
        assert not queue.refuse_rows("0")
        assert queue.refuse_rows("last", change({0: [7], 1: [1]}))
        queue.told()
        while not queue.told():
            queue.at(queue.now + 0.5, arrived=["0"])
            assert queue.now < 100
        assert queue.now == 10.0 + WAIT_FACTOR * 2.0
        assert queue.reserved == ["0"]

    def test_the_number_of_those_that_are_compared_is_bounded(self) -> None:
        queue = Queue()
        for number in range(ROWS_MAX + 5):
            assert not queue.refuse_rows(f"first {number}", change({number: [1]})), "told at once, whatever the number"
        assert len(queue.reserved) == ROWS_MAX
        waits = [queue.refuse_rows(f"later {number}", change({0: [1]})) for number in range(ROWS_LINE_MAX + 5)]
        assert waits == [True] * ROWS_LINE_MAX + [False] * 5

    def test_a_turn_in_which_nothing_is_over_compares_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = Queue()
        for number in range(ROWS_MAX):
            queue.refuse_rows(f"first {number}", change({number: [1]}))
        for number in range(ROWS_LINE_MAX):
            queue.refuse_rows(f"later {number}", change({0: [1], 100 + number: [1], 101 + number: [1]}))
        queue.told()
        compared = 0

        def conflicts_with(self: RowsAndKeys, other: RowsAndKeys) -> bool:
            nonlocal compared
            compared += 1
            return real(self, other)

        real = RowsAndKeys.conflicts_with
        monkeypatch.setattr(RowsAndKeys, "conflicts_with", conflicts_with)
        queue.at(10.0)
        assert compared == 0
        queue.settle("first 0")
        assert queue.told() == ["later 0"]
        assert compared < 2 * ROWS_LINE_MAX * (ROWS_MAX + ROWS_LINE_MAX)

    @pytest.mark.parametrize("seed", range(20))
    def test_each_is_told_once_and_is_executed_twice_at_most(self, seed: int) -> None:
        """Writers that change random rows of few, with and without others that never come back."""
        rng, now = random.Random(seed), 0.0
        value, dies = Reservations(seconds_max=2.0), 0.02 if seed % 2 else 0.0
        versions: list[tuple[float, RowsAndKeys]] = []
        under_way: list[tuple[float, float, str, RowsAndKeys, int, str]] = []
        waiting: dict[str, tuple[RowsAndKeys, int]] = {}
        attempts: list[int] = []

        def execute(what: RowsAndKeys, attempt: int, retry_of: str) -> None:
            if not (retry_of and rng.random() < dies):
                uuid = f"{seed}-{rng.random()}"
                under_way.append((now + rng.uniform(0.01, 0.1), now, uuid, what, attempt, retry_of))

        for _ in range(60):
            execute(change({0: rng.sample(range(12), 2)}), 1, "")
        while under_way or waiting:
            now += 0.01
            for one in sorted((one for one in under_way if one[0] <= now), key=lambda one: one[0]):
                under_way.remove(one)
                _, began, uuid, what, attempt, retry_of = one
                lost = any(at > began and what.conflicts_with(version) for at, version in versions)
                if lost or (not retry_of and value.conflict_of(what) is not None):
                    waiting[uuid] = what, attempt
                    refused = Retryable(
                        uuid=uuid,
                        producer="",
                        operation="update",
                        attempt=attempt,
                        retry_of=retry_of or None,
                        rows_and_keys=what,
                    )
                    value = value.settled([retry_of] if retry_of else [], [refused], now=now)
                else:
                    versions.append((now, what))
                    attempts.append(attempt)
                    value = value.settled([retry_of], [], now=now)
            value = value.at(now, arrived=())
            for uuid in [uuid for uuid in waiting if uuid not in value.line]:
                what, attempt = waiting.pop(uuid)
                execute(what, attempt + 1, uuid)
            assert now < 600
        if not dies:
            assert len(attempts) == 60
            assert max(attempts) == 2
