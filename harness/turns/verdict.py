"""Which requirements a run meets."""

from __future__ import annotations

from typing import TypeVar

from harness.turns.load import Load
from harness.turns.upserts_under_appends import Measured

ATTEMPTS_P99_MAX = 3
ATTEMPTS_P99_MAX_SHARED = 2
"""If the Appends name their keys, and all upserts change one row."""
WAITED_P99_MAX = 0.5
"""Seconds from staging to outcome, if the Appends name their keys and no two upserts change the same row."""

_Number = TypeVar("_Number", int, float)


def verdict(load: Load, measured: Measured) -> list[str]:
    """The requirements that are not met."""
    wrong = [f"an upsert lost after {error.attempts} attempts: {error}" for error in measured.lost]
    wrong += [f"an append was not committed: {error}" for error in list(measured.not_appended.values())[:5]]
    wrong += [f"a compaction was {error}" for error in measured.not_compacted]
    attempts = measured.attempts()
    if len(attempts) + len(measured.lost) != load.upserts:
        wrong.append(f"{len(attempts)} of {load.upserts} upserts were answered")
    if not attempts:
        return wrong
    if load.names_keys and not load.shares_row:
        late = percentile(sorted(measured.waited), 0.99)
        if attempts[-1] > 1:
            wrong.append(f"an upsert took {attempts[-1]} attempts, and none has a reason to take more than one")
        if late > WAITED_P99_MAX:
            wrong.append(f"p99 from staging to outcome is {late:.2f} s, at most {WAITED_P99_MAX} s allowed")
        return wrong
    most = ATTEMPTS_P99_MAX_SHARED if load.names_keys else ATTEMPTS_P99_MAX
    if percentile(attempts, 0.99) > most:
        wrong.append(f"p99 of attempts is {percentile(attempts, 0.99)}, at most {most} allowed")
    return wrong


def percentile(ascending: list[_Number], share: float) -> _Number:
    """The value that this share of all values does not exceed."""
    return ascending[max(-(-int(len(ascending) * share * 100) // 100) - 1, 0)]
