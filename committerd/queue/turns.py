"""Turns: whose records the next version takes, while more records wait than one version holds.

The records of one producer (header `producer`) are a *line*; those without the header are a line by their app-id, or
else one line together. A record of an application joins the line in which others of that application wait, so that the
records of one application never change their order, whoever stages them.

While records of several lines wait, a version takes at most a share of its work from each line, from those first that
were served longest ago. A record is as much work as an Append of one file, or more (`queue.grouping.work_of`). The
share of batch producers, which the operator names, is smaller. On a table with many fragments a share is larger,
because there each version takes long, whatever it holds. A version may have records of one line only, because
nobody else's were ready. It ends when it has that line's share and a record of another line is ready, and the line sits
out the next version. If that one is its own again, because the others were not ready after all, a smaller share is
enough. So a producer that stages many records at once has no more of the time than any other, and records of others
pass its records: they are settled ahead. A position carries a limited number of offsets that are settled ahead; where
more of them would be needed, records are taken in the order of their offsets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from committerd.queue.producers import matches

SHARE, SHARE_MAX = 0.3, 0.5
"""While several lines wait, a version takes from each at most this part of the work that it may hold. The part is
larger on a table with many fragments, where each version takes long, whatever it holds; it is at most `SHARE_MAX`.
"""
BATCH_SHARE = 0.1
"""The part for the line of a batch producer, and for a line that had the version before to itself."""
SHORT_MAX = 16
"""The most records that wait in a short line."""
RECENT_VERSIONS = 32
"""For so many versions the turns remember when a line was served. If the line waits, they remember it for longer: until
there were as many turns since then as lines waited then.
"""
PASSED_OVER_MAX = 8
"""A line whose first record can't be judged yet is passed over at most so many times. Then a version waits for it."""


class Waiting(Protocol):
    """A record that waits."""

    @property
    def offset(self) -> int: ...
    @property
    def producer(self) -> bytes: ...
    @property
    def app_id(self) -> bytes: ...


_T = TypeVar("_T", bound=Waiting)


@dataclass(frozen=True, slots=True)
class BatchLines:
    """The lines of the producers that the operator calls batch producers."""

    patterns: Sequence[str]
    """Of their names, which are header `producer` or else the app-id; `*` stands for any characters."""

    def __contains__(self, line: object) -> bool:
        name = line[1:].decode("utf-8", "backslashreplace") if isinstance(line, bytes) else ""
        return any(matches(name, pattern) for pattern in self.patterns)


class _Served(NamedTuple):
    """When a line was served."""

    version: int
    """The number of the version that settled a record of it."""
    until: int
    """The value of `Turns._turns` at which there were as many turns since then as lines waited then."""


_NEVER = _Served(version=0, until=0)


