"""The intervals of a committer's loop, and what it shows: its state, and the metrics and log of each commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from committerd.committer.current_head import CurrentHead
from committerd.committer.members import FormedVersion
from committerd.queue.position import AppMark, MarkRoom
from committerd.telemetry import UNUSED, Telemetry

_log = logging.getLogger(__name__)


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
    """standby, starting, active, paused, waiting_for_table, refused, unavailable or stopped."""
    text: str = "probes the store"
    code: str = ""
    """The cause of a refusal to run; empty in other states."""
    position: int | None = None
    """The next offset of the table's position; None = not known yet."""
    version: int = 0
    """The latest version known; 0 = none."""
    aside: str = ""
    """What waits beside the commits, as a part of a sentence; empty if nothing does."""

    def show(self, name: str, text: str, *, code: str = "") -> None:
        """Show another state."""
        self.name, self.text, self.code = name, text, code


class HeadMetrics:
    """The metrics of the table's head."""

    def __init__(self, telemetry: Telemetry, *, app_marks_max: int) -> None:
        self._telemetry = telemetry
        self._app_marks_max = app_marks_max
        self._marks: Mapping[str, AppMark] | None = None
        """The marks that the metrics show."""

    def show(self, current: CurrentHead) -> None:
        """Show the current head."""
        telemetry, head = self._telemetry, current.head
        telemetry.table_version.set(head.version)
        telemetry.paused.set(head.pause is not None)
        telemetry.ledger_bytes.set(head.ledger.bytes)
        telemetry.unread_versions.set(current.older.unread_versions)
        telemetry.ledger_floor_version.set(head.ledger.floor)
        if self._marks is not head.marks:
            self._marks = head.marks
            room = MarkRoom.left_by(head.marks, most=self._app_marks_max)
            telemetry.app_marks.set(room.count)
            telemetry.app_marks_used_ratio.set(room.used)
        telemetry.footprint_bytes.set(head.table.footprint_bytes)
        for cache, size in head.table.cache_bytes().items():
            telemetry.cache_bytes.set(size, cache=cache)
        if head.manifest is not None:
            telemetry.table_fragments.set(len(head.manifest.fragments))


def note_commit(telemetry: Telemetry, formed: FormedVersion, seconds: float, now: datetime) -> None:
    """Count and log a version that was created. `seconds`: how long its put took."""
    settled = formed.own.settled
    if settled.members:
        telemetry.commit_transactions.observe(len(settled.members))
    else:
        telemetry.refusal_only_versions.add()
    formed.verdicts.count(telemetry)
    telemetry.app_marks_dropped.add(formed.unused_marks, cause=UNUSED)
    telemetry.last_commit_timestamp.set(now.timestamp())
    telemetry.manifest_bytes.set(len(formed.prepared.body))
    _log.info(
        "version.committed",
        extra={
            "version": settled.version,
            "uuid": settled.uuid,
            "operation": settled.operation,
            "transactions": len(settled.members),
            "refused": len(settled.refusals),
            "position": formed.after.position.next_offset,
            "duration_seconds": round(seconds, 6),
        },
    )
