"""Turns: whose records the next version takes, while more records wait than one version holds.

The records of one producer (header `producer`) are a *line*; those without the header are a line by their app-id, or
else one line together. A record of an application joins the line in which others of that application wait, so that the
records of one application never change their order, whoever stages them.

While records of several lines wait, or did so a moment ago, a version takes at most a share of its records from each
line, from those first that were served longest ago. The share of batch producers, which the operator names, is smaller.
A line that had a version to itself while others waited sits out the next one. So a producer that stages many records
at once has no more of the time than any other, and records of others pass its records: they are settled ahead. A
position carries a limited number of offsets that are settled ahead; where more of them would be needed, records are
taken in the order of their offsets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from committerd.queue.producers import matches

SHARE = 3
"""While several lines wait, each gives at most one part in so many of the records that a version may hold."""
BATCH_SHARE = 10
"""The same for the line of a batch producer."""
RECENT_VERSIONS = 32
"""A line counts as waiting for so many versions after it was served last: its producer may be about to stage again."""
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
        self._served: dict[bytes, int] = {}
        """By line: the number of the version that last settled a record of it, if that is recent."""
        self._versions = 0
        """The number of versions that have settled records."""
        self._sits_out: bytes | None = None
        self._passed_over = Counter[bytes]()

    @property
    def lines(self) -> Mapping[bytes, Collection[_T]]:
        """The records that wait, by line."""
        return self._lines

    @property
    def are_several(self) -> bool:
        """Whether records of several lines wait, or did so a moment ago."""
        return len(self._lines) > 1 or bool(self._served.keys() - self._lines.keys() and self._lines)

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
        self._versions += 1
        served = {self._line_of[one.offset] for one in ones}
        self.remove(ones)
        alone = next(iter(served)) if len(served) == 1 else None
        self._sits_out = alone if len(self._lines) > 1 else None
        self._served = {line: at for line, at in self._served.items() if self._versions - at < RECENT_VERSIONS}
        self._served |= dict.fromkeys(served, self._versions)
        for line in served:
            del self._passed_over[line]

    def clear(self) -> None:
        """Remove all records, and forget who was served."""
        self.__init__(self._batch)  # type: ignore[misc]

    def to_fetch(self, count: int) -> Iterator[_T]:
        """Yield the first records of each line, at most `count` of each, in the order of their turns."""
        for line in self._in_turn():
            yield from islice(self._lines[line], count)

    def chosen(self, most: int, *, passes: Callable[[int], bool], is_ready: Callable[[_T], bool]) -> Sequence[_T]:
        """Return the records that the next version may take while there are several lines, by ascending offset.

        Of each line they are the first ones. `most`: maximum number of records in a version. `passes`: whether the
        position passes an offset. `is_ready`: whether a record can be judged without waiting for its facts. Empty if
        none of the first records is ready.
        """
        chosen = list[_T]()
        for line in self._in_turn():
            share = max(most // (BATCH_SHARE if line in self._batch else SHARE), 1)
            waiting = (one for one in self._lines[line] if not passes(one.offset))
            first = next(waiting, None)
            if first is None:
                continue
            if not is_ready(first):
                self._passed_over[line] += 1
                if self._passed_over[line] > PASSED_OVER_MAX:
                    return [first]
                continue
            if line == self._sits_out and chosen:
                continue
            chosen.append(first)
            for one in islice(waiting, min(share, most - len(chosen) + 1) - 1):
                if not is_ready(one):
                    break
                chosen.append(one)
            if len(chosen) >= most:
                break
        return sorted(chosen, key=lambda one: one.offset)

    def _in_turn(self) -> list[bytes]:
        """The lines, from those first that were served longest ago; the one that sits out is the last."""
        return sorted(
            self._lines,
            key=lambda line: (line == self._sits_out, self._served.get(line, 0), self._lines[line][0].offset),
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