class Turns(Generic[_T]):
    """The lines of the records that wait, and when each was served."""

    def __init__(self, batch: Container[bytes] = ()) -> None:
        """`batch`: the lines of batch producers."""
        self._batch = batch
        self._lines: dict[bytes, deque[_T]] = {}
        """Each in the order in which its records were added; none is empty."""
        self._line_of: dict[int, bytes] = {}
        """By offset."""
        self._apps: dict[bytes, tuple[bytes, int]] = {}
        """By app-id: the line in which records of the application wait, and how many."""
        self._served: dict[bytes, _Served] = {}
        """By line, when it was last served, unless that is forgotten."""
        self._versions = 0
        """The number of versions that have settled records."""
        self._turns = 0
        """The number of turns that lines have had: one for each line that a version has served."""
        self._alone: bytes | None = None
        """The line that has the version formed last to itself, and more records."""
        self._passed_over = Counter[bytes]()

    @property
    def lines(self) -> Mapping[bytes, Collection[_T]]:
        """The records that wait, by line."""
        return self._lines

    @property
    def are_several(self) -> bool:
        """Whether records of several lines wait."""
        return len(self._lines) > 1

    def add(self, one: _T) -> None:
        """Add a record, whose offset is above those of all others of its producer and its application."""
        line = b"p" + one.producer if one.producer else b"a" + one.app_id
        if one.app_id:
            line, count = self._apps.get(one.app_id, (line, 0))
            self._apps[one.app_id] = line, count + 1
        self._line_of[one.offset] = line
        self._lines.setdefault(line, deque()).append(one)

    def remove(self, ones: Iterable[_T]) -> None:
        """Remove records that no longer wait."""
        gone: dict[bytes, set[int]] = {}
        for one in ones:
            gone.setdefault(self._line_of.pop(one.offset), set()).add(one.offset)
            if one.app_id:
                self._left_by(one)
        for line, offsets in gone.items():
            left = self._lines[line]
            while left and left[0].offset in offsets:
                offsets.remove(left.popleft().offset)
            if offsets:
                left = self._lines[line] = deque(one for one in left if one.offset not in offsets)
            if not left:
                del self._lines[line]

    def _left_by(self, one: _T) -> None:
        """Note that one record fewer of its application waits."""
        line, count = self._apps.pop(one.app_id)
        if count > 1:
            self._apps[one.app_id] = line, count - 1

    def settled(self, ones: Collection[_T]) -> None:
        """Remove the records that a version has settled, and note that their lines were served."""
        if not ones:
            return
        served = {self._line_of[one.offset] for one in ones}
        self.remove(ones)
        self._versions += 1
        self._turns += len(served)
        self._served = {line: at for line, at in self._served.items() if self._remembers(line, at)}
        self._served |= dict.fromkeys(served, _Served(self._versions, self._turns + len(self._lines)))
        for line in served:
            del self._passed_over[line]

    def _remembers(self, line: bytes, at: _Served) -> bool:
        """Whether the turns remember when this line was served.

        A line that is forgotten goes before the others. If it were forgotten too early, it would go before lines that
        have waited for longer; if it were never forgotten, new lines could go before it for ever.
        """
        return self._versions - at.version < RECENT_VERSIONS or (line in self._lines and self._turns < at.until)

    def formed(self, offsets: Collection[int], *, passes: Callable[[int], bool]) -> None:
        """Note the offsets that a version settles. It has been formed, and its records still wait.

        `passes`: whether the position passed an offset before it.
        """
        line = self.line_of_all(offsets)
        waiting = (one.offset for one in self._lines.get(line, ())) if line is not None else ()
        has_more = any(not passes(offset) and offset not in offsets for offset in waiting)
        self._alone = line if has_more else None

    def clear(self) -> None:
        """Remove all records, and forget who was served."""
        self.__init__(self._batch)  # type: ignore[misc]

    def to_fetch(self, count: int) -> Iterator[_T]:
        """Yield the first records of each line, at most `count` of each, in the order of their turns."""
        for line in self._in_turn():
            yield from islice(self._lines[line], count)

    def long_line(self, one: _T) -> bytes | None:
        """The line of a record that waits, if more records than `SHORT_MAX` wait in it; None otherwise."""
        line = self._line_of[one.offset]
        return line if len(self._lines[line]) > SHORT_MAX else None

    def in_short_lines(self) -> Iterator[_T]:
        """Yield the records that wait in lines of at most `SHORT_MAX`."""
        for waiting in self._lines.values():
            if len(waiting) <= SHORT_MAX:
                yield from waiting

    def chosen(
        self,
        most: int,
        *,
        own_work: int,
        passes: Callable[[int], bool],
        is_ready: Callable[[_T], bool],
        work_of: Callable[[_T], int],
    ) -> Sequence[_T]:
        """Return the records that the next version may take while there are several lines, by ascending offset.

        Of each line they are the first ones. `most`: maximum number of records in a version. `own_work`: as how many
        records the version itself counts. `passes`: whether the position passes an offset. `is_ready`: whether a record
        can be judged without waiting for its facts. `work_of`: as how many records a record counts; the first of a line
        is taken even if it counts as more than the share. Empty if none of the first records is ready.
        """
        chosen, all_work = list[_T](), 0
        for line in self._in_turn():
            share = self._part(most, own_work, small=line in self._batch)
            waiting = (one for one in self._lines[line] if not passes(one.offset))
            first = next(waiting, None)
            if first is None:
                continue
            if not is_ready(first):
                self._passed_over[line] += 1
                if self._passed_over[line] > PASSED_OVER_MAX:
                    return [first]
                continue
            if line == self._alone and chosen:
                continue
            chosen.append(first)
            work, room = work_of(first), min(share, most - all_work)
            for one in waiting:
                with_it = work + work_of(one)
                if with_it > room or not is_ready(one):
                    break
                chosen.append(one)
                work = with_it
            all_work += min(work, share)
            if all_work >= most:
                break
        return sorted(chosen, key=lambda one: one.offset)

    def line_of_all(self, offsets: Iterable[int]) -> bytes | None:
        """The line of the records at these offsets; None if they are of several, or do not wait."""
        lines = {self._line_of.get(offset) for offset in offsets}
        return lines.pop() if len(lines) == 1 else None

    def enough(self, line: bytes, most: int, *, own_work: int) -> int:
        """After how much work a version of this line alone ends, if a record of another line is ready.

        `most`, `own_work`: as for `chosen`.
        """
        return self._part(most, own_work, small=line in self._batch or line == self._alone)

    def is_other_ready(self, line: bytes, *, passes: Callable[[int], bool], is_ready: Callable[[_T], bool]) -> bool:
        """Whether the first record of another line than this can be judged. `passes`, `is_ready`: as for `chosen`."""
        others = (ones for other, ones in self._lines.items() if other != line)
        firsts = (next((one for one in ones if not passes(one.offset)), None) for ones in others)
        return any(first is not None and is_ready(first) for first in firsts)

    @staticmethod
    def _part(most: int, own_work: int, *, small: bool) -> int:
        share = min((most + own_work) * SHARE, most * SHARE_MAX)
        return max(int(most * BATCH_SHARE if small else share), 1)

    def _in_turn(self) -> list[bytes]:
        """The lines, from those first that were served longest ago; the one that may sit out is the last."""
        return sorted(
            self._lines,
            key=lambda line: (line == self._alone, self._served.get(line, _NEVER).version, self._lines[line][0].offset),
        )


def count_beyond(taken: Collection[int], waiting: Iterable[int]) -> int:
    """The number of the offsets `taken` that are beyond one that is left waiting, and so would be settled ahead.

    `waiting`: the first offsets without an outcome, ascending; those behind them may be waiting too.
    """
    last = -1
    for offset in waiting:
        if offset not in taken:
            last = offset - 1
            break
        last = offset
    return sum(offset > last for offset in taken)
