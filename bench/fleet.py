"""What a table costs in a process for many, and what a flood of one table does to the others.

    .venv/bin/python -m bench.fleet [--tables 100] [--idle-seconds 60] [--flood 30000]

It starts a Kafka, creates local tables, and measures one process: with one table, and with all of them. Then clients
that wait for each outcome append to a few quiet tables, first alone, and then beside a flood of Appends to another.
The settings are the defaults. It prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from committerd_client import SyncCommitClient
from committerd_common.messages import Transaction
from harness.daemon import Daemon
from harness.fleet import Fleet
from harness.kafka import KafkaBroker
from harness.scene import Scene, until

_SETTLING_SECONDS = 15.0
_QUIET = 5
"""Quiet tables that clients append to."""
_APPENDS = 40
"""Appends to each quiet table, one after the other."""
_START_SECONDS_MAX = 900.0


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--flood", type=int, default=30_000, help="Appends of the flood.")
    options = parser.parse_args()
    names = [f"t{number:03}" for number in range(options.tables)]
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as folder, KafkaBroker() as kafka:
        servers = kafka.bootstrap_servers
        with Fleet(kafka=servers, names=names, folder=Path(folder)) as fleet:
            for scene in fleet.scenes.values():
                scene.table.create()
            load = os.getloadavg()[0]
            one = idle(fleet, names[:1], servers, options.idle_seconds)
            many = idle(fleet, names, servers, options.idle_seconds)
            print(json.dumps([one, many]), file=sys.stderr)
            more = {
                key: round((many[key] - one[key]) / max(len(names) - 1, 1), 3)
                for key in ("resident_mib", "core_percent")
            }
            with member(fleet, names, servers) as daemon:
                until(lambda: daemon.metric("committerd_active") == len(names), seconds=_START_SECONDS_MAX)
                flooded = flood(fleet, daemon, names, servers, count=options.flood)
    loads = {"before": load, "after": os.getloadavg()[0]}
    print(json.dumps({"one": one, "many": many, "each_more": more, "flood": flooded, "load": loads}, indent=2))


def member(fleet: Fleet, names: Sequence[str], servers: str) -> Daemon:
    """A process for these tables, which counts its requests to Kafka."""
    number = uuid.uuid4().hex[:6]
    file = fleet.folder / f"{number}.toml"
    file.write_text(fleet.tables(*names))
    return Daemon(
        name="fleet",
        uri=None,
        kafka=servers,
        settings={"CONFIG": str(file), "KAFKA__GROUP": f"bench-{number}"},
        log=fleet.folder / f"{number}.log",
        command=(sys.executable, "-m", "bench.counting_member", str(fleet.folder / "requests"), "run"),
    )


def idle(fleet: Fleet, names: Sequence[str], servers: str, seconds: float) -> Mapping[str, float]:
    """Start a process for these tables, and measure it while nothing is committed."""
    began = time.monotonic()
    with member(fleet, names, servers) as daemon:
        until(lambda: daemon.metric("committerd_active") == len(names), seconds=_START_SECONDS_MAX)
        started = time.monotonic() - began
        time.sleep(_SETTLING_SECONDS)
        requests = fleet.folder / "requests"
        sent, used, at = int(requests.read_text()), daemon.processor_seconds(), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - at
        return {
            "tables": len(names),
            "start_seconds": round(started, 1),
            "resident_mib": round(psutil.Process(daemon.pid).memory_info().rss / 2**20, 1),
            "core_percent": round(100 * (daemon.processor_seconds() - used) / passed, 2),
            "kafka_requests_a_minute": round(60 * (int(requests.read_text()) - sent) / passed),
        }


def flood(fleet: Fleet, daemon: Daemon, names: Sequence[str], servers: str, *, count: int) -> Mapping[str, float]:
    """The latency of Appends to quiet tables, alone and beside a flood of one table."""
    flooded, quiet = fleet.scenes[names[0]], [fleet.scenes[name] for name in names[1 : 1 + _QUIET]]
    model = flooded.table.append()
    with ThreadPoolExecutor(len(quiet)) as pool:
        alone = [one for found in pool.map(lambda scene: latencies(scene, servers), quiet) for one in found]
        flooded.stage(*(staged_again(model) for _ in range(count)))
        began, settled_before = time.monotonic(), daemon.metric("committerd_transactions_total", dataset=flooded.name)
        beside = [one for found in pool.map(lambda scene: latencies(scene, servers), quiet) for one in found]
    passed = time.monotonic() - began
    settled = daemon.metric("committerd_transactions_total", dataset=flooded.name) - settled_before
    left = daemon.metric("committerd_queue_lag_records", dataset=flooded.name)
    return {
        "alone_p50_ms": quantile(alone, 50),
        "alone_p99_ms": quantile(alone, 99),
        "beside_p50_ms": quantile(beside, 50),
        "beside_p99_ms": quantile(beside, 99),
        "p50_ratio": round(quantile(beside, 50) / quantile(alone, 50), 2),
        "p99_ratio": round(quantile(beside, 99) / quantile(alone, 99), 2),
        "flood_left_at_the_end": left,
        "flood_records_a_second": round(settled / passed),
        "flood": count,
    }


def latencies(scene: Scene, servers: str, count: int = _APPENDS) -> list[float]:
    """Seconds from the commit of each Append until its outcome."""
    found = []
    transactions = scene.table.appends(count)
    with SyncCommitClient(servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        for one in transactions:
            began = time.monotonic()
            client.commit(one)
            found.append(time.monotonic() - began)
    return found


def staged_again(model: Transaction) -> Transaction:
    """The same transaction with a uuid of its own."""
    made = Transaction()
    made.CopyFrom(model)
    made.uuid = str(uuid.uuid4())
    return made


def quantile(seconds: Sequence[float], percent: int) -> float:
    """A percentile of these seconds, in milliseconds."""
    return round(1000 * statistics.quantiles(seconds, n=100)[percent - 1], 1)


if __name__ == "__main__":
    main()
