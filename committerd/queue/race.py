"""Who wrote the version that we wanted? Decided from facts already fetched, without I/O.

A put that finds its number taken proves nothing yet: it may be our own earlier try, whose answer was lost, another
committer, or a foreign writer. What stands there says which.

    version holds                                   then
    our members, refusals and position, all equal   ours: it is committed
    any version from there on is of the queue,      another committer: drop the whole group, whatever that version
    covers
      but not ours
    foreign versions only                           judge everything again on the new latest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from committerd.queue.outcomes import Settled
from committerd.queue.position import AppMark, Position


class Race(StrEnum):
    """How a put that met an existing version ends."""

    OURS = "ours"
    OTHER_COMMITTER = "other_committer"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A version as it was read back."""

    settled: Settled
    position: Position | None
    marks: Mapping[str, AppMark] = field(default_factory=dict)


def race(ours: Found, found: Sequence[Found]) -> Race:
    """Who won the version that `ours` was put at; `found` are the versions from that one to the latest, ascending."""
    first = found[0]
    if (
        first.settled.ours
        and list(first.settled.members) == list(ours.settled.members)
        and list(first.settled.refusals) == list(ours.settled.refusals)
        and first.position == ours.position
    ):
        return Race.OURS
    if any(version.settled.ours for version in found):
        return Race.OTHER_COMMITTER
    return Race.FOREIGN
