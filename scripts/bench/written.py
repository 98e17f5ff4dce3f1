"""What a writer of one process did, whichever way it commits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_ERRORS_KEPT = 3


@dataclass(slots=True, kw_only=True)
class Written:
    """Times are of the monotonic clock, which is one for all processes."""

    began: float
    ended: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Of each commit but the first that succeeded, all that the writer had to repeat included."""
    committed: list[int] = field(default_factory=list)
    """Which files, with the first."""
    failed: list[int] = field(default_factory=list)
    """Which files were given up."""
    errors: list[str] = field(default_factory=list)
    """The first few."""

    def note_committed(self, number: int, *, began: float) -> None:
        """A file whose commit began then is in the table."""
        self.seconds.append(time.monotonic() - began)
        self.committed.append(number)

    def note_failed(self, number: int, error: Exception) -> None:
        """A file was given up."""
        self.failed.append(number)
        self.errors = [*self.errors, str(error)][:_ERRORS_KEPT]
