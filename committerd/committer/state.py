"""How fast a committer goes, and what it shows of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often things happen, in seconds."""

    interval_min: float = 0.0
    refusal_interval: float = 1.0
    hold_max: float = 2.0
    recheck: float = 10.0
    refused_retry: float = 10.0


@dataclass(slots=True)
class State:
    """What the process shows of itself."""

    name: str = "starting"
    """standby, starting, active, waiting_for_table, refused, unavailable or stopped."""
    text: str = "probes the store"
    code: str = ""
    """Of a refusal."""
    position: int | None = None
    version: int = 0
