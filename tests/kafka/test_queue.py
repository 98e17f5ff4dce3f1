"""The queue on a real broker, without failures."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from functools import partial

import anyio
import pytest
from anyio import CapacityLimiter, to_thread
from kafka import KafkaProducer, TopicPartition

from committerd.errors import QueueUnavailable
from committerd.kafka import consumer, watch
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.options import reader_options
from committerd.kafka.reader import read_batches
from committerd.queue.port import Acknowledged, Fetched, Publication, record_size
from committerd.settings.kafka import DAY_MS, KafkaSettings
from harness.kafka import KafkaBroker, RunningKafka
from harness.kafka_topics import configure_topic
from tests.kafka.staging import (
    PATIENT,
    assignment,
    delete_topic,
    operator,
    settings_for,
    stage,
    take,
    take_what_comes,
    until,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    return settings_for(kafka.bootstrap_servers, **PATIENT)


async def test_delivers_nothing_before_the_committer_says_from_where(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        await stage(queue, settings, [b"0", b"1", b"2", b"3"])
        generation = await assignment(queue)
        assert await take_what_comes(queue) == []
        await queue.seek(generation, 2)
        assert [(r.offset, r.value) for r in await take(queue, 2)] == [(2, b"2"), (3, b"3")]


async def test_delivers_records_in_order_and_whole(settings: KafkaSettings, dataset: str) -> None:
    values = [b"%d" % number for number in range(2_000)]
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        before_ms = time.time() * 1000
        await stage(queue, settings, values, headers=[("producer", b"spark"), ("empty", b"")])
        records = await take(queue, len(values))
    assert [r.value for r in records] == values
    assert [r.offset for r in records] == list(range(len(values)))
    first = records[0]
    assert (first.key, first.headers) == (b"key", (("producer", b"spark"), ("empty", b"")))
    assert first.leader_epoch >= 0
    assert abs(first.timestamp_ms - before_ms) < 60_000


async def test_what_was_fetched_is_delivered_without_a_rest(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_POLL_RECORDS_MAX", 10)
    async with open_kafka_queue(settings, dataset) as queue:
        await stage(queue, settings, [b"x"] * 2_000)
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        records = await take(queue, 10)
        for name in ("_REST_SECONDS", "_REST_SECONDS_UNSETTLED"):
            monkeypatch.setattr(consumer, name, 3_600)
        with anyio.fail_after(120):
            while len(records) < 2_000:
                records += await take(queue, 1)
        assert [record.offset for record in records] == list(range(2_000))


async def test_the_broker_dates_records(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await stage(queue, settings, [b"a"])
        now_ms = time.time() * 1000
        (record,) = await take(queue, 1)
    assert abs(record.timestamp_ms - now_ms) < 60_000


async def test_a_tombstone_is_an_empty_record(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await stage(queue, settings, [None, b"after"])
        assert [r.value for r in await take(queue, 2)] == [b"", b"after"]


async def test_packed_records_and_big_ones_arrive(settings: KafkaSettings, dataset: str) -> None:
    big = bytes(range(256)) * 4_000  # 1,024,000 bytes; the topic takes 1 MiB
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await stage(queue, settings, [big, b"small", big], compression_type="gzip")
        assert [r.value for r in await take(queue, 3)] == [big, b"small", big]
        await queue.dead_letter([Publication(key=b"k", value=big, headers=[("why", b"x" * 2_000)])])


async def test_a_header_name_that_is_no_text_stops_nothing(settings: KafkaSettings, dataset: str) -> None:
    class Bytes(str):
        __slots__ = ()

        def encode(self, *_: object) -> bytes:
            return b"\xff\xfename"

    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        odd = [("first", b"1"), (Bytes("odd"), b"2"), ("last", b"3")]
        await stage(queue, settings, [b"a", b"b"], headers=odd)
        await stage(queue, settings, [b"behind"])
        records = await take(queue, 3)
    assert [r.value for r in records] == [b"a", b"b", b"behind"]
    assert [value for _, value in records[0].headers] == [b"1", b"2", b"3"]
    assert records[0].headers[1][0].endswith("name")


async def test_of_a_record_with_very_many_headers_the_first_are_read(settings: KafkaSettings, dataset: str) -> None:
    many = [("", b"")] * 300_000
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await stage(queue, settings, [b"many"] * 3, headers=many)
        await stage(queue, settings, [b"few"], headers=many[:1000])
        records = await take(queue, 4)
        again = await queue.read(0, 4)
    counted = [(r.value, len(r.headers), r.headers_found) for r in records]
    assert counted == [(b"many", 1000, 300_000)] * 3 + [(b"few", 1000, 0)]
    assert again == records


async def test_a_dead_letter_that_its_topic_does_not_take_is_cut_until_it_does(
    settings: KafkaSettings, dataset: str
) -> None:
    """Whatever the topic's settings have become since they were read."""
    async with open_kafka_queue(settings, dataset) as queue:
        with operator(settings) as admin:
            configure_topic(admin, queue.topics.dead, "max.message.bytes", "20000")
        reasons = [("committerd-status", b"INVALID"), ("committerd-offset", b"7")]
        fits = Publication(key=b"k1", value=b"v" * 1000, headers=reasons)
        value = Publication(key=b"k2", value=b"v" * 30_000, headers=[("h", b"1"), *reasons])
        headers = Publication(key=b"k3", value=b"v" * 30_000, headers=[("h", b"1" * 30_000), *reasons])
        key = Publication(key=b"k" * 30_000, value=b"v" * 30_000, headers=[("h", b"1" * 30_000), *reasons])
        await queue.dead_letter([fits, value, headers, key])
        ranges = {TopicPartition(queue.topics.dead, 0): (0, 4)}
        options = reader_options(settings, dataset)
        found = await to_thread.run_sync(lambda: [r for batch in read_batches(options, ranges) for r in batch])
    assert {(r.key, len(r.value), len(r.headers)) for r in found} == {
        (b"k1", 1000, 2),
        (b"k2", 0, 4),
        (b"k3", 0, 4),
        (None, 0, 5),
    }
    assert all(("committerd-value-bytes", b"30000") in r.headers for r in found if not r.value)


