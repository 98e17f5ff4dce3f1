"""What `committerd ingest` takes in: freshness, throughput of one process, and a backlog for two.

    python -m bench.ingest
    python -m bench.ingest --seconds 20 --records 100000

With a real Kafka and a real committer on this machine, and a table on its disk. Throughput is that of a second of
processor time: it says what one core does, whatever else the machine does meanwhile. Beside it stands what pyarrow,
fastavro and protobuf take to parse the same records, and no more than that. With `--spark-jars`, a stream of Spark with
our writer reads records at the same rate. `--only` takes a part of it all. It ends with 1 if a process takes more
memory than it should.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import fastavro
import lance
import psutil
import pyarrow as pa
import pyarrow.json
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from bench.machine import peak_memory_bytes
from bench.proxied_s3 import ProxiedS3
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.places import StorePlace
from harness.registry_server import RegistryServer, compiled
from harness.scene import Scene, until
from harness.spark import small_session

SCHEMA = pa.schema([("id", pa.int64()), ("sent", pa.float64()), ("text", pa.string())])
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "id", "type": "long"}, {"name": "sent", "type": "double"}, {"name": "text", "type": "string"}],
}
PROTOBUF = 'syntax = "proto3"; message Event { int64 id = 1; double sent = 2; string text = 3; }'
PARTS = ("local", "s3", "json", "avro", "protobuf", "backlog")
MIB = 1024 * 1024
_PATIENCE = 900
_MEMORY_MAX = 512 * MIB
"""Of a process with the default settings."""
_SENT_AT_ONCE = 50_000
_ALONE = 50_000
"""Records that a library parses alone."""


class Bed:
    """A topic, an empty table, and its committer."""

    def __init__(
        self, scene: Scene, topic: str, partitions: int, *, place: StorePlace, options: Mapping[str, str]
    ) -> None:
        """`options`: the storage options of who only looks, without latency."""
        self.scene, self.topic, self._partitions = scene, topic, partitions
        self.place, self._options = place, dict(options) or None
        lance.write_dataset(SCHEMA.empty_table(), place.uri, storage_options=self._options)
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
            settings={
                "INGEST__TOPICS": self.topic,
                "INGEST__PIPELINE": self.scene.name,
                **self.place.settings,
                **settings,
            },
            command=(sys.executable, "-m", "committerd", "ingest"),
        )

    def table(self) -> lance.LanceDataset:
        return lance.dataset(self.place.uri, storage_options=self._options)

    def rows(self) -> int:
        return int(self.table().count_rows())


@contextlib.contextmanager
def bed(
    broker: KafkaBroker,
    folder: Path,
    partitions: int,
    *,
    place: StorePlace | None = None,
    options: Mapping[str, str] | None = None,
) -> Iterator[Bed]:
    """`place`: of the table; default in `folder`. `options`: as of a `Bed`."""
    name = f"bench-{uuid4().hex[:8]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(f"{name}-records", partitions, 1)])
    (folder / name).mkdir()
    place = place or StorePlace(str(folder / name / "table.lance"))
    with Scene(kafka=broker.bootstrap_servers, name=name, folder=folder / name, place=place) as scene:
        yield Bed(scene, f"{name}-records", partitions, place=place, options=options or {})


def record(number: int, size: int) -> bytes:
    """A record of about `size` bytes."""
    bare = json.dumps({"id": number, "sent": time.time(), "text": ""})
    return f"{bare[:-2]}{'x' * max(size - len(bare), 0)}{bare[-2:]}".encode()


def freshness(where: Bed, seconds: int, rate: int, title: str) -> None:
    """Print the seconds from a record's making until its row can be read, and what the process takes for it."""
    process = where.ingest(INGEST__FLUSH_SECONDS="0.25").start()
    try:
        process.wait_ready(text="partitions")
        before = process.processor_seconds()
        found = arriving(where, seconds, rate)
        used = process.processor_seconds() - before
        steps = {step: _average(process, step) for step in ("decode", "commit")}
    finally:
        process.stop()
    _print_freshness(f"{title}, flush 250 ms", rate, found)
    text = ", ".join(f"{step} {seconds * 1000:.0f} ms" for step, seconds in steps.items())
    print(f"  a transaction takes on average: {text}; {used / seconds * 100:.0f} % of a core", flush=True)


