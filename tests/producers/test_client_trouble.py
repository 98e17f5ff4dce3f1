"""Missing outcomes, the end of a client, and wrong input or surroundings."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from committerd_client import (
    ClientClosed,
    CommitClient,
    CommitResult,
    CommitTimeout,
    InvalidTransaction,
    KafkaUnavailable,
    TransactionTooLarge,
)
from committerd_common.messages import (
    DUPLICATE,
    Outcome,
    Transaction,
)
from harness.kafka import KafkaBroker, RunningKafka
from tests.producers.answering import (
    Answering,
    all_committed,
    answering,
    append,
    committed,
    make_topics,
    never,
    staged_values,
)

pytestmark = pytest.mark.kafka

Kafka = KafkaBroker | RunningKafka

UUID = "5e1dcf7e-1f0c-4b6e-9f57-0d2f1b3a7c11"


async def in_thread(call: Any, *args: Any) -> Any:
    return await asyncio.to_thread(call, *args)


def python(code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": path}
    )


# No outcome


async def test_a_timeout_means_unknown_and_the_handle_can_be_asked_again(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never) as committer:
        async with CommitClient(servers, dataset=dataset, timeout=0.3) as client:
            handle = await client.submit(append(UUID), timeout=60)
            with pytest.raises(CommitTimeout, match=r"unknown, not failed\. Kafka holds it at offset 0") as raised:
                await handle.outcome()
            assert isinstance(raised.value, TimeoutError)
            assert (raised.value.uuid, raised.value.offset) == (UUID, 0)
            await in_thread(committer.wait_for, 1)
            committer.publish(committer.records[0], [committed(committer.records[0])])
            assert (await handle.outcome(timeout=60)).version == 1


async def test_committing_the_same_transaction_again_tells_what_became_of_it(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, status=DUPLICATE, version=1)] if record.offset else []

    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            with pytest.raises(CommitTimeout, match="commit the same transaction again"):
                await client.commit(append(UUID), timeout=0.3)
            result = await client.commit(append(UUID))
    assert result.duplicate
    assert result.version == 1


async def test_a_late_answer_reaches_whoever_asks_again(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            with pytest.raises(CommitTimeout):
                await client.commit(append(UUID), timeout=0.3)
            again = asyncio.create_task(client.commit(append(UUID)))
            await in_thread(committer.wait_for, 2)
            committer.publish(committer.records[0], [committed(committer.records[0])])
            assert (await again).version == 1


async def test_cancelling_does_not_take_the_transaction_back(servers: str, dataset: str) -> None:
    transactions = [append() for _ in range(20)]
    async with CommitClient(servers, dataset=dataset) as client:
        tasks = [asyncio.create_task(client.commit(transaction)) for transaction in transactions]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    assert staged_values(servers, dataset) == [transaction.SerializeToString() for transaction in transactions]


# The end


async def test_closing_sends_what_was_submitted_and_tells_who_waits(servers: str, dataset: str) -> None:
    async with CommitClient(servers, dataset=dataset) as client:
        handle = await client.submit(append(UUID))
        waiting = [asyncio.create_task(client.commit(append())) for _ in range(100)]
        await asyncio.sleep(0)
    for end in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(end, ClientClosed)
        assert "unknown, not failed. It is staged at offset" in str(end)
    with pytest.raises(ClientClosed) as raised:
        await handle.outcome()
    assert (raised.value.uuid, raised.value.offset) == (UUID, 0)
    with pytest.raises(ClientClosed, match="make another client"):
        await client.commit(append())
    with pytest.raises(RuntimeError, match="started once"):
        await client.start()
    await client.aclose()
    assert len(staged_values(servers, dataset)) == 101


async def test_an_answer_that_came_before_the_end_is_kept(servers: str, dataset: str) -> None:
    with answering(servers, dataset):
        async with CommitClient(servers, dataset=dataset) as client:
            handle = await client.submit(append())
            await handle.outcome()
    assert (await handle.outcome()).version == 1


async def test_no_thread_outlives_its_client(servers: str, dataset: str) -> None:
    before = set(threading.enumerate())
    with answering(servers, dataset):
        async with CommitClient(servers, dataset=dataset) as client:
            await client.commit(append())
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread


# Bad input, bad places


@pytest.mark.parametrize(
    ("transaction", "code"),
    [
        (b"", "record_empty"),
        (b"\xff\xff", "record_undecodable"),
        (Transaction(read_version=1), "uuid_invalid"),
        (Transaction(uuid=UUID.upper()), "uuid_invalid"),
    ],
)
async def test_what_is_certainly_wrong_is_not_sent(
    servers: str, dataset: str, transaction: Transaction | bytes, code: str
) -> None:
    async with CommitClient(servers, dataset=dataset) as client:
        with pytest.raises(InvalidTransaction) as raised:
            await client.commit(transaction)
        assert raised.value.code == code
        with pytest.raises(InvalidTransaction, match="header app-id is 'no spaces'"):
            await client.commit(append(), app=("no spaces", 1))
        with pytest.raises(ValueError, match="no time zone"):
            await client.commit(append(), deadline=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(TypeError, match=r"not dict\. To write rows"):
            await client.commit({})  # type: ignore[arg-type]
    assert staged_values(servers, dataset) == []


async def test_a_record_that_is_too_large_is_refused_before_it_is_sent(servers: str, dataset: str) -> None:
    with answering(servers, dataset):
        async with CommitClient(servers, dataset=dataset, max_record_bytes=2_000) as client:
            with pytest.raises(TransactionTooLarge, match=r"2000 are allowed .* commit in smaller parts"):
                await client.commit(append(size=2_000))
            await client.commit(append(size=1_500))
        async with CommitClient(servers, dataset=dataset) as client:
            assert (await client.commit(append(size=1_047_000))).version == 2, "the default fits the topic's default"


async def test_one_record_that_kafka_refuses_does_not_fail_the_others(kafka: Kafka, dataset: str) -> None:
    """kafka-python's producer is unusable after such a refusal, for all records in flight and all later ones."""
    make_topics(kafka.bootstrap_servers, dataset, staged={"max.message.bytes": "4000"})
    with answering(kafka.bootstrap_servers, dataset):
        async with CommitClient(kafka.bootstrap_servers, dataset=dataset) as client:
            transactions = [append(size=5_000 if number % 10 == 3 else 0) for number in range(40)]
            ends = await client.commit_many(transactions, return_exceptions=True)
            for number, end in enumerate(ends):
                if number % 10 == 3:
                    assert isinstance(end, TransactionTooLarge)
                    assert "max.message.bytes" in str(end)
                    assert end.uuid == transactions[number].uuid
                else:
                    assert isinstance(end, CommitResult)
                    assert end.uuid == transactions[number].uuid
            assert isinstance(await client.commit(append()), CommitResult)


