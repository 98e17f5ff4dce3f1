"""Records of topics, as the source hands them over."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple, TypeAlias, overload

_RECORD_BYTES = 100
"""What a record takes in memory besides key, value and headers: a rough figure for back-pressure."""

Headers: TypeAlias = "Sequence[tuple[str, bytes | None]]"

NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class Record:
    """One record."""

    offset: int
    timestamp_ms: int
    """Unix milliseconds, of the producer or of the broker (`message.timestamp.type`), or `NO_TIMESTAMP`."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Records(Sequence[Record]):
    """Records of one partition in the order of their offsets, column by column.

    An object for each record would take longer to make than its row. So there is none before somebody asks for it.
    """

    __slots__ = ("headers", "keys", "offsets", "timestamps_ms", "values")

    def __init__(
        self,
        offsets: Iterable[int] = (),
        timestamps_ms: Iterable[int] = (),
        keys: Iterable[bytes | None] = (),
        values: Iterable[bytes | None] = (),
        *,
        headers: Iterable[Headers] = (),
    ) -> None:
        """The columns are as of a `Record`, and equally long."""
        self.offsets, self.timestamps_ms = array("q", offsets), array("q", timestamps_ms)
        self.keys, self.values, self.headers = list(keys), list(values), list(headers)

    @classmethod
    def of(cls, records: Sequence[Record]) -> Records:
        """These records; themselves, if they are columns."""
        if isinstance(records, Records):
            return records
        return cls(
            [one.offset for one in records],
            [one.timestamp_ms for one in records],
            [one.key for one in records],
            [one.value for one in records],
            headers=[one.headers for one in records],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> Record | Records:
        if isinstance(place, slice):
            return Records(
                self.offsets[place],
                self.timestamps_ms[place],
                self.keys[place],
                self.values[place],
                headers=self.headers[place],
            )
        return Record(
            self.offsets[place],
            self.timestamps_ms[place],
            self.keys[place],
            self.values[place],
            self.headers[place],
        )

    def __iter__(self) -> Iterator[Record]:
        return map(Record, self.offsets, self.timestamps_ms, self.keys, self.values, self.headers)

    def at(self, places: Sequence[int]) -> Records:
        """The records at these places."""
        return Records(
            [self.offsets[one] for one in places],
            [self.timestamps_ms[one] for one in places],
            [self.keys[one] for one in places],
            [self.values[one] for one in places],
            headers=[self.headers[one] for one in places],
        )

    def extend(self, more: Records) -> None:
        """Add records that come after these."""
        self.offsets.extend(more.offsets)
        self.timestamps_ms.extend(more.timestamps_ms)
        self.keys.extend(more.keys)
        self.values.extend(more.values)
        self.headers.extend(more.headers)

    def cut(self, count: int) -> Records:
        """Take out the first records, so many of them. The others are not copied."""
        found = self[:count]
        del self.offsets[:count], self.timestamps_ms[:count], self.keys[:count], self.values[:count]
        del self.headers[:count]
        return found

    @property
    def payload_bytes(self) -> int:
        """The bytes of their keys and values."""
        return sum(map(len, filter(None, self.values))) + sum(map(len, filter(None, self.keys)))

    @property
    def size(self) -> int:
        """About the bytes that they take in memory."""
        named = sum(_size(one) for one in self.headers if one)
        return len(self) * _RECORD_BYTES + self.payload_bytes + named

    def fitting(self, most: int, size: int) -> int:
        """How many of the first records, at most `most`, take about `size` bytes of memory at most."""
        each = (
            _RECORD_BYTES + len(key or b"") + len(value or b"") + _size(headers)
            for key, value, headers in zip(self.keys, self.values, self.headers, strict=True)
        )
        count = 0
        for count, total in enumerate(accumulate(islice(each, most)), 1):
            if total > size:
                return count - 1
        return count


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers)
