"""What a member has done lately for one dataset: its last transactions, conflicts by pair, and an hour of figures.

Bounded: 200 transactions, 60 minutes, and a count for each pair of the 15 operations. The committer hands over what it
has made anyway, once for each batch of outcomes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from committerd.queue.outcomes import Status
from committerd_common.messages import COMMITTED, Outcome

TRANSACTIONS_MAX = 200
MINUTES_MAX = 60
_MINUTE_MS = 60_000
_PAIRS_MAX = 15 * 15
_CHARS_MAX = 300


@dataclass(slots=True)
class Minute:
    """The figures of one minute."""

    at: int
    """Minutes since 1970."""
    committed: int = 0
    others: int = 0
    """Outcomes with another status."""
    latency_ms: int = 0
    """The sum over all outcomes, from the record's timestamp to the durable version."""
    latency_ms_max: int = 0


@dataclass(slots=True)
class Recent:
    """Filled by the committer's task, and read by the page's, in one event loop."""

    now_ms: Callable[[], int]
    """Unix milliseconds."""
    _transactions: deque[tuple[int, Outcome]] = field(default_factory=lambda: deque(maxlen=TRANSACTIONS_MAX))
    _minutes: deque[Minute] = field(default_factory=lambda: deque(maxlen=MINUTES_MAX))
    _conflicts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Note the outcomes of new versions."""
        if not outcomes:
            return
        now_ms = self.now_ms()
        self._transactions.extend((now_ms, one) for one in outcomes[-TRANSACTIONS_MAX:])
        minute = self._minute(now_ms // _MINUTE_MS)
        for one in outcomes:
            taken = one.queued_ms + one.commit_ms
            minute.latency_ms += taken
            if taken > minute.latency_ms_max:
                minute.latency_ms_max = taken
            if one.status == COMMITTED:
                minute.committed += 1
            else:
                minute.others += 1
                if one.conflicting_operation:
                    self._count(one.operation, one.conflicting_operation)

    def transactions(self) -> list[dict[str, Any]]:
        """The last transactions, newest first."""
        return [_shown(at, one) for at, one in reversed(self._transactions)]

    def minutes(self) -> list[dict[str, Any]]:
        """The last 60 minutes, oldest first. The last of them has not ended."""
        last = self.now_ms() // _MINUTE_MS
        known = {one.at: one for one in self._minutes}
        return [_figures(known.get(at, Minute(at))) for at in range(last - MINUTES_MAX + 1, last + 1)]

    def conflicts(self) -> list[dict[str, Any]]:
        """How often an operation could not pass another one, since the member serves the dataset."""
        return [
            {"operation": ours, "over": theirs, "count": count}
            for (ours, theirs), count in sorted(self._conflicts.items())
        ]

    def _minute(self, at: int) -> Minute:
        if not self._minutes or self._minutes[-1].at < at:
            self._minutes.append(Minute(at))
        return self._minutes[-1]

    def _count(self, ours: str, theirs: str) -> None:
        if (ours, theirs) in self._conflicts or len(self._conflicts) < _PAIRS_MAX:
            self._conflicts[ours, theirs] += 1


def _figures(minute: Minute) -> dict[str, Any]:
    count = minute.committed + minute.others
    return {
        "time_ms": minute.at * _MINUTE_MS,
        "committed": minute.committed,
        "others": minute.others,
        "latency_ms_mean": round(minute.latency_ms / count, 1) if count else None,
        "latency_ms_max": minute.latency_ms_max if count else None,
    }


def _shown(at_ms: int, one: Outcome) -> dict[str, Any]:
    return {
        "time_ms": at_ms,
        "uuid": one.uuid,
        "producer": one.producer,
        "operation": one.operation,
        "status": Status.of_number(one.status).value,
        "reason": one.reason,
        "message": one.message[:_CHARS_MAX],
        "version": one.version,
        "read_version": one.read_version,
        "conflicting_version": one.conflicting_version,
        "conflicting_operation": one.conflicting_operation,
        "together": one.transactions,
        "offset": one.offset,
        "queued_ms": one.queued_ms,
        "commit_ms": one.commit_ms,
    }