async def test_a_cancelled_commit_survives_a_refusal_of_another(kafka: Kafka, dataset: str) -> None:
    make_topics(kafka.bootstrap_servers, dataset, staged={"max.message.bytes": "4000"})
    transactions = [append(size=5_000 if number == 0 else 0) for number in range(20)]
    async with CommitClient(kafka.bootstrap_servers, dataset=dataset) as client:
        tasks = [asyncio.create_task(client.commit(transaction)) for transaction in transactions]
        await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        with pytest.raises(TransactionTooLarge):
            await tasks[0]
    values = set(staged_values(kafka.bootstrap_servers, dataset))
    assert values == {transaction.SerializeToString() for transaction in transactions[1:]}


async def test_a_producer_that_hangs_while_a_quota_slows_it_is_replaced(servers: str, dataset: str) -> None:
    hangs, ends = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        hangs.set()
        ends.wait(120)

    async with CommitClient(servers, dataset=dataset) as client:
        await client.submit(append())
        sender: Any = client._channel._sender._producer._sender  # type: ignore[union-attr]
        sender.run_once = hang
        sender.wakeup()
        assert await in_thread(hangs.wait, 60)
        for connection in sender._client._manager._conns.values():
            connection._maybe_throttle(SimpleNamespace(throttle_time_ms=2_000))
        try:
            assert (await client.submit(append(), timeout=40)).offset == 1
        finally:
            ends.set()


async def test_a_client_that_was_not_started_says_so(servers: str, dataset: str) -> None:
    client = CommitClient(servers, dataset=dataset)
    with pytest.raises(RuntimeError, match="not started"):
        await client.commit(append())
    await client.aclose()


async def test_a_client_belongs_to_one_event_loop_and_one_process(servers: str, dataset: str) -> None:
    async with CommitClient(servers, dataset=dataset) as client:
        with pytest.raises(RuntimeError, match="another event loop"):
            await in_thread(asyncio.run, client.commit(append()))
        client._channel.pid = os.getppid()  # type: ignore[union-attr]  # as it looks after a fork
        with pytest.raises(RuntimeError, match="before this process was forked"):
            await client.commit(append())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "s3://b/t"}, "is not a dataset name"),
        ({"kafka_options": {"sasl_mechanims": "PLAIN"}}, "did you mean 'sasl_mechanism'"),
        ({"kafka_options": {"acks": 0}}, "'acks' is set by the client itself"),
    ],
)
def test_arguments_that_can_not_be_right_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CommitClient("127.0.0.1:9092", **{"dataset": "d", **arguments})


