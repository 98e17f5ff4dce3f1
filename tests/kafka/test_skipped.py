"""Records are read again on a real broker, while the consumer goes on."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import to_thread

from committerd.errors import QueueUnavailable
from committerd.kafka import skipped
from committerd.kafka.clients import OpenClient, close_consumer, open_client
from committerd.kafka.member import open_kafka_queue, opened_member
from committerd.kafka.queue import KafkaQueue
from committerd.queue.port import Fetched, Record
from committerd.settings.kafka import KafkaSettings
from harness.kafka import KafkaBroker, RunningKafka
from tests.kafka.staging import PATIENT, assignment, create_topic, delete_topic, settings_for, stage, take, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    return settings_for(kafka.bootstrap_servers, **PATIENT)


@asynccontextmanager
async def delivered(
    serving: AbstractAsyncContextManager[KafkaQueue], settings: KafkaSettings, values: Sequence[bytes], **producer: Any
) -> AsyncIterator[tuple[KafkaQueue, int, list[Record]]]:
    """A queue that has delivered these records, its generation, and the records. `producer`: options."""
    async with serving as queue:
        generation = await assignment(queue)
        await stage(queue, settings, values, **producer)
        await queue.seek(generation, 0)
        yield queue, generation, await take(queue, len(values))


async def again(queue: KafkaQueue, generation: int, offset: int, records_max: int = 400) -> list[Record]:
    found = await queue.read_again(generation, offset, records_max=records_max)
    assert isinstance(found, Fetched), found
    return list(found.records)


def reads_under_way() -> int:
    """Threads of this process that read again at the moment."""
    code = skipped._Reader._read.__code__
    stacks = sys._current_frames().values()
    return sum(any(frame.f_code is code for frame, _ in traceback.walk_stack(stack)) for stack in stacks)


async def test_no_read_waits_for_the_consumer_that_waits_at_the_end_of_the_log(
    kafka: KafkaBroker | RunningKafka, dataset: str
) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, fetch_max_wait_ms=19_000)
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):
        await again(queue, generation, 5)
        began = time.monotonic()
        for offset in (3, 10, 0, 19):
            assert (await again(queue, generation, offset))[0].offset == offset
        assert time.monotonic() - began < 17


async def test_a_record_that_is_larger_than_a_response_is_read_again(settings: KafkaSettings, dataset: str) -> None:
    values = [b"1" * 500_000, b"2", b"3" * 900_000]
    async with delivered(open_kafka_queue(settings, dataset), settings, values, batch_size=1) as (queue, generation, _):
        for offset, value in enumerate(values):
            assert (await again(queue, generation, offset, 1))[0].value == value


async def test_a_flood_is_read_again_in_responses_of_a_bounded_size(settings: KafkaSettings, dataset: str) -> None:
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x" * 10_000] * 100, batch_size=1) as (
        queue,
        generation,
        records,
    ):
        found = await again(queue, generation, 0)
        assert found == records[: len(found)]
        assert sum(len(record.value) for record in found) < 256 * 1024


async def test_the_datasets_of_a_member_share_a_connection(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        opened_member(settings, dataset, name=dataset) as member,
        delivered(member.serving(f"{dataset}-a"), settings, [b"a %d" % number for number in range(50)]) as one,
        delivered(member.serving(f"{dataset}-b"), settings, [b"b %d" % number for number in range(50)]) as two,
    ):
        for queue, generation, _ in (one, two):
            await again(queue, generation, 0)
        (reader,) = one[0]._skipped._readers.values()
        opened, updates = reader._opened, list[object]()
        assert opened is not None
        request_update = opened.network.cluster.request_update

        def counted() -> object:
            updates.append(request_update())
            return updates[-1]

        monkeypatch.setattr(opened.network.cluster, "request_update", counted)
        for offset in range(50):
            for queue, generation, records in (one, two):
                assert await again(queue, generation, offset, 1) == [records[offset]]
        assert list(two[0]._skipped._readers.values()) == [reader]
        assert reader._opened is opened
        assert not updates, "another table 100 times, without a request for metadata"


async def test_what_was_fetched_before_a_seek_is_not_used(settings: KafkaSettings, dataset: str) -> None:
    """Whether another partition was read in between or not."""
    async with (
        opened_member(settings, dataset, name=dataset) as member,
        delivered(member.serving(f"{dataset}-b"), settings, [b"x"]) as (other, theirs, _),
    ):
        async with delivered(member.serving(f"{dataset}-a"), settings, [b"x"] * 50) as (queue, generation, _):
            for between in (False, True):
                await again(queue, generation, 0, 10)
                (reader,) = queue._skipped._readers.values()
                before = reader._opened
                assert before is not None
                await queue.seek(generation, 20)
                if between:
                    await again(other, theirs, 0, 1)
                await again(queue, generation, 10, 10)
                assert reader._opened is not before
        assert not queue._skipped._readers, "nothing remembers the topic of a dataset that has left"


async def test_a_topic_that_was_made_anew_has_other_records(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"old"] * 50)
        await queue.seek(generation, 0)
        await take(queue, 50)
        assert {record.value for record in await again(queue, generation, 0, 10)} == {b"old"}  # the others are fetched
        await to_thread.run_sync(delete_topic, queue.topics.staged, settings)
        await to_thread.run_sync(create_topic, queue.topics.staged, settings)
        generation = await assignment(queue)
        await stage(queue, settings, [b"new"] * 50)
        await queue.seek(generation, 0)
        await take(queue, 50)
        assert {record.value for record in await again(queue, generation, 10)} == {b"new"}


async def test_goes_on_after_the_broker_was_killed(breakable_kafka: KafkaBroker, dataset: str) -> None:
    settings = settings_for(breakable_kafka.bootstrap_servers)
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):
        await again(queue, generation, 0, 1)
        await to_thread.run_sync(breakable_kafka.kill)
        with pytest.raises(QueueUnavailable, match=queue.topics.staged):
            await queue.read_again(generation, 15, records_max=1)
        await to_thread.run_sync(breakable_kafka.start)
        with anyio.fail_after(60):
            while True:
                try:
                    assert [record.offset for record in await again(queue, generation, 15, 1)] == [15]
                    break
                except QueueUnavailable:
                    await anyio.sleep(0.2)


async def test_a_broker_that_hangs_fails_the_read(breakable_kafka: KafkaBroker, dataset: str) -> None:
    settings = settings_for(breakable_kafka.bootstrap_servers)
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):
        breakable_kafka.freeze()
        with anyio.fail_after(4 * settings.request_timeout_ms / 1000), pytest.raises(QueueUnavailable):
            await queue.read_again(generation, 0, records_max=1)
        breakable_kafka.thaw()


async def test_a_read_that_is_given_up_holds_up_no_other(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends soon, and its connection with it."""
    opened, closed = list[object](), list[object]()

    def opens(*arguments: Any) -> OpenClient[Any]:
        opened.append(made := open_client(*arguments))
        return made

    def closes(client: OpenClient[Any]) -> None:
        close_consumer(client)
        closed.append(client)

    monkeypatch.setattr(skipped, "open_client", opens)
    monkeypatch.setattr(skipped, "close_consumer", closes)
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):
        await again(queue, generation, 0, 1)
        for _ in range(5):
            with anyio.move_on_after(0.3):
                await queue.read_again(generation, 20, records_max=1)  # there is none yet
        assert (await again(queue, generation, 7, 1))[0].offset == 7
        await until(lambda: len(closed) == len(opened) - 1 and reads_under_way() == 0, seconds=15)
        with anyio.move_on_after(0.3):
            await queue.read_again(generation, 20, records_max=1)
        began = time.monotonic()
    assert time.monotonic() - began < 15, "it waited for the read"