async def test_seek_drops_what_was_fetched_before(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"%d" % number for number in range(10)])
        await queue.seek(generation, 0)
        await anyio.sleep(0.5)  # the ten are in flight, and nobody has taken them
        await queue.seek(generation, 7)
        assert [r.offset for r in [*await take(queue, 3), *await take_what_comes(queue)]] == [7, 8, 9]
        await queue.seek(generation, 0)
        assert [r.offset for r in await take(queue, 10)] == list(range(10))


async def test_nothing_fetched_before_is_delivered_while_a_seek_is_under_way(
    settings: KafkaSettings, dataset: str
) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"%d" % number for number in range(10)])
        await queue.seek(generation, 0)
        await anyio.sleep(0.5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(queue.seek, generation, 8)
            await anyio.lowlevel.checkpoint()  # the seek has begun and is not finished
            assert [r.offset for r in await take(queue, 2)] == [8, 9]


async def test_the_last_of_several_seeks_counts(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"%d" % number for number in range(10)])
        async with anyio.create_task_group() as tasks:
            for offset in (0, 5, 2, 9):
                tasks.start_soon(queue.seek, generation, offset)
                await anyio.lowlevel.checkpoint()
        assert [r.offset for r in [*await take(queue, 1), *await take_what_comes(queue)]] == [9]


async def test_a_call_of_an_old_generation_does_nothing(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"0", b"1"])
        await queue.seek(generation - 1, 0)
        await queue.done(generation - 1, 1, 1)
        assert await take_what_comes(queue) == []
        assert not await queue.acknowledge(generation - 1, 2, "")
        assert await queue.acknowledged() is None


async def test_stops_fetching_at_the_limit_of_records(kafka: KafkaBroker | RunningKafka, dataset: str) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, outstanding_records_max=600)
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"x"] * 4_000)
        await queue.seek(generation, 0)
        held = [*await take(queue, 600), *await take_what_comes(queue)]
        # At most one poll beyond the limit.
        assert len(held) <= 750
        await queue.done(generation, len(held) - 460, 0)
        assert await take_what_comes(queue) == []  # more than three quarters have no outcome yet
        records = list(held)
        while len(records) < 4_000:
            await queue.done(generation, len(held), sum(map(record_size, held)))
            held = [*await take(queue, 1), *await take_what_comes(queue)]
            records += held
    assert [r.offset for r in records] == list(range(4_000))


