"""Kafka becomes unavailable during the work, in every way, and comes back: how soon the queue continues."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import pytest
from anyio import to_thread

from committerd.errors import QueueUnavailable
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.queue import KafkaQueue
from committerd.queue.port import Assigned, Fetched, Publication
from harness.kafka import KafkaBroker
from harness.outages import OUTAGES, AwayKafka, Outage
from tests.kafka.staging import assignment, settings_for, stage

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BACK_SECONDS = 90.0
"""After Kafka is back. Ten are promised, which `make outage` measures: here other tests run beside it."""
AWAY_SECONDS = 6.0
"""Longer than the session and the delivery timeout of these tests."""

Result = TypeVar("Result")


def answers(count: int) -> list[Publication]:
    return [Publication(key=b"%d" % number, value=b"v", partition=number % 8) for number in range(count)]


async def until_it_works(call: Callable[[], Awaitable[Result]]) -> Result:
    """As the committer does: try again after each failure."""
    while True:
        try:
            return await call()
        except QueueUnavailable:
            await anyio.sleep(0.1)


async def delivered(queue: KafkaQueue, position: int) -> list[bytes | None]:
    """The records from there on, which is where each new assignment begins."""
    while True:
        event = await queue.next_event()
        if isinstance(event, Assigned):
            await queue.seek(event.generation, position)
        elif isinstance(event, Fetched) and event.records:
            return [record.value for record in event.records]


@pytest.mark.parametrize("how", OUTAGES)
async def test_reads_and_publishes_again_soon_after_an_outage(away_kafka: AwayKafka, dataset: str, how: Outage) -> None:
    settings = settings_for(away_kafka.bootstrap_servers, delivery_timeout_ms=3_000)
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await stage(queue, settings, [b"before"])
        assert await delivered(queue, 0) == [b"before"]
        await until_it_works(lambda: queue.publish(answers(8)))
        outage = away_kafka.away(how)
        await to_thread.run_sync(outage.__enter__)
        async with anyio.create_task_group() as tasks:
            # Something is in flight when it begins, and is tried all the time.
            tasks.start_soon(until_it_works, lambda: queue.publish(answers(300)))
            await anyio.sleep(AWAY_SECONDS)
            await to_thread.run_sync(outage.__exit__, None, None, None)
            with anyio.fail_after(BACK_SECONDS):
                await until_it_works(queue.identity)
                await stage(queue, settings, [b"after"])
                assert await delivered(queue, 1) == [b"after"]
                await until_it_works(lambda: queue.publish(answers(300)))
                assert await until_it_works(lambda: queue.outcomes_tail(1))


async def test_a_producer_that_says_nothing_any_more_holds_nobody_up(
    breakable_kafka: KafkaBroker, dataset: str
) -> None:
    """kafka-python's producer gives up its id when a sent batch expires; what is left in it waits forever."""
    settings = settings_for(breakable_kafka.bootstrap_servers, request_timeout_ms=1_000, delivery_timeout_ms=2_000)
    async with open_kafka_queue(settings, dataset) as queue:
        await until_it_works(lambda: queue.publish(answers(8)))
        breakable_kafka.freeze()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(QueueUnavailable):
                await queue.publish(answers(500))
            assert time.monotonic() - began < BACK_SECONDS
        breakable_kafka.thaw()
        with anyio.fail_after(BACK_SECONDS):
            await until_it_works(lambda: queue.publish(answers(500)))
