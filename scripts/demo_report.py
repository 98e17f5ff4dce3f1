"""From what was measured to the table and the checks that the demo ends with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from demo_fleet import Answer, Refusal

CONFLICTS = ("RetryableConflict", "IncompatibleConflict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, or those of its series that have these labels."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that is known in the end."""

    answers: Sequence[Answer]
    refusals: Sequence[Refusal]
    seconds: float
    """From the first data file until the last append was answered."""
    versions: int
    """Of the table, as pylance sees it."""
    metrics: Mapping[Metric, float]
    appends_wanted: int
    again_wanted: int
    rows_wrong: Mapping[str, int]
    """How many rows are wrong in which way; empty when each is there exactly once."""

    def metric(self, name: str, **labels: str) -> float:
        """As it was scraped."""
        return self.metrics[Metric(name=name, labels=labels)]

    def of(self, kind: str, status: str) -> list[Answer]:
        """Answers of this status to submissions of this kind."""
        return [answer for answer in self.answers if (answer.kind, answer.status) == (kind, status)]

    @property
    def committed(self) -> list[Answer]:
        """Of every kind."""
        return [answer for answer in self.answers if answer.status == "COMMITTED"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that so many percent of them don't exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def summary(measured: Measured) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each line of the table."""
    submitted: list[Answer | Refusal] = [*measured.answers, *measured.refusals]
    kinds = Counter(one.kind for one in submitted)
    sent = f"{kinds['create']} create, {kinds['append']:,} appends, {kinds['again']:,} of them once more"
    duplicates = [answer for answer in measured.answers if answer.status == "DUPLICATE"]
    conflicts = sum(refusal.name in CONFLICTS for refusal in measured.refusals)
    sizes = list(Counter(answer.version for answer in measured.committed).values())
    lines = [
        ("staged", f"{kinds.total():,}", f"transactions: {sent}"),
        ("committed", f"{len(measured.committed):,}", ""),
        ("duplicates", f"{len(duplicates):,}", "recognised; they added nothing"),
        ("conflicts", f"{conflicts:,}", ""),
        ("other refusals", f"{len(measured.refusals) - conflicts:,}", ""),
        (
            "versions",
            f"{measured.versions:,}",
            f"of the table; {len(sizes):,} hold transactions, the others only a position",
        ),
    ]
    seconds = [answer.seconds for answer in measured.of("append", "COMMITTED")]
    if not seconds:
        return lines
    rate = len(seconds) / measured.seconds
    return [
        *lines,
        (
            "per version",
            f"{len(measured.committed) / len(sizes):,.1f}",
            f"transactions on average, {max(sizes):,} at most",
        ),
        (
            "throughput",
            f"{rate:,.0f}",
            f"appends/s for {measured.seconds:.1f} s, in which their data files were written too",
        ),
        (
            "latency p50",
            f"{percentile(seconds, 50) * 1000:,.1f}",
            "ms from submitting an append until its outcome was there",
        ),
        ("latency p99", f"{percentile(seconds, 99) * 1000:,.1f}", "ms"),
    ]


def checks(measured: Measured) -> list[tuple[str, bool]]:
    """What must be so, and whether it is."""
    appends, again = measured.of("append", "COMMITTED"), measured.of("again", "DUPLICATE")
    versions = {answer.uuid: answer.version for answer in appends}
    same = all(versions.get(answer.uuid) == answer.version for answer in again)
    wrong = ", ".join(f"{count:,} {what}" for what, count in measured.rows_wrong.items())
    return [
        (
            f"COMMITTED: {len(appends):,} of {measured.appends_wanted:,} appends",
            len(appends) == len(versions) == measured.appends_wanted,
        ),
        (
            f"DUPLICATE, and of the same version: {len(again):,} of {measured.again_wanted:,} sent once more",
            same and len(again) == measured.again_wanted,
        ),
        (f"Every row is in the table exactly once{f', but: {wrong}' if wrong else ''}", not wrong),
        ("Producers and /metrics tell the same", _metrics_agree(measured)),
    ]


def _metrics_agree(measured: Measured) -> bool:
    """One daemon answered everything, so its counters tell what the producers were told."""
    counted = sum(measured.metric("committerd_transactions_total", outcome=name) for name in ("committed", "duplicate"))
    return counted == len(measured.answers)
