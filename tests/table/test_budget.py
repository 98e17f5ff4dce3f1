"""The caches of many tables stay within one bound, and the one that was used longest ago gives back first."""

from __future__ import annotations

import gc

from committerd.table.budget import Budget
from committerd.table.caches import Cache, ManifestCache
from tests.table.test_caches import SIZE, versions


def filled(budget: Budget, count: int, size: int = 10) -> Cache[int, int]:
    cache = Cache[int, int](1_000, budget)
    for number in range(count):
        cache.put(number, number, size)
    return cache


def test_the_cache_that_was_used_longest_ago_gives_back_first() -> None:
    budget = Budget(300)
    first, second, third = (filled(budget, 10) for _ in range(3))
    assert (budget.bytes, first.bytes, second.bytes, third.bytes) == (300, 100, 100, 100)
    assert first.get(3) == 3
    third.put(10, 10, 50)
    assert (budget.bytes, first.bytes, second.bytes, third.bytes) == (300, 100, 50, 150)
    assert [second.get(number) for number in range(10)] == [None] * 5 + [5, 6, 7, 8, 9]
    third.put(11, 11, 200)
    assert (first.bytes, second.bytes, third.bytes, budget.bytes) == (0, 0, 300, 300)
    assert third.get(11) == 11


def test_a_cache_takes_what_the_others_do_not_use_and_no_more_than_its_own_bound() -> None:
    budget = Budget(2_000)
    cache, other = filled(budget, 500), filled(budget, 1)
    assert (cache.bytes, other.bytes, budget.bytes) == (1_000, 10, 1_010)
    cache.put(-1, -1, 5_000)
    assert cache.get(-1) is None


def test_a_cache_that_exists_no_more_takes_nothing() -> None:
    budget = Budget(300)
    gone, stays = filled(budget, 20), filled(budget, 5)
    del gone
    gc.collect()
    stays.put(5, 5, 240)
    assert (budget.bytes, stays.bytes) == (290, 290)


def test_a_cache_that_was_cleared_takes_nothing() -> None:
    budget = Budget(300)
    cache = filled(budget, 20)
    cache.clear()
    assert budget.bytes == 0


def test_the_newest_version_of_each_table_stays() -> None:
    budget = Budget(0)
    tables = [ManifestCache(versions_max=100, bytes_max=10 * SIZE, budget=budget) for _ in range(5)]
    files = versions(4)
    for table in tables:
        for file in files:
            table.put(file.version, file)
    assert budget.bytes == 0
    assert all(table.get(4) is files[-1] for table in tables)
    assert not any(version in table for table in tables for version in range(1, 4))
