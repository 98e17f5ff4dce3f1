"""A committer's start on a table with a long history: 10,000 versions that committed 10 million records.

`committerd run` on a local table, and on a copy of it on an S3 server with 60 ms added to every response. The time is
from the start of the process to its log line `start.done`, after which it commits; it includes importing everything and
joining Kafka's group. The older history is read after that: its time is noted too, and the largest memory of the
process until it is read. A committer has run before on the same queue, as before every takeover, so the group has an
offset and no outcome is left to be published.

The table is that of `bench/long_history.py`. Its position needs a topic with 10 million records: the scenario has a
Kafka of its own, whose empty topic begins at that offset (its files are renamed while the broker is down).
"""

from __future__ import annotations

import base64
import subprocess
import sys
import time
import uuid
from datetime import datetime
from typing import Any

from kafka import KafkaAdminClient

from bench import long_history
from bench.bench import Bench, dataset_of
from bench.machine import peak_memory_bytes
from committerd.queue.port import TopicIdentity
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.places import StorePlace

NAME = "start"
S3_MILLISECONDS = 60
LOCAL, S3 = "local", f"on S3, {S3_MILLISECONDS} ms added"
_HISTORY_SECONDS = 300.0


def run(bench: Bench) -> None:
    """Measure locally and on S3."""
    plan, folder = bench.plan, bench.folder / "start"
    with KafkaBroker() as broker:
        local = bench.daemon(StorePlace(str(folder)), durable=True, kafka=broker.bootstrap_servers)
        bench.tell(f"{NAME}: makes a table of {plan.start_versions} versions")
        long_history.write(
            folder,
            versions=plan.start_versions,
            members=plan.start_members,
            fragments=0,
            identity=_topic(broker, local, offset=(plan.start_versions - 1) * plan.start_members),
        )
        _measure(bench, local, LOCAL)
        place = bench.s3.copy_of(folder)
        distant = bench.daemon(place, durable=True, kafka=broker.bootstrap_servers, DATASET__NAME=dataset_of(local))
        with bench.s3.adding(S3_MILLISECONDS):
            _measure(bench, distant, S3)


def _topic(broker: KafkaBroker, daemon: Daemon, *, offset: int) -> TopicIdentity:
    """Create the topics of the daemon's dataset; the staged topic is empty and begins at this offset."""
    command = [sys.executable, "-m", "committerd", "topics", "create"]
    subprocess.run(command, env=daemon.environment, capture_output=True, check=True)
    name = f"{dataset_of(daemon)}.staged"
    broker.stop()
    (partition,) = broker.folder.rglob(f"{name}-0")
    for file in list(partition.iterdir()):
        if file.stem.isdigit():
            file.rename(partition / f"{offset:020}{file.suffix}")
        elif file.name == "leader-epoch-checkpoint":
            file.unlink()
    for file in partition.parent.glob("*checkpoint"):
        file.unlink()
    broker.start()
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    cluster = admin.describe_cluster()["cluster_id"]
    (described,) = admin.describe_topics([name])
    admin.close()
    topic_id = base64.urlsafe_b64encode(uuid.UUID(str(described["topic_id"])).bytes).rstrip(b"=").decode()
    return TopicIdentity(cluster_id=cluster, topic=name, topic_id=topic_id)


def _measure(bench: Bench, daemon: Daemon, case: str) -> None:
    with daemon:  # not timed: Kafka and the group know the committer then
        daemon.wait_line("start.done")
        daemon.stop()
    for _ in range(bench.plan.runs):
        began = time.time()
        with daemon:
            seconds = datetime.fromisoformat(daemon.wait_line("start.done")["time"]).timestamp() - began
            history = _read(daemon) - began
            peak = peak_memory_bytes(daemon.pid)
            daemon.stop()
        figures = {"seconds": (seconds, "s"), "history": (history, "s"), "peak": (peak, "bytes")}
        bench.results.note(NAME, case, "committerd", **figures)
        told = f"commits after {seconds:.2f} s, has read the history after {history:.1f} s, {peak / 2**20:.0f} MiB"
        bench.tell(f"{NAME}: {case}: {told}")


def _read(daemon: Daemon) -> float:
    """Wait until the whole history is read; return the Unix time."""
    until = time.monotonic() + _HISTORY_SECONDS
    while daemon.metric("committerd_unread_versions"):
        if time.monotonic() > until:
            raise RuntimeError(f"the history was not read within {_HISTORY_SECONDS:.0f} s")
        time.sleep(0.1)
    return time.time()