async def test_a_lost_connection_is_told_even_if_the_records_behind_it_are_dropped(
    settings: KafkaSettings, dataset: str
) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"0", b"1"])
        await queue.seek(generation, 0)
        await until(lambda: bool(queue._deliveries))
        queue._deliveries = deque(
            replace(one, event=replace(one.event, unbroken=False)) if isinstance(one.event, Fetched) else one
            for one in queue._deliveries
        )
        await queue.seek(generation, 1)
        told = await queue.next_event()
        assert isinstance(told, Fetched)
        assert ([one.offset for one in told.records], told.unbroken) == ([1], False)


async def test_stops_fetching_at_the_limit_of_bytes(kafka: KafkaBroker | RunningKafka, dataset: str) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, outstanding_bytes_max=4 * 1024 * 1024)
    value = bytes(500_000)
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [value] * 50)
        await queue.seek(generation, 0)
        # A fetch takes longer on a slow machine than what comes is waited for.
        held = [*await take(queue, 8), *await take_what_comes(queue)]
        # At most one fetch, of ten megabytes, beyond the limit.
        assert len(held) <= 30
        await queue.done(generation, len(held), sum(map(record_size, held)))
        assert (await take(queue, 1))[0].offset == held[-1].offset + 1


async def test_acknowledges_with_metadata(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"0", b"1", b"2"])
        assert await queue.acknowledged() is None
        assert await queue.acknowledge(generation, 2, '{"version":7}')
        assert await queue.acknowledged() == Acknowledged(offset=2, metadata='{"version":7}')