async def test_no_coordinator_is_needed(settings: KafkaSettings, dataset: str) -> None:
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):
        await again(queue, generation, 0, 1)
        (reader,) = queue._skipped._readers.values()
        assert reader._opened is not None
        assert reader._opened.client.config["group_id"] is None
        assert reader._opened.client._coordinator.coordinator_id is None


async def test_the_first_read_and_each_new_connection_are_told(breakable_kafka: KafkaBroker, dataset: str) -> None:
    settings = settings_for(breakable_kafka.bootstrap_servers)
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):

        async def unbroken() -> bool:
            while True:
                try:
                    found = await queue.read_again(generation, 0, records_max=1)
                except QueueUnavailable:
                    await anyio.sleep(0.2)
                    continue
                assert isinstance(found, Fetched)
                return found.unbroken

        assert [await unbroken() for _ in range(3)] == [False, True, True]
        await to_thread.run_sync(breakable_kafka.kill)
        await to_thread.run_sync(breakable_kafka.start)
        with anyio.fail_after(60):
            assert [await unbroken() for _ in range(2)] == [False, True]


async def test_the_connection_ends_with_the_member(settings: KafkaSettings, dataset: str) -> None:
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):
        await again(queue, generation, 0)
        (reader,) = queue._skipped._readers.values()
        assert reader._opened is not None
        network = reader._opened.network
    assert reader._opened is None
    await until(lambda: not any(one.connected for one in network._manager._conns.values()))


async def test_what_the_client_should_not_raise_costs_a_connection(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with delivered(open_kafka_queue(settings, dataset), settings, [b"x"] * 20) as (queue, generation, _):

        def broken(record: object) -> Record:
            raise TypeError("not of this library")

        with monkeypatch.context() as patch:
            patch.setattr(skipped, "to_record", broken)
            with pytest.raises(QueueUnavailable, match="not of this library"):
                await again(queue, generation, 0)
        assert not queue._skipped._readers
        assert len(await again(queue, generation, 0, 5)) == 5
