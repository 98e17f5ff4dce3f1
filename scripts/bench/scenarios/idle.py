"""What one commit takes from submit to outcome when nothing else is in the queue, and what it can't do without.

One Append after the other by `CommitClient.commit`, durable and not. Beside it, in the same run: one hop through the
same Kafka (kafka-python: `send` with `acks=all` to a topic of one partition, until a consumer that waits in another
thread has the record; of the size of a staged Append), and the store's conditional write of a body as large as the
table's manifest (`put_if_absent`, durable or not as the daemon's). The bar is two hops and 1.2 such writes.

And an echo: the same two hops and one such write by processes that do nothing else (`scripts.bench.echo_side`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from committerd.edges.local import LocalStore
from committerd.ports import Created
from scripts.bench.bench import Bench, mode
from scripts.bench.echo_side import Answerer, Asker
from scripts.bench.pool import newest_manifest, require_once
from scripts.bench.producer_side import Producers
from scripts.bench.written import Written
from tests.parts.places import StorePlace

NAME = "idle"
HOP = "one Kafka hop"
_HOPS_WARMING = 300
"""Hops before the first that is timed: they make connections and fetch metadata, and the broker's JVM is new."""


def run(bench: Bench) -> None:
    """Hop, conditional write and commit in turn."""
    for _ in range(bench.plan.runs):
        record = bench.pool.staged(0).SerializeToString()
        hops = kafka_hops(bench.kafka, [record] * bench.plan.idle_commits)
        bench.results.note_latencies(NAME, HOP, "limit", hops)
        for durable in (True, False):
            _measure(bench, durable=durable)


def _measure(bench: Bench, *, durable: bool) -> None:
    worker, case = bench.workers(1)[0], mode(durable)
    with bench.table() as uri, bench.daemon(StorePlace(uri), durable=durable) as daemon:
        daemon.wait_ready(text="active")
        worker.make(
            Producers,
            **bench.queue(daemon, uri),
            numbers=range(bench.plan.idle_commits + 1),
            producers=1,
            in_flight=1,
        )
        produced: Written = worker.call("one_by_one")
        worker.call("close")
        daemon.stop()
        require_once(uri, [bench.pool.file_name(number) for number in produced.committed])
        size = newest_manifest(uri).stat().st_size
        puts = conditional_writes(Path(uri), size, bench.plan.idle_commits, durable=durable)
        echoes = _echoes(bench, Path(uri), size, durable=durable)
    bench.results.note(NAME, case, "committerd", failed=(len(produced.failed), "commits"))
    bench.results.note_latencies(NAME, case, "committerd", produced.seconds)
    bench.results.note_latencies(NAME, f"conditional write, {case}", "limit", puts)
    bench.results.note_latencies(NAME, f"echo, {case}", "limit", echoes)
    values = bench.results.value
    told = [
        value or 0.0
        for value in (
            values(NAME, case, "committerd", "p50"),
            values(NAME, HOP, "limit", "p50"),
            values(NAME, f"conditional write, {case}", "limit", "p50"),
            values(NAME, f"echo, {case}", "limit", "p50"),
        )
    ]
    ours, hop, write, echo = (f"{seconds * 1000:.2f} ms" for seconds in told)
    bench.tell(f"{NAME}: {case}: {ours}; a hop {hop}, a write {write}, an echo {echo}")


def _echoes(bench: Bench, folder: Path, size: int, *, durable: bool) -> list[float]:
    """How long each record takes there, into a file of so many bytes, and back, in seconds."""
    asker, answerer = bench.workers(2)
    record, times = bench.pool.staged(0).SerializeToString(), bench.plan.idle_commits
    with _new_topics(bench.kafka, "asked", "answered") as (asked, answered):
        asker.make(Asker, servers=bench.kafka, sends=asked, takes=answered)
        answerer.make(
            Answerer, servers=bench.kafka, sends=answered, takes=asked, folder=folder / "_echo", durable=durable
        )
        answerer.start("answer", body=secrets.token_bytes(size), times=times)
        taken: list[float] = asker.call("ask", record=record, times=times)
        answerer.result()
        for worker in (asker, answerer):
            worker.call("close")
    return taken


@contextmanager
def _new_topics(servers: str, *roles: str) -> Iterator[list[str]]:
    """Topics of one partition, for the time of the block."""
    topics = [f"bench-{role}-{secrets.token_hex(4)}" for role in roles]
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=-1) for topic in topics])
    try:
        yield topics
    finally:
        admin.delete_topics(topics)
        admin.close()


def conditional_writes(folder: Path, size: int, count: int, *, durable: bool) -> list[float]:
    """How long each `put_if_absent` of so many bytes takes, in seconds."""
    body = secrets.token_bytes(size)

    async def write() -> list[float]:
        store, taken = LocalStore(folder, durable=durable), []
        for number in range(count):
            began = time.perf_counter()
            answer = await store.put_if_absent(f"raw/{number}", body)
            taken.append(time.perf_counter() - began)
            assert isinstance(answer, Created)
        return taken

    return anyio.run(write)


def kafka_hops(servers: str, records: Sequence[bytes]) -> list[float]:
    """How long each record takes from `send` to a consumer that waits, in seconds, once some have gone before."""
    with _new_topics(servers, "hop") as (topic,):
        return _hops(servers, topic, records)


def _hops(servers: str, topic: str, records: Sequence[bytes]) -> list[float]:
    consumer: Any = KafkaConsumer(bootstrap_servers=servers, fetch_min_bytes=1)
    producer: Any = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)
    received, arrived = threading.Event(), [0.0]
    wanted = _HOPS_WARMING + len(records)

    def listen() -> None:
        seen = 0
        while seen < wanted:
            count = sum(len(batch) for batch in consumer.poll(timeout_ms=1000).values())
            if count:
                arrived[0] = time.perf_counter()
                seen += count
                received.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    taken = []
    for record in [records[0]] * _HOPS_WARMING + list(records):
        received.clear()
        began = time.perf_counter()
        producer.send(topic, value=record, partition=0)
        if not received.wait(30):
            raise RuntimeError("a record did not arrive within 30 s")
        taken.append(arrived[0] - began)
    thread.join()
    producer.close()
    consumer.close()
    return taken[_HOPS_WARMING:]
