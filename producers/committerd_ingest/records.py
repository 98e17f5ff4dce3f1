"""A record of a topic, as the source hands it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_RECORD_BYTES = 200
"""What a record takes in memory besides key, value and headers: a rough figure for back-pressure."""

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
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def size(self) -> int:
        """About the bytes that it takes in memory."""
        named = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + named
