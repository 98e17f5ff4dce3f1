"""Records that wait in the queue of a daemon, and their outcomes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.bench import Bench, dataset_of
from harness.daemon import Daemon

_LOOK_SECONDS = 0.05


def stage(bench: Bench, daemon: Daemon, records: Iterable[bytes]) -> None:
    """Put all records into the queue, whose topics exist."""
    producer: Any = KafkaProducer(bootstrap_servers=bench.kafka, acks="all", linger_ms=5, batch_size=256 * 1024)
    for record in records:
        producer.send(f"{dataset_of(daemon)}.staged", value=record, partition=0)
    producer.flush()
    producer.close()


def outcome_partitions(consumer: Any, daemon: Daemon) -> list[TopicPartition]:
    """The partitions of the daemon's outcomes topic."""
    topic = f"{dataset_of(daemon)}.outcomes"
    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]


def wait_for_outcomes(bench: Bench, daemon: Daemon, count: int, *, seconds_max: float) -> None:
    """Wait until the outcomes topic has so many outcomes; looks every 50 ms."""
    consumer: Any = KafkaConsumer(bootstrap_servers=bench.kafka)
    partitions = outcome_partitions(consumer, daemon)
    deadline = time.monotonic() + seconds_max
    while sum(consumer.end_offsets(partitions).values()) < count:
        if time.monotonic() > deadline or not daemon.running():
            raise RuntimeError(f"not all of {count} transactions were answered within {seconds_max:.0f} s")
        time.sleep(_LOOK_SECONDS)
    consumer.close()
