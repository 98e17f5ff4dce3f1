"""Reach: which of the staged records wait in memory, and which are to be read again.

A committer holds a bounded number of records. If the records of one producer could fill that room, everybody else's
would be unread behind them. So a line (the records of one producer, or of one application) may hold at most as much as
is still free. The records beyond that are *skipped*: they stay in the log, and only the offsets of the first and the
last of each line are kept. When a line holds less than a good part of its room, the log is read again from its first
skipped record on, while the queue goes on delivering what is new.

No record is held while an earlier one of its producer or its application is skipped, so the order within both stays.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

LINES_MAX = 1_000
"""The offsets of at most so many lines are kept. A record that would have to be skipped and add a line must wait."""
_KEY_BYTES_MAX = 128
"""Lines whose names begin with the same so many bytes are one line here."""
_LOW = 0.75
"""A line is read again when it holds at most this part of what is free."""
_FEW = 16
"""At least so many records are read again at once."""


class Candidate(NamedTuple):
    """A record without an outcome that was read, and may be held."""

    offset: int
    lines: Sequence[bytes]
    """The lines that it is in (`lines_of`)."""
    size: int
    """Bytes that it takes in memory."""
    timestamp_ms: int = 0


class Skipped(NamedTuple):
    """The records of one line that are to be read again, from the first to the last."""

    offset: int
    """Of the first. The line's records below it are held, or have outcomes."""
    last: int
    """Offset of the last."""
    timestamp_ms: int
    """Unix time of the first, or of a record before it."""
    lines: Collection[bytes]
    """Lines whose records the first must follow: all that it is in, as far as they are known."""
    turn: int = 0
    """Which reading began with the first of the line: the number of the last one, 0 = none did."""


class Due(NamedTuple):
    """What is to be read again."""

    offset: int
    """Of the first record."""
    records: int
    """How many to read: as many more of its lines can be held, and at least a few, since others lie between them."""


def lines_of(producer: bytes, app_id: bytes) -> Sequence[bytes]:
    """The lines that a record with these headers is in, its producer's first; none of them may change its order.

    Empty = no such header.
    """
    app = (b"a" + app_id)[:_KEY_BYTES_MAX]
    if not producer:
        return (app,)
    own = (b"p" + producer)[:_KEY_BYTES_MAX]
    return (own, app) if app_id else (own,)


