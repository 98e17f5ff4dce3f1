"""What a committer uses of the machine and of S3: for a million transactions, while idle, and by fragments.

    python -m bench.capacity [--only transactions idle fragments rolling] [--latency-ms 60] [--quick]

Real committers, Kafka, and an S3 server (versitygw) that adds the latency to each response run on this machine. The
output is the tables of docs/capacity.md. The processor time is that of the committer alone.

* transactions: Appends of one file wait in Kafka, and `commit.group_records_max` sets how many share a version. They
  are staged while the committer is stopped (SIGSTOP); what it uses is counted from then to the last outcome.
* idle: an active committer and a standby, without any record.
* fragments: Appends to a local table that has so many fragments already.
* rolling: both members of each table are replaced, one after the other, as a Deployment does it. Of each table whose
  active member is stopped: from SIGTERM until another member has read the table and the topics.

Dollars are list prices of the requests (`PRICES`); processor, memory and Kafka are not in them. The bytes in Kafka are
those of the staged records and the outcomes on one broker.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
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
    rolled: int
    """Tables whose members are replaced."""
    rolled_at_once: Sequence[int]
    """So many tables at the same time."""


FULL = Sizes(
    shared={1: 200, 10: 2_000, 100: 10_000, 1000: 40_000},
    fragments=(1_000, 10_000, 100_000),
    appends=300,
    appends_shared=10,
    settling_seconds=20,
    idle_seconds=120,
    rolled=20,
    rolled_at_once=(20, 2),
)
QUICK = Sizes(
    shared={1: 5, 10: 50},
    fragments=(100,),
    appends=20,
    appends_shared=10,
    settling_seconds=0,
    idle_seconds=2,
    rolled=2,
    rolled_at_once=(2,),
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


@dataclass(frozen=True, slots=True)
class Rolled:
    """A table with the members that serve it, and those that will."""

    old: Sequence[Daemon]
    new: Sequence[Daemon]

    def members(self) -> Iterator[Daemon]:
        """All of them."""
        yield from (*self.old, *self.new)

    def roll(self) -> Sequence[float]:
        """Replace one member after the other; returns how long each takeover left the table without a committer."""
        gone: list[float] = []
        for leaving, coming in zip(self.old, self.new, strict=True):
            active = "active" in leaving.wait_ready()
            began = time.time()
            os.kill(leaving.pid, signal.SIGTERM)
            coming.start()  # a Deployment does not wait for the end of the old Pod
            if active:
                gone.append(self._active_since(began) - began)
            leaving.stop()
            coming.wait_ready(timeout=_TIMEOUT_SECONDS)
        return gone

    def _active_since(self, moment: float) -> float:
        """When the first member became active after this moment."""
        deadline = time.time() + _TIMEOUT_SECONDS
        while time.time() < deadline:
            lines = [line for one in self.members() if one.log.exists() for line in one.lines("start.done")]
            times = [datetime.fromisoformat(str(line["time"])).timestamp() for line in lines]
            if after := [found for found in times if found > moment]:
                return min(after)
            time.sleep(_LOOK_SECONDS)
        raise RuntimeError(f"no member became active within {_TIMEOUT_SECONDS:.0f} s")


def rolling(bench: Bench, sizes: Sizes, latency_ms: int, folder: Path) -> Iterator[str]:
    """The rows of the table on a rolling update."""
    pool = make_pool(folder, 1)
    for at_once in sizes.rolled_at_once:
        with bench.s3.adding(latency_ms), contextlib.ExitStack() as cleanup:
            tables = [_rolled(bench, bench.s3.new_table(pool), folder, cleanup) for _ in range(sizes.rolled)]
            bench.tell(f"{sizes.rolled} tables have two members; replaces those of {at_once} at once")
            began = time.monotonic()
            with ThreadPoolExecutor(at_once) as threads:
                gone = sorted(seconds for found in threads.map(Rolled.roll, tables) for seconds in found)
            cells = (
                f"{at_once}",
                f"{len(gone)}",
                f"{statistics.median(gone):.2f}",
                f"{gone[-1]:.2f}",
                f"{time.monotonic() - began:.0f}",
            )
        yield _row(cells)


def _rolled(bench: Bench, place: StorePlace, folder: Path, cleanup: contextlib.ExitStack) -> Rolled:
    """A table with two members that are ready."""
    first = cleanup.enter_context(bench.daemon(place, durable=True))
    first.wait_ready(text="active", timeout=_TIMEOUT_SECONDS)
    name = dataset_of(first)
    second, *new = (
        Daemon(
            name=name, uri=place.uri, kafka=bench.kafka, settings=place.settings, log=folder / f"{name}-{number}.log"
        )
        for number in range(3)
    )
    cleanup.enter_context(second).wait_ready(text="standby", timeout=_TIMEOUT_SECONDS)
    for one in new:
        cleanup.callback(one.kill)
    return Rolled(old=(first, second), new=new)


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
    "rolling": (rolling, ("tables at once", "takeovers", "median s", "slowest s", "s for all tables")),
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
