"""Kafka is unavailable for longer than the client's own timeouts, and comes back: the client continues by itself."""

from __future__ import annotations

import asyncio
import shutil
import time
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from committerd_client import CommitClient, OutcomeNotFound
from harness.kafka import KafkaBroker
from harness.outages import OUTAGES, AwayKafka, Outage
from tests.producers.answering import Answering, all_committed, append, make_topics, staged_values

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BACK_SECONDS = 90.0
"""From the return of Kafka until a client has its outcomes. Ten are promised, which `make outage` measures: here other
tests run beside it."""
IMPATIENT = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000}
"""Shorter timeouts, because a sent batch would otherwise take half a minute to reach its delivery timeout."""
AWAY_SECONDS = 5.0


async def in_thread(call: Any, *args: Any) -> Any:
    return await asyncio.to_thread(call, *args)


@pytest.mark.parametrize("how", OUTAGES)
@pytest.mark.parametrize(
    "under_way", [True, pytest.param(False, marks=pytest.mark.long)], ids=["while sending", "while idle"]
)
async def test_commits_again_soon_after_an_outage(
    away_kafka: AwayKafka, dataset: str, how: Outage, under_way: bool
) -> None:
    servers = away_kafka.bootstrap_servers
    make_topics(servers, dataset)
    committer = await in_thread(Answering, away_kafka.broker.bootstrap_servers, dataset, all_committed)
    async with CommitClient(servers, dataset=dataset, timeout=None, kafka_options=IMPATIENT) as client:
        await client.commit(append())
        pending: list[asyncio.Task[Any]] = []

        async def keep_sending() -> None:
            while True:
                pending.append(asyncio.create_task(client.commit(append(str(uuid4())))))
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(keep_sending()) if under_way else None
        await asyncio.sleep(0.5)
        outage = away_kafka.away(how)
        await in_thread(outage.__enter__)
        await asyncio.sleep(AWAY_SECONDS)
        if not under_way:  # a first record during the outage
            pending.append(asyncio.create_task(client.commit(append(str(uuid4())))))
            await asyncio.sleep(0.5)
        await in_thread(outage.__exit__, None, None, None)
        if sending is not None:
            sending.cancel()
        if how in ("killed", "frozen"):  # the committer's part in this test is a plain consumer
            await in_thread(committer.close)
            committer = await in_thread(Answering, away_kafka.broker.bootstrap_servers, dataset, all_committed)
        begun = time.monotonic()
        pending.append(asyncio.create_task(client.commit(append(str(uuid4())))))
        done, late = await asyncio.wait(pending, timeout=BACK_SECONDS)
        assert not late, f"{len(late)} of {len(pending)} commits have no answer {BACK_SECONDS} s after Kafka is back"
        uuids = [task.result().uuid for task in done]
        assert len(set(uuids)) == len(pending), "each has its own answer"
        print(f"{how}: {len(pending)} answers {time.monotonic() - begun:.1f} s after Kafka was back")
    await in_thread(committer.close)


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("starting", [True, False], ids=["start", "resume"])
async def test_kafka_may_stand_still_while_a_client_connects(
    breakable_kafka: KafkaBroker, dataset: str, starting: bool, moment: int
) -> None:
    """Whatever the client is just asking when Kafka responds to nothing for longer than a request may take."""
    servers = breakable_kafka.bootstrap_servers
    make_topics(servers, dataset)

    def made() -> CommitClient:
        return CommitClient(servers, dataset=dataset, connect_timeout=BACK_SECONDS, kafka_options=IMPATIENT)

    async with made() as client:
        uuid, since = str(uuid4()), datetime.now(UTC)

        async def connect() -> None:
            if starting:
                async with made():
                    return
            with pytest.raises(OutcomeNotFound):
                await client.resume(uuid, since=since, timeout=0)

        begun = time.monotonic()
        await connect()
        alone = time.monotonic() - begun
        connecting = asyncio.create_task(connect())
        await asyncio.sleep(alone * moment / 6)
        breakable_kafka.freeze()
        await asyncio.sleep(IMPATIENT["request_timeout_ms"] / 1000 + 1)
        breakable_kafka.thaw()
        await connecting


async def test_a_batch_that_was_sent_and_then_expired_does_not_end_the_client(
    breakable_kafka: KafkaBroker, dataset: str
) -> None:
    """kafka-python's producer gives up its id then, and never asks for another."""
    servers = breakable_kafka.bootstrap_servers
    make_topics(servers, dataset)
    async with CommitClient(servers, dataset=dataset, close_timeout=5, kafka_options=IMPATIENT) as client:
        first = await client.submit(append())
        breakable_kafka.freeze()
        unanswered = asyncio.create_task(client.submit(append(), timeout=60))
        await asyncio.sleep(AWAY_SECONDS)
        breakable_kafka.thaw()
        begun = time.monotonic()
        later = await client.submit(append(), timeout=60)
        await unanswered
        assert time.monotonic() - begun < BACK_SECONDS
        assert first.offset == 0
        assert later.offset is not None
    assert len(set(staged_values(servers, dataset))) == 3


async def test_closing_right_after_an_outage_brings_what_was_submitted_to_kafka(
    breakable_kafka: KafkaBroker, dataset: str
) -> None:
    servers = breakable_kafka.bootstrap_servers
    make_topics(servers, dataset)
    wanted = [append() for _ in range(20)]
    async with CommitClient(servers, dataset=dataset, close_timeout=180, kafka_options=IMPATIENT) as client:
        await client.submit(wanted[0])
        breakable_kafka.freeze()
        tasks = [asyncio.create_task(client.commit(one, timeout=180)) for one in wanted[1:]]
        await asyncio.sleep(AWAY_SECONDS)
        breakable_kafka.thaw()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set(staged_values(servers, dataset)) == {one.SerializeToString() for one in wanted}


async def test_a_broker_that_has_lost_its_records_is_gone_on_with(breakable_kafka: KafkaBroker, dataset: str) -> None:
    """Neither the producer's sequence numbers nor the consumer's offset mean anything to it."""
    servers = breakable_kafka.bootstrap_servers
    make_topics(servers, dataset)
    async with CommitClient(servers, dataset=dataset, timeout=60, kafka_options=IMPATIENT) as client:
        committer = await in_thread(Answering, servers, dataset, all_committed)
        for _ in range(5):
            await client.commit(append())
        await in_thread(committer.close)
        await in_thread(breakable_kafka.kill)
        for partition in (breakable_kafka.folder / "data").glob(f"{dataset}.*"):
            shutil.rmtree(partition)
        await in_thread(breakable_kafka.start)
        begun = time.monotonic()
        committer = await in_thread(Answering, servers, dataset, all_committed)
        result = await client.commit(append())
        assert result.version == 1
        assert time.monotonic() - begun < BACK_SECONDS
        await in_thread(committer.close)
