"""One member serves many datasets: their partitions are shared out, handed over and disturbed each by itself."""

from __future__ import annotations

import collections
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from kafka import TopicPartition, errors
from kafka.admin import ACLOperation, ResourceType
from kafka.consumer.fetcher import Fetcher
from kafka.net.connection import KafkaConnection
from kafka.record.default_records import DefaultRecordBatch

from committerd.errors import QueueUnavailable, RefusedToRun
from committerd.kafka import consumer, preparation
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.member import KafkaMember, open_kafka_queue, opened_member
from committerd.kafka.options import topics_of
from committerd.kafka.queue import KafkaQueue
from committerd.queue.port import Acknowledged, Assigned, Fetched, FetchFailed, Publication, Record, Revoked
from committerd.settings.kafka import KafkaSettings
from harness.kafka import LOGIN, KafkaBroker, RunningKafka
from harness.kafka_topics import configure_topic
from tests.kafka.acls import allow, forbid
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
    until,
)
from tests.kafka.test_rights import needed

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    return settings_for(kafka.bootstrap_servers, **PATIENT)


class Served:
    """One dataset in a member, as its committer sees it: it seeks at each assignment, and keeps what arrives."""

    def __init__(self, queue: KafkaQueue, *, begins: bool = True) -> None:
        """`begins`: whether its turn to start comes."""
        self.queue = queue
        self._begins = begins
        self.generation: int | None = None
        self.records: list[Record] = []
        self.revocations = 0

    @property
    def owned(self) -> bool:
        return self.generation is not None

    @property
    def values(self) -> list[bytes]:
        return [record.value for record in self.records]

    async def run(self) -> None:
        while True:
            match await self.queue.next_event():
                case Assigned(generation=generation):
                    self.generation = generation
                    self.records.clear()
                    if self._begins:
                        self.queue.begins(generation)
                        await self.queue.seek(generation, 0)
                case Revoked():
                    self.generation = None
                    self.revocations += 1
                case Fetched(records=records):
                    self.records += records
                    await self.queue.done(self.generation or 0, len(records), 0)
                case FetchFailed():
                    pass


