"""Which records are held, against a reader of a whole log that follows what it is told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.queue import reach as module
from committerd.queue.reach import Reach, Skipped, lines_of

Lines = Sequence[bytes]
A, B, C = (b"pa",), (b"pb",), (b"pc",)


@dataclass
class Reader:
    """A consumer that delivers a log in parts, and a committer that settles what is held."""

    log: Sequence[Lines]
    reach: Reach
    at: int = 0
    settled: set[int] = field(default_factory=set)
    read: int = 0
    jumps: int = 0
    held: set[int] = field(default_factory=set)

    def deliver(self, count: int) -> None:
        """Read the next records, and go where the next ones are to be read."""
        for offset in range(self.at, min(self.at + count, len(self.log))):
            self.read += 1
            if offset in self.settled:
                self.reach.leave_out(offset)
            elif self.reach.holds(offset, self.log[offset], 1, timestamp_ms=offset):
                assert offset not in self.held
                self.held.add(offset)
        self.at = min(self.at + count, len(self.log))
        self.turn()

    def turn(self) -> None:
        goal = self.reach.turn()
        if goal is not None:
            self.at, self.jumps = goal, self.jumps + 1

    def settle(self, offsets: Collection[int]) -> None:
        """Give records outcomes."""
        self.reach.release(offsets)
        self.held.difference_update(offsets)
        self.settled.update(offsets)
        self.turn()

    def check(self) -> None:
        """What must hold at any time."""
        unheld = [one for one in range(len(self.log)) if one not in self.held and one not in self.settled]
        for offset in self.held:
            earlier = (one for one in unheld if one < offset)
            assert all(set(self.log[one]).isdisjoint(self.log[offset]) for one in earlier), "passed one of its line"
        skipped = self.reach.first_skipped
        end = max(self.held, default=-1)
        gap = min((one for one in unheld if one < end), default=None)
        assert gap is None or (skipped is not None and skipped.offset <= gap), "the position would pass one unread"
        assert self.reach.held == (len(self.held), len(self.held))
        read = (one for one in unheld if one < self.reach._seen)
        assert self.reach.waiting == Counter(self.log[one][0] for one in (*read, *self.held)), "whose records wait"


_LINES = st.builds(
    lines_of,
    st.sampled_from((b"", b"a", b"b", b"c")),
    st.sampled_from((b"", b"", b"x", b"y")),
)


@given(
    log=st.lists(_LINES, max_size=40),
    room=st.integers(1, 12),
    lines_max=st.sampled_from((2, 3, 100)),
    seed=st.integers(0, 1 << 32),
    in_order=st.booleans(),
)
def test_every_record_is_held_once_and_in_the_order_of_its_lines(
    log: list[Lines], room: int, lines_max: int, seed: int, in_order: bool
) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LINES_MAX", lines_max)
        reader = Reader(log, Reach(room, room))
        for _ in range(60 * len(log)):
            if len(reader.settled) == len(log):
                break
            reader.check()
            assert len(reader.held) <= room + 1
            if rng.random() < 0.5:
                reader.deliver(rng.randint(1, 5))
                continue
            # A committer whose position can carry nothing ahead settles only what is the first of all.
            first = next(one for one in range(len(log)) if one not in reader.settled)
            may = [
                one
                for one in sorted(reader.held)
                if (one == first if in_order else all(set(log[one]).isdisjoint(log[o]) for o in reader.held if o < one))
            ]
            reader.settle(rng.sample(may, min(len(may), 1)))
    assert len(reader.settled) == len(log)
    assert reader.reach.held == (0, 0)
    assert not reader.reach.waiting


def flood(count: int, reach: Reach, *others: Lines) -> Reader:
    """A reader at the end of so many records of one line, and others behind them."""
    reader = Reader([*[A] * count, *others], reach)
    while reader.at < len(reader.log):
        reader.deliver(10)
    return reader


def test_others_are_held_while_the_records_before_them_are_not() -> None:
    reader = flood(1_000, Reach(40, 40), B, C, B)
    assert sorted(reader.held) == [*range(20), 1_000, 1_001, 1_002]
    assert reader.reach.first_skipped == Skipped(20, 20, A)
    assert reader.reach.waiting == {b"pa": 1_000, b"pb": 2, b"pc": 1}


def test_a_flood_is_read_about_twice() -> None:
    count = 20_000
    reader = flood(count, Reach(7_500, 7_500))
    while len(reader.settled) < count:
        reader.settle(sorted(reader.held)[:300])
        reader.deliver(400)
    assert reader.read < count * 2.2
    assert reader.reach.first_skipped is None


def test_the_reader_goes_back_only_when_enough_is_settled() -> None:
    reader = flood(1_000, Reach(40, 40))
    reader.settle(range(2))
    assert reader.jumps == 0
    reader.settle([2])
    assert (reader.jumps, reader.at) == (1, 20)
    while reader.at < 1_000:
        reader.deliver(5)
    assert reader.jumps == 2, "afterwards it is at the end again"
    assert sorted(reader.held) == [*range(3, 23)]


def test_what_is_read_for_one_line_gives_way_to_an_earlier_one() -> None:
    log = [*[A] * 100, *[B] * 100, *[C] * 100]
    reader = Reader(log, Reach(16, 16))
    while reader.at < len(log):
        reader.deliver(5)
    assert [sum(log[one] == line for one in reader.held) for line in (A, B, C)] == [8, 4, 2]
    while len(reader.settled) < len(log):
        oldest = [
            next(one for one in sorted(reader.held) if log[one] == line) for line in (A, B, C) if _holds(reader, line)
        ]
        reader.settle(oldest)
        reader.deliver(3)
        reader.check()
    assert reader.read < 6 * len(log)


def _holds(reader: Reader, line: Lines) -> bool:
    return any(reader.log[one] == line for one in reader.held)


def test_a_large_record_is_held_only_when_it_is_the_first() -> None:
    reach = Reach(10, 100)
    assert reach.holds(0, A, 60)
    assert not reach.holds(1, A, 1)
    assert reach.holds(2, B, 500), "one may go beyond the room"
    assert not reach.holds(3, C, 1)
    assert reach.turn() is None
    reach.release([0])
    assert reach.turn() == 1, "the position may have to pass it first"
    assert reach.holds(1, A, 500)
    reach.release([1, 2])
    assert reach.turn() is None
    reach.leave_out(2)
    assert reach.holds(3, C, 1)


def test_a_record_of_two_lines_waits_for_the_later_of_both() -> None:
    both = lines_of(b"b", b"x")
    reach = Reach(4, 4)
    assert [reach.holds(offset, A, 1) for offset in range(3)] == [True, True, False]
    assert reach.holds(3, (b"ax",), 1)
    assert not reach.holds(4, (b"ax",), 1)
    assert not reach.holds(5, both, 1)
    reach.release([3])
    assert reach.turn() == 4
    assert reach.holds(4, (b"ax",), 1)
    assert reach.turn() is None
    reach.release([4])
    assert reach.turn() is None
    assert reach.holds(5, both, 1)


def test_no_record_is_skipped_where_none_may_be() -> None:
    reach = Reach(2, 2)
    reach.begin(7, skips=False)
    assert all(reach.holds(offset, A, 1) for offset in range(7, 20))
    assert reach.first_skipped is None
    assert reach.turn() is None


def test_the_reader_stops_where_it_would_have_to_remember_too_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES_MAX", 2)
    reach = Reach(1, 1)
    assert reach.holds(0, A, 1)
    assert not any(reach.holds(offset, (b"p%d" % offset,), 1) for offset in range(1, 6))
    reach.leave_out(6)
    assert reach.turn() is None
    reach.release([0])
    assert reach.turn() == 1
    assert reach.holds(1, (b"p1",), 1)
    assert not reach.holds(2, (b"p2",), 1)
    assert not reach.holds(3, (b"p3",), 1), "which is one line too many until the first is known not to be skipped"
    assert reach.is_stopped
    assert reach.turn() == 3
    assert not reach.holds(3, (b"p3",), 1)
    assert not reach.is_stopped
    assert not reach.holds(4, (b"p3",), 1), "a line that is skipped already"
    assert not reach.is_stopped
    assert not reach.holds(5, (b"p4",), 1)
    assert reach.is_stopped
    assert reach.turn() is None


def test_lines_of_a_record() -> None:
    assert lines_of(b"", b"") == (b"a",)
    assert lines_of(b"", b"x") == (b"ax",)
    assert lines_of(b"a", b"") == (b"pa",)
    assert lines_of(b"a", b"x") == (b"pa", b"ax")
    assert lines_of(b"a" * 200, b"") == (b"p" + b"a" * 127,)
