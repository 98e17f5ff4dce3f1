"""100,000 Appends wait in Kafka when the daemon starts, on an empty table: how fast it catches up.

The time is from the daemon's first read of the queue (its log line `start.done`: partition assigned, table read) to the
moment when the outcomes topic has an outcome for each record, checked every 50 ms. Nobody reads the outcomes meanwhile.
The time to start the process and to join the group is noted separately. Afterwards the scenario reads every outcome:
each is COMMITTED, and each uuid has one. pylance checks that every file is in the table once.

In the same run pylance's 32 writers race, as in `writers`. The limit, on the same topic, is a bare loop
(`bench.bare_side`): read, parse, join the fragments, put. It judges nothing and publishes nothing, and runs when the
daemon has ended.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer

from bench.backlogs import outcome_partitions, stage, wait_for_outcomes
from bench.bare_side import BareLoop
from bench.bench import Bench, dataset_of, mode
from bench.measuring import race_locally
from bench.pool import WrongTable, require_once
from committerd_common.messages import Outcome, Status
from harness.daemon import Daemon
from harness.places import StorePlace

NAME = "backlog"
BARE = "a bare loop"
PYLANCE = "racing writers"
_TIMEOUT_SECONDS = 600.0


def run(bench: Bench) -> None:
    """Measure pylance, durable and not durable in turn."""
    count = bench.plan.backlog
    bench.tell(f"{NAME}: makes {count} transactions")
    staged = [bench.pool.staged(number) for number in range(count)]
    uuids = [one.uuid for one in staged]
    records = [one.SerializeToString() for one in staged]
    del staged
    for _ in range(bench.plan.runs):
        race_locally(bench, writers=bench.plan.writers_most).note(bench, NAME, PYLANCE, "pylance")
        for durable in (True, False):
            uri = bench.new_table()
            daemon = bench.daemon(StorePlace(uri), durable=durable)
            _stage(bench, daemon, records)
            started = time.time()
            with daemon:
                began, ended = _catch_up(bench, daemon, count)
                daemon.stop()
            _require_answers(bench, daemon, uuids)
            require_once(uri, [bench.pool.file_name(number) for number in range(count)])
            rate = count / (ended - began)
            figures = {"rate": (rate, "transactions/s"), "starting": (began - started, "s")}
            bench.results.note(NAME, mode(durable), "committerd", **figures)
            bare = count / _bare(bench, daemon, Path(uri), count, durable=durable)
            bench.results.note(NAME, bare_case(durable), "limit", rate=(bare, "transactions/s"))
            told = f"{rate:.0f} transactions/s, after {began - started:.1f} s of starting; {BARE} {bare:.0f}"
            bench.tell(f"{NAME}: {mode(durable)}: {told}")


def bare_case(durable: bool) -> str:
    """The name of the bare loop's case in the results."""
    return f"{BARE}, {mode(durable)}"


def _bare(bench: Bench, daemon: Daemon, folder: Path, count: int, *, durable: bool) -> float:
    """Return the seconds that the bare loop takes."""
    worker = bench.workers(1)[0]
    topic = f"{dataset_of(daemon)}.staged"
    worker.make(BareLoop, servers=bench.kafka, topic=topic, folder=folder, durable=durable)
    seconds = float(worker.call("catch_up", count=count))
    worker.call("close")
    return seconds


def _stage(bench: Bench, daemon: Daemon, records: Iterable[bytes]) -> None:
    """Create the topics, and put all records into the queue."""
    command = [sys.executable, "-m", "committerd", "topics", "create"]
    done = subprocess.run(command, env=daemon.environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the topics were not made:\n{done.stdout}{done.stderr}")
    stage(bench, daemon, records)


def _catch_up(bench: Bench, daemon: Daemon, count: int) -> tuple[float, float]:
    """Return the Unix times of the daemon's first read and of the last outcome."""
    wait_for_outcomes(bench, daemon, count, seconds_max=_TIMEOUT_SECONDS)
    ended = time.time()
    line = daemon.wait_line("start.done")
    return datetime.fromisoformat(line["time"]).timestamp(), ended


def _require_answers(bench: Bench, daemon: Daemon, uuids: Iterable[str]) -> None:
    """Raise `WrongTable` unless each record has one outcome, COMMITTED."""
    consumer: Any = KafkaConsumer(bootstrap_servers=bench.kafka)
    partitions = outcome_partitions(consumer, daemon)
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    left = sum(consumer.end_offsets(partitions).values())
    told: Counter[tuple[str, int]] = Counter()
    while left:
        for batch in consumer.poll(timeout_ms=5000).values():
            left -= len(batch)
            for record in batch:
                outcome = Outcome.FromString(record.value)
                told[outcome.uuid, outcome.status] += 1
    consumer.close()
    if told != Counter((uuid, Status.COMMITTED) for uuid in uuids):
        raise WrongTable(f"{NAME}: the outcomes are not one COMMITTED for each of the transactions")