class Members:
    """Members of one group, each in its own clients; all in this process."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self.settings = settings
        self.group = group

    @contextlib.asynccontextmanager
    async def member(
        self, datasets: Iterable[str], *, wait: Collection[str] = ()
    ) -> AsyncIterator[tuple[KafkaMember, dict[str, Served]]]:
        """`wait`: the datasets whose turn to start does not come."""
        async with (
            opened_member(self.settings, self.group, name=self.group) as member,
            contextlib.AsyncExitStack() as stack,
        ):
            served = {}
            for dataset in datasets:
                queue = await stack.enter_async_context(member.serving(dataset))
                served[dataset] = Served(queue, begins=dataset not in wait)
            async with anyio.create_task_group() as tasks:
                for one in served.values():
                    tasks.start_soon(one.run)
                yield member, served
                tasks.cancel_scope.cancel()


@pytest.fixture
def members(settings: KafkaSettings, dataset: str) -> Members:
    return Members(settings, f"group-of-{dataset}")


def named(dataset: str, count: int) -> list[str]:
    return [f"{dataset}-{number:02}" for number in range(count)]


def owned(served: dict[str, Served]) -> set[str]:
    return {name for name, one in served.items() if one.owned}


async def test_each_dataset_gets_its_own_records(members: Members, settings: KafkaSettings, dataset: str) -> None:
    names = named(dataset, 4)
    async with members.member(names) as (_, served):
        for name, one in served.items():
            await stage(one.queue, settings, [name.encode()] * 3)
        await until(lambda: all(len(one.records) == 3 for one in served.values()))
        assert {name: one.values for name, one in served.items()} == {name: [name.encode()] * 3 for name in names}
        for number, one in enumerate(served.values()):
            assert one.generation == 1
            assert await one.queue.acknowledge(1, number, "m")
            assert await one.queue.acknowledged() == Acknowledged(offset=number, metadata="m")
            await one.queue.publish([Publication(key=b"k", value=b"%d" % number)])
            assert await one.queue.outcomes_tail(2) == [b"%d" % number]
        assert {one.queue.member_state() for one in served.values()} == {"active"}


async def test_a_full_dataset_stops_no_other(kafka: KafkaBroker | RunningKafka, dataset: str) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, outstanding_records_max=40)
    flooded, quiet = named(dataset, 2)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        member.serving(flooded) as full,
        member.serving(quiet) as other,
    ):
        await stage(full, settings, [b"x"] * 1_000)
        await full.seek(await assignment(full), 0)
        generation = await assignment(other)
        await other.seek(generation, 0)
        assert len(await take_what_comes(full)) < 1_000
        for number in range(200):
            await stage(other, settings, [b"%d" % number]) if number % 50 == 0 else None
        assert [r.value for r in await take(other, 4)] == [b"0", b"50", b"100", b"150"]


async def test_a_full_dataset_goes_on_after_others_had_records(kafka: KafkaBroker | RunningKafka, dataset: str) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, outstanding_records_max=40)
    flooded, quiet = named(dataset, 2)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        member.serving(flooded) as full,
        member.serving(quiet) as other,
    ):
        values = [b"%d" % number for number in range(200)]
        await stage(full, settings, values)
        generation, came = await assignment(full), list[Record]()
        await full.seek(generation, 0)
        await other.seek(await assignment(other), 0)
        while len(came) < 200:
            some = await take(full, min(40, 200 - len(came)))  # as many as fit: it is paused before they are delivered
            await stage(other, settings, [b"v"])
            await take(other, 1)
            await full.done(generation, len(some), 0)
            came += some
        assert [record.value for record in came] == values


class Gate:
    """Stops the consumer's thread when no fetch request is under way, until it may send the next request. Then the
    thread waits for the response before it goes on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_send, self._waits, send = threading.Event(), threading.Event(), Fetcher.send_fetches
        self._may_send.set()
        self.first: TopicPartition | None = None
        """The partition whose records the consumer takes first from a response."""

        def send_fetches(fetcher: Any) -> None:
            may_send = self._may_send.is_set()
            is_between = not (may_send or fetcher._nodes_with_pending_fetch_requests or fetcher._completed_fetches)
            if is_between:
                self._waits.set()
                assert self._may_send.wait(30)
            send(fetcher)
            until = time.monotonic() + 10
            while is_between and not fetcher._completed_fetches and time.monotonic() < until:
                time.sleep(0.001)
            waiting = fetcher._completed_fetches
            while self.first in [one.topic_partition for one in waiting] and waiting[0].topic_partition != self.first:
                waiting.rotate()

        monkeypatch.setattr(Fetcher, "send_fetches", send_fetches)

    async def closed(self) -> None:
        """Close it; returns when the consumer waits."""
        self._waits.clear()
        self._may_send.clear()
        assert await to_thread.run_sync(self._waits.wait, 10)

    def open(self) -> None:
        self._may_send.set()


def rest_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the consumer's thread rest until something wakes it."""
    for rest in ("_REST_SECONDS", "_REST_SECONDS_UNSETTLED"):
        monkeypatch.setattr(consumer, rest, 30.0)


@contextlib.asynccontextmanager
async def two_that_deliver(
    settings: KafkaSettings, dataset: str
) -> AsyncIterator[tuple[KafkaMember, KafkaQueue, KafkaQueue]]:
    """A member and the queues of its two datasets, which deliver from offset 0."""
    one, other = named(dataset, 2)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        member.serving(one) as first,
        member.serving(other) as second,
    ):
        for queue in (first, second):
            await queue.seek(await assignment(queue), 0)
        yield member, first, second


