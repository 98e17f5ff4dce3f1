"""When a record passed each stage of its way, from the queue to its outcome: what a trace is made of.

The times are those of the committer's event loop, in seconds. `Traced` has what brings them to Unix time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from committerd_common.messages import Outcome


class Period(NamedTuple):
    """A part of the time, in seconds."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStages:
    """The stages of one version, and of the records that it settles."""

    version: int
    unix: float
    """Unix time minus the event loop's time, in seconds. Unix time is Kafka's, as that of the records."""
    decided: Period
    """When the version was decided: its records judged, and its bytes made."""
    put: Period
    fetched: Mapping[int, Period] = field(default_factory=dict)
    """By offset: when the facts were fetched that a record needs. A record for which none were fetched is not in it."""
    rules: Mapping[int, str] = field(default_factory=dict)
    """By offset: the conflict rule that refused a record."""


class Traced(NamedTuple):
    """One record that a version settles."""

    outcome: Outcome
    traceparent: str
    """The record's header; empty = it has none."""
    timestamp_ms: int | None
    """Kafka's timestamp of the record, in Unix milliseconds; None = the record is not known any more."""
    stages: VersionStages


Trace = Callable[[Sequence[Traced], float], None]
"""Takes records whose outcomes are published, and when that was, in Unix seconds. Returns at once, and never raises."""
