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
from committerd.queue.reach import Candidate, Reach, Skipped, lines_of

Lines = Sequence[bytes]
A, B, C = (b"pa",), (b"pb",), (b"pc",)


@dataclass
class Reader:
    """Reads a log in parts, and again what is due, and settles what is held."""

    log: Sequence[Lines]
    reach: Reach
    at: int = 0
    settled: set[int] = field(default_factory=set)
    read: int = 0
    """How many records were read, again or not."""
    held: set[int] = field(default_factory=set)

    def deliver(self, count: int) -> None:
        """Read the next records, as far as they can be taken."""
        for offset in range(self.at, min(self.at + count, len(self.log))):
            record = self.record(offset)
            if not self.reach.can_take(record):
                return
            self.read += 1
            self.at = offset + 1
            if self.reach.takes(record):
                self.held.add(offset)

    def read_again(self, count: int) -> bool:
        """Read at most so many records again, if some are due. Returns whether some were."""
        due = self.reach.due()
        if due is None:
            return False
        assert due.records >= 1
        end = min(due.offset + min(count, due.records), len(self.log))
        self.read += end - due.offset
        records = [self.record(offset) for offset in range(due.offset, end) if offset not in self.settled]
        held = self.reach.take_again(due.offset, records, end)
        assert self.held.isdisjoint(held)
        self.held.update(held)
        return True

    def settle(self, offsets: Collection[int]) -> None:
        """Give records outcomes."""
        self.reach.release(offsets)
        self.held.difference_update(offsets)
        self.settled.update(offsets)

    def record(self, offset: int) -> Candidate:
        return Candidate(offset, self.log[offset], 1, offset)

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
        taken = (one for one in unheld if one < self.at)
        assert self.reach.waiting == Counter(self.log[one][0] for one in (*taken, *self.held)), "whose records wait"


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
            if rng.random() < 0.3:
                reader.deliver(rng.randint(1, 5))
                continue
            if rng.random() < 0.5:
                reader.read_again(rng.randint(1, 5))
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
    assert not reader.reach.waiting
    while reader.read_again(100):
        pass
    assert reader.reach.first_skipped is None


def flood(count: int, reach: Reach, *others: Lines) -> Reader:
    """A reader at the end of so many records of one line, and others behind them."""
    reader = Reader([*[A] * count, *others], reach)
    while reader.at < len(reader.log):
        reader.deliver(10)
    return reader


def due_at(reach: Reach) -> int | None:
    """The offset of the first record that is to be read again."""
    due = reach.due()
    return None if due is None else due.offset


def test_others_are_held_while_the_records_before_them_are_not() -> None:
    reader = flood(1_000, Reach(40, 40), B, C, B)
    assert sorted(reader.held) == [*range(20), 1_000, 1_001, 1_002]
    assert reader.reach.first_skipped == Skipped(20, 999, 20, A)
    assert reader.reach.waiting == {b"pa": 1_000, b"pb": 2, b"pc": 1}


def test_a_flood_is_read_twice() -> None:
    count = 20_000
    reader = flood(count, Reach(7_500, 7_500))
    while len(reader.settled) < count:
        reader.settle(sorted(reader.held)[:300])
        reader.read_again(400)
    assert reader.read <= count * 2
    assert reader.reach.first_skipped is None


def test_records_are_read_again_when_enough_is_settled() -> None:
    reader = flood(1_000, Reach(40, 40))
    reader.settle(range(2))
    assert reader.reach.due() is None
    reader.settle([2])
    assert due_at(reader.reach) == 20
    assert reader.read_again(400)
    assert sorted(reader.held) == [*range(3, 23)]
    assert reader.reach.first_skipped == Skipped(23, 999, 23, A, turn=1)
    assert reader.reach.due() is None


def test_records_that_come_meanwhile_are_left_alone_when_others_are_read_again() -> None:
    reach = Reach(4, 4)
    assert [reach.takes(Candidate(offset, A, 1)) for offset in range(4)] == [True, True, False, False]
    reach.release([0, 1])
    assert due_at(reach) == 2
    assert reach.takes(Candidate(4, B, 1))
    again = [Candidate(2, A, 1), Candidate(3, A, 1), Candidate(4, B, 1), Candidate(5, A, 1), Candidate(6, C, 1)]
    assert reach.take_again(2, again, 7) == {2, 3}
    assert reach.first_skipped is None
    assert [reach.takes(Candidate(offset, line, 1)) for offset, line in ((5, A), (6, C))] == [False, True]


