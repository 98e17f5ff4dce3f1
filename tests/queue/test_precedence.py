"""Precedence: what contradicts a refused transaction waits until that one is committed, one after the other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from pyroaring import BitMap

from committerd.lance.conflicts.key_filter import KeyFilter
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowChange, Touched
from committerd.queue import precedence as module
from committerd.queue.precedence import ATTEMPT_MAX, AWAITED_MAX, PAUSE_FACTOR, WAIT_FACTOR, Precedence


def change(rows: Mapping[int, Sequence[int]] | None = None, *, keys: Sequence[int] = ()) -> RowChange:
    """An upsert that changes these rows, by fragment, and inserts keys with these hashes."""
    return RowChange(
        kind=Kind.UPDATE,
        touched={id: Touched(rows=BitMap(some)) for id, some in (rows or {}).items()},
        keys=KeyFilter(field_ids=(0,), exact=frozenset(keys)) if keys else None,
    )


ROW = change({0: [7]})


def refuse(precedence: Precedence, uuid: str, what: RowChange, now: float = 10.0, *, attempt: int = 1) -> bool:
    assert precedence.takes(what, attempt, now)
    return precedence.refused(uuid, what, attempt=attempt, now=now)


def test_the_first_one_is_told_at_once_and_goes_before_all_that_contradict_it() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert precedence.contradicts(change({0: [1, 7]}), 10.5) == ROW
    assert precedence.contradicts(change({0: [1], 1: [7]}, keys=[5]), 10.5) is None
    assert precedence.settled(["another", "a"]) == 1
    assert precedence.contradicts(ROW, 10.5) is None
    assert precedence.seconds_until(10.5) is None


def test_those_that_contradict_each_other_are_told_one_after_the_other() -> None:
    precedence = Precedence(2.0)
    waits = [refuse(precedence, uuid, ROW, 10.0 + number / 10) for number, uuid in enumerate("abc")]
    assert waits == [False, True, True]
    assert precedence.due(10.3) == []
    assert precedence.settled(["a"]) == 1
    assert precedence.due(10.4) == ["b"]
    assert precedence.due(10.4) == [], "c contradicts b"
    assert precedence.settled(["b"]) == 1
    assert precedence.due(10.5) == ["c"]


def test_those_that_contradict_nothing_do_not_wait() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert not refuse(precedence, "b", change({0: [8]}))
    assert refuse(precedence, "c", change({0: [7, 9]}))
    assert refuse(precedence, "d", change({0: [9]})), "it contradicts c, which is before it in the line"
    assert not refuse(precedence, "e", change(keys=[5]))
    assert precedence.settled(["e"]) == 1
    assert precedence.due(10.1) == []
    assert precedence.settled(["a"]) == 1
    assert precedence.due(10.1) == ["c"]


def test_one_that_is_refused_again_goes_before_those_that_wait() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW)
    assert refuse(precedence, "b", ROW)
    assert precedence.settled(["a"]) == 1
    assert not refuse(precedence, "a again", ROW, attempt=2)
    assert precedence.due(10.1) == [], "b contradicts it"
    assert not precedence.takes(ROW, ATTEMPT_MAX + 1, 10.1), "then it needs a hold"


def test_after_one_that_does_not_arrive_there_is_no_precedence_for_a_while() -> None:
    precedence = Precedence(2.0)
    assert not refuse(precedence, "a", ROW, 10.0)
    assert refuse(precedence, "b", ROW, 10.5)
    assert precedence.seconds_until(10.5) == 1.5
    assert precedence.expire(11.9) == 0
    assert precedence.contradicts(ROW, 12.0) is None, "its time is over, though that was not noticed yet"
    assert precedence.expire(12.0) == 1
    assert precedence.due(12.0) == ["b"]
    assert precedence.contradicts(ROW, 12.0) is None
    until = 12.0 + PAUSE_FACTOR * 2.0
    assert not precedence.takes(ROW, 1, until - 0.1)
    assert not refuse(precedence, "c", ROW, until)


def test_none_waits_for_longer_than_a_few_turns() -> None:
    precedence, now = Precedence(2.0), 10.0
    assert not refuse(precedence, "0", ROW, now)
    assert refuse(precedence, "last", change({0: [7], 1: [1]}), now)
    for number in range(1, 100):
        now += 1.9
        assert precedence.settled([str(number - 1)]) == 1
        assert not refuse(precedence, str(number), change({1: [1], 0: [7]}), now, attempt=2)
        if precedence.due(now) == ["last"]:
            break
        assert precedence.expire(now) == 0
    assert now == pytest.approx(10.0 + WAIT_FACTOR * 2.0, abs=1.9)


def test_zero_seconds_turn_it_off() -> None:
    assert not Precedence(0.0).takes(ROW, 1, 10.0)


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    precedence = Precedence(2.0)
    monkeypatch.setattr(module, "BYTES_MAX", 100)
    monkeypatch.setattr(module, "LINE_BYTES_MAX", 1000)
    assert not precedence.takes(change({0: range(51)}), 1, 10.0)
    taken = 0
    while precedence.takes(change({taken: range(50)}), 1, 10.0):
        assert not refuse(precedence, str(taken), change({taken: range(50)}))
        taken += 1
    assert taken == 10
    many = Precedence(2.0)
    waits = [refuse(many, str(number), change({number: [1]})) for number in range(AWAITED_MAX + 2)]
    assert waits == [False] * AWAITED_MAX + [True] * 2
    monkeypatch.setattr(module, "LINE_MAX", 2)
    assert not many.takes(ROW, 1, 10.0)
    many.forget()
    assert many.takes(ROW, 1, 10.0)
    assert many.due(10.0) == []


@pytest.mark.parametrize("seed", range(20))
def test_each_is_told_once_and_is_executed_twice_at_most(seed: int) -> None:
    """Writers that change random rows of few, with and without others that never come back."""
    rng, now = random.Random(seed), 0.0
    precedence, dies = Precedence(2.0), 0.02 if seed % 2 else 0.0
    versions: list[tuple[float, RowChange]] = []
    under_way: list[tuple[float, float, str, RowChange, int, str]] = []
    waiting: dict[str, RowChange] = {}
    told: list[str] = []
    attempts: list[int] = []
    longest: dict[str, float] = {}

    def execute(what: RowChange, attempt: int, retry_of: str) -> None:
        if not (retry_of and rng.random() < dies):
            uuid = f"{seed}-{rng.random()}"
            under_way.append((now + rng.uniform(0.01, 0.1), now, uuid, what, attempt, retry_of))

    def tell(uuid: str) -> None:
        told.append(uuid)
        execute(waiting.pop(uuid), 2 if uuid not in longest else 3, uuid)

    for _ in range(200):
        execute(change({0: rng.sample(range(12), 2)}), 1, "")
    while under_way or waiting:
        now += 0.01
        for one in sorted(one for one in under_way if one[0] <= now):
            under_way.remove(one)
            _, began, uuid, what, attempt, retry_of = one
            lost = any(at > began and version.contradicts(what) for at, version in versions)
            lost = lost or (not retry_of and precedence.contradicts(what, now) is not None)
            precedence.settled([retry_of])
            if not lost:
                versions.append((now, what))
                attempts.append(attempt)
                continue
            waiting[uuid] = what
            if attempt > 1:
                longest[uuid] = now
            if not (precedence.takes(what, attempt, now) and precedence.refused(uuid, what, attempt=attempt, now=now)):
                tell(uuid)
        precedence.expire(now)
        for uuid in precedence.due(now):
            tell(uuid)
        assert now < 600
    assert len(told) == len(set(told))
    if not dies:
        assert len(attempts) == 200
        assert max(attempts) == 2
