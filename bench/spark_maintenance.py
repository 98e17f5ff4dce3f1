"""`committerd_spark.maintain` on Spark standalone with two workers: how long it takes, and the driver's memory.

    python -m bench.spark_maintenance --fragments 20000

A table of this many fragments of 100 rows, with a scalar index, is rewritten into fragments of 10,000 rows by tasks on
executors, all committed as one. The memory is that of the driver's Python process, sampled ten times a second; the
driver's JVM is beside it. It prints what was done, and how many tasks each executor ran.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from committerd_client.maintenance.plan import Limits, Targets
from committerd_spark import maintain
from harness.daemon import Daemon
from harness.kafka import kafka_broker
from harness.spark import small_session, standalone_cluster

_ROWS = 100
"""Rows of each fragment at the start."""
_TOGETHER = 100
"""Fragments that one task rewrites."""
_SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


@dataclass(slots=True, kw_only=True)
class Done:
    """What a run has done."""

    fragments_before: int
    fragments_after: int
    versions: int
    """Versions that it has added."""
    seconds: float
    tasks: dict[str, int]
    """By executor: the tasks that it completed."""
    memory: list[int] = field(default_factory=list)
    """Bytes of the driver's Python process, over time."""


def make_table(uri: str, fragments: int) -> None:
    """Write the table with its index."""
    rows = pa.table({"id": pa.array(range(fragments * _ROWS), pa.int64())})
    table = lance.write_dataset(rows, uri, max_rows_per_file=_ROWS, max_rows_per_group=_ROWS)
    table.create_scalar_index("id", "BTREE")


def rewrite(spark: SparkSession, uri: str, kafka: str, *, dataset: str) -> Done:
    """Run maintenance once, with all tasks in one commit."""
    before = lance.dataset(uri)
    fragments = len(before.get_fragments())
    targets = Targets(rows_per_fragment=_ROWS * _TOGETHER, fragments=10)
    started = time.monotonic()
    with _sampled() as memory:
        maintain(
            spark,
            uri,
            bootstrap_servers=kafka,
            dataset=dataset,
            targets=targets,
            limits=Limits(tasks=100_000),
            timeout=600.0,
        )
    seconds = time.monotonic() - started
    after = lance.dataset(uri)
    return Done(
        fragments_before=fragments,
        fragments_after=len(after.get_fragments()),
        versions=after.version - before.version,
        seconds=seconds,
        tasks=_tasks(spark),
        memory=memory,
    )


def _tasks(spark: SparkSession) -> dict[str, int]:
    """The tasks that each executor has completed."""
    context: Any = spark.sparkContext
    found = context._jsc.sc().statusStore().executorList(True)
    each = [found.apply(place) for place in range(found.size())]
    return {str(one.id()): int(one.completedTasks()) for one in each if one.id() != "driver"}


@contextmanager
def _sampled() -> Iterator[list[int]]:
    """The memory of this process while the block runs."""
    ended, process = threading.Event(), psutil.Process()
    found: list[int] = [process.memory_info().rss]

    def sample() -> None:
        while not ended.wait(0.1):
            found.append(process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def main() -> int:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fragments", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="committerd-spark-") as name, kafka_broker() as kafka:
        folder, servers, dataset = Path(name), kafka.bootstrap_servers, f"spark-{uuid.uuid4().hex[:12]}"
        uri = str(folder / "table.lance")
        make_table(uri, given.fragments)
        with (
            Daemon(name=dataset, uri=uri, kafka=servers, log=folder / "committerd.log") as daemon,
            standalone_cluster(folder) as master,
        ):
            daemon.wait_ready(text="active")
            spark = small_session("maintenance", folder, master=master, settings=_SETTINGS)
            done = rewrite(spark, uri, servers, dataset=dataset)
            spark.stop()
        table = lance.dataset(uri)
        whole = sorted(table.to_table()["id"].to_pylist()) == [*range(given.fragments * _ROWS)]
        whole = whole and table.count_rows("id = 77") == 1
    if given.json:
        print(json.dumps(asdict(done)))
        return 0 if whole else 1
    mib = [one / 2**20 for one in done.memory]
    step = max(len(mib) // 10, 1)
    print(
        f"{done.fragments_before} fragments became {done.fragments_after} in {done.seconds:.1f} s and {done.versions} "
        f"versions; tasks by executor: {done.tasks}\n"
        f"memory of the driver: {mib[0]:.0f} MiB before, {max(mib):.0f} MiB at most; "
        f"over time {', '.join(f'{one:.0f}' for one in mib[::step])}"
    )
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