def arriving(where: Bed, seconds: int, rate: int) -> list[float]:
    """Seconds from a record's making until its row can be read, of each row, in order."""
    found: list[float] = []
    where.send([record(0, 200)])
    where.flush()
    until(lambda: where.rows() == 1, seconds=_PATIENCE)
    seen = {one.fragment_id for one in where.table().get_fragments()}
    began, sent = time.time(), 0
    while len(found) < seconds * rate:
        due = min(int((time.time() - began) * rate), seconds * rate)
        where.send([record(number, 200) for number in range(sent, due)])
        sent = max(sent, due)
        table = where.table()
        now = time.time()
        for one in table.get_fragments():
            if one.fragment_id not in seen:
                seen.add(one.fragment_id)
                found += [now - value for value in one.to_table(columns=["sent"])["sent"].to_pylist()]
        time.sleep(0.01)
    return sorted(found)


def _average(process: Daemon, step: str) -> float:
    name = "committerd_ingest_step_seconds"
    return process.metric(f"{name}_sum", step=step) / max(process.metric(f"{name}_count", step=step), 1)


def _print_freshness(title: str, rate: int, found: Sequence[float]) -> None:
    shares = {share: found[int(len(found) * share)] for share in (0.5, 0.95, 0.99)}
    text = ", ".join(f"p{share * 100:.0f} {seconds:.2f} s" for share, seconds in shares.items())
    print(f"freshness at {rate} records/s, {title}: {text}", flush=True)


def spark_freshness(where: Bed, jars: str, seconds: int, rate: int) -> None:
    """The same with a stream of Spark and our writer, as fast as it makes its batches."""
    from pyspark.sql import functions

    from committerd_spark import LanceBatchWriter

    folder, servers = where.scene.folder, where.scene.topics.servers
    spark = small_session("ingest", folder, master="local[2]", settings={"spark.jars": jars})
    try:
        read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        raw = read.option("subscribe", where.topic).option("startingOffsets", "earliest").load()
        row = functions.from_json(raw.value.cast("string"), "id long, sent double, text string").alias("row")
        writer = LanceBatchWriter(where.place.uri, bootstrap_servers=servers, dataset=where.scene.name, app_id="spark")
        stream = raw.select(row).select("row.*").writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        running = stream.foreachBatch(writer).start()
        java = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        before = _processor_seconds(java)
        found = arriving(where, seconds, rate)
        used = _processor_seconds(java) - before
        running.stop()
    finally:
        spark.stop()
    _print_freshness("Spark with our writer, local[2], batch after batch", rate, found)
    print(f"  {used / seconds * 100:.0f} % of a core, without the driver's Python", flush=True)


def _processor_seconds(process: psutil.Process) -> float:
    """Of a process and of those that it has started, also those that have ended."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def throughput(
    where: Bed,
    values: Callable[[int], bytes],
    count: int,
    *,
    processes: int = 1,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Write what waits in the topic into the table, and print the figures; returns the peak memory of a process.

    `values`: makes the value of the record with this number. `settings`: of the processes.
    """
    size = fill(where, values, count) / MIB
    started = [where.ingest(**settings).start() for _ in range(processes)]
    try:
        for one in started:
            one.url()
        before, began = [one.processor_seconds() for one in started], time.monotonic()
        until(lambda: where.rows() == count, seconds=_PATIENCE)
        took = time.monotonic() - began
        used = sum(one.processor_seconds() for one in started) - sum(before)
        peak = max(peak_memory_bytes(one.pid) for one in started)
    finally:
        for one in started:
            one.stop()
    fragments = len(where.table().get_fragments())
    rate = f"{count / took:,.0f} records/s, {size / took:.1f} MiB/s"
    print(
        f"{count:,} records of {size / count * MIB:.0f} bytes, {processes} process(es): {rate}; "
        f"{size / used:.1f} MiB per second of processor time, {used / count * 1e6:.1f} us each; "
        f"{fragments} files; at most {peak / MIB:.0f} MiB of memory each",
        flush=True,
    )
    return peak


def fill(where: Bed, values: Callable[[int], bytes], count: int) -> int:
    """Send records; returns the bytes of their values."""
    size = 0
    for begin in range(0, count, _SENT_AT_ONCE):
        part = [values(number) for number in range(begin, min(begin + _SENT_AT_ONCE, count))]
        size += sum(map(len, part))
        where.send(part)
    where.flush()
    return size


def avro_record(schema: int) -> Callable[[int], bytes]:
    """Makes records of 1 KB in Confluent's wire format. `schema`: its id."""
    parsed = fastavro.parse_schema(AVRO)

    def made(number: int) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, {"id": number, "sent": time.time(), "text": "x" * 1000})
        return b"\0" + schema.to_bytes(4) + body.getvalue()

    return made


