"""The records of one partition that wait to be written, and when that is."""

from __future__ import annotations

from dataclasses import dataclass, field

from committerd_ingest.records import Records


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLimits:
    """Records are written when one of these is reached."""

    rows: int
    bytes: int
    seconds: float
    """Counted from the arrival of the first record; while Kafka holds more records of the partition than are waiting
    here, from the latest arrival. So a backlog makes large files.
    """


@dataclass(slots=True)
class Buffer:
    """Waiting records, in the order of their offsets."""

    limits: FlushLimits
    records: Records = field(default_factory=Records)
    bytes: int = 0
    """About the memory that they take."""
    first_at: float = 0.0
    """When the first of them arrived (monotonic seconds)."""
    last_at: float = 0.0
    """When the last of them arrived."""
    more: int = 0
    """How many more Kafka has behind them, about."""

    def add(self, records: Records, now: float, more: int = 0) -> None:
        if records and not self.records:
            self.first_at = now
        self.last_at, self.more = now, more
        self.records.extend(records)
        self.bytes += records.size

    def due_in(self, now: float) -> float | None:
        """Seconds until they are to be written, 0 = now; None if there are none."""
        if not self.records:
            return None
        if len(self.records) >= self.limits.rows or self.bytes >= self.limits.bytes:
            return 0.0
        since = self.last_at if self.more > len(self.records) else self.first_at
        return max(since + self.limits.seconds - now, 0.0)

    def take(self, now: float, most: int) -> Records:
        """The records of one transaction, which are gone from the buffer: at most `most` and `limits.rows`, and about
        `limits.bytes`, but at least one record if there is one."""
        most = min(most, self.limits.rows)
        if len(self.records) <= most and self.bytes <= self.limits.bytes:
            found, self.records, self.bytes = self.records, Records(), 0
        else:
            found = self.records.cut(max(self.records.fitting(most, self.limits.bytes), 1))
            self.bytes -= found.size
        self.first_at = now
        return found

    def keep(self, size: int) -> None:
        """Drop all but the first records, which take about `size` bytes of memory, or are one record."""
        self.records = self.records[: max(self.records.fitting(len(self.records), size), 1)]
        self.bytes = self.records.size

    def clear(self) -> None:
        self.records, self.bytes = Records(), 0
