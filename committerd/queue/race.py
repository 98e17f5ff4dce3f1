"""Races: who wrote the version that we tried to create? Pure: the caller has read the versions already.

A put result *exists* does not say who was faster: our own earlier try, whose reply was lost, another committer, or a
foreign writer. The version that exists does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from committerd.queue.outcomes import Settled
from committerd.queue.position import AppMark, Pause, Position


class Race(StrEnum):
    """The writer of a version that already exists."""

    OURS = "ours"
    """Our own earlier try: it is committed."""
    OTHER_COMMITTER = "other_committer"
    """Another committer: drop the whole group, even if that version settles only part of it."""
    FOREIGN = "foreign"
    """A writer beside the queue: judge everything again on the new latest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """What the queue knows of one version: the records that it settles; the position, marks and pause it carries."""

    settled: Settled
    position: Position | None
    marks: Mapping[str, AppMark] = field(default_factory=dict)
    pause: Pause | None = None


def race(ours: VersionSummary, found: Sequence[VersionSummary]) -> Race:
    """Who won the number at which `ours` was put.

    `found` are the versions from that number to the latest, ascending; there is at least one.
    """
    first = found[0]
    if (
        first.settled.ours
        and list(first.settled.members) == list(ours.settled.members)
        and list(first.settled.refusals) == list(ours.settled.refusals)
        and (first.position, first.pause) == (ours.position, ours.pause)
    ):
        return Race.OURS
    if any(version.settled.ours for version in found):
        return Race.OTHER_COMMITTER
    return Race.FOREIGN
