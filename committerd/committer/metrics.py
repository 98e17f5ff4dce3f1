"""What metrics and log tell of the head and of each commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from committerd.committer.members import FormedVersion
from committerd.committer.view import View
from committerd.queue.position import AppMark, MarkRoom
from committerd.telemetry import UNUSED, Telemetry

_log = logging.getLogger(__name__)


class HeadMetrics:
    """The metrics of the table's head."""

    def __init__(self, telemetry: Telemetry, *, app_marks_max: int) -> None:
        self._telemetry = telemetry
        self._app_marks_max = app_marks_max
        self._marks: Mapping[str, AppMark] | None = None
        """The marks that the metrics show."""

    def show(self, view: View) -> None:
        """Show the view's head."""
        telemetry, head = self._telemetry, view.head
        telemetry.table_version.set(head.version)
        telemetry.ledger_bytes.set(head.ledger.bytes)
        telemetry.unread_versions.set(view.unread_versions)
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
