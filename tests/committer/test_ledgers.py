"""The ledgers of many tables stay within one bound, and each table has its part for certain."""

from __future__ import annotations

import gc

from committerd.committer.ledgers import Ledgers, lone_part

MIB = 1024 * 1024


def test_a_table_takes_what_the_others_leave_and_gives_it_back_when_they_need_their_parts() -> None:
    ledgers = Ledgers(100 * MIB)
    first, second, third = (ledgers.part(100 * MIB) for _ in range(3))
    assert first.bound(0) == 100 * MIB
    assert first.bound(90 * MIB) == 100 * MIB
    assert second.bound(0) == 50 * MIB, "its part, although the first has taken more than its own"
    assert second.bound(30 * MIB) == 50 * MIB
    assert first.bound(90 * MIB) == 70 * MIB
    assert first.bound(70 * MIB) == 70 * MIB
    assert third.bound(0) == 100 * MIB // 3
    assert second.bound(30 * MIB) == 100 * MIB // 3
    third.leave()
    assert second.bound(30 * MIB) == 50 * MIB


def test_a_part_is_never_less_than_what_131_072_records_take() -> None:
    ledgers = Ledgers(8 * MIB)
    parts = [ledgers.part(8 * MIB) for _ in range(100)]
    for part in parts:
        part.bound(8 * MIB)
    assert {part.bound(8 * MIB) for part in parts} == {MIB}


def test_a_table_that_is_gone_takes_nothing_and_a_table_has_its_own_bound_too() -> None:
    ledgers = Ledgers(100 * MIB)
    gone, stays = ledgers.part(100 * MIB), ledgers.part(60 * MIB)
    gone.bound(80 * MIB)
    assert stays.bound(0) == 50 * MIB
    del gone
    gc.collect()
    assert stays.bound(0) == 60 * MIB
    assert lone_part(400).bound(10_000) == 400
