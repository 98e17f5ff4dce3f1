"""The results of a writer of one process, however it commits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_ERRORS_KEPT = 3


@dataclass(slots=True, kw_only=True)
class Written:
    """Times are of the monotonic clock, which all processes share."""

    began: float
    ended: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Seconds of each successful commit but the first, repetitions included."""
    committed: list[int] = field(default_factory=list)
    """The files that were committed, the first one included."""
    failed: list[int] = field(default_factory=list)
    """The files that were given up."""
    errors: list[str] = field(default_factory=list)
    """The first few errors."""

    def note_committed(self, number: int, *, began: float) -> None:
        """Note that a file, whose commit began at this time, is in the table."""
        self.seconds.append(time.monotonic() - began)
        self.committed.append(number)

    def note_failed(self, number: int, error: Exception) -> None:
        """Note that a file was given up."""
        self.failed.append(number)
        self.errors = [*self.errors, str(error)][:_ERRORS_KEPT]
