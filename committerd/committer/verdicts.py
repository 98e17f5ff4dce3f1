"""How the records of one version were judged: counted once the version is created, however often it was formed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from committerd.lance.conflicts.grid import Verdict
from committerd.queue.dedupe import Refused
from committerd.queue.ledger import Earlier
from committerd.table.judge import Judged
from committerd.telemetry import Telemetry


@dataclass(slots=True)
class Verdicts:
    """The verdicts other than compatible on the members and the refusals of a version."""

    _conflicts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By (operation of ours, of theirs, verdict)."""
    _rebases: Counter[str] = field(default_factory=Counter)
    """By operation of ours, as the next one."""
    _followed_rows: Counter[str] = field(default_factory=Counter)
    _look_ups: Counter[str] = field(default_factory=Counter)
    """By what was found."""

    def looked_up(self, earlier: Earlier) -> None:
        """Add a look-up of a uuid in the ledger."""
        self._look_ups[earlier.found] += 1

    def add(self, operation: str, judged: Judged | Refused) -> None:
        """Add a record: a member, or a refusal."""
        conflicts = judged.found.conflicts
        for checked in conflicts:
            if checked.theirs is not None:
                self._conflicts[operation, checked.theirs.value, checked.verdict.name.lower()] += 1
        if isinstance(judged, Judged) and any(checked.verdict is Verdict.REBASABLE for checked in conflicts):
            self._rebases[operation] += 1
            if judged.followed is not None:
                self._followed_rows[operation] += judged.followed.rows

    def count(self, telemetry: Telemetry) -> None:
        """Count them: the version was created."""
        for (ours, theirs, verdict), times in self._conflicts.items():
            telemetry.conflicts.add(times, ours=ours, theirs=theirs, verdict=verdict)
        for found, times in self._look_ups.items():
            telemetry.ledger_lookups.add(times, found=found)
        for operation, times in self._rebases.items():
            telemetry.rebases.add(times, operation=operation)
        for operation, rows in self._followed_rows.items():
            telemetry.followed_rows.add(rows, operation=operation)
