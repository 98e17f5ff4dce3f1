"""Precedence: what conflicts with a refused transaction waits until that one is committed, one after the other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from pyroaring import BitMap

from committerd.lance.conflicts.key_filter import KeyFilter
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowChange, RowsAndKeys, TouchedFragment
from committerd.queue.precedence import (
    ATTEMPT_MAX,
    AWAITED_MAX,
    BYTES_MAX,
    LINE_MAX,
    PAUSE_FACTOR,
    WAIT_FACTOR,
    Precedence,
)


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


def refuse(
    precedence: Precedence, uuid: str, what: RowsAndKeys, now: float = 10.0, *, retry_of: str | None = None
) -> bool:
    assert precedence.takes(attempt=2 if retry_of else 1, now=now)
    first = precedence.may_be_first(what)
    waits = precedence.refused(uuid, what, retry_of=retry_of, now=now)
    assert retry_of or waits != first
    return waits


def test_the_first_one_is_told_at_once_and_goes_before_all_that_conflict_with_it() -> None:
    precedence = Precedence(2.0)
    assert precedence.is_idle
    assert not refuse(precedence, "a", ROW)
    assert not precedence.is_idle
    assert precedence.conflicting(change({0: [1, 7]})) == ROW
    assert precedence.conflicting(change({0: [1], 1: [7]}, keys=[5])) is None
    assert precedence.settled(["another", "a"]) == 1
    assert precedence.conflicting(ROW) is None
    assert precedence.seconds_until(10.5) is None


def test_an_update_that_may_insert_any_key_waits_for_an_upsert_and_not_the_other_way_round() -> None:
    upsert, other = change({0: [7]}, keys=[5]), change({1: [9]}, changes=None)
    precedence = Precedence(2.0)
    assert not refuse(precedence, "upsert", upsert)
    assert precedence.conflicting(other) == upsert
    assert precedence.conflicting(change({1: [9]})) is None, "it inserts no row"
    assert refuse(precedence, "other", other), "executed again at once, it could be committed before the upsert"
    precedence = Precedence(2.0)
    assert not refuse(precedence, "other", other)
    assert precedence.conflicting(upsert) is None
    assert refuse(precedence, "upsert", upsert), "the other one may be committed while it is executed"


def test_those_that_conflict_are_told_one_after_the_other() -> None:
    precedence = Precedence(2.0)
    waits = [refuse(precedence, uuid, ROW, 10.0 + number / 10) for number, uuid in enumerate("abc")]
    assert waits == [False, True, True]
    assert precedence.due(10.3) == []
    assert precedence.settled(["a"]) == 1
    assert precedence.due(10.4) == ["b"]
    assert precedence.due(10.4) == [], "c conflicts with b"
    assert precedence.settled(["b"]) == 1
    assert precedence.due(10.5) == ["c"]


def test_those_that_conflict_with_nothing_do_not_wait() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert not refuse(precedence, "b", change({0: [8]}))
    assert refuse(precedence, "c", change({0: [7, 9]}))
    assert refuse(precedence, "d", change({0: [9]})), "it conflicts with c, which is before it in the line"
    assert not refuse(precedence, "e", change(keys=[5]))
    assert precedence.settled(["e"]) == 1
    assert precedence.due(10.1) == []
    assert precedence.settled(["a"]) == 1
    assert precedence.due(10.1) == ["c"]


def test_one_that_is_refused_again_goes_before_those_that_wait_but_only_for_its_time() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert refuse(precedence, "b", ROW)
    assert precedence.settled(["a"]) == 1
    assert not refuse(precedence, "a again", ROW, 11.5, retry_of="a")
    assert precedence.due(11.5) == [], "b conflicts with it"
    assert precedence.expire(12.0, arrived=()) == 1, "its time began with the first one"
    assert not precedence.takes(attempt=ATTEMPT_MAX + 1, now=100.0), "then it needs a hold"


def test_one_that_names_any_refused_transaction_does_not_jump_the_line() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert refuse(precedence, "b", change({0: [7], 1: [1]}))
    assert refuse(precedence, "c", change({1: [1]}), retry_of="another")


def test_after_one_that_does_not_arrive_there_is_no_precedence_for_a_while() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW, 10.0)
    assert refuse(precedence, "b", ROW, 10.5)
    assert precedence.seconds_until(10.5) == 1.5
    assert precedence.expire(11.9, arrived=()) == 0
    assert precedence.expire(12.0, arrived=()) == 1
    assert precedence.due(12.0) == ["b"]
    assert precedence.conflicting(ROW) is None
    until = 12.0 + PAUSE_FACTOR * 2.0
    assert not precedence.takes(attempt=1, now=until - 0.1)
    assert not refuse(precedence, "c", ROW, until)


def test_one_that_has_arrived_and_waits_to_be_judged_is_not_late() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW, 10.0)
    assert refuse(precedence, "b", ROW, 11.0)
    assert precedence.expire(15.0, arrived=["a"]) == 0
    assert precedence.conflicting(ROW) == ROW
    assert precedence.seconds_until(15.0) == 4.0
    assert precedence.settled(["a"]) == 1
    assert precedence.due(15.0) == ["b"]


def test_one_whose_re_execution_arrives_while_it_waits_is_told_and_has_no_precedence() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert refuse(precedence, "b", ROW)
    assert precedence.settled(["b"]) == 0
    assert precedence.seconds_until(10.0) == 0.0
    assert precedence.due(10.0) == ["b"]
    assert precedence.settled(["a"]) == 1
    assert precedence.is_idle


def test_none_waits_for_longer_than_a_few_turns() -> None:
    precedence, now = Precedence(2.0), 10.0
    assert not refuse(precedence, "0", ROW, now)
    assert refuse(precedence, "last", change({0: [7], 1: [1]}), now)
    while precedence.due(now) != ["last"]:
        now += 0.5
        assert precedence.expire(now, arrived=["0"]) == 0
        assert now < 100
    assert now == 10.0 + WAIT_FACTOR * 2.0


def test_zero_seconds_turn_it_off() -> None:
    assert not Precedence(0.0).takes(attempt=1, now=10.0)


def test_what_it_remembers_is_bounded() -> None:
    precedence = Precedence(2.0)
    large = change({id: [1] for id in range(BYTES_MAX // 100)})
    assert not precedence.refused("large", large, retry_of=None, now=10.0)
    assert precedence.is_idle
    for number in range(AWAITED_MAX + 5):
        assert not refuse(precedence, f"first {number}", change({number: [1]})), "told at once, whatever the number"
    one = change({0: [1]})
    waits = [precedence.refused(f"later {number}", one, retry_of=None, now=10.0) for number in range(LINE_MAX + 5)]
    assert waits == [True] * LINE_MAX + [False] * 5
    assert precedence.conflicting(change({AWAITED_MAX - 1: [1]})) is not None
    assert precedence.conflicting(change({AWAITED_MAX: [1]})) is None, "it has no precedence"
    precedence.forget()
    assert precedence.is_idle
    assert precedence.due(10.0) == []


def test_a_turn_in_which_nobody_has_left_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    precedence = Precedence(2.0)
    for number in range(AWAITED_MAX):
        refuse(precedence, f"first {number}", change({number: [1]}))
    for number in range(LINE_MAX):
        refuse(precedence, f"later {number}", change({0: [1], 100 + number: [1], 101 + number: [1]}))
    compared = 0

    def conflicts_with(self: RowsAndKeys, other: RowsAndKeys) -> bool:
        nonlocal compared
        compared += 1
        return real(self, other)

    real = RowsAndKeys.conflicts_with
    monkeypatch.setattr(RowsAndKeys, "conflicts_with", conflicts_with)
    assert precedence.due(10.0) == []
    assert compared == 0
    assert precedence.settled(["first 0"]) == 1
    assert precedence.due(10.0) == ["later 0"]
    assert compared < LINE_MAX * AWAITED_MAX + LINE_MAX**2 / 2


@pytest.mark.parametrize("seed", range(20))
def test_each_is_told_once_and_is_executed_twice_at_most(seed: int) -> None:
    """Writers that change random rows of few, with and without others that never come back."""
    rng, now = random.Random(seed), 0.0
    precedence, dies = Precedence(2.0), 0.02 if seed % 2 else 0.0
    versions: list[tuple[float, RowsAndKeys]] = []
    under_way: list[tuple[float, float, str, RowsAndKeys, int, str]] = []
    waiting: dict[str, tuple[RowsAndKeys, int]] = {}
    told: list[str] = []
    attempts: list[int] = []

    def execute(what: RowsAndKeys, attempt: int, retry_of: str) -> None:
        if not (retry_of and rng.random() < dies):
            uuid = f"{seed}-{rng.random()}"
            under_way.append((now + rng.uniform(0.01, 0.1), now, uuid, what, attempt, retry_of))

    def tell(uuid: str) -> None:
        told.append(uuid)
        what, attempt = waiting.pop(uuid)
        execute(what, attempt + 1, uuid)

    for _ in range(60):
        execute(change({0: rng.sample(range(12), 2)}), 1, "")
    while under_way or waiting:
        now += 0.01
        for one in sorted((one for one in under_way if one[0] <= now), key=lambda one: one[0]):
            under_way.remove(one)
            _, began, uuid, what, attempt, retry_of = one
            lost = any(at > began and what.conflicts_with(version) for at, version in versions)
            lost = lost or (not retry_of and precedence.conflicting(what) is not None)
            precedence.settled([retry_of])
            if not lost:
                versions.append((now, what))
                attempts.append(attempt)
                continue
            waiting[uuid] = what, attempt
            takes = precedence.takes(attempt=attempt, now=now)
            if not (takes and precedence.refused(uuid, what, retry_of=retry_of or None, now=now)):
                tell(uuid)
        precedence.expire(now, arrived=())
        for uuid in precedence.due(now):
            tell(uuid)
        assert now < 600
    assert len(told) == len(set(told))
    if not dies:
        assert len(attempts) == 60
        assert max(attempts) == 2