async def test_records_that_come_while_the_thread_looks_for_them_and_those_behind_them_come_at_once(
    kafka: KafkaBroker | RunningKafka, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, fetch_max_wait_ms=300)
    async with opened_member(settings, f"group-of-{dataset}", name=dataset) as member, member.serving(dataset) as one:
        await one.seek(await assignment(one), 0)
        gate = Gate(monkeypatch)
        for number in range(3):
            await gate.closed()
            await stage(one, settings, [b"%d" % number])
            with monkeypatch.context() as slow:
                rest_long(slow)
                began = time.monotonic()
                with slow.context() as slower:
                    slower.setattr(consumer, "_FRUITLESS_SECONDS", 30.0)
                    gate.open()
                    assert [record.value for record in await take(one, 1)] == [b"%d" % number]
                await stage(one, settings, [b"next"])
                assert [record.value for record in await take(one, 1)] == [b"next"]
                assert time.monotonic() - began < 15


async def test_records_that_came_with_those_of_another_dataset_come_at_once(
    kafka: KafkaBroker | RunningKafka, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(
        kafka.bootstrap_servers,
        **PATIENT,
        fetch_max_wait_ms=300,
        outstanding_records_max=400,  # a turn takes a quarter of them
    )
    async with two_that_deliver(settings, dataset) as (member, flooded, quiet):
        gate = Gate(monkeypatch)
        await gate.closed()
        gate.first = staged_partition(flooded)
        await stage(flooded, settings, [b"x"] * 390)
        await stage(quiet, settings, [b"y"])
        rest_long(monkeypatch)
        monkeypatch.setitem(member._consumer._consumer._fetcher.config, "fetch_max_wait_ms", 6_000)
        began = time.monotonic()
        gate.open()
        assert [record.value for record in await take(quiet, 1)] == [b"y"]
        assert len(await take(flooded, 390)) == 390
        assert time.monotonic() - began < 5


async def test_an_error_of_one_dataset_leaves_no_other_without_a_request(
    kafka: KafkaBroker | RunningKafka, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, fetch_max_wait_ms=300)
    fetched_records, failed = Fetcher.fetched_records, threading.Event()
    monkeypatch.setattr(consumer, "_REOPEN_SECONDS", (30.0, 30.0))

    async with two_that_deliver(settings, dataset) as (_, one, other):

        def fail_once(fetcher: Any, *given: Any, **named: Any) -> Any:
            if failed.is_set() or not fetcher._completed_fetches:
                return fetched_records(fetcher, *given, **named)
            fetcher._completed_fetches.clear()
            failed.set()
            error: Any = errors.OffsetOutOfRangeError()
            error.committerd_partition = staged_partition(one)
            raise error

        gate = Gate(monkeypatch)
        await gate.closed()
        await stage(one, settings, [b"x"])
        rest_long(monkeypatch)
        monkeypatch.setattr(Fetcher, "fetched_records", fail_once)
        gate.open()
        assert await to_thread.run_sync(failed.wait, 10)
        began = time.monotonic()
        await stage(other, settings, [b"y"])
        assert [record.value for record in await take(other, 1)] == [b"y"]
        assert time.monotonic() - began < 15


async def test_datasets_come_and_go_while_others_flow(members: Members, settings: KafkaSettings, dataset: str) -> None:
    stays, *others = named(dataset, 4)
    async with members.member([stays]) as (member, served):
        one = served[stays]
        await until(lambda: one.owned)
        for name in others:
            async with member.serving(name) as queue:
                await queue.seek(await assignment(queue), 0)
                await stage(queue, settings, [b"v"])
                await take(queue, 1)
            await stage(one.queue, settings, [name.encode()])
        await until(lambda: len(one.records) == len(others))
        assert (one.generation, one.revocations) == (1, 0)
        # The same dataset again: it begins anew.
        async with member.serving(others[0]) as queue:
            generation = await assignment(queue)
            await queue.seek(generation, 0)
            assert [r.value for r in await take(queue, 1)] == [b"v"]


async def test_the_third_member_takes_only_what_it_must(
    members: Members, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It joins with all of its datasets, however long their topics take to check.
    monkeypatch.setattr(consumer, "_PREPARATION_SECONDS_MAX", 300.0)
    names = named(dataset, 50)
    async with members.member(names) as (_, first), members.member(names) as (_, second):
        await until(lambda: sorted((len(owned(first)), len(owned(second)))) == [25, 25], seconds=120)
        before = [{n: one.revocations for n, one in side.items()} for side in (first, second)]
        async with members.member(names) as (_, third):
            await until(
                lambda: (
                    sorted(map(len, map(owned, (first, second, third)))) == [16, 17, 17]
                    and len(owned(first) | owned(second) | owned(third)) == 50
                ),
                seconds=120,
            )
            revoked = [
                {n for n, one in side.items() if one.revocations > count[n]}
                for side, count in zip((first, second), before, strict=True)
            ]
            assert not revoked[0] & revoked[1]
            assert revoked[0] | revoked[1] == owned(third)


async def test_a_member_that_joins_gets_at_once_what_waits_elsewhere(
    members: Members, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where members start together: the first gets all datasets, and begins with some of them."""
    monkeypatch.setattr(consumer, "_PREPARATION_SECONDS_MAX", 300.0)
    names = named(dataset, 60)
    async with members.member(names, wait=names[10:]) as (member, first):
        await until(lambda: len(owned(first)) == 60, seconds=120)
        await until(lambda: len(member._consumer.waiting()) == 50)
        client = member._consumer._consumer
        assert client is not None
        before = client.group_metadata().generation_id
        async with members.member(names) as (_, second):
            await until(lambda: len(owned(first)) == len(owned(second)) == 30, seconds=120)
            # Of datasets that are served, four would move in each second round.
            assert client.group_metadata().generation_id - before <= 4
            assert owned(second) == set(names[30:])


async def test_fifty_datasets_go_over_at_once(members: Members, dataset: str) -> None:
    names = named(dataset, 50)
    async with members.member(names) as (_, second):
        async with members.member(names) as (member, first):
            await until(lambda: len(owned(first)) == len(owned(second)) == 25, seconds=120)
            began = time.monotonic()
            member.leave()
            await until(lambda: len(owned(second)) == 50, seconds=60)
            took = time.monotonic() - began
        assert took < 28, "a heartbeat and a join; the session is 30 s"


async def test_a_dataset_that_only_some_serve_goes_to_them(
    members: Members, settings: KafkaSettings, dataset: str
) -> None:
    both, only_first, only_second = named(dataset, 3)
    async with (
        members.member([both, only_first]) as (_, first),
        members.member([both, only_second]) as (member, second),
    ):
        await until(lambda: first[only_first].owned and second[only_second].owned)
        await until(lambda: first[both].owned != second[both].owned)
        # Whoever leads the group: a member that starts to serve it gets it when the other stops.
        async with member.serving(only_first) as queue:
            await until(lambda: queue.member_state() in ("standby", "active"))
            kept = first[only_first]
            if kept.owned:
                kept.queue.leave()
                await queue.seek(await assignment(queue), 0)


async def test_a_dataset_that_leaves_while_the_member_joins_is_not_taken_for_a_topic_that_is_gone(
    kafka: KafkaBroker | RunningKafka, dataset: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic is not asked for any more, and the group assigns it to this member until that has joined again.

    That happens if it leaves between two requests to join.
    """
    monkeypatch.setattr(consumer, "is_joining", lambda _: False)
    stays, goes, follows = named(dataset, 3)
    # The others hear of it with their next heartbeat, and so long joining takes.
    slow = settings_for(kafka.bootstrap_servers, **PATIENT, heartbeat_interval_ms=2_000)
    members = Members(slow, f"group-of-{dataset}")
    async with (
        members.member([stays]) as (member, first),
        member.serving(goes) as leaves,
        member.serving(follows) as leaves_too,
        members.member([stays]) as (_, second),
    ):
        await until(lambda: all(one[stays].queue.member_state() != "joining" for one in (first, second)))
        await assignment(leaves)
        await assignment(leaves_too)
        leaves.leave()
        await revocation(leaves)
        leaves_too.leave()
        await revocation(leaves_too)
    assert "kafka.suspended" not in caplog.messages


async def test_a_dataset_that_leaves_while_the_member_joins_waits_until_it_has_joined(
    kafka: KafkaBroker | RunningKafka, dataset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """kafka-python would refuse the assignment, and all partitions that are to move would wait for another round."""
    stays, *others = named(dataset, 4)
    slow = settings_for(kafka.bootstrap_servers, **PATIENT, heartbeat_interval_ms=2_000)
    members = Members(slow, f"group-of-{dataset}")
    async with (
        members.member([stays]) as (member, first),
        contextlib.AsyncExitStack() as stack,
        members.member([stays]) as (_, second),
    ):
        leaving = [await stack.enter_async_context(member.serving(name)) for name in others]
        for one in leaving:
            await assignment(one)
        await until(lambda: first[stays].owned != second[stays].owned)
        for one in leaving:
            one.leave()
            await anyio.sleep(0.5)  # it joins again meanwhile, until the other member hears of it
        await member.handed_over()
    assert not [line for line in caplog.messages if "assignment rejected" in line]


async def test_a_deleted_topic_is_its_own_trouble_and_comes_back(
    kafka: KafkaBroker | RunningKafka, dataset: str
) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, metadata_max_age_ms=3_000)
    gone, stays = named(dataset, 2)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        member.serving(gone) as lost,
        member.serving(stays) as kept,
    ):
        generation = await assignment(kept)
        await kept.seek(generation, 0)
        await lost.seek(await assignment(lost), 0)
        await to_thread.run_sync(delete_topic, lost.topics.staged, settings)
        await revocation(lost)
        await until(lambda: f"there is no topic {lost.topics.staged}" in lost.trouble())
        assert kept.trouble() == ""
        await stage(kept, settings, [b"1"])
        assert [r.value for r in await take(kept, 1)] == [b"1"]
        await to_thread.run_sync(create_topic, lost.topics.staged, settings)
        await lost.seek(await assignment(lost), 0)
        await stage(lost, settings, [b"new"])
        assert [r.value for r in await take(lost, 1)] == [b"new"]
        assert lost.trouble() == ""
        assert await kept.acknowledge(generation, 1, ""), "its partition was never moved"


async def test_an_unreadable_position_is_its_own_trouble(settings: KafkaSettings, dataset: str) -> None:
    bad, good = named(dataset, 2)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        member.serving(bad) as broken,
        member.serving(good) as kept,
    ):
        generation = await assignment(kept)
        await kept.seek(generation, 0)
        for _ in range(3):
            await broken.seek(await assignment(broken), 7)
            assert "OffsetOutOfRange" in (await failure(broken)).reason
            await revocation(broken)
        await stage(kept, settings, [b"1"])
        assert [r.value for r in await take(kept, 1)] == [b"1"]
        assert await kept.acknowledge(generation, 1, "")
        await stage(broken, settings, [b"0"])
        await broken.seek(await assignment(broken), 0)
        assert [r.value for r in await take(broken, 1)] == [b"0"]


async def test_many_acknowledge_at_once_and_each_gets_its_own(members: Members, dataset: str) -> None:
    names = named(dataset, 20)
    async with members.member(names) as (_, served):
        await until(lambda: len(owned(served)) == len(names), seconds=120)

        async def acknowledge(one: Served, upto: int) -> None:
            for offset in range(1, upto + 1):
                assert await one.queue.acknowledge(one.generation or 0, offset, str(upto))

        async with anyio.create_task_group() as tasks:
            for number, one in enumerate(served.values()):
                tasks.start_soon(acknowledge, one, number + 1)
        for number, one in enumerate(served.values()):
            assert await one.queue.acknowledged() == Acknowledged(offset=number + 1, metadata=str(number + 1))


async def test_many_tables_that_start_ask_kafka_together_and_each_gets_its_own_answers(
    members: Members, settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, send = collections.Counter[str](), KafkaConnection._send_request

    def counted(connection: Any, request: Any, **given: Any) -> Any:
        sent[type(request).__name__] += 1
        return send(connection, request, **given)

    names = named(dataset, 24)
    async with members.member(names) as (_, served):
        await until(lambda: len(owned(served)) == len(names), seconds=120)
        for number, name in enumerate(names[:3]):
            queue = served[name].queue
            await stage(queue, settings, [b"%d" % n for n in range(number + 2)])
            await queue.publish([Publication(key=None, value=name.encode(), partition=0)])
        await to_thread.run_sync(delete_topic, topics_of(settings, names[-1]).staged, settings)

        async def ask(number: int, name: str) -> None:
            queue, count = served[name].queue, number + 2 if number < 3 else 0
            if name == names[-1]:
                with pytest.raises(RefusedToRun, match="there is no topic"):
                    await queue.identity()
                return
            assert (await queue.identity()).topic == topics_of(settings, name).staged
            assert await queue.bounds() == (0, count)
            assert [record.value for record in await queue.read(1, 2)] == ([b"1"] if count else [])
            assert await queue.outcomes_tail(9) == ([name.encode()] if count else [])
            assert await queue.acknowledged() is None
            assert await queue.time_ms()

        monkeypatch.setattr(KafkaConnection, "_send_request", counted)
        async with anyio.create_task_group() as tasks:
            for number, name in enumerate(names):
                tasks.start_soon(ask, number, name)
    assert sent["OffsetFetchRequest"] < len(names), sent
    assert sent["DescribeQuorumRequest"] < len(names), sent


async def test_records_that_cannot_be_unpacked_are_their_dataset_s_trouble(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a disk had changed a byte; kafka-python alone would never return from the next poll."""
    validate = DefaultRecordBatch.validate_crc
    monkeypatch.setattr(
        DefaultRecordBatch,
        "validate_crc",
        lambda batch: b"poison" not in bytes(batch._buffer) and validate(batch),
    )
    bad, good = named(dataset, 2)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        member.serving(bad) as broken,
        member.serving(good) as kept,
    ):
        await stage(broken, settings, [b"poison"])
        generation = await assignment(kept)
        await kept.seek(generation, 0)
        for _ in range(2):
            await broken.seek(await assignment(broken), 0)
            assert "CORRUPT" in (await failure(broken)).reason.upper()
        await stage(kept, settings, [b"1"])
        assert [r.value for r in await take(kept, 1)] == [b"1"]
        await stage(broken, settings, [b"good"])
        await broken.seek(await assignment(broken), 1)
        assert [r.value for r in await take(broken, 1)] == [b"good"]


async def test_a_refused_record_refuses_no_record_of_another_dataset(settings: KafkaSettings, dataset: str) -> None:
    small, *others = named(dataset, 6)
    async with (
        opened_member(settings, f"group-of-{dataset}", name=dataset) as member,
        contextlib.AsyncExitStack() as stack,
    ):
        refusing = await stack.enter_async_context(member.serving(small))
        queues = [await stack.enter_async_context(member.serving(name)) for name in others]
        with operator(settings) as admin:
            configure_topic(admin, refusing.topics.outcomes, "max.message.bytes", "50000")
        ended = anyio.Event()

        async def refuse() -> None:
            for _ in range(5):
                with pytest.raises(QueueUnavailable, match="refuses 1 of") as refused:
                    await refusing.publish([publication(b"good"), publication(bytes(200_000))])
                assert refused.value.code == "record_refused"
            ended.set()

        async def publish(queue: KafkaQueue) -> None:
            number = 0
            while not ended.is_set():
                await queue.publish([publication(b"%d" % number)])
                number += 1
            assert {b"%d" % n for n in range(number)} <= set(await queue.outcomes_tail(10_000))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            for queue in queues:
                tasks.start_soon(publish, queue)
        assert set(await refusing.outcomes_tail(100)) == {b"good"}
        # It comes back to the others' producer once its records pass.
        await refusing.publish([publication(b"small")])
        await refusing.publish([publication(b"smaller")])
        assert b"smaller" in await refusing.outcomes_tail(100)


def publication(value: bytes) -> Publication:
    return Publication(key=b"k", value=value)


async def test_a_topic_without_rights_is_its_own_trouble(strict_kafka: KafkaBroker, dataset: str) -> None:
    user, password = LOGIN
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": user}
    settings = settings_for(
        strict_kafka.login_servers,
        **{**PATIENT, "metadata_max_age_ms": 3_000},
        **login,
        sasl_plain_password=password,
    )
    administrator = settings_for(strict_kafka.bootstrap_servers, **PATIENT)
    group = f"group-of-{dataset}"
    closed, open_ = named(dataset, 2)
    for name in (closed, open_):
        topics = topics_of(settings, name, group=group)
        async with open_kafka_queue(administrator, name):
            pass
        await to_thread.run_sync(allow, strict_kafka, needed(topics))
    async with (
        opened_member(settings, group, name=dataset) as member,
        member.serving(closed) as denied,
        member.serving(open_) as kept,
    ):
        generation = await assignment(kept)
        await kept.seek(generation, 0)
        await denied.seek(await assignment(denied), 0)
        read = (ACLOperation.READ, ResourceType.TOPIC, denied.topics.staged)
        await to_thread.run_sync(forbid, strict_kafka, read)
        await revocation(denied)
        await until(lambda: f"on Topic {denied.topics.staged}" in denied.trouble())
        assert kept.trouble() == ""
        await stage(kept, administrator, [b"1"])
        assert [r.value for r in await take(kept, 1)] == [b"1"]
        assert await kept.acknowledge(generation, 1, "")
        await to_thread.run_sync(allow, strict_kafka, [read])
        await stage(denied, administrator, [b"2"])
        with anyio.fail_after(60):
            while True:
                event = await denied.next_event()
                if isinstance(event, Assigned):
                    await denied.seek(event.generation, 0)
                elif isinstance(event, Fetched) and event.records:
                    break
        assert denied.trouble() == ""


async def test_a_request_that_hangs_does_not_look_as_if_kafka_were_silent(
    members: Members, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang(*_: object) -> dict[str, int | None]:
        asked.set()
        released.wait(300)
        return {}

    monkeypatch.setattr(TopicAdmin, "retentions_ms", hang)
    async with members.member(named(dataset, 1)) as (_, served):
        (one,) = served.values()
        await until(asked.is_set)
        for _turn in range(2):
            at = one.queue._responded_at
            await until(lambda at=at: one.queue._responded_at > at)  # type: ignore[misc]
        released.set()


async def test_datasets_that_begin_together_have_their_topics_created_in_one_request(
    members: Members, settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, sent = list[int](), collections.Counter[str]()
    send = KafkaConnection._send_request

    def noting(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        sent[type(request).__name__] += 1
        if type(request).__name__ == "CreateTopicsRequest":
            created.append(len(request.topics))
        return send(self, request, *args, **options)

    async def serve(name: str) -> None:
        async with member.serving(name) as queue:
            await assignment(queue, seconds=120)
            served.add(name)
            await anyio.sleep_forever()

    served, names = set[str](), named(dataset, 30)
    monkeypatch.setattr(KafkaConnection, "_send_request", noting)
    async with (
        opened_member(settings, members.group, name=dataset) as member,
        anyio.create_task_group() as tasks,
    ):
        for name in names:
            tasks.start_soon(serve, name)
        await until(lambda: served == set(names), seconds=120)
        tasks.cancel_scope.cancel()
    # A broker that is slow to describe what it has created is asked once more.
    assert created[0] == 3 * len(names)
    assert sent["DescribeGroupsRequest"] < len(names)


@pytest.mark.parametrize("missing", ["topics", "leaders"])
async def test_a_dataset_that_waits_for_its_topics_holds_up_no_other_and_ends_at_once(
    members: Members, settings: KafkaSettings, dataset: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_PREPARATION_SECONDS_MAX", 10_000.0)
    here, *others = named(dataset, 46)
    async with members.member([here]):
        pass
    mode = "check"
    if missing == "leaders":
        others, mode = others[:2], "create"
        monkeypatch.setattr(preparation, "without_leader", lambda survey, created: "".join(created))
    patient = settings.model_copy(update={"topics_mode": mode, "bootstrap_timeout_ms": 600_000})

    async def serve(name: str) -> None:
        async with member.serving(name):
            raise AssertionError("it has no topics that can be used")

    with anyio.fail_after(300):
        async with opened_member(patient, members.group, name=dataset) as member, anyio.create_task_group() as tasks:
            for name in others:
                tasks.start_soon(serve, name)
            await anyio.wait_all_tasks_blocked()
            async with member.serving(here) as queue:
                await assignment(queue, seconds=120)
            assert len(member._preparation._waiting) == len(others)
            await until(lambda: to_thread.current_default_thread_limiter().borrowed_tokens == 0)
            tasks.cancel_scope.cancel()


_MEMBER = """
import contextlib, sys, anyio
from committerd.kafka.member import opened_member
from tests.kafka.staging import PATIENT, assignment, settings_for

async def main():
    servers, group, *names = sys.argv[1:]
    settings = settings_for(servers, **{**PATIENT, "session_timeout_ms": 5_000})
    async with opened_member(settings, group, name="other") as member, contextlib.AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(member.serving(name)) for name in names]
        for queue in queues:
            await assignment(queue)
        print("active", flush=True)
        await anyio.sleep(300)

anyio.run(main)
"""


@contextlib.contextmanager
def member_elsewhere(servers: str, group: str, names: Iterable[str]) -> Iterator[subprocess.Popen[str]]:
    """A member that owns all datasets, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _MEMBER, servers, group, *names],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "active\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_takes_over_all_datasets_of_a_member_that_is_gone(
    kafka: KafkaBroker | RunningKafka, dataset: str, how: signal.Signals
) -> None:
    settings = settings_for(kafka.bootstrap_servers, **{**PATIENT, "session_timeout_ms": 5_000})
    names, group = named(dataset, 10), f"group-of-{dataset}"
    with member_elsewhere(kafka.bootstrap_servers, group, names) as process:
        process.send_signal(how)
        async with Members(settings, group).member(names) as (_, served):
            await until(lambda: len(owned(served)) == len(names), seconds=60)


async def test_idle_datasets_cost_no_requests_of_their_own(
    members: Members, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = collections.Counter[str]()
    send = KafkaConnection._send_request

    def counted(connection: Any, request: Any, **given: Any) -> Any:
        sent[type(request).__name__] += 1
        return send(connection, request, **given)

    monkeypatch.setattr(KafkaConnection, "_send_request", counted)
    names = named(dataset, 20)
    async with members.member(names) as (_, served):
        await until(lambda: len(owned(served)) == len(names), seconds=120)
        await anyio.sleep(2)
        began = time.monotonic()
        sent.clear()
        await anyio.sleep(15)
        seen, seconds = sent.copy(), time.monotonic() - began
    # A fetch waits for 50 ms here, and a heartbeat comes every 0.3 s, however many datasets there are. A busy machine
    # makes both fewer.
    assert seen["FetchRequest"] <= seconds / 0.05 + 2, seen
    assert seen["HeartbeatRequest"] <= seconds / 0.3 + 2, seen
    rest = seen.total() - seen["FetchRequest"] - seen["HeartbeatRequest"]
    assert rest < len(names) * seconds / 15, seen
