"""The sizes of a full run, and those of a quick one, which only checks that everything works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes, and durations in seconds."""

    quick: bool = False
    runs: int = 3
    """How often each measurement is repeated; figures are medians over the runs."""

    producers: Mapping[int, int] = field(default_factory=lambda: {1: 1000, 4: 4000, 16: 10_000, 32: 20_000})
    """Number of writers -> Appends that they commit through the queue together."""
    in_flight: int = 8
    """Commits of one producer that wait for their outcome at any time."""
    race_seconds: float = 5.0
    """The duration of pylance's race."""
    uncoalesced: int = 2000
    """Appends, each in a version of its own."""

    fragments: Mapping[int, int] = field(default_factory=lambda: {1000: 40, 10_000: 30, 100_000: 15, 1_000_000: 3})
    """Fragments in the table -> Appends that each side commits to it."""

    s3_seconds: Mapping[int, float] = field(default_factory=lambda: {0: 15.0, 60: 30.0})
    """Injected milliseconds -> how long producers submit."""
    s3_race_seconds: Mapping[int, float] = field(default_factory=lambda: {0: 8.0, 60: 20.0})
    """Injected milliseconds -> how long pylance's writers race."""
    s3_runs: int = 2

    mixed_writers: int = 16
    mixed_rounds: int = 10
    """So many times ten operations of each writer: some ten seconds, in which over 1,000 small fragments are made."""
    mixed_s3_race_seconds: float = 30.0
    """How long pylance's writers work on S3."""

    burst: int = 300
    burst_s3: int = 600
    burst_race_seconds: float = 20.0
    burst_behind: int = 5
    """Bursts of 100 upserts with an Append behind them."""

    upsert_clients: int = 6
    upserts_each: int = 15
    upsert_rows: int = 20
    upserts_s3_race_seconds: float = 30.0
    """How long pylance's clients begin upserts on S3."""

    turns_upserts: int = 100
    turns_appends: int = 500
    """Appends per second beside them."""
    turns_ahead: int = 20_000
    """Appends whose files are written in advance."""

    staging: Mapping[int, int] = field(default_factory=lambda: {300: 9, 3000: 5, 30_000: 2})
    """Fragments in the table -> how often each helper is called."""

    start_versions: int = 10_000
    start_members: int = 1000
    """Records that each version commits."""

    idle_commits: int = 200
    idle_s3_commits: int = 50
    backlog: int = 100_000
    judged_versions: int = 1000
    judged_times: int = 50
    followed_fragments: int = 1000
    """Fragments that each compaction rewrites."""
    compacted_fragments: int = 1000
    """Fragments of 100 rows that are rewritten while others change them."""
    compaction_seconds: int = 10
    """The time for which others submit changes."""
    compaction_race_seconds: float = 30.0
    """The time after which pylance's compaction is given up."""
    maintained_fragments: int = 1000
    """Fragments of 100 rows that both sides rewrite."""
    memory_fragments: int = 100_000
    memory_appends: int = 10
    limit_puts: int = 1000
    limit_records: int = 100_000

    @property
    def writers_most(self) -> int:
        """The most contended case."""
        return max(self.producers)

    @property
    def files(self) -> int:
        """Data files that are written in advance: as many as the largest case needs."""
        return (
            max(self.backlog, *self.producers.values(), *(int(seconds * 4000) for seconds in self.s3_seconds.values()))
            + 32
        )


def full(runs: int | None) -> Plan:
    """The plan of the published figures."""
    return Plan() if runs is None else Plan(runs=runs, s3_runs=min(runs, 2))


def quick(runs: int | None) -> Plan:
    """A few minutes in all."""
    return Plan(
        quick=True,
        runs=runs or 1,
        producers={1: 50, 4: 400},
        race_seconds=1.0,
        uncoalesced=100,
        fragments={100: 5, 1000: 5},
        s3_seconds={0: 2.0, 60: 3.0},
        s3_race_seconds={0: 1.0, 60: 2.0},
        s3_runs=1,
        mixed_writers=4,
        mixed_rounds=1,
        mixed_s3_race_seconds=2.0,
        burst=20,
        burst_s3=20,
        burst_race_seconds=2.0,
        burst_behind=1,
        upsert_clients=2,
        upserts_each=3,
        upserts_s3_race_seconds=2.0,
        turns_upserts=6,
        turns_appends=50,
        turns_ahead=200,
        staging={300: 2},
        start_versions=300,
        start_members=100,
        idle_commits=20,
        idle_s3_commits=5,
        backlog=2000,
        judged_versions=50,
        judged_times=5,
        followed_fragments=50,
        compacted_fragments=50,
        compaction_seconds=2,
        compaction_race_seconds=5.0,
        maintained_fragments=40,
        memory_fragments=1000,
        memory_appends=3,
        limit_puts=50,
        limit_records=2000,
    )


def seconds(plan: Plan, scenarios: Sequence[str]) -> float:
    """About how long the scenarios take on two cores, in seconds."""
    start = 8.0  # a daemon, a table, and the check at the end
    levels, runs = len(plan.producers), plan.runs
    races = sum(plan.race_seconds + 0.15 * writers for writers in plan.producers)
    appended = sum(plan.producers.values()) / 2500
    per_fragment = 1.2e-5  # a commit of all four sides, mostly pylance's
    each = {
        "writers": runs * (races + 2 * (levels * start + appended)),
        "no_coalescing": runs * (plan.race_seconds + 5 + 2 * (start + plan.uncoalesced / 300)),
        "fragments": 15 + sum(per_fragment * size * (times + 4) for size, times in plan.fragments.items()),
        "s3": plan.s3_runs * (2 * sum(plan.s3_seconds.values()) + 30 + 2 * sum(plan.s3_race_seconds.values()) + 30),
        "mixed": runs * (2 * start + plan.mixed_writers * plan.mixed_rounds * 10 / 25)
        + plan.s3_runs * (plan.mixed_s3_race_seconds + 2 * start + plan.mixed_writers * plan.mixed_rounds * 10 / 30),
        "bursts": 2 * runs * (start + plan.burst / 30)
        + plan.s3_runs * (plan.burst_race_seconds + 2 * (start + plan.burst_s3 / 20))
        + start
        + plan.burst_behind * 10,
        "upserts": 3 * runs * (3 * start + plan.upsert_clients * plan.upserts_each / 20)
        + 3 * plan.s3_runs * (2 * start + 1.5 * plan.upserts_s3_race_seconds),
        "turns": 2 * runs * (start + plan.turns_ahead / 1000 + plan.turns_upserts / 8),
        "staging": 30 + sum(20 + 0.01 * size * min(times, 3) for size, times in plan.staging.items()) * 2,
        "start": 60 + plan.start_versions * plan.start_members * 1.2e-5 + runs * 60,
        "idle": runs * (3 * start + plan.idle_commits * 0.04 + plan.idle_s3_commits * 0.15),
        "backlog": runs * (races + 2 * (start + plan.backlog / 4000 + plan.backlog / 10_000)),
        "judge": 10 + plan.judged_versions / 200,
        "following": 10 + plan.followed_fragments / 100,
        "compaction": runs * (2 * start + plan.compaction_race_seconds + 6 * plan.compaction_seconds),
        "maintenance": runs * (start + 25 + plan.maintained_fragments / 50),
        "memory": 2 * start + plan.memory_appends * plan.memory_fragments * per_fragment,
        "limits": start + plan.limit_puts / 100 + plan.limit_records / 10_000,
    }
    return 25 + plan.files / 10_000 + sum(each[name] for name in scenarios)
