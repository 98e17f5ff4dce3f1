"""Reach: which of the staged records wait in memory, and where the log is read next.

A committer holds a bounded number of records. If the records of one producer could fill that room, everybody else's
would be unread behind them. So a line (the records of one producer, or of one application) may hold at most as much as
is still free. The records beyond that are *skipped*: they stay in the log, the reader notes the first offset of each
line, and reads on. When a line holds less than a good part of its room, the reader goes back to that offset, and
afterwards to the end of what it has seen.

No record is held while an earlier one of its producer or its application is skipped, so the order within both stays.
Records that are read again are held only once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

LINES_MAX = 1_000
"""The reader goes no further while records of so many lines are skipped, since it keeps an offset of each."""
_KEY_BYTES_MAX = 128
"""Lines whose names begin with the same so many bytes are one line here."""
_LOW = 0.75
"""A line is read again when it holds at most this part of what is free. Meanwhile nothing is read for the others, so
not much may be missing.
"""


class Skipped(NamedTuple):
    """Of one line, all records at or above an offset are unread again; all below are held, or have outcomes."""

    offset: int
    timestamp_ms: int
    """Unix time of the record there, or of one before it."""
    keys: Collection[bytes]
    """Lines whose records this one must follow: those of the record at this offset as far as it is known."""


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
    """The lines of the records that are held and skipped, and the place of the reader."""

    def __init__(self, records_max: int = sys.maxsize, bytes_max: int = sys.maxsize) -> None:
        """How many records may be held, and their bytes; one record may go beyond it."""
        self._records_max, self._bytes_max = records_max, bytes_max
        self.begin(0)

    def begin(self, offset: int, *, skips: bool = True) -> None:
        """Hold nothing, and read from this offset on. `skips` False: hold whatever comes."""
        self._skips = skips
        self._held: dict[int, tuple[Sequence[bytes], int]] = {}
        """By offset: the record's lines, and its bytes."""
        self._records, self._bytes = Counter[bytes](), Counter[bytes]()
        """By line, what is held of it."""
        self._all_bytes = 0
        self._waiting = Counter[bytes]()
        """By the first of a record's lines, the records without an outcome that were read, held or skipped."""
        self._lowest: int | None = None
        """The lowest offset that is held; None = not known, or nothing is held."""
        self._skipped: dict[bytes, Skipped] = {}
        self._seen = offset
        """The offset after the last record that was ever read."""
        self._next = offset
        """The offset after the last record that was read now."""
        self.has_read = False
        """Whether anything was read there since the reader came."""
        self._closed = set[bytes]()
        """The lines of which no record is held until the reader goes to another place."""
        self._stopped = False
        """Whether records of too many lines are skipped: what is read does not count."""

    @property
    def held(self) -> tuple[int, int]:
        """How many records are held, and their bytes."""
        return len(self._held), self._all_bytes

    @property
    def waiting(self) -> Mapping[bytes, int]:
        """How many of the records that were read wait, held or skipped, by the first of their lines."""
        return self._waiting

    @property
    def is_stopped(self) -> bool:
        """Whether what is read does not count, because records of too many lines are skipped."""
        return self._stopped

    @property
    def first_skipped(self) -> Skipped | None:
        """What is skipped at the lowest offset. A position that passes records in order ends there."""
        return min(self._skipped.values(), default=None)

    def holds(self, offset: int, lines: Sequence[bytes], size: int, *, timestamp_ms: int = 0) -> bool:
        """Whether the next record that was read is to be held from now on; False = it is skipped, or held already.

        `size`: bytes that it takes in memory. `leave_out` is for records with an outcome.
        """
        if self._stopped:
            return False
        if offset in self._held:
            self._move_on(offset)
            return False
        if self._closed.isdisjoint(lines) and (self._has_room(lines) or self._is_first(offset)):
            self._move_on(offset, lines)
            if not self._held or (self._lowest is not None and offset < self._lowest):
                self._lowest = offset
            self._held[offset] = lines, size
            self._all_bytes += size
            for line in lines:
                self._records[line] += 1
                self._bytes[line] += size
            return True
        new = sum(line not in self._skipped for line in lines)
        if new and len(self._skipped) + new > LINES_MAX:
            self._stopped = True
            return False
        self._move_on(offset, lines)
        skipped = Skipped(offset, timestamp_ms, lines)
        for line in lines:
            if line not in self._closed:
                self._closed.add(line)
                self._skipped[line] = skipped
        return False

    def leave_out(self, offset: int) -> None:
        """Note that the next record that was read has an outcome."""
        if not self._stopped:
            self._move_on(offset)

    def release(self, offsets: Iterable[int]) -> None:
        """Free the room of held records."""
        for offset in offsets:
            lines, size = self._held.pop(offset)
            self._all_bytes -= size
            self._waiting[lines[0]] -= 1
            if self._waiting[lines[0]] < 1:
                del self._waiting[lines[0]]
            if offset == self._lowest:
                self._lowest = None
            for line in lines:
                self._records[line] -= 1
                self._bytes[line] -= size
                if not self._records[line]:
                    del self._records[line], self._bytes[line]

    def turn(self) -> int | None:
        """Return the offset from which the log must be read now; None = where the reader is.

        Call it after the records of each delivery, and when room was freed. The reader is there from now on.
        """
        self._note_what_was_read()
        wanted = min((one.offset for one in self._skipped.values() if self._is_due(one)), default=None)
        if self._stopped:
            if wanted is None and len(self._skipped) > LINES_MAX // 2:
                return None
            goal = self._seen if wanted is None else wanted
        elif self._next >= self._seen:
            goal = self._next if wanted is None else wanted
        elif wanted is not None and (wanted < self._next or not self._reads_for_a_line()):
            goal = wanted
        else:
            goal = self._next if self._reads_for_a_line() else self._seen
        if goal == self._next and not self._stopped:
            return None
        self._next, self._stopped, self.has_read = goal, False, False
        self._closed = {line for line, one in self._skipped.items() if one.offset < goal}
        return goal

    def _move_on(self, offset: int, waiting: Sequence[bytes] = ()) -> None:
        """`waiting`: the lines of the record there, if it waits."""
        if waiting and offset >= self._seen:
            self._waiting[waiting[0]] += 1
        self._next, self.has_read = offset + 1, True
        self._seen = max(self._seen, self._next)

    def _note_what_was_read(self) -> None:
        """Of the lines that are not closed, all records up to here are held, or have outcomes."""
        for line, one in list(self._skipped.items()):
            if line in self._closed or one.offset >= self._next:
                continue
            if self._next >= self._seen:
                del self._skipped[line]
            else:
                self._skipped[line] = Skipped(self._next, one.timestamp_ms, (line,))

    def _reads_for_a_line(self) -> bool:
        """Whether the reader, at a place where it has been before, may still find a record to hold."""
        return any(
            one.offset == self._next and line not in self._closed and self._has_room((line,))
            for line, one in self._skipped.items()
        )

    def _is_due(self, one: Skipped) -> bool:
        """Whether the reader should go back for a record: it would be held, and of its lines not much is held."""
        if any(self._skipped[line].offset != one.offset for line in one.keys):
            return False  # it must follow another one, which is skipped too
        records, size = self._free()
        is_low = all(self._records[line] <= records * _LOW and self._bytes[line] <= size * _LOW for line in one.keys)
        return (is_low and self._has_room(one.keys)) or self._is_first(one.offset)

    def _has_room(self, lines: Iterable[bytes]) -> bool:
        records, size = self._free()
        return not self._skips or all(records > self._records[one] and size > self._bytes[one] for one in lines)

    def _is_first(self, offset: int) -> bool:
        """Whether none with a lower offset is held, so that the position may have to pass this one first."""
        if self._lowest is None:
            self._lowest = min(self._held, default=None)
        return self._lowest is None or self._lowest > offset

    def _free(self) -> tuple[int, int]:
        return self._records_max - len(self._held), self._bytes_max - self._all_bytes
