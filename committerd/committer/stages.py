"""When a record passed each stage of its way, from the queue to its outcome: what a trace is made of.

The times are those of the committer's event loop, in seconds. `Traced` has what brings them to Unix time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from committerd_common.messages import Outcome


class Period(NamedTuple):
    """From when to when, in seconds."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStages:
    """The stages of one version, and of the records that it settles."""

    version: int
    unix: float
    """Unix time by Kafka's clock, as in the records' timestamps, minus the event loop's time, in seconds."""
    decided: Period
    """When the version was decided: its records judged, and its bytes made."""
    put: Period
    fetched: Mapping[int, Period] = field(default_factory=dict)
    """When the facts that a record needs were fetched, by its offset; no entry = none were fetched."""
    rules: Mapping[int, str] = field(default_factory=dict)
    """The conflict rule that refused a record, by its offset."""


class Traced(NamedTuple):
    """One record that a version settles."""

    outcome: Outcome
    traceparent: str
    """The record's header; empty = it has none."""
    timestamp_ms: int | None
    """Kafka's timestamp of the record, in Unix milliseconds; None = the record is no longer known."""
    stages: VersionStages


Trace = Callable[[Sequence[Traced], float], None]
"""Takes records whose outcomes were published, and the Unix time at which they were, in seconds.

Returns at once, and never raises.
"""