class Reach:
    """The lines of the records that are held and skipped."""

    def __init__(self, records_max: int = sys.maxsize, bytes_max: int = sys.maxsize) -> None:
        """How many records may be held, and their bytes; one record may go beyond it."""
        self._records_max, self._bytes_max = records_max, bytes_max
        self.begin()

    def begin(self, *, skips: bool = True) -> None:
        """Hold nothing. `skips` False: hold whatever comes."""
        self._skips = skips
        self._held: dict[int, Candidate] = {}
        """By offset."""
        self._records, self._bytes = Counter[bytes](), Counter[bytes]()
        """By line, what is held of it."""
        self._all_bytes = 0
        self._waiting = Counter[bytes]()
        """By the first of a record's lines, the records that were taken and have no outcome, held or skipped."""
        self._lowest: int | None = None
        """The lowest offset that is held; None = not known, or nothing is held."""
        self._skipped: dict[bytes, Skipped] = {}
        self._turn = 0
        """How often records were read again."""

    @property
    def waiting(self) -> Mapping[bytes, int]:
        """How many of the records that were taken wait, held or skipped, by the first of their lines."""
        return self._waiting

    @property
    def first_skipped(self) -> Skipped | None:
        """What is skipped at the lowest offset. A position that passes records in order ends there."""
        return min(self._skipped.values(), default=None)

    def can_take(self, record: Candidate) -> bool:
        """Whether the next record can be taken; not if it would be skipped, and more than `LINES_MAX` lines with it."""
        new = sum(line not in self._skipped for line in record.lines)
        return not new or len(self._skipped) + new <= LINES_MAX or self._may_hold(record, self._skipped)

    def takes(self, record: Candidate) -> bool:
        """Take the next record. Returns whether it is held from now on; False = it is skipped."""
        self._waiting[record.lines[0]] += 1
        if self._may_hold(record, self._skipped):
            self._hold(record)
            return True
        for line in record.lines:
            first = self._skipped.get(line) or Skipped(record.offset, record.offset, record.timestamp_ms, record.lines)
            self._skipped[line] = first._replace(last=record.offset)
        return False

    def due(self) -> Due | None:
        """What is to be read again now; None = nothing. It may be another when records were taken or released."""
        first = self.first_skipped
        if first is None:
            return None
        if self._is_first(first.offset) and not self._is_due(first):
            return Due(first.offset, _FEW)
        # In turn: a line that is committed as fast as it is read is due all the time.
        due = min(filter(self._is_due, self._skipped.values()), default=None, key=attrgetter("turn", "offset"))
        if due is None:
            return None
        records, _ = self._free()
        # Each record that a line holds is one less that is free.
        room = min((records - self._records[line] + 1) // 2 for line in due.lines)
        return Due(due.offset, max(room, _FEW))

    def take_again(self, start: int, records: Iterable[Candidate], end: int) -> Collection[int]:
        """Take what was read again from `start` up to `end`; returns the offsets that are held from now on.

        `records`: all of that range without an outcome, in their order. Some of them may be held already, or may not
        have been taken yet: these are left alone.
        """
        closed = {line for line, one in self._skipped.items() if one.offset < start}
        self._turn += 1
        for line, one in self._skipped.items():
            if one.offset == start:
                self._skipped[line] = one._replace(turn=self._turn)
        held, latest_ms = set[int](), None
        for record in records:
            latest_ms = record.timestamp_ms
            if record.offset in self._held or not self._is_skipped(record):
                continue
            if self._may_hold(record, closed):
                self._hold(record)
                held.add(record.offset)
                continue
            for line in set(record.lines) - closed:
                self._skipped[line] = self._skipped[line]._replace(
                    offset=record.offset, timestamp_ms=record.timestamp_ms, lines=record.lines
                )
            closed.update(record.lines)
        for line, one in list(self._skipped.items()):
            if line in closed or one.offset >= end:
                continue
            if one.last < end:
                del self._skipped[line]
            else:
                known_ms = one.timestamp_ms if latest_ms is None else latest_ms
                self._skipped[line] = one._replace(offset=end, timestamp_ms=known_ms, lines=(line,))
        return held

    def release(self, offsets: Iterable[int]) -> None:
        """Free the room of held records."""
        for offset in offsets:
            record = self._held.pop(offset)
            self._all_bytes -= record.size
            self._waiting[record.lines[0]] -= 1
            if self._waiting[record.lines[0]] < 1:
                del self._waiting[record.lines[0]]
            if offset == self._lowest:
                self._lowest = None
            for line in record.lines:
                self._records[line] -= 1
                self._bytes[line] -= record.size
                if not self._records[line]:
                    del self._records[line], self._bytes[line]

    def _may_hold(self, record: Candidate, closed: Collection[bytes]) -> bool:
        """`closed`: the lines of which an earlier record is skipped."""
        if any(line in closed for line in record.lines):
            return False
        return self._has_room(record.lines) or self._is_first(record.offset)

    def _hold(self, record: Candidate) -> None:
        if not self._held or (self._lowest is not None and record.offset < self._lowest):
            self._lowest = record.offset
        self._held[record.offset] = record
        self._all_bytes += record.size
        for line in record.lines:
            self._records[line] += 1
            self._bytes[line] += record.size

    def _is_skipped(self, record: Candidate) -> bool:
        """Whether a record that is not held was taken."""
        return all(line in self._skipped and record.offset <= self._skipped[line].last for line in record.lines)

    def _is_due(self, one: Skipped) -> bool:
        """Whether its first record is to be read again because it would be held, and of its lines not much is held."""
        if any(self._skipped[line].offset != one.offset for line in one.lines):
            return False  # it must follow another one, which is skipped too
        records, size = self._free()
        is_low = all(self._records[line] <= records * _LOW and self._bytes[line] <= size * _LOW for line in one.lines)
        return is_low and self._has_room(one.lines)

    def _has_room(self, lines: Iterable[bytes]) -> bool:
        records, size = self._free()
        return not self._skips or all(records > self._records[one] and size > self._bytes[one] for one in lines)

    def _is_first(self, offset: int) -> bool:
        """Whether none with a lower offset is held or skipped, so that the position has to pass this one first."""
        if self._lowest is None:
            self._lowest = min(self._held, default=None)
        if self._lowest is not None and self._lowest < offset:
            return False
        return all(one.offset >= offset for one in self._skipped.values())

    def _free(self) -> tuple[int, int]:
        return self._records_max - len(self._held), self._bytes_max - self._all_bytes
