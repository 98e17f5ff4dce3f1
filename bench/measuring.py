"""Two measurements of several scenarios: racing writers of pylance, and producers that commit through the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.bench import Bench
from bench.pool import parts, require_once
from bench.producer_side import Producers
from bench.results import Side, percentile
from bench.workers import results
from bench.written import Written
from harness.daemon import Daemon
from harness.places import StorePlace

PROCESSES_MAX = 4
"""The largest number of producer processes, however many producers there are."""
_RACED_EACH_SECOND = 1000
"""Files prepared for each second of pylance's race: more than its writers can commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The result of one run."""

    seconds: float
    """From the start of the first commit to the end of the last."""
    latencies: Sequence[float]
    """The latency of each commit."""
    failed: int

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def note(self, bench: Bench, scenario: str, case: str, side: Side) -> None:
        """Add the figures to the results."""
        figures = {"rate": (self.per_second, "commits/s"), "failed": (float(self.failed), "commits")}
        bench.results.note(scenario, case, side, **figures)
        bench.results.note_latencies(scenario, case, side, self.latencies)
        p99 = f"p99 {percentile(sorted(self.latencies), 99) * 1000:.1f} ms, " if self.latencies else ""
        bench.tell(f"{scenario}: {side}, {case}: {self.per_second:.1f} commits/s, {p99}{self.failed} failed")


def race(bench: Bench, place: StorePlace, *, writers: int, seconds: float) -> Rate:
    """pylance: each process commits one file after the other to one table, with `LanceDataset.commit`.

    The time is from the first call to the return of the last call that began within `seconds`. Preparing the files,
    opening the table, and a first commit of each process are not timed. pylance syncs nothing to disk.
    """
    from bench.pylance_side import Racer

    count = min(int(seconds * _RACED_EACH_SECOND), bench.pool.count)
    workers = bench.workers(writers)
    for worker, numbers in zip(workers, parts(count, writers), strict=True):
        worker.begin_make(
            Racer, pool=bench.pool, uri=place.uri, numbers=numbers, storage_options=dict(place.storage_options)
        )
    results(workers)
    for worker in workers:
        worker.start("race", seconds=seconds)
    raced = results(workers)
    if errors := [error for one in raced for error in one.errors]:
        bench.tell(f"  pylance gave up, such as: {errors[0][:150]}")
    committed = [bench.pool.file_name(number) for one in raced for number in one.committed]
    maybe = [bench.pool.file_name(number) for one in raced for number in (*one.failed, *one.doubtful)]
    require_once(place.uri, committed, maybe=maybe, storage_options=dict(place.storage_options) or None)
    return Rate(
        seconds=max(one.ended for one in raced) - min(one.began for one in raced),
        latencies=[value for one in raced for value in one.seconds],
        failed=sum(len(one.failed) for one in raced),
    )


def through_queue(
    bench: Bench, place: StorePlace, daemon: Daemon, *, producers: int, appends: int, seconds: float | None = None
) -> Rate:
    """committerd: producers in at most four processes, each with several commits in flight, to a running daemon.

    The time is from the first submit to the last outcome; a latency is from submit to outcome. Preparing the files and
    the transactions, starting the daemon, connecting, and a first commit of each process are not timed. Producers of
    one process share a client. With `seconds`, nothing is submitted after that time; without it, all `appends` are
    submitted.
    """
    processes = min(PROCESSES_MAX, producers)
    workers = bench.workers(processes)
    count = min(appends + processes, bench.pool.count)
    for worker, numbers in zip(workers, parts(count, processes), strict=True):
        worker.begin_make(
            Producers,
            **bench.queue(daemon, place.uri),
            numbers=numbers,
            producers=producers // processes,
            in_flight=bench.plan.in_flight,
        )
    results(workers)
    for worker in workers:
        worker.start("produce", seconds=seconds)
    produced: list[Written] = results(workers)
    for worker in workers:
        worker.start("close")
    results(workers)
    if errors := [error for one in produced for error in one.errors]:
        bench.tell(f"  committerd refused, such as: {errors[0][:150]}")
    committed = [bench.pool.file_name(number) for one in produced for number in one.committed]
    failed = [bench.pool.file_name(number) for one in produced for number in one.failed]
    require_once(place.uri, committed, maybe=failed, storage_options=dict(place.storage_options) or None)
    return Rate(
        seconds=max(one.ended for one in produced) - min(one.began for one in produced),
        latencies=[value for one in produced for value in one.seconds],
        failed=len(failed),
    )


def by_queue_locally(
    bench: Bench, *, producers: int, appends: int, durable: bool, settings: dict[str, str] | None = None
) -> Rate:
    """Run `through_queue` on a new local table, with a daemon of its own."""
    place = StorePlace(bench.new_table())
    with bench.daemon(place, durable=durable, **(settings or {})) as daemon:
        daemon.wait_ready(text="active")
        rate = through_queue(bench, place, daemon, producers=producers, appends=appends)
        daemon.stop()
    return rate


def race_locally(bench: Bench, *, writers: int) -> Rate:
    """Run `race` on a new local table."""
    return race(bench, StorePlace(bench.new_table()), writers=writers, seconds=bench.plan.race_seconds)
