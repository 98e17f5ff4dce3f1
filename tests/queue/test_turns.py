"""Whose records the next version takes while more wait than it holds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from committerd.queue.turns import (
    PASSED_OVER_MAX,
    RECENT_VERSIONS,
    SHORT_MAX,
    BatchLines,
    Turns,
    count_beyond,
)

MOST, PART, BATCH_PART = 20, 6, 2
REST, HALF = MOST - 3 * PART, MOST // 2


@dataclass(frozen=True)
class One:
    """A record that waits."""

    offset: int
    producer: bytes = b""
    app_id: bytes = b""


class Queue:
    """Turns, and the records that wait."""

    def __init__(self, *batch: str) -> None:
        """`batch`: patterns of batch producers."""
        self.turns = Turns[One](BatchLines(batch))
        self.there: dict[int, One] = {}
        self.unready = set[int]()
        self.work = dict[int, int]()
        """By offset, the work of records that count as more than one."""

    def add(self, producer: bytes = b"", *, count: int = 1, app_id: bytes = b"") -> list[int]:
        first = max(self.there, default=-1) + 1
        for offset in range(first, first + count):
            self.there[offset] = One(offset, producer, app_id)
            self.turns.add(self.there[offset])
        return list(range(first, first + count))

    def chosen(self, *, passed: frozenset[int] = frozenset(), most: int = MOST, own_work: int = 0) -> list[int]:
        found = self.turns.chosen(
            most,
            own_work=own_work,
            passes=passed.__contains__,
            is_ready=lambda one: one.offset not in self.unready,
            work_of=lambda one: self.work.get(one.offset, 1),
        )
        return [one.offset for one in found]

    def is_other_ready(self, line: bytes, *, passed: frozenset[int] = frozenset()) -> bool:
        return self.turns.is_other_ready(
            line, passes=passed.__contains__, is_ready=lambda one: one.offset not in self.unready
        )

    def form(self, *offsets: int, passed: frozenset[int] = frozenset()) -> None:
        self.turns.formed(offsets, passes=passed.__contains__)

    def settle(self, *offsets: int) -> None:
        self.turns.settled([self.there[offset] for offset in offsets])


def test_a_flood_leaves_room_for_others() -> None:
    queue = Queue()
    flood = queue.add(b"flood", count=100)
    assert not queue.turns.are_several
    small, anonymous, app = queue.add(b"small"), queue.add(count=2), queue.add(app_id=b"a")
    assert queue.turns.are_several
    assert queue.chosen() == [*flood[:PART], *small, *anonymous, *app]


def test_lines_are_served_in_turn() -> None:
    queue = Queue()
    lines = [queue.add(b"%d" % number, count=30) for number in range(6)]
    first = queue.chosen()
    assert first == [*lines[0][:PART], *lines[1][:PART], *lines[2][:PART], *lines[3][:REST]]
    queue.settle(*first)
    second = [*lines[4][:PART], *lines[5][:PART], *lines[0][PART : 2 * PART], *lines[1][PART : PART + REST]]
    assert queue.chosen() == sorted(second)
    assert [one.offset for one in queue.turns.to_fetch(1)] == [
        *(line[0] for line in lines[4:]),
        *(line[PART] for line in lines[:3]),
        lines[3][REST],
    ]


def test_a_share_is_larger_if_the_version_itself_is_more_work_but_at_most_half_of_a_version() -> None:
    queue = Queue("night")
    flood, small = queue.add(b"flood", count=30), queue.add(b"small")
    flood_line, _ = queue.turns.lines
    for own_work, share in ((0, PART), (3, PART), (4, PART + 1), (MOST // 2, 9), (MOST, HALF), (9 * MOST, HALF)):
        assert queue.chosen(own_work=own_work) == [*flood[:share], *small]
        assert queue.turns.enough(flood_line, MOST, own_work=own_work) == share
    night = queue.add(b"night", count=30)
    assert queue.chosen(own_work=9 * MOST) == [*flood[:HALF], *small, *night[:BATCH_PART]]


def test_a_share_is_of_the_work_and_not_of_the_records() -> None:
    queue = Queue()
    heavy, small = queue.add(b"heavy", count=10), queue.add(b"small", count=2)
    queue.work = dict.fromkeys(heavy, PART // 2)
    assert queue.chosen() == [*heavy[:2], *small]
    queue.work[heavy[1]] = PART
    assert queue.chosen() == [*heavy[:1], *small]  # the second one is more than what is left of the share


def test_a_record_with_more_work_than_a_share_or_a_version_is_taken_in_its_turn() -> None:
    queue = Queue()
    heavy, small = queue.add(b"heavy", count=2), queue.add(b"small", count=2)
    queue.work = dict.fromkeys(heavy, 2 * PART)
    assert queue.chosen() == [heavy[0], *small]
    queue.work[heavy[0]] = 2 * MOST
    assert queue.chosen() == [heavy[0], *small]
    assert queue.chosen(most=1) == [heavy[0]]
    queue.settle(heavy[0])
    assert queue.chosen(most=1) == [small[0]]


def test_a_version_takes_from_no_more_lines_than_it_has_room_for() -> None:
    queue = Queue()
    lines = [queue.add(b"%d" % number, count=2) for number in range(6)]
    queue.work = {offset: PART for line in lines for offset in line}
    assert queue.chosen() == [line[0] for line in lines[:4]]
    queue.work[lines[0][0]] = PART + 1
    assert queue.chosen() == [line[0] for line in lines[:4]]


def test_a_version_takes_less_of_a_batch_producer_while_others_wait() -> None:
    queue = Queue("night*", "load[er]")
    batch, small = queue.add(b"nightly", count=100), queue.add(b"loade", count=MOST)
    assert queue.chosen() == [*batch[:BATCH_PART], *small[:PART]]
    queue.settle(*batch[:BATCH_PART])
    queue.turns.clear()  # what is forgotten is who waits, and not what the operator says
    batch, small = queue.add(b"night", count=100), queue.add(b"loade")
    assert queue.chosen() == [*batch[:BATCH_PART], *small]


@pytest.mark.parametrize(
    ("line", "is_batch"),
    [
        (b"pnightly", True),
        (b"anightly", True),
        (b"pnight", False),
        (b"px nightly", False),
        (b"pfrom-\xff-to", True),
        (b"pload[er]", True),
        (b"ploade", False),
        (b"p", False),
        (b"a", False),
    ],
)
def test_batch_producers_are_named_by_patterns(line: bytes, *, is_batch: bool) -> None:
    assert (line in BatchLines(["nightl*", "from-*-to", "load[er]"])) is is_batch


def test_what_the_position_passes_is_not_chosen_again() -> None:
    queue = Queue()
    flood, small = queue.add(b"flood", count=30), queue.add(b"small")
    assert queue.chosen(passed=frozenset([*flood[:5], *small])) == flood[5 : 5 + PART]


def test_who_was_served_lately_is_remembered_for_some_versions() -> None:
    queue = Queue()
    flood, small = queue.add(b"flood", count=RECENT_VERSIONS + 10), queue.add(b"small", count=2)
    queue.settle(small[0])
    for offset in flood[: RECENT_VERSIONS - 1]:
        queue.settle(offset)
    assert next(queue.turns.to_fetch(1)).offset == small[1]  # it was served, but longer ago
    queue.settle(flood[RECENT_VERSIONS - 1])
    new = queue.add(b"new")
    assert [one.offset for one in queue.turns.to_fetch(1)][:2] == [small[1], *new]


def test_of_many_long_lines_none_has_its_next_turn_before_all_others_have_theirs() -> None:
    queue, count = Queue(), 5 * RECENT_VERSIONS
    line_of = {offset: line for line in range(count) for offset in queue.add(b"%d" % line, count=4 * PART)}
    turns = Counter(dict.fromkeys(range(count), 0))
    while turns.total() < 3 * count:
        chosen = queue.chosen()
        queue.settle(*chosen)
        turns.update({line_of[offset] for offset in chosen})
        assert max(turns.values()) - min(turns.values()) <= 1


@pytest.mark.parametrize(("others", "new"), [(0, 1), (600, MOST), (30, MOST + 5)])
def test_new_lines_do_not_pass_a_line_that_waits_for_ever(others: int, new: int) -> None:
    """Beside other lines, `new` lines of a record each come while a version is put."""
    queue, most = Queue(), min(new, MOST)
    waiting = queue.add(b"waiting", count=2)
    for number in range(others):
        queue.add(b"other %d" % number)
    queue.settle(waiting[0])
    for version in range(RECENT_VERSIONS + (others + most) // most + 2):
        queue.settle(*(chosen := queue.chosen(most=most)))
        if waiting[1] in chosen:
            return
        for number in range(new):
            queue.add(b"new %d, %d" % (version, number))
    pytest.fail("the line had no turn")


def test_who_has_a_version_alone_sits_out_the_next_one() -> None:
    queue = Queue()
    flood, small = queue.add(b"flood", count=30), queue.add(b"small", count=3)
    queue.form(flood[0])  # and it is put while the next one is formed
    assert queue.chosen(passed=frozenset(flood[:1])) == small
    queue.settle(flood[0])
    assert queue.chosen() == small
    queue.unready = {*small}
    assert queue.chosen() == flood[1 : 1 + PART]
    queue.form(flood[1], small[0])
    queue.settle(flood[1], small[0])
    queue.unready = set()
    assert queue.chosen() == [*flood[2 : 2 + PART], *small[1:]]


def test_who_has_no_more_records_sits_out_nothing() -> None:
    """A client stages its next record once the previous one is committed."""
    queue = Queue()
    flood, small = queue.add(b"flood", count=30), queue.add(b"small")
    queue.form(*small)
    queue.settle(*small)
    (following,) = queue.add(b"small")
    assert queue.chosen() == [*flood[:PART], following]
    queue.settle()
    (last,) = queue.add(b"small")
    queue.form(last, passed=frozenset([following]))  # while the version with the other record is put
    queue.settle(following, last)
    (following,) = queue.add(b"small")
    assert queue.chosen() == [*flood[:PART], following]


def test_a_version_of_one_line_ends_for_others_sooner_if_it_is_the_second() -> None:
    queue = Queue("night*")
    flood, night = queue.add(b"flood", count=50), queue.add(b"nightly", count=50)
    flood_line, night_line = queue.turns.lines
    assert queue.turns.enough(flood_line, MOST, own_work=0) == PART
    assert queue.turns.enough(night_line, MOST, own_work=0) == BATCH_PART
    queue.form(*flood[:5])
    assert queue.turns.enough(flood_line, MOST, own_work=0) == BATCH_PART
    queue.form(flood[5], night[0])
    assert queue.turns.enough(flood_line, MOST, own_work=0) == PART
    assert queue.turns.enough(flood_line, 1, own_work=0) == 1


def test_others_wait_once_their_first_record_is_ready() -> None:
    queue = Queue()
    flood, small = queue.add(b"flood", count=5), queue.add(b"small", count=3)
    queue.unready = {small[1]}
    line, _ = queue.turns.lines
    assert queue.is_other_ready(line)
    assert not queue.is_other_ready(line, passed=frozenset(small[:1]))
    assert not queue.is_other_ready(line, passed=frozenset(small))
    queue.settle(*small)
    assert not queue.is_other_ready(line)
    assert queue.turns.line_of_all(flood) == line


def test_few_records_are_fetched_apart_from_those_of_a_flood() -> None:
    queue = Queue()
    flood, small = queue.add(b"flood", count=SHORT_MAX + 1), queue.add(b"small", count=SHORT_MAX)
    line, _ = queue.turns.lines
    assert {queue.turns.long_line(queue.there[offset]) for offset in flood} == {line}
    assert {queue.turns.long_line(queue.there[offset]) for offset in small} == {None}
    assert [one.offset for one in queue.turns.in_short_lines()] == small


def test_what_can_not_be_judged_yet_is_passed_over_and_waited_for_in_the_end() -> None:
    queue = Queue()
    flood, slow = queue.add(b"flood", count=30), queue.add(b"slow")
    queue.unready = {flood[2], *slow}
    for _ in range(PASSED_OVER_MAX):
        assert queue.chosen() == flood[:2]
    # Lines served as long ago come in the order of their offsets, so the flood is first.
    queue.settle(*flood[:2])
    assert queue.chosen() == slow
    queue.settle(*slow)
    assert queue.chosen() == []


def test_records_of_one_application_keep_their_order_whoever_stages_them() -> None:
    queue = Queue()
    flood = queue.add(b"flood", count=PART)
    before, after = queue.add(b"flood", app_id=b"a"), queue.add(b"restarted", app_id=b"a", count=2)
    other = queue.add(b"restarted")
    assert queue.chosen() == [*flood, *other]
    queue.settle(*flood, *before)
    queue.settle(after[0])
    assert set(queue.turns.lines) == {b"pflood", b"prestarted"}
    queue.settle(after[1])
    last = queue.add(b"restarted", app_id=b"a")
    assert [one.offset for one in queue.turns.lines[b"prestarted"]] == [*other, *last]


def test_records_leave_from_anywhere() -> None:
    queue = Queue()
    flood, small = queue.add(b"flood", count=5), queue.add(b"small", count=2)
    queue.turns.remove([queue.there[flood[3]], queue.there[flood[0]], queue.there[small[1]]])
    assert queue.chosen() == [flood[1], flood[2], flood[4], small[0]]
    queue.turns.clear()
    assert not queue.turns.lines


@pytest.mark.parametrize(
    ("taken", "waiting", "beyond"),
    [
        ({1, 2}, [1, 2, 3], 0),
        ({1, 3}, [1, 2, 3], 1),
        ({2, 3}, [1, 2, 3], 2),
        ({1, 2, 9}, [1, 2], 1),
        ({5}, [], 1),
        (set[int](), [1], 0),
    ],
)
def test_what_passes_others_is_counted(taken: set[int], waiting: list[int], beyond: int) -> None:
    assert count_beyond(taken, waiting) == beyond


@pytest.mark.parametrize("seed", range(20))
def test_the_order_within_a_producer_and_an_application_holds(seed: int) -> None:
    """Each version takes, of each producer without applications and of each application, the first that wait."""
    rng, queue = random.Random(seed), Queue()
    queue.add(b"flood", count=60)
    waiting = dict(queue.there)
    for _ in range(60):
        for _ in range(rng.randint(0, 3)):
            (offset,) = queue.add(rng.choice((b"x", b"y", b"")), app_id=rng.choice((b"", b"", b"a", b"b")))
            waiting[offset] = queue.there[offset]
        queue.unready = set(rng.sample(sorted(waiting), len(waiting) // 5))
        chosen = set(queue.chosen(most=rng.choice((1, 4, 12))))
        for offset in chosen:
            one = waiting[offset]
            same = [
                o
                for o, other in waiting.items()
                if o < offset
                and (
                    (one.app_id and other.app_id == one.app_id)
                    or (not one.app_id and not other.app_id and one.producer == other.producer)
                )
            ]
            assert set(same) <= chosen
        queue.settle(*chosen)
        for offset in chosen:
            del waiting[offset]
