"""The scenarios, one module each; `run` measures and notes the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.bench import Bench
from bench.scenarios import (
    backlog,
    bursts,
    compaction,
    following,
    fragments,
    idle,
    judging,
    limits,
    maintenance,
    memory,
    mixed,
    no_coalescing,
    s3,
    staging,
    start,
    turns,
    upserts,
    writers,
)

SCENARIOS: Mapping[str, Callable[[Bench], None]] = {
    "writers": writers.run,
    "no_coalescing": no_coalescing.run,
    "fragments": fragments.run,
    "s3": s3.run,
    "mixed": mixed.run,
    "bursts": bursts.run,
    "upserts": upserts.run,
    "turns": turns.run,
    "staging": staging.run,
    "start": start.run,
    "idle": idle.run,
    "backlog": backlog.run,
    "judge": judging.run,
    "following": following.run,
    "compaction": compaction.run,
    "maintenance": maintenance.run,
    "memory": memory.run,
    "limits": limits.run,
}
"""In the order in which they run."""
