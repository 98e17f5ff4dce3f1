"""A range of bytes of an object."""

from __future__ import annotations

from typing import NamedTuple


class ByteRange(NamedTuple):
    """A half-open range of bytes of an object."""

    start: int
    end: int
