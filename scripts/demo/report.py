"""Turns the measurements into the table and the checks at the end of the demo."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scripts.demo.fleet import Answer, Refusal

CONFLICTS = ("RetryableConflict", "IncompatibleConflict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric, or those of its series that have these labels."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


APPENDS_ANSWERED = tuple(
    Metric(name="committerd_transactions_total", labels={"operation": "append", "outcome": outcome})
    for outcome in ("committed", "duplicate")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The numbers of expected outcomes."""

    appends: int
    again: int
    """Committed Appends that are sent once more."""
    changes: int
    """Upserts; there are as many deletes."""
    micro_batches: int
    compactions: int

    @property
    def answers(self) -> int:
        """The outcomes of all writers, except that of the create."""
        return self.appends + self.again + 2 * self.changes + self.micro_batches + self.compactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All measurements."""

    answers: Sequence[Answer]
    refusals: Sequence[Refusal]
    seconds: float
    """Seconds from the first data file to the outcome of the last Append."""
    versions: int
    """Versions of the table, as pylance sees it."""
    metrics: Mapping[Metric, float]
    wanted: Wanted
    rows_wrong: Mapping[str, int]
    """The number of wrong rows by kind of error; empty if each row is there exactly once."""

    def of(self, kind: str, status: str) -> list[Answer]:
        """The outcomes with this status of submissions of this kind."""
        return [answer for answer in self.answers if (answer.kind, answer.status) == (kind, status)]

    @property
    def committed(self) -> list[Answer]:
        """Committed transactions of every kind."""
        return [answer for answer in self.answers if answer.status == "COMMITTED"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that this percentage of the values does not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def summary(measured: Measured) -> list[tuple[str, str, str]]:
    """Yield (name, value, remark) for each line of the table."""
    submitted: list[Answer | Refusal] = [*measured.answers, *measured.refusals]
    kinds = Counter(one.kind for one in submitted)
    sent = f"{kinds['create']} create, {kinds['append']:,} appends, {kinds['again']:,} of them once more"
    beside = ", ".join(
        f"{kinds[kind]} {name}"
        for kind, name in (
            ("upsert", "upserts"),
            ("delete", "deletes"),
            ("micro-batch", "micro-batches of Spark"),
            ("compaction", "compaction"),
        )
        if kinds[kind]
    )
    repeated = [answer for answer in measured.answers if answer.attempts > 1]
    duplicates = [answer for answer in measured.answers if answer.status == "DUPLICATE"]
    conflicts = sum(refusal.name in CONFLICTS for refusal in measured.refusals)
    sizes = list(Counter(answer.version for answer in measured.committed).values())
    lines = [
        ("staged", f"{kinds.total():,}", f"transactions: {sent}"),
        ("committed", f"{len(measured.committed):,}", ""),
        ("duplicates", f"{len(duplicates):,}", "recognised; they added nothing"),
        (
            "conflicts",
            f"{conflicts + sum(answer.attempts - 1 for answer in repeated):,}",
            f"{len(repeated)} changes were executed again, {max(answer.attempts for answer in repeated)} times at most"
            if repeated
            else "",
        ),
        ("other refusals", f"{len(measured.refusals) - conflicts:,}", ""),
        (
            "versions",
            f"{measured.versions:,}",
            f"of the table; {len(sizes):,} hold what was answered, the others a position or reserved fragment ids",
        ),
    ]
    if beside:
        lines.insert(1, ("", "", beside))
    lines += [("compaction", "1", answer.remark) for answer in measured.of("compaction", "COMMITTED")]
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
    """Yield each check, and whether it passed."""
    appends, again = measured.of("append", "COMMITTED"), measured.of("again", "DUPLICATE")
    versions = {answer.uuid: answer.version for answer in appends}
    same = all(versions.get(answer.uuid) == answer.version for answer in again)
    wrong = ", ".join(f"{count:,} {what}" for what, count in measured.rows_wrong.items())
    wanted = measured.wanted
    beside = [
        ("upsert", wanted.changes, "upserts"),
        ("delete", wanted.changes, "deletes"),
        ("micro-batch", wanted.micro_batches, "micro-batches of Spark"),
        ("compaction", wanted.compactions, "compaction"),
    ]
    return [
        (
            f"COMMITTED: {len(appends):,} of {wanted.appends:,} appends",
            len(appends) == len(versions) == wanted.appends,
        ),
        (
            f"DUPLICATE, and of the same version: {len(again):,} of {wanted.again:,} sent once more",
            same and len(again) == wanted.again,
        ),
        *(
            (f"COMMITTED: {done} of {count} {name}", done == count)
            for kind, count, name in beside
            if count
            for done in (len(measured.of(kind, "COMMITTED")),)
        ),
        (f"Every row is in the table exactly once{f', but: {wrong}' if wrong else ''}", not wrong),
        ("Writers and /metrics tell the same of appends", _metrics_agree(measured)),
    ]


def _metrics_agree(measured: Measured) -> bool:
    """Whether the metrics agree with the writers: one daemon made all outcomes, so its counters must equal theirs."""
    counted = sum(measured.metrics[metric] for metric in APPENDS_ANSWERED)
    return counted == sum(answer.is_append for answer in measured.answers)
