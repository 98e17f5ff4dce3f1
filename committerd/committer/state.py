"""The intervals of a committer's loop, and the state that it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of a committer's loop, in seconds."""

    interval_min: float = 0.0
    """Minimum time between two puts."""
    refusal_interval: float = 1.0
    """Minimum time between two versions that hold only refusals."""
    hold_max: float = 2.0
    """Longest hold for re-executions."""
    recheck: float = 10.0
    """Time without records after which versions of other writers are looked for."""
    refused_retry: float = 10.0
    """Time between attempts to run after a refusal to run."""


@dataclass(slots=True)
class State:
    """The committer's state, as the process's probes report it."""

    name: str = "starting"
    """standby, starting, active, waiting_for_table, refused, unavailable or stopped."""
    text: str = "probes the store"
    code: str = ""
    """The cause of a refusal to run; empty in other states."""
    position: int | None = None
    """The next offset of the table's position; None = not known yet."""
    version: int = 0
    """The latest version known; 0 = none."""

    def show(self, name: str, text: str, *, code: str = "") -> None:
        """Show another state."""
        self.name, self.text, self.code = name, text, code