async def test_missing_topics_are_named(kafka: Kafka, dataset: str) -> None:
    before = set(threading.enumerate())
    said = dict[str, str]()
    for seconds in (3, 10, 10, 10):  # a busy Kafka may not answer the first time
        client = CommitClient(kafka.bootstrap_servers, dataset=dataset, topic_prefix="p.", connect_timeout=seconds)
        with pytest.raises(KafkaUnavailable) as raised:
            await client.start()
        said[raised.value.code] = str(raised.value)
        if "topic_missing" in said:
            break
    assert f"topic 'p.{dataset}.staged' does not exist" in said["topic_missing"]
    for thread in set(threading.enumerate()) - before:
        await in_thread(thread.join, 60)
        assert not thread.is_alive(), thread


async def test_it_waits_for_a_committer_that_is_just_making_the_topics(kafka: Kafka, dataset: str) -> None:
    client = CommitClient(kafka.bootstrap_servers, dataset=dataset)
    start = asyncio.create_task(client.start())
    await asyncio.sleep(0.5)
    assert not start.done()
    await in_thread(make_topics, kafka.bootstrap_servers, dataset)
    await start
    with answering(kafka.bootstrap_servers, dataset, all_committed):
        assert (await client.commit(append())).version == 1
    await client.aclose()


async def test_no_broker_is_an_error_in_time(dataset: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(KafkaUnavailable, match=r"Kafka at 127\.0\.0\.1:1 can't be used"):
        async with CommitClient("127.0.0.1:1", dataset=dataset, connect_timeout=0.5):
            pass
    for thread in set(threading.enumerate()) - before:
        await in_thread(thread.join, 60)
        assert not thread.is_alive(), thread


async def test_a_failed_handshake_shows_its_cause(servers: str, dataset: str) -> None:
    # In a process of its own: kafka-python 3.0.12 does not close the sockets of failed handshakes.
    code = f"""
import asyncio
from committerd_client import CommitClient, KafkaUnavailable
for seconds in (3, 10, 10, 10):  # a busy Kafka may not answer the first time
    options = {{"security_protocol": "SSL"}}
    client = CommitClient({servers!r}, dataset={dataset!r}, connect_timeout=seconds, kafka_options=options)
    try:
        asyncio.run(client.start())
    except KafkaUnavailable as error:
        print(error)
        if "SSL" in str(error):
            break
"""
    done = await in_thread(python, code)
    assert re.search(r"can't be used: .*kafka-python: .*SSL", done.stdout, re.DOTALL), done


# Kafka away


@pytest.mark.slow
async def test_while_kafka_is_down_commits_time_out_and_afterwards_they_work(
    breakable_kafka: KafkaBroker, dataset: str
) -> None:
    servers = breakable_kafka.bootstrap_servers
    make_topics(servers, dataset)
    impatient = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 1_000}
    async with CommitClient(servers, dataset=dataset, close_timeout=5, kafka_options=impatient) as client:
        committer = await in_thread(Answering, servers, dataset, all_committed)
        await client.commit(append())
        await in_thread(committer.close)
        await in_thread(breakable_kafka.kill)
        with pytest.raises(CommitTimeout, match="Kafka has not acknowledged it"):
            await client.commit(append(), timeout=1)
        patient = asyncio.create_task(client.commit(append(UUID), timeout=180))
        await asyncio.sleep(3)  # by now kafka-python has given up
        await in_thread(breakable_kafka.start)
        committer = await in_thread(Answering, servers, dataset, all_committed)
        assert (await patient).uuid == UUID
        await in_thread(committer.close)


@pytest.mark.slow
async def test_a_client_can_be_closed_while_kafka_is_down(breakable_kafka: KafkaBroker, dataset: str) -> None:
    make_topics(breakable_kafka.bootstrap_servers, dataset)
    before = set(threading.enumerate())
    async with CommitClient(breakable_kafka.bootstrap_servers, dataset=dataset, close_timeout=1) as client:
        await in_thread(breakable_kafka.kill)
        waiting = asyncio.create_task(client.commit(append()))
        await asyncio.sleep(0.2)
        start = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - start < 30
    with pytest.raises(ClientClosed, match="unknown, not failed"):
        await waiting
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):
            await in_thread(thread.join, 60)
            assert not thread.is_alive(), thread


@pytest.mark.slow
async def test_what_waits_for_kafka_is_bounded(breakable_kafka: KafkaBroker, dataset: str) -> None:
    make_topics(breakable_kafka.bootstrap_servers, dataset)
    async with CommitClient(breakable_kafka.bootstrap_servers, dataset=dataset, max_in_flight=2) as client:
        await client.submit(append())
        breakable_kafka.freeze()
        try:
            submits = [asyncio.create_task(client.submit(append(), timeout=180)) for _ in range(5)]
            await asyncio.sleep(1)
            with pytest.raises(TimeoutError, match="max_in_flight"):
                await client.submit(append(), timeout=0.3)
        finally:
            breakable_kafka.thaw()
        handles = await asyncio.gather(*submits)
    assert [handle.offset for handle in handles] == [1, 2, 3, 4, 5]
