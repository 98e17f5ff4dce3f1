"""The time of one commit, from submit to outcome, when nothing else is in the queue; and its lower limit.

One Append after the other by `CommitClient.commit`: to a local table, durable and not, and to one on an S3 server that
adds 60 ms to every response (`bench.proxied_s3`).

The same run measures one hop through the same Kafka: kafka-python's `send` with `acks=all` to a topic of one partition,
until a consumer that waits in another thread has the record, which is as large as a staged Append. It also measures the
same store's conditional write of a body as large as the local table's manifest: floor and aim on S3 are two hops and
so many such writes. Locally they are so many times an echo: a record there and back through two topics, by two
processes that do nothing else (`bench.echo_side`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from bench import conditional_writes
from bench.bench import Bench, mode
from bench.echo_side import Asker, OutcomeMaker
from bench.pool import newest_manifest, require_once
from bench.producer_side import Producers
from bench.written import Written
from harness.places import StorePlace

NAME = "idle"
HOP = "one Kafka hop"
ECHO = "an echo through two topics"
S3_MILLISECONDS = 60
S3 = f"on S3, {S3_MILLISECONDS} ms added"
_HOPS_WARMING = 300
"""Hops before the first one that is timed: they make connections and fetch metadata, and warm the broker's JVM."""


def run(bench: Bench) -> None:
    """Measure hop, conditional write and commit in turn."""
    plan, size = bench.plan, 0
    for _ in range(plan.runs):
        record = bench.pool.staged(0).SerializeToString()
        hops = kafka_hops(bench.kafka, [record] * plan.idle_commits)
        bench.results.note_latencies(NAME, HOP, "limit", hops)
        bench.results.note_latencies(NAME, ECHO, "limit", _echoes(bench))
        size = max(_measure_locally(bench, durable=durable) for durable in (True, False))
    for _ in range(plan.runs):
        with bench.s3.adding(S3_MILLISECONDS):
            _measure_s3(bench, size)


def write(case: str) -> str:
    """The name of a case's conditional writes in the results."""
    return f"conditional write, {case}"


def _measure_locally(bench: Bench, *, durable: bool) -> int:
    """Return the size of the table's manifest at the end."""
    case, times, note = mode(durable), bench.plan.idle_commits, bench.results.note_latencies
    uri = bench.new_table()
    _measure_commits(bench, StorePlace(uri), case, times, durable=durable)
    size = newest_manifest(uri).stat().st_size
    note(NAME, write(case), "limit", conditional_writes.locally(Path(uri), size, times, durable=durable))
    _tell(bench, case)
    return size


def _measure_s3(bench: Bench, size: int) -> None:
    s3, times = bench.s3, bench.plan.idle_s3_commits
    _measure_commits(bench, s3.new_table(bench.pool), S3, times, durable=True)
    writes = conditional_writes.in_bucket(s3.new_folder(), s3.settings, size, times)
    bench.results.note_latencies(NAME, write(S3), "limit", writes)
    _tell(bench, S3)


def _measure_commits(bench: Bench, place: StorePlace, case: str, times: int, *, durable: bool) -> None:
    worker = bench.workers(1)[0]
    with bench.daemon(place, durable=durable) as daemon:
        daemon.wait_ready(text="active")
        worker.make(Producers, **bench.queue(daemon, place.uri), numbers=range(times + 1), producers=1, in_flight=1)
        produced: Written = worker.call("one_by_one")
        worker.call("close")
        daemon.stop()
    names = [bench.pool.file_name(number) for number in produced.committed]
    require_once(place.uri, names, storage_options=dict(place.storage_options) or None)
    bench.results.note(NAME, case, "committerd", failed=(len(produced.failed), "commits"))
    bench.results.note_latencies(NAME, case, "committerd", produced.seconds)


def _tell(bench: Bench, case: str) -> None:
    beside = (("a hop", HOP), ("a write", write(case)), ("an echo", ECHO))
    ours = bench.results.value(NAME, case, "committerd", "p50")
    limits = [(what, bench.results.value(NAME, name, "limit", "p50")) for what, name in beside]
    told = ", ".join(f"{what} {seconds * 1000:.2f} ms" for what, seconds in limits if seconds is not None)
    bench.tell(f"{NAME}: {case}: {(ours or 0) * 1000:.2f} ms; {told}")


def _echoes(bench: Bench) -> list[float]:
    """Return how many seconds each record takes there and back."""
    asker, outcome_maker = bench.workers(2)
    record, times = bench.pool.staged(0).SerializeToString(), bench.plan.idle_commits
    with _new_topics(bench.kafka, "asked", "answered") as (asked, answered):
        asker.make(Asker, servers=bench.kafka, sends=asked, takes=answered)
        outcome_maker.make(OutcomeMaker, servers=bench.kafka, sends=answered, takes=asked)
        outcome_maker.start("answer", times=times)
        taken: list[float] = asker.call("ask", record=record, times=times)
        outcome_maker.result()
        for worker in (asker, outcome_maker):
            worker.call("close")
    return taken


@contextmanager
def _new_topics(servers: str, *roles: str) -> Iterator[list[str]]:
    """Topics of one partition, which exist inside the block."""
    topics = [f"bench-{role}-{secrets.token_hex(4)}" for role in roles]
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=-1) for topic in topics])
    try:
        yield topics
    finally:
        admin.delete_topics(topics)
        admin.close()


def kafka_hops(servers: str, records: Sequence[bytes]) -> list[float]:
    """Return how many seconds each record takes from `send` to a waiting consumer, after some that are not timed."""
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
