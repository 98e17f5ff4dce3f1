"""What a pipeline counts. The process that runs it gives an implementation."""

from __future__ import annotations

from typing import Protocol


class Figures(Protocol):
    def wrote(self, *, records: int, rows: int, bytes: int, bad: int) -> None:
        """A transaction is in the table. `bytes`: of the values and keys of its records."""

    def took(self, step: str, seconds: float) -> None:
        """`step`: `decode` or `commit` (writing files and waiting for the outcome)."""

    def fresh(self, seconds: float) -> None:
        """From the timestamp of the oldest record of a transaction until it is in the table."""

    def began_again(self, reason: str) -> None:
        """A partition began again at the mark."""

    def passed(self, records: int, *, unmatched: int) -> None:
        """Records that are not the route's. `unmatched`: how many of them are of no route, if it answers for these."""

    def state(self, *, partitions: int, stopped: int, waiting_bytes: int, lag: int, lag_seconds: float) -> None:
        """`lag`: records behind the marks. `lag_seconds`: the age of the oldest record that waits in this process."""