async def test_tells_which_topic_it_is_quickly(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        await assignment(queue)
        first = await queue.identity()
        assert first.topic == f"{dataset}.staged"
        assert len(first.topic_id) == 22
        assert first.cluster_id
        took = []
        for _ in range(50):
            began = time.perf_counter()
            assert await queue.identity() == first
            took.append(time.perf_counter() - began)
    # Requested before each commit. About 1 ms when nothing else runs; on a busy machine only some are as quick.
    assert min(took) < 0.02


async def test_many_requests_at_once_all_get_a_response(settings: KafkaSettings, dataset: str) -> None:
    failed: list[QueueUnavailable] = []

    def ask(admin: TopicAdmin) -> None:
        try:
            assert admin.broker_ids()
        except QueueUnavailable as error:
            failed.append(error)

    admin = await to_thread.run_sync(partial(TopicAdmin, settings, dataset, bootstrap_ms=60_000))
    lane = CapacityLimiter(24)
    try:
        for _ in range(3):  # a request waits for four seconds, for which a busy machine may stop Kafka
            failed.clear()
            async with anyio.create_task_group() as tasks:
                for _ in range(240):
                    tasks.start_soon(partial(to_thread.run_sync, ask, admin, limiter=lane))
            if not failed:
                break
    finally:
        await to_thread.run_sync(admin.close)
    assert not failed


async def test_tells_the_bounds_and_reads_ranges(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        assert await queue.bounds() == (0, 0)
        assert await queue.read(0, 5) == []
        await stage(queue, settings, [b"%d" % number for number in range(10)])
        assert await queue.bounds() == (0, 10)
        assert [r.value for r in await queue.read(3, 6)] == [b"3", b"4", b"5"]
        assert [r.offset for r in await queue.read(8, 99)] == [8, 9]
        assert await queue.read(10, 12) == []
        assert await queue.read(5, 5) == []


async def test_reads_past_the_marks_of_a_transaction(settings: KafkaSettings, dataset: str) -> None:
    def two_transactions(topic: str) -> None:
        producer = KafkaProducer(bootstrap_servers=list(settings.bootstrap_servers), transactional_id=dataset)
        producer.init_transactions()
        for finish in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send(topic, value=finish.__name__.encode(), partition=0).get(60)
            finish()
        producer.close(timeout=5)

    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await to_thread.run_sync(two_transactions, queue.topics.staged)
        with anyio.fail_after(60):  # the broker answers a commit before its mark is in the log
            while await queue.bounds() != (0, 4):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        assert [r.offset for r in await queue.read(0, 4)] == [2]
        await queue.seek(generation, 0)
        (record,) = await take(queue, 1)
        assert (record.offset, record.value) == (2, b"commit_transaction")


async def test_publishes_to_the_partition_that_the_producer_reads(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        assert await queue.outcomes_tail(10) == []
        await queue.publish(
            [
                Publication(key=b"a", value=b"%d" % number, headers=[("h", b"v")], partition=number)
                for number in (0, 3, 7, 8, -1)
            ]
        )
        assert sorted(await queue.outcomes_tail(10)) == [b"-1", b"0", b"3", b"7", b"8"]
        # 8 and -1 are no partitions of the topic: the records went to 0, behind the one that was there.
        assert set(await queue.outcomes_tail(1)) == {b"3", b"7", b"-1"}
        await queue.publish([])


async def test_the_tail_of_each_partition_is_its_last_records_in_order(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        outcomes = [Publication(key=None, value=b"%d" % n, partition=n % 2) for n in range(40)]
        await queue.publish(outcomes)
        tail = await queue.outcomes_tail(3)
    assert [v for v in tail if int(v) % 2] == [b"35", b"37", b"39"]
    assert [v for v in tail if not int(v) % 2] == [b"34", b"36", b"38"]


async def test_knows_the_end_of_the_topic_while_nothing_is_fetched(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        await assignment(queue)  # without a seek: no table yet, or a refusal to run
        await stage(queue, settings, [b"x"] * 20)
        await until(lambda: queue.end_offset() == 20)


async def test_knows_since_when_a_record_is_unread_and_how_long_the_topic_keeps_it(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ASK_SECONDS", 0.5)
    monkeypatch.setattr(watch, "_UNREAD_TURNS", 1)
    keeping = settings.model_copy(update={"staged_retention_ms": 3 * DAY_MS})
    async with open_kafka_queue(keeping, dataset) as queue:
        generation = await assignment(queue)
        async with open_kafka_queue(keeping, dataset) as standby:
            await until(lambda: queue.retention_ms() == standby.retention_ms() == 3 * DAY_MS, seconds=60)
            assert queue.unread_since_ms() is None
            before_ms = time.time() * 1000 - 1_000
            await stage(queue, keeping, [b"0"])
            await anyio.sleep(1.5)
            between_ms = time.time() * 1000 - 500
            await stage(queue, keeping, [b"1"])
            await until(lambda: before_ms < (queue.unread_since_ms() or 0) < between_ms, seconds=60)  # without a seek
            await queue.acknowledge(generation, 1, "")
            await until(lambda: (queue.unread_since_ms() or 0) > between_ms, seconds=60)
            assert standby.unread_since_ms() is None
            await queue.acknowledge(generation, 2, "")
            assert queue.unread_since_ms() is None
            with operator(keeping) as admin:
                configure_topic(admin, queue.topics.staged, "retention.ms", "-1")
            await until(lambda: queue.retention_ms() is None, seconds=60)


async def test_a_topic_that_is_gone_leaves_what_is_known_of_it(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr(watch, "_UNREAD_TURNS", 1)
    async with open_kafka_queue(settings, dataset) as queue:
        await assignment(queue)
        await until(lambda: queue.retention_ms() is not None)
        known = queue.retention_ms()
        await to_thread.run_sync(delete_topic, queue.topics.staged, settings)
        await anyio.sleep(1.5)  # a dozen polls
        assert queue.retention_ms() == known


async def test_an_error_inside_comes_out_as_it_is(settings: KafkaSettings, dataset: str) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_kafka_queue(settings, dataset):
            raise LookupError("mine")


async def test_passwords_do_not_reach_the_log(settings: KafkaSettings, dataset: str) -> None:
    loggers = [logging.getLogger(name) for name in ("kafka", "kafka.net.connection")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    try:
        async with open_kafka_queue(settings, dataset):
            # kafka-python logs whole frames at DEBUG, including the login.
            assert [logger.isEnabledFor(logging.DEBUG) for logger in loggers] == [False, False]
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
