"""Failures of the broker, the topic under the consumer, the producer, and the network."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from committerd.errors import QueueUnavailable, RefusedToRun, SettingsError
from committerd.kafka import contact
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.queue import KafkaQueue
from committerd.queue.port import Assigned, Fetched, FetchFailed, Publication, Revoked
from committerd.settings.kafka import KafkaSettings
from harness.kafka import LOGIN, KafkaBroker, RunningKafka
from harness.kafka_topics import configure_topic
from harness.scene import until
from tests.kafka.staging import (
    PATIENT,
    assignment,
    create_topic,
    delete_topic,
    failure,
    operator,
    revocation,
    settings_for,
    stage,
    staged_partition,
    take,
    take_what_comes,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    return settings_for(kafka.bootstrap_servers, **PATIENT)


SOON = {"session_timeout_ms": 30_000, "request_timeout_ms": 1_500, "delivery_timeout_ms": 2_000}
"""A member that stays, and requests that fail soon."""
LIVE_SECONDS = 10
"""What /livez allows."""


def delete_before(queue: KafkaQueue, settings: KafkaSettings, offset: int) -> None:
    with operator(settings) as admin:
        admin.delete_records({staged_partition(queue): offset})


def set_limit(topic: str, settings: KafkaSettings, size: int) -> None:
    with operator(settings) as admin:
        configure_topic(admin, topic, "max.message.bytes", str(size))


def kafka_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if "kafka-io" in one.name or "network-thread" in one.name}


async def no_more_threads(before: set[threading.Thread]) -> None:
    """Wait until the threads of all clients that were opened since have ended: a call under way ends on its own."""
    await to_thread.run_sync(lambda: until(lambda: kafka_threads() <= before))


# The topic


async def test_says_when_the_position_was_deleted(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"%d" % number for number in range(10)])
        await to_thread.run_sync(delete_before, queue, settings, 8)
        assert await queue.bounds() == (8, 10)
        assert [r.offset for r in await queue.read(5, 9)] == [8]
        await queue.seek(generation, 3)
        failed = await failure(queue)
        assert failed.generation == generation
        assert "OffsetOutOfRange" in failed.reason
        # It continues as if newly assigned.
        assert (await revocation(queue)).generation == generation
        again = await assignment(queue)
        assert await take_what_comes(queue) == []  # and no failure: nothing is read before the seek
        await queue.seek(again, 8)
        assert [r.value for r in await take(queue, 2)] == [b"8", b"9"]


async def test_says_when_the_position_is_beyond_the_end(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"0"])
        await queue.seek(generation, 7)
        assert "OffsetOutOfRange" in (await failure(queue)).reason


@pytest.mark.parametrize("reading", [True, False], ids=["while reading", "while parked"])
async def test_a_recreated_topic_is_never_taken_for_the_old_one(
    kafka: KafkaBroker | RunningKafka, dataset: str, reading: bool
) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, metadata_max_age_ms=3_000)
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        before = await retried(queue.identity)
        await stage(queue, settings, [b"old"] * 5)
        if reading:
            await queue.seek(generation, 0)
            await take(queue, 5)
        await to_thread.run_sync(delete_topic, queue.topics.staged, settings)
        await to_thread.run_sync(create_topic, queue.topics.staged, settings)
        # More than there was: a consumer at offset 5 sees nothing unusual.
        await stage(queue, settings, [b"new"] * 20)
        after = await queue.identity()
        assert after.topic_id != before.topic_id
        assert (after.topic, after.cluster_id) == (before.topic, before.cluster_id)
        await queue.seek(generation, 5)
        told, values = False, list[bytes | None]()
        with anyio.fail_after(60):
            # The name alone does not show it at first. `identity` does, which the committer asks for before each
            # commit. The queue notices when the client's metadata is refreshed, which may be a moment after the group
            # has assigned it again. Nothing is delivered between that and the next assignment.
            while len(values) < 20:
                event = await queue.next_event()
                if isinstance(event, Assigned):
                    assert told
                    assert event.generation == generation + 1
                    told, values, generation = False, [], event.generation
                    await queue.seek(generation, 0)
                elif isinstance(event, Fetched):
                    assert not told
                    if generation > 1:
                        values += [record.value for record in event.records]
                else:
                    assert isinstance(event, FetchFailed | Revoked)
                    told = True
        assert values == [b"new"] * 20


async def test_a_topic_that_is_gone_is_refused(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        await assignment(queue)
        await to_thread.run_sync(delete_topic, queue.topics.staged, settings)
        with pytest.raises(RefusedToRun, match=r"there is no topic t-.*\.staged") as refused:
            await queue.identity()
        assert refused.value.code == "topic_gone"
        assert (await revocation(queue)).generation == 1


# The machine


async def test_a_check_that_finds_no_file_left_ends_nothing(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def no_files(*given: Any, **_: Any) -> None:
        tried.append(given)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(contact, "TopicAdmin", no_files)
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await to_thread.run_sync(until, lambda: len(tried) >= 2)
        await queue.seek(generation, 0)
        await stage(queue, settings, [b"after"])
        assert [record.value for record in await take(queue, 1)] == [b"after"]


# The producer


async def test_a_record_that_is_too_large_harms_no_other(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        await queue.publish([Publication(key=b"k", value=b"before")])
        await to_thread.run_sync(set_limit, queue.topics.outcomes, settings, 50_000)
        batch = [b"first", bytes(200_000), b"last", bytes(200_001)]
        with pytest.raises(QueueUnavailable, match="refuses 2 of") as refused:
            await queue.publish([Publication(key=b"k", value=value) for value in batch])
        assert refused.value.code == "record_refused"
        # kafka-python's producer is unusable after such a record; ours isn't.
        await queue.publish([Publication(key=b"k", value=b"after")])
        tail = await queue.outcomes_tail(20)
        assert set(tail) == {b"before", b"first", b"last", b"after"}
        assert tail[-1] == b"after"


async def test_a_record_above_the_client_s_own_limit_harms_no_other(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        values = [b"first", bytes(settings.max_record_bytes + 5_000), b"last"]
        with pytest.raises(QueueUnavailable, match="refuses 1 of") as refused:
            await queue.publish([Publication(key=b"k", value=value) for value in values])
        assert refused.value.code == "record_refused"
        assert set(await queue.outcomes_tail(9)) == {b"first", b"last"}


# The broker


async def test_goes_on_after_the_broker_was_killed(breakable_kafka: KafkaBroker, dataset: str) -> None:
    settings = settings_for(breakable_kafka.bootstrap_servers, **SOON)
    async with open_kafka_queue(settings, dataset) as queue, anyio.create_task_group() as tasks:
        turned = TurningOwner(queue)
        tasks.start_soon(turned.watch)
        generation = await assignment(queue)
        before = await retried(queue.identity)
        await stage(queue, settings, [b"0", b"1"])
        await queue.seek(generation, 0)
        await take(queue, 2)
        await retried(lambda: queue.publish([Publication(key=b"k", value=b"before")]))

        await to_thread.run_sync(breakable_kafka.kill)
        for call in (queue.identity, queue.bounds, lambda: queue.read(0, 1)):
            with pytest.raises(QueueUnavailable):
                await call()
        with pytest.raises(QueueUnavailable):
            await queue.acknowledge(generation, 2, "")
        with pytest.raises(QueueUnavailable):
            await queue.publish([Publication(key=b"k", value=b"lost with the producer")])
        await to_thread.run_sync(breakable_kafka.start)

        # Whether it kept the topic or got a new one: it delivers what was staged since.
        await stage(queue, settings, [b"2", b"3"])
        assert await delivered(queue, generation, 2, 4) == [b"2", b"3"]
        assert await retried(queue.identity) == before
        await retried(lambda: queue.publish([Publication(key=b"k", value=b"after")]))
        assert (await retried(lambda: queue.outcomes_tail(9)))[-1] == b"after"
        tasks.cancel_scope.cancel()
    assert turned.longest < LIVE_SECONDS


async def test_keeps_turning_while_the_broker_hangs(breakable_kafka: KafkaBroker, dataset: str) -> None:
    settings = settings_for(breakable_kafka.bootstrap_servers, **SOON)
    async with open_kafka_queue(settings, dataset) as queue, anyio.create_task_group() as tasks:
        generation = await assignment(queue)
        turned = TurningOwner(queue)
        tasks.start_soon(turned.watch)
        await stage(queue, settings, [b"0"])
        await queue.seek(generation, 0)
        await take(queue, 1)
        breakable_kafka.freeze()
        with pytest.raises(QueueUnavailable):
            await queue.publish([Publication(key=b"k", value=b"v")])
        with pytest.raises(QueueUnavailable):
            await queue.acknowledge(generation, 1, "")
        breakable_kafka.thaw()
        await stage(queue, settings, [b"1"])
        assert await delivered(queue, generation, 1, 2) == [b"1"]
        await retried(lambda: queue.publish([Publication(key=b"k", value=b"v")]))
        tasks.cancel_scope.cancel()
    assert turned.longest < LIVE_SECONDS


# The network


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bootstrap_servers": "127.0.0.1:1"}, "ECONNREFUSED"),
        ({"security_protocol": "SSL"}, "SSL"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "user",
                "sasl_plain_password": "s3cret",
            },
            "Sasl",
        ),
    ],
    ids=["nobody there", "no TLS there", "no login there"],
)
async def test_says_why_no_broker_could_be_used(
    kafka: KafkaBroker | RunningKafka, dataset: str, given: dict[str, Any], said: str
) -> None:
    settings = settings_for(**{"servers": kafka.bootstrap_servers, **_renamed(given)})
    failed = await why_not(settings, dataset, said)
    assert settings.bootstrap_servers[0] in failed
    assert "s3cret" not in failed


async def test_logs_in_and_says_when_it_may_not(breakable_kafka: KafkaBroker, dataset: str) -> None:
    user, password = LOGIN
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": user}
    servers = breakable_kafka.login_servers
    right = settings_for(servers, **PATIENT, **login, sasl_plain_password=password)
    async with open_kafka_queue(right, dataset) as queue:
        generation = await assignment(queue)
        await queue.publish([Publication(key=b"k", value=b"v")])
        assert await queue.outcomes_tail(1) == [b"v"]
        assert await queue.acknowledge(generation, 0, "")
    wrong = settings_for(servers, **login, sasl_plain_password="gue55ed")
    assert "gue55ed" not in await why_not(wrong, dataset, "Invalid username or password")


async def test_a_password_in_a_file_is_read_at_each_login(
    breakable_kafka: KafkaBroker, dataset: str, tmp_path: Path
) -> None:
    """A Secret is changed while the committer runs, and the broker restarts with the new password."""
    user, password = LOGIN
    file = tmp_path / "password"
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": user}
    settings = settings_for(
        breakable_kafka.login_servers, **login, sasl_plain_password_file=str(file), bootstrap_timeout_ms=60_000
    )
    with pytest.raises(SettingsError, match=r"sasl_plain_password_file: .*can't be read"):
        async with open_kafka_queue(settings, dataset):
            pass
    file.write_text(f"{password}\n")
    async with open_kafka_queue(settings, dataset) as queue:
        await assignment(queue)
        file.write_text("gue55ed")
        # Connections that exist stay; whoever connects now is refused.
        await why_not(settings, dataset, "Invalid username or password")
        breakable_kafka.kill()
        breakable_kafka.start()
        with pytest.raises(QueueUnavailable), anyio.fail_after(60):
            await queue.publish([Publication(key=b"k", value=b"v")])
        file.write_text(password)
        await retried(lambda: queue.publish([Publication(key=b"k", value=b"v")]))


async def test_a_start_that_gets_nowhere_can_be_cancelled(dataset: str) -> None:
    settings = settings_for("127.0.0.1:1", bootstrap_timeout_ms=60_000)
    began = time.monotonic()
    with anyio.move_on_after(0.5):
        async with open_kafka_queue(settings, dataset):
            pass
    assert time.monotonic() - began < 30, "it waited for the broker"


async def test_a_failed_start_leaves_no_thread_behind(dataset: str) -> None:
    before = kafka_threads()
    settings = settings_for("127.0.0.1:1", bootstrap_timeout_ms=1_000)
    for _ in range(2):
        with pytest.raises(QueueUnavailable):
            async with open_kafka_queue(settings, dataset):
                pass
    await no_more_threads(before)


async def test_a_missing_certificate_file_is_named(kafka: KafkaBroker | RunningKafka, dataset: str) -> None:
    settings = settings_for(kafka.bootstrap_servers, security_protocol="SSL", ssl_cafile="/nowhere/ca.pem")
    with pytest.raises(SettingsError, match=r"ssl_cafile: there is no file '/nowhere/ca.pem'"):
        async with open_kafka_queue(settings, dataset):
            pass


# Last, because the broker is gone afterwards


async def test_leaves_in_time_when_the_broker_is_gone(breakable_kafka: KafkaBroker, dataset: str) -> None:
    before = kafka_threads()
    settings = settings_for(breakable_kafka.bootstrap_servers)
    async with open_kafka_queue(settings, dataset) as queue:
        await assignment(queue)
        await queue.publish([Publication(key=b"k", value=b"v")])
        await to_thread.run_sync(breakable_kafka.kill)
        began = time.monotonic()
    assert time.monotonic() - began < 30
    await no_more_threads(before)


class TurningOwner:
    """The longest time for which the owner thread was stuck."""

    def __init__(self, queue: KafkaQueue) -> None:
        self._queue = queue
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            self.longest = max(self.longest, time.monotonic() - self._queue.owner_turned_at)
            await anyio.sleep(0.1)


async def delivered(queue: KafkaQueue, generation: int, start: int, end: int) -> list[bytes]:
    """Values of the offsets, as a committer gets them: it seeks at each assignment."""
    values: list[bytes] = []
    with anyio.fail_after(60):
        while start < end:
            event = await queue.next_event()
            if isinstance(event, Assigned):
                generation = event.generation
                await queue.seek(generation, start)
            elif isinstance(event, Fetched):
                assert event.generation == generation
                for record in event.records:
                    assert record.offset == start
                    start += 1
                    values.append(record.value)
    return values


async def why_not(settings: KafkaSettings, dataset: str, said: str) -> str:
    """What a queue says that can't be opened, with this cause; on a busy machine, a short time-out knows less."""
    failed = ""
    for milliseconds in (1_500, 5_000, 20_000):
        briefly = settings.model_copy(update={"bootstrap_timeout_ms": milliseconds})
        with pytest.raises(QueueUnavailable) as raised:
            async with open_kafka_queue(briefly, dataset):
                pass
        failed = str(raised.value)
        if said in failed:
            break
    assert said in failed
    return failed


async def retried(call: Any) -> Any:
    """Retry as the publisher does."""
    with anyio.fail_after(60):
        while True:
            try:
                return await call()
            except QueueUnavailable:
                await anyio.sleep(0.2)


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    return {("servers" if k == "bootstrap_servers" else k): v for k, v in given.items()}
