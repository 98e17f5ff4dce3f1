"""The time of a version, as any writer may have put it into a manifest.

Protobuf's own conversions raise ValueError outside the years 1 to 9999, and a foreign manifest may say anything that
the wire can carry: 64 bits of seconds and 32 bits of nanoseconds, of either sign.
"""

from __future__ import annotations

from committerd_common.messages import Timestamp

END_OF_CALENDAR_NS = 253_402_300_800 * 1_000_000_000
"""The first nanosecond since 1970 that protobuf can't convert: the year 10000."""


def to_ns(timestamp: Timestamp) -> int:
    """Nanoseconds since 1970."""
    return timestamp.seconds * 1_000_000_000 + timestamp.nanos


def to_ms(timestamp: Timestamp) -> int:
    """Milliseconds since 1970, rounded down."""
    return to_ns(timestamp) // 1_000_000
