"""Sets of offsets, as ranges: what lies side by side takes the room of one offset."""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

_BITS_MAX = 63


@dataclass(frozen=True, slots=True)
class Offsets:
    """A set of offsets. Questions about an offset or a range take logarithmic time in the number of ranges."""

    bounds: tuple[int, ...] = field(default=())
    """Start and end of each half-open range, one after the other: strictly ascending, so no two ranges touch."""

    @classmethod
    def of(cls, offsets: Iterable[int]) -> Offsets:
        """The set of these offsets, in any order."""
        return cls.joined((offset, offset + 1) for offset in offsets)

    @classmethod
    def joined(cls, ranges: Iterable[tuple[int, int]]) -> Offsets:
        """The set of the offsets in these half-open ranges, which may overlap, in any order; none is empty."""
        bounds: list[int] = []
        for start, end in sorted(ranges):
            if bounds and start <= bounds[-1]:
                bounds[-1] = max(bounds[-1], end)
            else:
                bounds += (start, end)
        return cls(tuple(bounds))

    @property
    def range_count(self) -> int:
        return len(self.bounds) // 2

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the half-open ranges, ascending."""
        return zip(self.bounds[::2], self.bounds[1::2], strict=True)

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and bisect_right(self.bounds, offset) % 2 == 1

    def __len__(self) -> int:
        """The number of offsets. (A bool of the set asks `bounds` alone.)"""
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(range, self.bounds[::2], self.bounds[1::2]))

    def union(self, other: Offsets) -> Offsets:
        if not self.bounds or not other.bounds:
            return self if self.bounds else other
        return Offsets.joined(chain(self.ranges(), other.ranges()))

    def within(self, start: int, end: int) -> Offsets:
        """Those of the half-open range from `start` to `end`."""
        first, last = bisect_right(self.bounds, start), bisect_left(self.bounds, end)
        if start >= end:
            return NO_OFFSETS
        before, behind = (start,) if first % 2 else (), (end,) if last % 2 else ()
        return Offsets((*before, *self.bounds[first:last], *behind))

    def from_(self, start: int) -> Offsets:
        """Those at or above `start`."""
        first = bisect_right(self.bounds, start)
        return Offsets((*((start,) if first % 2 else ()), *self.bounds[first:]))

    def first_outside(self, offset: int) -> int:
        """The lowest offset at or above this one that is not in the set."""
        place = bisect_right(self.bounds, offset)
        return self.bounds[place] if place % 2 else offset

    def first_missing(self, other: Offsets) -> int | None:
        """The lowest offset of the other set that is not in this one; None if all are."""
        for start, end in other.ranges():
            missing = self.first_outside(start)
            if missing < end:
                return missing
        return None


NO_OFFSETS = Offsets()


def encode(offsets: Offsets, *, above: int) -> str:
    """Encode offsets, none of which is below `above`, as base64 of LEB128 numbers.

    Each range takes one or two numbers: the distance from the end of the range before it (at first from `above`), times
    two, plus one if the range is longer than one offset; in that case, its length less two follows. So an offset by
    itself that is up to 8,191 behind the one before takes two bytes.
    """
    return b64encode(bytes(_numbers(offsets, above))).decode()


def encoded_size(offsets: Offsets, *, above: int) -> int:
    """The number of bytes that `encode` makes, before base64."""
    return sum(1 for _ in _numbers(offsets, above))


def decode(text: str, *, above: int) -> Offsets:
    """As `encode`. Raises `ValueError` for what it does not make, and for offsets of more than 63 bits."""
    numbers = iter(_read(b64decode(text, validate=True)))
    bounds, last = list[int](), above
    for number in numbers:
        start = last + (number >> 1)
        if bounds and start == last:
            raise ValueError("two ranges touch")
        last = start + 1 if not number & 1 else start + 2 + next(numbers, 1 << _BITS_MAX)
        bounds += (start, last)
    if last > 1 << _BITS_MAX:
        raise ValueError("an offset has more than 63 bits")
    return Offsets(tuple(bounds))


def _numbers(offsets: Offsets, above: int) -> Iterator[int]:
    """The bytes of `encode`."""
    last = above
    for start, end in offsets.ranges():
        distance, length = start - last, end - start
        yield from _number(distance << 1 | (length > 1))
        if length > 1:
            yield from _number(length - 2)
        last = end


def _number(value: int) -> Iterator[int]:
    while value >= 0x80:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _read(data: bytes) -> Iterator[int]:
    value = bits = 0
    for byte in data:
        value |= (byte & 0x7F) << bits
        bits += 7
        if byte < 0x80:
            yield value
            value = bits = 0
        elif bits > _BITS_MAX:
            raise ValueError("a number has more than 64 bits")
    if bits:
        raise ValueError("the last number is cut off")
