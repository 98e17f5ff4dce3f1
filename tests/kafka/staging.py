"""The producers' and the operators' side of the queue, and a committer's handling of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
from anyio import to_thread
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.queue import KafkaQueue
from committerd.queue.port import Assigned, Fetched, FetchFailed, Queue, Record, Revoked
from committerd.settings.kafka import KafkaSettings

Header = tuple[str, bytes]


PATIENT = {
    "session_timeout_ms": 30_000,
    "request_timeout_ms": 20_000,
    "delivery_timeout_ms": 30_000,
    "bootstrap_timeout_ms": 60_000,
}
"""Timeouts that a busy machine does not reach, for tests in which nothing fails."""


def settings_for(servers: str, **given: Any) -> KafkaSettings:
    """Settings for a local broker and a waiting test."""
    quick = {
        "session_timeout_ms": 2_000,
        "heartbeat_interval_ms": 300,
        "fetch_max_wait_ms": 50,
        "request_timeout_ms": 3_000,
        "delivery_timeout_ms": 5_000,
        "bootstrap_timeout_ms": 10_000,
        "reconnect_backoff_max_ms": 500,
    }
    return KafkaSettings(**{"bootstrap_servers": servers, **quick, **given})


async def stage(
    queue: KafkaQueue,
    settings: KafkaSettings,
    values: Sequence[bytes | None],
    *,
    headers: Sequence[Header] = (),
    **producer: Any,
) -> None:
    """Write records to the staged topic, as any producer would, and wait for Kafka."""
    await to_thread.run_sync(lambda: stage_records(queue.topics.staged, settings, values, headers, **producer))


def stage_records(
    topic: str,
    settings: KafkaSettings,
    values: Sequence[bytes | None],
    headers: Sequence[Header],
    **options: Any,
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=list(settings.bootstrap_servers),
        max_request_size=16 * 1024 * 1024,
        **options,
    )
    try:
        sent = [producer.send(topic, key=b"key", value=value, headers=list(headers), partition=0) for value in values]
        for future in sent:
            future.get(60)
    finally:
        producer.close(timeout=5)


@contextmanager
def operator(settings: KafkaSettings) -> Iterator[Any]:
    """kafka-python's admin client."""
    admin = KafkaAdminClient(bootstrap_servers=list(settings.bootstrap_servers), client_id="operator")
    try:
        yield admin
    finally:
        admin.close()


def delete_topic(topic: str, settings: KafkaSettings) -> None:
    """Delete the topic; waits until the broker does not know it any more, which the controller tells it."""
    with operator(settings) as admin:
        admin.delete_topics([topic])
        for _ in range(3_000):
            (described,) = admin.describe_topics([topic])
            if described["error_code"]:
                return
            time.sleep(0.02)
    raise AssertionError(f"the broker still has {topic}")


def create_topic(topic: str, settings: KafkaSettings) -> None:
    """Create the topic with one partition, once the old one is gone."""
    with operator(settings) as admin:
        for _ in range(3_000):
            answer = admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, raise_errors=False)
            if answer["topics"][0]["error_code"] == 0:
                break
            time.sleep(0.02)  # the old one is still being deleted
        admin.wait_for_topics([topic])


async def refusal(settings: KafkaSettings, dataset: str) -> str:
    """Why a start is refused that waits for what it lacks; on a busy machine, a short time-out knows less."""
    known: QueueUnavailable | None = None
    for milliseconds in (4_000, 15_000, 60_000):
        briefly = settings.model_copy(update={"bootstrap_timeout_ms": milliseconds})
        try:
            async with open_kafka_queue(briefly, dataset):
                raise AssertionError("it started")
        except SettingsError as refused:
            return str(refused)
        except QueueUnavailable as failed:
            known = failed
    raise AssertionError("Kafka does not respond") from known


def staged_partition(queue: KafkaQueue) -> TopicPartition:
    return TopicPartition(queue.topics.staged, 0)


async def assignment(queue: Queue, *, seconds: float = 60) -> int:
    """Wait until this member owns the partition; returns the generation."""
    with anyio.fail_after(seconds):
        while True:
            event = await queue.next_event()
            if isinstance(event, Assigned):
                return event.generation


async def take(queue: Queue, count: int, *, seconds: float = 60) -> list[Record]:
    """Return this many of the next records; any other event is an error."""
    records: list[Record] = []
    with anyio.fail_after(seconds):
        while len(records) < count:
            event = await queue.next_event()
            assert isinstance(event, Fetched), event
            records += event.records
    return records


async def take_what_comes(queue: Queue, *, quiet_seconds: float = 0.6) -> list[Record]:
    """Return records until none has arrived for a while."""
    records: list[Record] = []
    while True:
        with anyio.move_on_after(quiet_seconds) as quiet:
            event = await queue.next_event()
        if quiet.cancelled_caught:
            return records
        assert isinstance(event, Fetched), event
        records += event.records


async def failure(queue: Queue, *, seconds: float = 60) -> FetchFailed:
    """Wait until the queue reports that it can't deliver."""
    with anyio.fail_after(seconds):
        while True:
            event = await queue.next_event()
            if isinstance(event, FetchFailed):
                return event


async def revocation(queue: Queue, *, seconds: float = 60) -> Revoked:
    """Wait until the partition is revoked."""
    with anyio.fail_after(seconds):
        while True:
            event = await queue.next_event()
            if isinstance(event, Revoked):
                return event


async def until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    """Poll until the condition holds."""
    with anyio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(0.02)
