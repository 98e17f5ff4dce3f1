"""What a committer uses of the machine and of S3: for a million transactions, while idle, and by fragments.

    python -m bench.capacity [--only transactions idle fragments] [--latency-ms 60] [--quick]

Real committers, Kafka, and an S3 server (versitygw) that adds the latency to each response run on this machine. The
output is the tables of docs/capacity.md. The processor time is that of the committer alone.

* transactions: Appends of one file wait in Kafka, and `commit.group_records_max` sets how many share a version. They
  are staged while the committer is stopped (SIGSTOP); what it uses is counted from then to the last outcome.
* idle: an active committer and a standby, without any record.
* fragments: Appends to a local table that has so many fragments already.

Dollars are list prices of the requests (`PRICES`); processor, memory and Kafka are not in them. The bytes in Kafka are
those of the staged records and the outcomes on one broker.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from kafka import KafkaAdminClient

from bench import machine, plan
from bench.backlogs import stage, wait_for_outcomes
from bench.bench import Bench, dataset_of
from bench.pool import Pool, enlarge_table, make_pool, make_table
from harness.daemon import Daemon
from harness.places import StorePlace
from harness.scene import STAYS

PUTS = ("put", "put_if_absent", "list")
READS = ("get", "get_range", "get_tail", "head")
PRICES = dict.fromkeys(PUTS, 5.0) | dict.fromkeys(READS, 0.4)
"""Dollars for a million requests, by committerd's operation: S3 Standard, us-east-1, November 2026."""
_LOOK_SECONDS = 0.05
_TIMEOUT_SECONDS = 900.0
_MONTH_SECONDS = 30 * 86_400
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    shared: Mapping[int, int]
    """Transactions in a version -> Appends that wait."""
    fragments: Sequence[int]
    """Fragments of the tables."""
    appends: int
    """Appends to each of these tables."""
    appends_shared: int
    """So many of them share a version."""
    settling_seconds: float
    """Time between the start of idle members and the measurement."""
    idle_seconds: float


