"""Turns the measurements into the table and the checks at the end of the demo."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.demo.fleet import Outcome

CONFLICTS = ("RetryableConflict", "IncompatibleConflict")
BESIDE = {
    "upsert": "upserts",
    "delete": "deletes",
    "micro-batch": "micro-batches of Spark",
    "compaction": "compaction",
}
"""What is done beside the Appends: kind of outcome, and what it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The numbers of expected outcomes."""

    appends: int
    again: int
    """Committed Appends that are sent once more."""
    beside: Mapping[str, int]
    """By kind of `BESIDE`; kinds that are left out have 0."""

    @property
    def outcomes(self) -> int:
        """The outcomes of all writers, except that of the create."""
        return self.appends + self.again + sum(self.beside.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All measurements."""

    outcomes: Sequence[Outcome]
    seconds: float
    """Seconds from the first data file to the outcome of the last Append."""
    versions: int
    """Versions of the table, as pylance sees it."""
    appends_counted: float
    """The outcomes of Appends that the daemon has counted."""
    expected: Expected
    rows_wrong: Mapping[str, int]
    """The number of wrong rows by kind of error; empty if each row is there exactly once."""

    def of(self, kind: str, status: str) -> list[Outcome]:
        """The outcomes with this status of submissions of this kind."""
        return [one for one in self.outcomes if (one.kind, one.status) == (kind, status)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that this percentage of the values does not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def summary(measured: Measured) -> list[tuple[str, str, str]]:
    """Yield (name, value, remark) for each line of the table."""
    outcomes = measured.outcomes
    kinds, statuses = Counter(one.kind for one in outcomes), Counter(one.status for one in outcomes)
    beside = ", ".join(f"{kinds[kind]} {name}" for kind, name in BESIDE.items() if kinds[kind])
    repeated = [one for one in outcomes if one.attempts > 1]
    refused, conflicts = sum(one.refused for one in outcomes), sum(statuses[name] for name in CONFLICTS)
    sizes = Counter(one.version for one in outcomes if one.status == "COMMITTED").values()
    sent = f"{kinds['create']} create, {kinds['append']:,} appends, {kinds['again']:,} of them once more"
    again = f"{len(repeated)} changes were executed again, {max((one.attempts for one in repeated), default=0)} times"
    lines = [
        ("staged", f"{kinds.total():,}", f"transactions: {sent}"),
        *([("", "", beside)] if beside else []),
        ("committed", f"{statuses['COMMITTED']:,}", ""),
        ("duplicates", f"{statuses['DUPLICATE']:,}", "recognised; they added nothing"),
        (
            "conflicts",
            f"{conflicts + sum(one.attempts - 1 for one in repeated):,}",
            f"{again} at most" if repeated else "",
        ),
        ("other refusals", f"{refused - conflicts:,}", ""),
        (
            "versions",
            f"{measured.versions:,}",
            f"of the table; {len(sizes):,} hold what was answered, the others a position or reserved fragment ids",
        ),
        *(("compaction", "1", one.remark) for one in measured.of("compaction", "COMMITTED")),
    ]
    seconds = [one.seconds for one in measured.of("append", "COMMITTED")]
    if not seconds:
        return lines
    rate, half, most = len(seconds) / measured.seconds, percentile(seconds, 50), percentile(seconds, 99)
    each = statuses["COMMITTED"] / len(sizes)
    return [
        *lines,
        ("per version", f"{each:,.1f}", f"transactions on average, {max(sizes):,} at most"),
        (
            "throughput",
            f"{rate:,.0f}",
            f"appends/s for {measured.seconds:.1f} s, in which their data files were written too",
        ),
        ("latency p50", f"{half * 1000:,.1f}", "ms from submitting an append until its outcome was there"),
        ("latency p99", f"{most * 1000:,.1f}", "ms"),
    ]


def checks(measured: Measured) -> list[tuple[str, bool]]:
    """Yield each check, and whether it passed."""
    appends, again = measured.of("append", "COMMITTED"), measured.of("again", "DUPLICATE")
    versions = {one.uuid: one.version for one in appends}
    same = all(versions.get(one.uuid) == one.version for one in again)
    wrong = ", ".join(f"{count:,} {what}" for what, count in measured.rows_wrong.items())
    expected = measured.expected
    done = {kind: len(measured.of(kind, "COMMITTED")) for kind in BESIDE}
    # One daemon made all outcomes, so its counters must equal what the writers got.
    counted = measured.appends_counted == sum(one.is_append for one in measured.outcomes)
    return [
        (
            f"COMMITTED: {len(appends):,} of {expected.appends:,} appends",
            len(appends) == len(versions) == expected.appends,
        ),
        (
            f"DUPLICATE, and of the same version: {len(again):,} of {expected.again:,} sent once more",
            same and len(again) == expected.again,
        ),
        *(
            (f"COMMITTED: {done[kind]} of {count} {BESIDE[kind]}", done[kind] == count)
            for kind, count in expected.beside.items()
        ),
        (f"Every row is in the table exactly once{f', but: {wrong}' if wrong else ''}", not wrong),
        ("Writers and /metrics tell the same of appends", counted),
    ]