def test_as_much_is_read_again_as_can_be_held() -> None:
    reader = flood(10_000, Reach(4_000, 4_000))
    reader.settle(range(1_000))
    due = reader.reach.due()
    assert due is not None
    assert due.records == 1_000, "each record that a line holds is one less that is free"
    assert reader.read_again(due.records)
    assert reader.reach.first_skipped == Skipped(3_000, 9_999, 2_999, A, turn=1)
    assert len(reader.held) == 2_000


def test_a_line_that_is_committed_as_fast_as_it_is_read_holds_up_no_other() -> None:
    log = [*[A] * 2_000, *[B] * 100]
    reader = Reader(log, Reach(100, 100))
    reader.deliver(len(log))
    while reader.at < len(log) or not all(one in reader.settled for one in range(2_000, 2_100)):
        reader.settle(sorted(reader.held))
        assert reader.read_again(10)
        reader.check()
    assert sum(one < 2_000 for one in reader.settled) < 1_500


def test_what_is_read_for_one_line_gives_way_to_an_earlier_one() -> None:
    log = [*[A] * 100, *[B] * 100, *[C] * 100]
    reader = Reader(log, Reach(16, 16))
    reader.deliver(len(log))
    assert [sum(log[one] == line for one in reader.held) for line in (A, B, C)] == [8, 4, 2]
    while len(reader.settled) < len(log):
        oldest = [
            next(one for one in sorted(reader.held) if log[one] == line) for line in (A, B, C) if _holds(reader, line)
        ]
        reader.settle(oldest)
        reader.read_again(3)
        reader.check()
    assert reader.read < 3 * len(log)


def _holds(reader: Reader, line: Lines) -> bool:
    return any(reader.log[one] == line for one in reader.held)


def test_a_large_record_is_held_only_when_it_is_the_first() -> None:
    reach = Reach(10, 100)
    assert reach.takes(Candidate(0, A, 60))
    assert not reach.takes(Candidate(1, A, 1))
    assert reach.takes(Candidate(2, B, 500)), "one may go beyond the room"
    assert not reach.takes(Candidate(3, C, 1))
    assert reach.due() is None
    reach.release([0])
    assert due_at(reach) == 1, "the position may have to pass it first"
    assert reach.take_again(1, [Candidate(1, A, 500)], 2) == {1}
    reach.release([1, 2])
    assert due_at(reach) == 3
    assert reach.take_again(3, [Candidate(3, C, 1)], 4) == {3}


def test_a_record_of_two_lines_waits_for_the_later_of_both() -> None:
    both, other = lines_of(b"b", b"x"), (b"ax",)
    reach = Reach(4, 4)
    assert [reach.takes(Candidate(offset, A, 1)) for offset in range(3)] == [True, True, False]
    assert reach.takes(Candidate(3, other, 1))
    assert not reach.takes(Candidate(4, other, 1))
    assert not reach.takes(Candidate(5, both, 1))
    reach.release([3])
    assert due_at(reach) == 4
    assert reach.take_again(4, [Candidate(4, other, 1)], 5) == {4}
    assert reach.due() is None
    reach.release([4])
    assert due_at(reach) == 5
    assert reach.take_again(5, [Candidate(5, both, 1)], 6) == {5}


def test_no_record_is_skipped_where_none_may_be() -> None:
    reach = Reach(2, 2)
    reach.begin(skips=False)
    assert all(reach.takes(Candidate(offset, A, 1)) for offset in range(7, 20))
    assert reach.first_skipped is None
    assert reach.due() is None


def test_no_record_is_taken_where_too_many_lines_would_have_to_be_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES_MAX", 2)
    reach = Reach(1, 1)
    records = [Candidate(offset, (b"p%d" % offset,), 1) for offset in range(4)]
    assert reach.takes(records[0])
    for record in records[1:3]:
        assert reach.can_take(record)
        assert not reach.takes(record)
    assert not reach.can_take(records[3])
    assert reach.can_take(Candidate(3, records[1].lines, 1)), "a line that is remembered already"
    reach.release([0])
    assert reach.take_again(1, [records[1]], 2) == {1}
    assert reach.can_take(records[3])


def test_lines_of_a_record() -> None:
    assert lines_of(b"", b"") == (b"a",)
    assert lines_of(b"", b"x") == (b"ax",)
    assert lines_of(b"a", b"") == (b"pa",)
    assert lines_of(b"a", b"x") == (b"pa", b"ax")
    assert lines_of(b"a" * 200, b"") == (b"p" + b"a" * 127,)