FULL = Sizes(
    shared={1: 200, 10: 2_000, 100: 10_000, 1000: 40_000},
    fragments=(1_000, 10_000, 100_000),
    appends=300,
    appends_shared=10,
    settling_seconds=20,
    idle_seconds=120,
)
QUICK = Sizes(
    shared={1: 5, 10: 50}, fragments=(100,), appends=20, appends_shared=10, settling_seconds=0, idle_seconds=2
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a committer has used: since its start, or between two moments."""

    processor_seconds: float
    versions: float
    transactions: float
    requests: Mapping[str, float]
    """By operation, those that failed too: S3 charges them."""

    @classmethod
    def by(cls, daemon: Daemon) -> Used:
        """What this committer has used so far."""
        return cls(
            processor_seconds=daemon.processor_seconds(),
            versions=daemon.metric("committerd_commit_transactions_count"),
            transactions=daemon.metric("committerd_commit_transactions_sum"),
            requests={name: daemon.metric("committerd_store_requests_total", operation=name) for name in PRICES},
        )

    def since(self, before: Used) -> Used:
        """What it has used since an earlier moment."""
        return Used(
            processor_seconds=self.processor_seconds - before.processor_seconds,
            versions=self.versions - before.versions,
            transactions=self.transactions - before.transactions,
            requests={name: count - before.requests[name] for name, count in self.requests.items()},
        )

    def count(self, operations: Sequence[str]) -> float:
        """The number of these requests."""
        return sum(self.requests[name] for name in operations)

    @property
    def dollars(self) -> float:
        """The price of the requests."""
        return sum(PRICES[name] * count for name, count in self.requests.items()) / _MILLION


def transactions(bench: Bench, sizes: Sizes, latency_ms: int, folder: Path) -> Iterator[str]:
    """The rows of the table on a million transactions."""
    pool = make_pool(folder, max(sizes.shared.values()))
    for shared, count in sizes.shared.items():
        bench.tell(f"{count} Appends, {shared} in a version")
        place = bench.s3.new_table(pool)
        with bench.s3.adding(latency_ms):
            spent, seconds, peak, logged = _caught_up(bench, place, pool, range(count), shared=shared)
        times = _MILLION / spent.transactions
        cells = (
            f"{spent.transactions / spent.versions:,.0f}",
            f"{spent.transactions / seconds:,.0f}",
            f"{times * spent.processor_seconds / 3600:.2f}",
            f"{times * spent.count(PUTS):,.0f}",
            f"{times * spent.count(READS):,.0f}",
            f"{times * spent.dollars:.2f}",
            f"{times * logged / 2**20:,.0f}",
            f"{peak / 2**20:.0f}",
        )
        yield _row(cells)


def idle(bench: Bench, sizes: Sizes, latency_ms: int, folder: Path) -> Iterator[str]:
    """The rows of the table on idle members."""
    place = bench.s3.new_table(make_pool(folder, 1))
    with bench.s3.adding(latency_ms), bench.daemon(place, durable=True) as active:
        active.wait_ready(text="active")
        standby = Daemon(
            name=dataset_of(active),
            uri=place.uri,
            kafka=bench.kafka,
            settings=place.settings,
            log=folder / "standby.log",
        )
        with standby:
            standby.wait_ready(text="standby")
            time.sleep(sizes.settling_seconds)
            before = {daemon: Used.by(daemon) for daemon in (active, standby)}
            bench.tell(f"idle for {sizes.idle_seconds:.0f} s")
            time.sleep(sizes.idle_seconds)
            for name, daemon in (("active", active), ("standby", standby)):
                spent = Used.by(daemon).since(before[daemon])
                cells = (
                    name,
                    f"{psutil.Process(daemon.pid).memory_info().rss / 2**20:.0f}",
                    f"{1000 * spent.processor_seconds / sizes.idle_seconds:.1f}",
                    f"{60 / sizes.idle_seconds * spent.count(PUTS):.0f}",
                    f"{60 / sizes.idle_seconds * spent.count(READS):.0f}",
                    f"{_MONTH_SECONDS / sizes.idle_seconds * spent.dollars:.2f}",
                )
                yield _row(cells)


def fragments(bench: Bench, sizes: Sizes, latency_ms: int, folder: Path) -> Iterator[str]:
    """The rows of the table on large tables, which are local: the latency does not count."""
    del latency_ms
    pool = make_pool(folder, max(sizes.fragments) + sizes.appends)
    for count in sizes.fragments:
        bench.tell(f"{sizes.appends} Appends to {count} fragments")
        uri = folder / f"table-{count}.lance"
        make_table(pool, uri)
        enlarge_table(pool, uri, count)
        numbers = range(count, count + sizes.appends)
        spent, seconds, peak, _ = _caught_up(bench, StorePlace(str(uri)), pool, numbers, shared=sizes.appends_shared)
        cells = (
            f"{count:,}",
            f"{1000 * seconds / spent.versions:.0f}",
            f"{1000 * spent.processor_seconds / spent.versions:.0f}",
            f"{peak / 2**20:.0f}",
        )
        yield _row(cells)


Part = Callable[[Bench, Sizes, int, Path], Iterator[str]]
PARTS: Mapping[str, tuple[Part, Sequence[str]]] = {
    "transactions": (
        transactions,
        (
            "transactions in a version",
            "transactions/s",
            "CPU hours",
            "PUT and LIST",
            "GET and HEAD",
            "dollars",
            "MiB in Kafka",
            "peak MiB",
        ),
    ),
    "idle": (
        idle,
        (
            "member",
            "MiB",
            "millicores",
            "PUT and LIST a minute",
            "GET and HEAD a minute",
            "dollars a month",
        ),
    ),
    "fragments": (fragments, ("fragments", "ms for a version", "CPU ms for a version", "peak MiB")),
}
"""What can be measured: how, and the columns of its table."""


def _caught_up(
    bench: Bench, place: StorePlace, pool: Pool, numbers: Sequence[int], *, shared: int
) -> tuple[Used, float, int, int]:
    """Let a committer commit Appends that wait.

    Returns what it used, the seconds, the peak of its memory, and the bytes that its topics take in Kafka.
    """
    records = [pool.staged(number).SerializeToString() for number in numbers]
    with bench.daemon(place, durable=True, COMMIT__GROUP_RECORDS_MAX=str(shared), **STAYS) as daemon:
        daemon.wait_ready(text="active")
        before = Used.by(daemon)
        daemon.freeze()
        stage(bench, daemon, records)
        began = time.monotonic()
        daemon.thaw()
        wait_for_outcomes(bench, daemon, len(numbers), seconds_max=_TIMEOUT_SECONDS)
        seconds = time.monotonic() - began
        # The metrics of a version follow its outcomes.
        while (spent := Used.by(daemon)).transactions < len(numbers):
            time.sleep(_LOOK_SECONDS)
        peak = machine.peak_memory_bytes(daemon.pid)
        daemon.stop()
    return spent.since(before), seconds, peak, _logged(bench, daemon)


def _logged(bench: Bench, daemon: Daemon) -> int:
    """The bytes that the topics of its dataset take in Kafka, on one broker."""
    admin: Any = KafkaAdminClient(bootstrap_servers=bench.kafka)
    folders = [folder for broker in admin.describe_log_dirs() for folder in broker["log_dirs"]]
    admin.close()
    return sum(
        partition["partition_size"]
        for folder in folders
        for topic in folder["topics"]
        if topic["name"].startswith(f"{dataset_of(daemon)}.")
        for partition in topic["partitions"]
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def measure(sizes: Sizes, only: Sequence[str], *, latency_ms: int) -> Iterator[str]:
    """Measure these parts; yields the lines of their tables as they come."""
    with Bench(plan.full(1), None) as bench:
        facts = machine.facts(bench.folder)
        yield f"{facts['machine']['cores']} cores, {facts['machine']['cpu']}; {facts['time']}; {facts['commit']}"
        for name in only:
            part, columns = PARTS[name]
            yield from ("", _row(columns), _row(["---:"] * len(columns)))
            with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
                yield from part(bench, sizes, latency_ms, Path(folder))


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--latency-ms", type=int, default=60, help="Added to each response of S3. Default: 60.")
    parser.add_argument("--quick", action="store_true", help="Only check that everything works: no useful figures.")
    given = parser.parse_args()
    for line in measure(QUICK if given.quick else FULL, given.only, latency_ms=given.latency_ms):
        print(line, flush=True)


if __name__ == "__main__":
    main()
