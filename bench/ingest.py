"""What `committerd ingest` takes in: freshness, throughput of one process, and a backlog for two.

    python -m bench.ingest
    python -m bench.ingest --seconds 20 --records 100000

With a real Kafka and a real committer on this machine, and a table on its disk. Throughput is that of a second of
processor time: it says what one core does, whatever else the machine does meanwhile. Beside it stands what pyarrow
takes to parse the same records, and no more than that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pyarrow.json
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from bench.machine import peak_memory_bytes
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.scene import Scene, until

SCHEMA = pa.schema([("id", pa.int64()), ("sent", pa.float64()), ("text", pa.string())])
MIB = 1024 * 1024
_PATIENCE = 900


class Bed:
    """A topic, an empty table, and its committer."""

    def __init__(self, scene: Scene, topic: str, partitions: int) -> None:
        self.scene, self.topic, self._partitions = scene, topic, partitions
        lance.write_dataset(SCHEMA.empty_table(), scene.table.uri)
        scene.started()
        self._producer = KafkaProducer(bootstrap_servers=scene.topics.servers, linger_ms=5, batch_size=256 * 1024)

    def send(self, values: Sequence[bytes]) -> None:
        for number, value in enumerate(values):
            self._producer.send(self.topic, value=value, partition=number % self._partitions)

    def flush(self) -> None:
        self._producer.flush(_PATIENCE)

    def ingest(self, **settings: str) -> Daemon:
        """A process, not started yet."""
        return Daemon(
            name=self.scene.name,
            uri=self.scene.table.uri,
            kafka=self.scene.topics.servers,
            settings={"INGEST__TOPICS": self.topic, "INGEST__PIPELINE": self.scene.name, **settings},
            command=(sys.executable, "-m", "committerd", "ingest"),
        )

    def rows(self) -> int:
        return int(lance.dataset(self.scene.table.uri).count_rows())


@contextlib.contextmanager
def bed(broker: KafkaBroker, folder: Path, partitions: int) -> Iterator[Bed]:
    name = f"bench-{uuid4().hex[:8]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(f"{name}-records", partitions, 1)])
    (folder / name).mkdir()
    with Scene(kafka=broker.bootstrap_servers, name=name, folder=folder / name) as scene:
        yield Bed(scene, f"{name}-records", partitions)


def record(number: int, size: int) -> bytes:
    """A record of about `size` bytes."""
    bare = json.dumps({"id": number, "sent": time.time(), "text": ""})
    return f"{bare[:-2]}{'x' * max(size - len(bare), 0)}{bare[-2:]}".encode()


def freshness(where: Bed, seconds: int, rate: int) -> list[float]:
    """Seconds from a record's making until its row can be read, of each row, in order."""
    process = where.ingest(INGEST__FLUSH_SECONDS="0.25").start()
    found: list[float] = []
    try:
        process.wait_ready(text="partitions")
        where.send([record(0, 200)])
        where.flush()
        until(lambda: where.rows() == 1, seconds=_PATIENCE)
        seen = {one.fragment_id for one in lance.dataset(where.scene.table.uri).get_fragments()}
        began, sent = time.time(), 0
        while len(found) < seconds * rate:
            due = min(int((time.time() - began) * rate), seconds * rate)
            where.send([record(number, 200) for number in range(sent, due)])
            sent = max(sent, due)
            table = lance.dataset(where.scene.table.uri)
            now = time.time()
            for one in table.get_fragments():
                if one.fragment_id not in seen:
                    seen.add(one.fragment_id)
                    found += [now - value for value in one.to_table(columns=["sent"])["sent"].to_pylist()]
            time.sleep(0.01)
    finally:
        process.stop()
    return sorted(found)


def throughput(where: Bed, values: Sequence[bytes], processes: int) -> None:
    """Write what waits in the topic into the table, and print the figures."""
    where.send(values)
    where.flush()
    started = [where.ingest().start() for _ in range(processes)]
    try:
        for one in started:
            one.url()
        before, began = [one.processor_seconds() for one in started], time.monotonic()
        until(lambda: where.rows() == len(values), seconds=_PATIENCE)
        took = time.monotonic() - began
        used = sum(one.processor_seconds() for one in started) - sum(before)
        peak = max(peak_memory_bytes(one.pid) for one in started)
    finally:
        for one in started:
            one.stop()
    size = sum(map(len, values)) / MIB
    fragments = len(lance.dataset(where.scene.table.uri).get_fragments())
    rate = f"{len(values) / took:,.0f} records/s, {size / took:.1f} MiB/s"
    print(
        f"{len(values):,} records of {len(values[0])} bytes, {processes} process(es): {rate}; "
        f"{size / used:.1f} MiB per second of processor time; {fragments} files; "
        f"at most {peak / MIB:.0f} MiB of memory each",
        flush=True,
    )


def parsing(values: Sequence[bytes]) -> None:
    """What pyarrow alone takes for the same records."""
    text = b"\n".join(values)
    began = time.process_time()
    pyarrow.json.read_json(
        io.BytesIO(text), pyarrow.json.ReadOptions(use_threads=False), pyarrow.json.ParseOptions(explicit_schema=SCHEMA)
    )
    used = time.process_time() - began
    print(f"pyarrow.json alone: {len(text) / MIB / used:.1f} MiB per second of processor time", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of the measurement of freshness; default %(default)s")
    parser.add_argument("--rate", type=int, default=1000, help="records a second for it; default %(default)s")
    parser.add_argument("--records", type=int, default=200_000, help="of 1 KB, for one process; default %(default)s")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="of 200 bytes, for two; default %(default)s")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="committerd-bench-ingest-") as name, KafkaBroker() as broker:
        folder = Path(name)
        with bed(broker, folder, 4) as where:
            found = freshness(where, chosen.seconds, chosen.rate)
            shares = {share: found[int(len(found) * share)] for share in (0.5, 0.95, 0.99)}
            text = ", ".join(f"p{share * 100:.0f} {seconds:.2f} s" for share, seconds in shares.items())
            print(f"freshness at {chosen.rate} records/s, flush 250 ms: {text}", flush=True)
        with bed(broker, folder, 4) as where:
            values = [record(number, 1024) for number in range(chosen.records)]
            parsing(values)
            throughput(where, values, 1)
        with bed(broker, folder, 4) as where:
            throughput(where, [record(number, 200) for number in range(chosen.backlog)], 2)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
