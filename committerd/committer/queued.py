"""Which records are decided about, in which order, and under which settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from committerd.committer.head import Head
from committerd.committer.intake import Pending
from committerd.committer.prefetching import Prefetched
from committerd.lance.operations.permissions import Permissions
from committerd.queue.grouping import GroupLimits
from committerd.queue.position import AHEAD_MAX
from committerd.queue.reservations import Reservations
from committerd.queue.rounds import Coalesce
from committerd.table.staged_files import FileLimits

AT_ONCE = 64
"""Records to judge before other tasks take their turn: a few milliseconds of work."""
STALE_MS = 5 * 24 * 3600 * 1000
"""Age in milliseconds from which a record is stale. Lance's cleanup deletes unreferenced files after 7 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideOptions:
    """The operator's settings for deciding about records."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    verify_files: Literal["always", "stale", "never"] = "always"
    trusts_rewrites: bool = False
    """Whether the Rewrites of all writers count as in order."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    allowed: Permissions = field(default_factory=Permissions)
    app_marks_max: int = 1000

    def verifies(self, age_ms: int) -> bool:
        """Whether the files of a record of this age, in milliseconds, are checked."""
        return self.verify_files == "always" or (self.verify_files == "stale" and age_ms > STALE_MS)

    @property
    def most(self) -> int:
        """The most records to look at for one version."""
        return min(self.limits.records, AT_ONCE) if self.limits.coalesce is Coalesce.NONE else self.limits.records


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The records to decide about."""

    ordered: Sequence[Prefetched]
    """Those whose facts are there, in the order in which they are judged."""
    waiting: Sequence[Pending]
    """The first records without an outcome, by offset."""
    begun: int = 0
    """The number of records, from the first on, that belong to a round that has begun."""
    reservations: Reservations = field(default_factory=Reservations)
    """What is reserved for refused transactions that come again."""


def in_turn(
    head: Head, waiting: Sequence[Pending], retries: Sequence[Pending], *, only_retries: bool
) -> Sequence[Pending]:
    """Return the waiting records in the order in which they are judged: re-executions first, then by offset.

    As many re-executions go first as the position can carry offsets that are settled ahead.
    """
    room = AHEAD_MAX - len(head.position.settled)
    first = [pending for pending in retries if not head.position.passes(pending.offset)][: max(room, 0)]
    if only_retries:
        return first
    if not first:
        return waiting
    ahead = {p.offset for p in first}
    return [*first, *(p for p in waiting if p.offset not in ahead)]
