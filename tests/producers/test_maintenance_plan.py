"""The plan of maintenance: which fragments are rewritten together, in which order, and which indices are optimized."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from committerd_client.maintenance.plan import Limits, MaintenancePlan, RewriteReason, Targets, TaskPace, plan
from committerd_client.maintenance.table import FragmentState, Segment, TableState, table_state
from committerd_common.messages import DataFile, DataFragment, DeletionFile

TARGETS = Targets(rows_per_fragment=1000, bytes_per_fragment=1 << 20, fragments=100, unindexed_rows=50, segments=2)
LIMITS = Limits(task_bytes=1 << 20, tasks=100)


def planned(*fragments: FragmentState, targets: Targets = TARGETS, limits: Limits = LIMITS) -> MaintenancePlan:
    return plan(TableState(version=1, fragments=fragments), targets, limits)


def small(id: int, rows: int = 1, *, deleted: int = 0, size: int = 100, covered: str = "") -> FragmentState:
    return FragmentState(id=id, rows=rows, deleted=deleted, bytes=size, covered_by=frozenset(covered))


def groups(found: MaintenancePlan) -> list[tuple[int, ...]]:
    return [one.fragments for one in found.groups]


def test_small_fragments_of_a_size_are_rewritten_together_once_there_are_eight() -> None:
    assert groups(planned(*(small(id) for id in range(7)))) == []
    assert groups(planned(*(small(id) for id in range(8)))) == [tuple(range(8))]
    # A larger one is not rewritten with them.
    assert groups(planned(small(0, 500), *(small(id) for id in range(1, 9)))) == [tuple(range(1, 9))]


def test_fewer_are_enough_if_they_fill_a_fragment() -> None:
    assert groups(planned(small(3, 600), small(5, 500))) == [(3, 5)]
    assert groups(planned(small(3, 1000), small(5, 1000))) == []


def test_a_group_is_no_larger_than_a_fragment_should_be() -> None:
    assert groups(planned(*(small(id, 300) for id in range(8)))) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_the_smallest_come_first_and_then_the_oldest() -> None:
    found = planned(*(small(id, 400) for id in range(3)), *(small(id) for id in range(10, 18)), small(20, 400))
    assert groups(found)[0] == tuple(range(10, 18))
    assert groups(found)[1] == (0, 1, 2)


def test_fragments_that_different_segments_cover_stay_apart() -> None:
    found = planned(*(small(id, covered="ab" if id % 2 else "a") for id in range(16)))
    assert sorted(groups(found)) == [tuple(range(0, 16, 2)), tuple(range(1, 16, 2))]


def test_deleted_rows_are_removed_from_a_fragment_that_is_large_enough() -> None:
    found = planned(small(0, 2000, deleted=199), small(1, 2000, deleted=200), small(2, 1000))
    assert [(one.fragments, one.rows, one.why) for one in found.groups] == [((1,), 1800, RewriteReason.DELETED)]
    assert groups(planned(small(1, 2000, deleted=200), small(2, 900))) == [(1, 2)]


def test_too_many_fragments_are_rewritten_whatever_their_sizes() -> None:
    fragments = [small(id, 2**id) for id in range(4)]
    few = Targets(rows_per_fragment=10**6, fragments=3)
    (group,) = planned(*fragments, targets=few).groups
    assert (group.fragments, group.why) == ((0, 1, 2, 3), RewriteReason.MANY)
    assert groups(planned(*fragments)) == []
    # Only the small ones are too many or not.
    assert groups(planned(*fragments[:3], *(small(id, 10**6) for id in range(4, 9)), targets=few)) == []


def test_a_large_fragment_is_not_rewritten_with_a_few_rows_however_many_fragments_there_are() -> None:
    few = Targets(rows_per_fragment=10**6, fragments=1)
    tail = [small(id) for id in range(1, 5)]
    assert groups(planned(small(0, 10**5), *tail, targets=few)) == [(1, 2, 3, 4)]
    assert groups(planned(small(0, 10**5), *(small(id) for id in range(1, 8)))) == []
    assert groups(planned(small(0, 10**5), small(1, 49_999), targets=few)) == []
    assert groups(planned(small(0, 10**5), small(1, 50_000), targets=few)) == [(0, 1)]


def test_what_a_task_can_not_rewrite_with_others_does_not_count() -> None:
    bounded = Limits(task_bytes=1000, tasks=100)
    found = planned(*(small(id, size=500) for id in range(8)), small(8, size=499), limits=bounded)
    assert (found.groups, found.too_large, found.mergeable, found.left) == ((), tuple(range(8)), 1, 1)
    found = planned(*(small(id) for id in range(20)), small(20, 10**6), limits=bounded)
    assert (groups(found), found.mergeable, found.left) == ([tuple(range(10)), tuple(range(10, 20))], 20, 2)


def test_only_deleted_rows_are_removed_from_fragments_that_are_too_many() -> None:
    few = Targets(rows_per_fragment=10**6, fragments=1)
    alone = planned(small(0, 10, deleted=5), small(1, 10**6), small(2, 10**6), small(3, 10**6), targets=few)
    assert [(one.fragments, one.why) for one in alone.groups] == [((0,), RewriteReason.DELETED)]


def test_a_task_stays_within_its_limits() -> None:
    bounded = Limits(task_bytes=1000, tasks=100)
    assert [len(one) for one in groups(planned(*(small(id) for id in range(20)), limits=bounded))] == [10, 10]
    assert planned(small(0, size=1001, deleted=1), limits=bounded).too_large == (0,)
    slow = Limits(task_seconds=0.05, tasks=100)  # 10 fragments at 200/s
    assert [len(one) for one in groups(planned(*(small(id) for id in range(20)), limits=slow))] == [10, 10]
    one_at_a_time = planned(*(small(id) for id in range(20)), limits=Limits(task_bytes=1000, tasks=1))
    assert (len(one_at_a_time.groups), one_at_a_time.waiting) == (1, 1)


def test_short_tasks_share_a_commit() -> None:
    fragments = [small(id, 600, size=1000) for id in range(40)]  # 20 pairs, a tenth of a second each
    limits = Limits(tasks=2, short_seconds=0.32)
    pace = TaskPace(bytes_per_second=20_000, fragments_per_second=200)

    def pairs(limits: Limits, *, pace: TaskPace = pace) -> tuple[int, int]:
        found = plan(TableState(version=1, fragments=tuple(fragments)), TARGETS, limits, pace)
        return len(found.groups), found.waiting

    assert pairs(limits) == (6, 14), "0.3 seconds, two at once"
    assert pairs(replace(limits, short_seconds=0.0)) == (2, 18)
    assert pairs(replace(limits, tasks=1)) == (3, 17)
    assert pairs(replace(limits, short_seconds=60)) == (20, 0)
    assert pairs(limits, pace=TaskPace(bytes_per_second=2_000)) == (2, 18), "those that take long do not"
    assert pairs(limits, pace=replace(pace, fragments_per_second=10)) == (3, 17), "nor those of many fragments"


def test_the_pace_follows_the_tasks() -> None:
    pace = TaskPace(bytes_per_second=100, fragments_per_second=10)
    assert pace.after(size=1000, fragments=1, seconds=5) == TaskPace(bytes_per_second=150, fragments_per_second=10)
    assert pace.after(size=1, fragments=100, seconds=5) == TaskPace(bytes_per_second=100, fragments_per_second=15)
    assert pace.bounds(Limits(task_bytes=10**9, task_seconds=2)) == (200, 20)


def test_the_state_is_read_from_fragments_and_segments() -> None:
    fragments = [
        DataFragment(id=4, physical_rows=10, files=[DataFile(file_size_bytes=5), DataFile(file_size_bytes=6)]),
        DataFragment(id=2, physical_rows=60, deletion_file=DeletionFile(num_deleted_rows=9)),
    ]
    segments = [
        Segment(name="a", uuid="1", covers=BitMap([4])),
        Segment(name="a", uuid="2", covers=BitMap([7])),
        Segment(name="b", uuid="3", covers=BitMap([2, 4])),
        Segment(name="__lance_frag_reuse", uuid="4", covers=BitMap([2])),
    ]
    found = table_state(9, fragments, segments)
    assert [(one.id, one.live, one.bytes, set(one.covered_by)) for one in found.fragments] == [
        (2, 51, 0, {"3"}),
        (4, 10, 11, {"1", "3"}),
    ]
    assert [(one.name, one.segments, one.unindexed_rows) for one in found.indices] == [("a", 2, 51), ("b", 1, 0)]
    assert (found.rows, found.bytes, found.unindexed_rows) == (61, 11, 51)
    assert [one.name for one in plan(found, TARGETS, LIMITS).indices] == ["a"]
    assert plan(TableState(version=1, fragments=()), TARGETS, LIMITS).empty


def test_segments_are_merged_if_there_are_too_many() -> None:
    segments = [Segment(name="a", uuid=str(number), covers=BitMap()) for number in range(3)]
    assert [one.name for one in plan(table_state(1, [], segments), TARGETS, LIMITS).indices] == ["a"]
    assert plan(table_state(1, [], segments[:2]), TARGETS, LIMITS).indices == ()


@given(st.integers(0, 2**32), st.integers(1, 200))
def test_no_fragment_is_in_two_groups_and_the_work_ends(seed: int, count: int) -> None:
    rng = random.Random(seed)
    fragments = [
        small(id, rng.choice([1, 1, 1, 30, 400, 1000]), size=rng.randrange(1, 10_000), covered=rng.choice(["", "a"]))
        for id in range(count)
    ]
    next_id = count
    for _ in range(200):
        found = planned(*fragments, targets=Targets(rows_per_fragment=1000, fragments=20))
        ids = list(chain.from_iterable(groups(found)))
        assert len(ids) == len(set(ids))
        if not found.groups:
            break
        # As pylance does it: full fragments, and one with the rest.
        by_id = {one.id: one for one in fragments}
        for group in found.groups:
            parts = [1000] * (group.rows // 1000) + ([group.rows % 1000] if group.rows % 1000 else [])
            (covered,) = {by_id[id].covered_by for id in group.fragments}
            for id in group.fragments:
                del by_id[id]
            for rows in parts:
                by_id[next_id] = FragmentState(id=next_id, rows=rows, deleted=0, bytes=rows, covered_by=covered)
                next_id += 1
        fragments = list(by_id.values())
    else:
        pytest.fail("it never ends")
    assert sum(one.rows for one in fragments) // 1000 <= len(fragments) <= max(20, count)


@given(
    seed=st.integers(0, 2**32),
    full=st.sampled_from([0, 1, 25, 200]),
    wanted=st.sampled_from([1, 20, 1000]),
    task_bytes=st.sampled_from([1 << 40, 4000]),
    sizes=st.lists(st.sampled_from([1, 2, 7, 30, 200, 900, 1000]), min_size=1, max_size=3),
)
def test_a_row_is_rewritten_a_few_times_however_many_full_fragments_there_are(
    seed: int, full: int, wanted: int, task_bytes: int, sizes: list[int]
) -> None:
    rng = random.Random(seed)
    table = Table(full=full)
    targets = Targets(rows_per_fragment=1000, bytes_per_fragment=1 << 30, fragments=wanted)
    limits = Limits(task_bytes=task_bytes, tasks=rng.choice([1, 2, 100]))
    for _ in range(120):
        for _ in range(rng.choice([0, 1, 2, 2, 9])):
            table.append(rng.choice(sizes))
        table.round(targets, limits)
    found = table.round(targets, limits)
    while found.groups:
        found = table.round(targets, limits)
    # Each rewrite makes a fragment 1.5 times as large at least, until it is full; to fill it may take twice its rows.
    assert table.rewritten <= (math.log(1000, 1.5) + 2) * table.appended
    if wanted > 1:
        assert table.rewritten <= 2 * math.log(1000, 8) * table.appended, "most of them grow eightfold"
    # What stays: fewer than eight, and a few more of each size class; or each more than twice as large as all below it.
    assert found.mergeable <= (7 + 4 * 3 if wanted > 1 else 1 + math.log(1000, 3))


class Table:
    """A table to which small fragments are appended, and whose groups are rewritten as pylance does it."""

    def __init__(self, *, full: int) -> None:
        self._fragments = {id: small(id, 1000, size=10_000) for id in range(full)}
        self._next = full
        self.appended = self.rewritten = 0
        """Rows; each has 10 bytes."""

    def append(self, rows: int) -> None:
        self.appended += rows
        self._add(rows)

    def round(self, targets: Targets, limits: Limits) -> MaintenancePlan:
        """One round of maintenance."""
        found = plan(TableState(version=1, fragments=tuple(self._fragments.values())), targets, limits)
        for group in found.groups:
            self.rewritten += group.rows
            for id in group.fragments:
                del self._fragments[id]
            most = targets.rows_per_fragment
            for rows in [most] * (group.rows // most) + [group.rows % most]:
                if rows:
                    self._add(rows)
        return found

    def _add(self, rows: int) -> None:
        self._fragments[self._next] = small(self._next, rows, size=10 * rows)
        self._next += 1
