"""The limits of the parts on this machine, without committerd's work in between.

* `put_if_absent` of the local store, one after the other, of 4 KiB: durable and not;
* reading a topic: kafka-python's poll loop over existing records of the size of a staged Append;
* copying a manifest of 100,000 fragments in memory.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from bench import conditional_writes
from bench.bench import Bench, mode
from bench.pool import enlarge_table, newest_manifest

NAME = "limits"
CONSUME, COPY = "reading a topic", "copying the manifest"
_PUT_BYTES = 4096
_COPIES = 20


def run(bench: Bench) -> None:
    """Measure each of them."""
    plan, note = bench.plan, bench.results.note
    for _ in range(plan.runs):
        for durable in (True, False):
            folder = Path(bench.new_table())
            taken = conditional_writes.locally(folder, _PUT_BYTES, plan.limit_puts, durable=durable)
            note(NAME, f"conditional writes, {mode(durable)}", "limit", rate=(len(taken) / sum(taken), "writes/s"))
        note(NAME, CONSUME, "limit", rate=(_consumed(bench), "records/s"))
        table = Path(bench.new_table())
        enlarge_table(bench.pool, table, plan.memory_fragments)
        manifest = bytearray(newest_manifest(table).read_bytes())
        for _ in range(_COPIES):
            began = time.perf_counter()
            copied = bytes(manifest)
            seconds = time.perf_counter() - began
            note(NAME, COPY, "limit", copy=(seconds, "s"), size=(len(copied), "bytes"))
    for one in bench.results.of(NAME):
        bench.tell(f"{NAME}: {one.case}: {one.metric} {one.median:.6g} {one.unit}")


def _consumed(bench: Bench) -> float:
    """Return records per second, from the first poll to the last record."""
    count, topic = bench.plan.limit_records, f"bench-read-{secrets.token_hex(4)}"
    record = bench.pool.staged(0).SerializeToString()
    admin: Any = KafkaAdminClient(bootstrap_servers=bench.kafka)
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=-1)])
    producer: Any = KafkaProducer(bootstrap_servers=bench.kafka, acks="all", linger_ms=5, batch_size=256 * 1024)
    for _ in range(count):
        producer.send(topic, value=record, partition=0)
    producer.flush()
    producer.close()
    consumer: Any = KafkaConsumer(bootstrap_servers=bench.kafka, max_poll_records=5000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)
    seen, began = 0, time.perf_counter()
    while seen < count:
        seen += sum(len(batch) for batch in consumer.poll(timeout_ms=1000).values())
    seconds = time.perf_counter() - began
    consumer.close()
    admin.delete_topics([topic])
    admin.close()
    return count / seconds
