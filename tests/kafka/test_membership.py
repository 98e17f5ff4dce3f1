"""The owner of the topic: standbys, takeovers, members that are removed from the group."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from kafka.admin import MemberToRemove

from committerd.kafka.member import open_kafka_queue
from committerd.kafka.options import topics_of
from committerd.queue.port import Acknowledged
from committerd.settings.kafka import KafkaSettings
from harness.kafka import KafkaBroker, RunningKafka
from tests.kafka.staging import (
    PATIENT,
    assignment,
    operator,
    revocation,
    settings_for,
    stage,
    take,
    take_what_comes,
    until,
)

pytestmark = pytest.mark.kafka

_ROOT = Path(__file__).resolve().parents[2]
_MEMBER = """
import sys, anyio
from committerd.kafka.member import open_kafka_queue
from tests.kafka.staging import PATIENT, assignment, settings_for

async def main():
    settings = settings_for(sys.argv[1], **{**PATIENT, "session_timeout_ms": int(sys.argv[3])})
    async with open_kafka_queue(settings, sys.argv[2]) as queue:
        while not await queue.acknowledge(await assignment(queue), 0, "other process"):
            pass  # a busy machine ended its session
        print("active", flush=True)
        await anyio.sleep(300)

anyio.run(main)
"""


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    """With a session that ends by itself in no test."""
    return settings_for(kafka.bootstrap_servers, **PATIENT)


@pytest.fixture
def short_session(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    """With a session that a test can wait for, and that a busy machine does not end."""
    return settings_for(kafka.bootstrap_servers, **{**PATIENT, "session_timeout_ms": 5_000})


@contextlib.contextmanager
def member_elsewhere(settings: KafkaSettings, dataset: str) -> Iterator[subprocess.Popen[str]]:
    """The active member, in a process of its own."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _MEMBER),
            *(",".join(settings.bootstrap_servers), dataset, str(settings.session_timeout_ms)),
        ],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "active\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def members(settings: KafkaSettings, dataset: str) -> int:
    """The number of members, when the group is stable."""
    group = topics_of(settings, dataset).group
    with operator(settings) as admin:
        (described,) = admin.describe_groups([group]).values()
    return len(described["members"]) if described["group_state"] == "Stable" else 0


def throw_out(settings: KafkaSettings, dataset: str) -> None:
    """Remove all members from the group, as the broker does with one whose heartbeats are missing."""
    group = topics_of(settings, dataset).group
    with operator(settings) as admin:
        described = admin.describe_groups([group])
        members = next(iter(described.values()))["members"]
        assert members
        admin.remove_group_members(group, [MemberToRemove(member_id=member["member_id"]) for member in members])


async def test_a_standby_joins_without_disturbing_and_takes_over_at_once(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as first:
        generation = await assignment(first)
        await first.seek(generation, 0)
        async with open_kafka_queue(settings, dataset) as second:
            await until(lambda: second.member_state() == "standby")
            assert first.member_state() == "active"
            await stage(first, settings, [b"0", b"1"])
            # The new member revokes and moves nothing: same generation, and records continue.
            await take(first, 2)
            assert await first.acknowledge(generation, 2, "v1")
            began = time.monotonic()
            first.leave()
            theirs = await assignment(second)
            assert time.monotonic() - began < 28, "a heartbeat and a join; the session is 30 s"
            await until(lambda: second.member_state() == "active")
            assert await second.acknowledged() == Acknowledged(offset=2, metadata="v1")
            await stage(second, settings, [b"2"])
            await second.seek(theirs, 1)
            assert [r.value for r in await take(second, 2)] == [b"1", b"2"]


async def test_takes_over_from_a_process_that_was_killed(short_session: KafkaSettings, dataset: str) -> None:
    settings = short_session
    with member_elsewhere(settings, dataset) as other:
        async with open_kafka_queue(settings, dataset) as queue:
            await until(lambda: queue.member_state() == "standby")
            began = time.monotonic()
            other.kill()
            await assignment(queue)
            took = time.monotonic() - began
            assert took < settings.session_timeout_ms / 1000 + 60
            assert await queue.acknowledged() == Acknowledged(offset=0, metadata="other process")


async def test_a_cancelled_member_leaves_the_group(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as active:
        await assignment(active)
        with anyio.CancelScope() as scope:
            async with open_kafka_queue(settings, dataset) as other:
                await until(lambda: other.member_state() == "standby")
                scope.cancel()
                await anyio.sleep(60)
        await until(lambda: members(settings, dataset) == 1, seconds=settings.session_timeout_ms / 1000 * 0.9)


async def test_acknowledges_throughout_a_rebalance(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as first, anyio.create_task_group() as tasks:
        generation = await assignment(first)
        done = anyio.Event()

        async def come_and_go() -> None:
            for _ in range(3):
                async with open_kafka_queue(settings, dataset) as other:
                    await until(lambda other=other: other.member_state() == "standby")  # type: ignore[misc]  # a default is not inferred
            done.set()

        tasks.start_soon(come_and_go)
        count = 0
        while not done.is_set():
            count += 1
            assert await first.acknowledge(generation, count, "")
        assert count > 3
        found = await first.acknowledged()
        assert found is not None
        assert found.offset == count


async def test_a_member_that_was_thrown_out_acknowledges_nothing(settings: KafkaSettings, dataset: str) -> None:
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await stage(queue, settings, [b"0", b"1"])
        await queue.seek(generation, 0)
        await take(queue, 2)
        await to_thread.run_sync(throw_out, settings, dataset)
        assert not await queue.acknowledge(generation, 2, "")
        gone = await revocation(queue)
        assert (gone.generation, gone.lost) == (generation, True)
        again = await assignment(queue)
        assert again == generation + 1
        # Parked again: nothing arrives from the old position, nor from calls that belong to it.
        await stage(queue, settings, [b"2"])
        await queue.seek(generation, 0)
        assert not await queue.acknowledge(generation, 2, "")
        assert await take_what_comes(queue) == []
        await queue.seek(again, 2)
        assert [r.offset for r in await take(queue, 1)] == [2]
        assert await queue.acknowledge(again, 3, "")


async def test_a_process_that_slept_through_its_session_loses_the_topic(
    short_session: KafkaSettings, dataset: str
) -> None:
    settings = short_session
    with member_elsewhere(settings, dataset) as other:
        async with open_kafka_queue(settings, dataset) as queue:
            await until(lambda: queue.member_state() == "standby")
            other.send_signal(signal.SIGSTOP)
            generation = await assignment(queue)
            await stage(queue, settings, [b"0"])
            await queue.seek(generation, 0)
            await take(queue, 1)
            other.send_signal(signal.SIGCONT)
            # It comes back, as a standby. Sometimes Kafka's sticky assignment returns the partition to it, for a while
            # or for good: then this assignment is over, and we acknowledge nothing.
            await until(lambda: members(settings, dataset) == 2)
            if await queue.acknowledge(generation, 1, "mine"):
                assert await queue.acknowledged() == Acknowledged(offset=1, metadata="mine")
            else:
                assert (await revocation(queue)).generation == generation
