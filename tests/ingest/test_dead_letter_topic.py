"""The topic for bad records, on a broker that is away for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from kafka.errors import RetriableError

from committerd.kafka.clients import open_client
from committerd.kafka.options import producer_options
from committerd.kafka.repairs import abandon
from committerd.settings.kafka import KafkaSettings
from committerd_ingest.dead_letters import Origin
from committerd_ingest.decoding import BadRecord
from committerd_ingest.kafka_facts import BadRecords
from committerd_ingest.records import Partition, Record
from harness.kafka import KafkaBroker
from tests.ingest.running import Topic, bad_records

ORIGIN = Origin(Partition("orders", 0), "id")


def bad(value: bytes) -> BadRecord:
    return BadRecord(Record(0, 0, None, value, []), "it is bad")


@pytest.fixture
def topic(breakable_kafka: KafkaBroker) -> Iterator[Topic]:
    made = Topic(breakable_kafka.bootstrap_servers, partitions=1, name=f"bad-{uuid4().hex[:8]}")
    yield made
    breakable_kafka.thaw()
    made.close()


@pytest.mark.kafka
async def test_bad_records_are_published_when_kafka_is_back_and_those_that_wait_fail_together(
    breakable_kafka: KafkaBroker, topic: Topic
) -> None:
    """A producer whose record has failed by its delivery timeout sends nothing any more, and says nothing."""
    servers = breakable_kafka.bootstrap_servers
    settings = KafkaSettings(
        bootstrap_servers=(servers,), delivery_timeout_ms=2_000, request_timeout_ms=1_000, fetch_max_wait_ms=500
    )
    options = producer_options(settings, "ingest", "table", record_bytes_max=1_000_000)
    published = BadRecords(
        lambda: open_client(KafkaProducer, options).client, topic.name, pipeline="p", abandon=abandon
    )

    async def until_published(value: bytes) -> None:
        until = time.monotonic() + 240
        while True:
            try:
                return await published.publish(ORIGIN, [bad(value)])
            except Exception:  # noqa: BLE001  # the broker may take its time after a pause
                assert time.monotonic() < until
                await asyncio.sleep(0.1)

    await until_published(b"before")
    await asyncio.to_thread(breakable_kafka.freeze)
    waiting = [published.publish(ORIGIN, [bad(b"away")]) for _ in range(20)]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, RetriableError) for one in found)
    assert len({id(one) for one in found}) < len(found)  # most have no attempt of their own
    await asyncio.to_thread(breakable_kafka.thaw)
    await until_published(b"after")
    published.close()
    values = await asyncio.to_thread(partial(bad_records, servers, topic.name))
    assert {one.value for one in values} - {b"away"} == {b"before", b"after"}
