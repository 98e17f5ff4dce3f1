"""Compares each figure of committerd with pylance's figure for the same work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bench.bench import mode
from bench.plan import Plan
from bench.results import Results
from bench.scenarios import bursts, fragments, maintenance, memory, mixed, no_coalescing, s3, upserts, writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The medians of both sides."""

    scenario: str
    work: str
    metric: str
    pylance: float
    committerd: float
    times: float
    """How much better committerd is: a higher rate, less time or less memory. Below 1 it is worse."""

    def as_json(self) -> dict[str, Any]:
        """Return the comparison for `results.json.gz`."""
        return asdict(self)


def compare_all(results: Results, plan: Plan) -> list[Comparison]:
    """Compare all figures that were measured on both sides."""
    found = []
    for scenario, ours, theirs, metric in _pairs(plan):
        mine = results.value(scenario, ours, "committerd", metric)
        other = results.value(scenario, theirs, "pylance", metric)
        if mine is None or other is None or not mine or not other:
            continue
        times = mine / other if metric == "rate" else other / mine
        work = ours if ours == theirs else f"{ours}; pylance: {theirs}"
        found.append(
            Comparison(scenario=scenario, work=work, metric=metric, pylance=other, committerd=mine, times=times)
        )
    return found


def _pairs(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """Yield (scenario, committerd's case, pylance's case, metric)."""
    for durable in (True, False):
        for count in plan.producers:
            for metric in ("rate", "p50", "p99"):
                yield writers.NAME, writers.case(count, durable), writers.case(count), metric
        for metric in ("rate", "p99"):
            yield no_coalescing.NAME, mode(durable), no_coalescing.PYLANCE, metric
        for size in plan.fragments:
            for what in (fragments.WARM, fragments.BY_URI):
                yield fragments.NAME, fragments.case(size, mode(durable)), fragments.case(size, what), "commit"
        yield mixed.NAME, mode(durable), mixed.PYLANCE, "rate"
    for milliseconds in plan.s3_race_seconds:
        for metric in ("rate", "p50", "p99"):
            yield s3.NAME, s3.case(milliseconds), s3.case(milliseconds), metric
    yield mixed.NAME, mixed.S3, mixed.S3, "rate"
    for metric in ("rate", "p50", "p99"):
        yield bursts.NAME, bursts.case("upsert", bursts.S3), bursts.case("upsert", bursts.S3), metric
        for where, share in itertools.product((upserts.LOCAL, upserts.S3), upserts.SHARES):
            yield upserts.NAME, upserts.case(share, where), upserts.case(share, where), metric
    for case in (maintenance.ALONE, maintenance.BESIDE):
        for metric in ("compaction", "cleanup", "bytes"):
            yield maintenance.NAME, case, case, metric
    for case in (memory.PROCESS, memory.DAEMON):
        yield memory.NAME, case, memory.PROCESS, "peak"