def avro_alone(values: Sequence[bytes]) -> None:
    """What fastavro alone takes for the same records."""
    parsed = fastavro.parse_schema(AVRO)
    began = time.process_time()
    for value in values:
        fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)
    _print_alone("fastavro", values, time.process_time() - began)


def protobuf_record(schema: int) -> Callable[[int], bytes]:
    """Makes records of 1 KB in Confluent's wire format. `schema`: its id."""
    event = _event()

    def made(number: int) -> bytes:
        body: bytes = event(id=number, sent=time.time(), text="x" * 1000).SerializeToString()
        return b"\0" + schema.to_bytes(4) + b"\0" + body

    return made


def protobuf_alone(values: Sequence[bytes]) -> None:
    """What protobuf alone takes for the same records."""
    event = _event()
    began = time.process_time()
    for value in values:
        event.FromString(value[6:])
    _print_alone("protobuf", values, time.process_time() - began)


def _event() -> Any:
    """The class of the message in `PROTOBUF`."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(compiled(PROTOBUF, {})))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))


def _print_alone(name: str, values: Sequence[bytes], used: float) -> None:
    print(f"{name} alone: {sum(map(len, values)) / MIB / used:.1f} MiB per second of processor time", flush=True)


def parsing(values: Sequence[bytes]) -> None:
    """What pyarrow alone takes for the same records."""
    text = b"\n".join(values)
    began = time.process_time()
    pyarrow.json.read_json(
        io.BytesIO(text), pyarrow.json.ReadOptions(use_threads=False), pyarrow.json.ParseOptions(explicit_schema=SCHEMA)
    )
    _print_alone("pyarrow.json", values, time.process_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of the measurement of freshness; default %(default)s")
    parser.add_argument("--rate", type=int, default=1000, help="records a second for it; default %(default)s")
    parser.add_argument("--records", type=int, default=200_000, help="of 1 KB, for one process; default %(default)s")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="of 200 bytes, for two; default %(default)s")
    parser.add_argument(
        "--spark-jars",
        metavar="PATHS",
        default="",
        help="measure a stream of Spark too: spark-sql-kafka-0-10 and the jars that it needs, separated by commas",
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="committerd-bench-ingest-") as name, KafkaBroker() as broker:
        folder, peaks = Path(name), list[int]()
        if "local" in chosen.only:
            with bed(broker, folder, 4) as where:
                freshness(where, chosen.seconds, chosen.rate, "local")
        if "s3" in chosen.only:
            with ProxiedS3() as s3, s3.adding(60):
                place, options = s3.free_place()
                with bed(broker, folder, 4, place=place, options=options) as where:
                    freshness(where, chosen.seconds, chosen.rate, "S3 with 60 ms on every request")
        if chosen.spark_jars:
            with bed(broker, folder, 4) as where:
                spark_freshness(where, chosen.spark_jars, chosen.seconds, chosen.rate)
        if "json" in chosen.only:
            parsing([record(number, 1024) for number in range(_ALONE)])
            with bed(broker, folder, 4) as where:
                peaks.append(throughput(where, lambda number: record(number, 1024), chosen.records))
        if "avro" in chosen.only:
            with RegistryServer() as registry, bed(broker, folder, 4) as where:
                made = avro_record(registry.register(json.dumps(AVRO)))
                avro_alone([made(number) for number in range(_ALONE)])
                settings = {"INGEST__FORMAT": "avro", "INGEST__REGISTRY_URL": registry.url}
                peaks.append(throughput(where, made, chosen.records, settings=settings))
        if "protobuf" in chosen.only:
            with RegistryServer() as registry, bed(broker, folder, 4) as where:
                made = protobuf_record(registry.register(PROTOBUF, kind="PROTOBUF"))
                protobuf_alone([made(number) for number in range(_ALONE)])
                settings = {"INGEST__FORMAT": "protobuf", "INGEST__REGISTRY_URL": registry.url}
                peaks.append(throughput(where, made, chosen.records, settings=settings))
        if "backlog" in chosen.only:
            with bed(broker, folder, 4) as where:
                peaks.append(throughput(where, lambda number: record(number, 200), chosen.backlog, processes=2))
    print(f"load {os.getloadavg()[0]:.1f}")
    if max(peaks, default=0) > _MEMORY_MAX:
        print(f"a process took more than {_MEMORY_MAX // MIB} MiB of memory", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
