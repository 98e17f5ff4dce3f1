"""The feed of change events, on a real topic and tables that pylance writes: no committer is needed for what it tells.

Each test waits for what the topic holds in the end, never for a duration.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from kafka.errors import MessageSizeTooLargeError
from prometheus_client import CollectorRegistry

from committerd.committer.change_feed import ChangeFeed
from committerd.concurrency import beside
from committerd.errors import QueueUnavailable
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.queue import KafkaQueue
from committerd.queue.change_event import EventSource
from committerd.queue.port import Publication
from committerd.stores.local import LocalStore
from committerd.table.versions import Table
from committerd.telemetry import Metrics
from committerd_common.branches import branch_uri
from harness.kafka import KafkaBroker, RunningKafka
from harness.kafka_topics import configure_topic
from harness.lance_table import LanceTable
from tests.kafka.staging import PATIENT, delete_topic, operator, settings_for, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

TOLD_SECONDS = 120


class Events:
    """A table, and the topic of its events."""

    def __init__(self, queue: KafkaQueue, folder: Path) -> None:
        self.queue = queue
        self.table = LanceTable(str(folder / "table.lance"))
        self.store = LocalStore(folder / "table.lance")
        self.telemetry = Metrics(CollectorRegistry()).of("t")
        self.several = False
        """Whether several feeds publish at once, each all events."""

    @contextlib.asynccontextmanager
    async def feed(self) -> AsyncIterator[ChangeFeed]:
        """A feed that runs, as that of a committer that starts now."""
        made = ChangeFeed(
            self.queue,
            EventSource(dataset="t", uri=self.table.uri),
            new_table=lambda: Table(self.store, manifests_max=1, manifest_bytes_max=0),
            telemetry=self.telemetry,
            wall_clock=lambda: datetime(2026, 11, 27, tzinfo=UTC),
        )
        async with beside(made.run):
            yield made

    async def told(self) -> list[str]:
        """Let a new feed tell what is to be told; returns what the topic holds then."""
        async with self.feed() as feed:
            return await self.told_by(feed)

    async def told_by(self, feed: ChangeFeed) -> list[str]:
        """Let a feed tell all up to the table's latest version; returns what the topic holds then."""
        latest = await Table(self.store).latest()
        assert latest is not None
        feed.reached(latest)
        return await self.caught_up(feed)

    async def caught_up(self, feed: ChangeFeed) -> list[str]:
        with anyio.fail_after(TOLD_SECONDS):
            await feed.caught_up()
        assert (feed.lag, feed.trouble) == (0, "")
        return [text_of(one) for one in await self.all()]

    async def all(self) -> list[dict[str, Any]]:
        """The events in the topic, each as it came first.

        None comes twice, unless Kafka was so slow that a producer was replaced: then it may hold a record twice.
        """
        values = await self.queue.events_tail(10_000)
        found = [json.loads(value) for value in values if b"committerd." in value]
        distinct = dict[str, dict[str, Any]]()
        for event in found:
            distinct.setdefault(event["id"], event)
        if not self.several and not self.queue._events._producers.all.replaced:
            assert len(found) == len(distinct)
        return list(distinct.values())

    def manifest(self, version: int) -> Path:
        return Path(self.table.uri, "_versions", f"{2**64 - 1 - version}.manifest")


def text_of(event: dict[str, Any]) -> str:
    """What a consumer must know of an event."""
    data = event["data"]
    match event["type"]:
        case "committerd.version.committed":
            return f"{data['version']} {' '.join(data['operations'])} {data['rows_added']} {data['rows_removed']}"
        case "committerd.versions.missed":
            return f"missed {data['first']} to {data['last']}: {data['reason']}"
        case _:
            return f"replaced at {data['told_version']} by {data['latest_version']}"


Opened = Callable[[], contextlib.AbstractAsyncContextManager[Events]]


@pytest.fixture
def opened(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path) -> Opened:
    settings = settings_for(kafka.bootstrap_servers, change_events=True, **PATIENT)

    @contextlib.asynccontextmanager
    async def open_events() -> AsyncIterator[Events]:
        async with open_kafka_queue(settings, dataset) as queue:
            yield Events(queue, tmp_path)

    return open_events


async def test_it_goes_on_from_the_end_of_the_topic(opened: Opened) -> None:
    async with opened() as events:
        table = events.table
        table.create(rows=3)
        table.write()
        told = ["missed 1 to 1: new_topic", "2 append 1 0"]
        assert await events.told() == told

        # What other programs write to the topic means nothing, and the next feed tells nothing twice.
        others = [Publication(key=None, value=value) for value in (b"no event", b'{"type": "com.example", "data": {}}')]
        await events.queue.publish_events(others)
        table.open().delete("true")
        table.open(1).restore()
        told += ["3 delete 0 4", "4 restore 3 0"]
        assert await events.told() == told
        assert (await events.all())[-1]["data"]["restored_version"] == 1

        async with events.feed() as feed:
            assert await events.told_by(feed) == told
            # A version that the committer has put is told from memory.
            table.write(2)
            kept = await Table(events.store).latest()
            assert kept is not None
            events.manifest(5).rename(events.manifest(5).with_suffix(".hidden"))
            feed.put(kept)
            told.append("5 append 2 0")
            assert await events.caught_up(feed) == told
            events.manifest(5).with_suffix(".hidden").rename(events.manifest(5))


async def test_versions_that_are_gone_or_damaged_are_named(opened: Opened) -> None:
    async with opened() as events:
        table = events.table
        table.create()
        assert await events.told() == ["1 overwrite 1 0"]
        for _ in range(30):  # more than are read at once
            table.write()
        for gone in (2, 3, 20, 21, 22):
            events.manifest(gone).unlink()
        events.manifest(10).write_bytes(b"damaged")
        found = (await events.told())[1:]
        assert found[:2] == ["missed 2 to 3: gone", "4 append None None"]
        assert found[2:8] == [f"{n} append 1 0" for n in range(5, 10)] + ["missed 10 to 10: unreadable"]
        assert found[8:18] == ["11 append None None"] + [f"{n} append 1 0" for n in range(12, 20)] + [
            "missed 20 to 22: gone"
        ]
        assert found[18:] == ["23 append None None"] + [f"{n} append 1 0" for n in range(24, 32)]


@pytest.mark.parametrize("versions", [1, 4], ids=["lower", "higher"])
async def test_a_table_that_was_replaced_is_told_anew(opened: Opened, versions: int) -> None:
    async with opened() as events:
        table = events.table
        table.create()
        for _ in range(2):
            table.write()
        await events.told()
        before = len(await events.all())
        shutil.rmtree(table.uri)
        table.create(rows=2)
        for _ in range(versions - 1):
            table.write()
        found = (await events.told())[before:]
        assert found[0] == f"replaced at 3 by {versions}"
        assert found[1:] == ["1 overwrite 2 0"] + [f"{n} append 1 0" for n in range(2, versions + 1)]
        assert len(await events.told()) == before + len(found)


async def unusable(queue: KafkaQueue) -> str:
    """Why the events topic can't be used, as a broker says that responds in time: a busy broker may not at first."""
    with anyio.fail_after(TOLD_SECONDS):
        while True:
            with pytest.raises(QueueUnavailable) as raised:
                await queue.events_topic_id()
            if "timed out" not in str(raised.value):
                return str(raised.value)


async def test_a_topic_that_can_not_be_used_says_what_to_do(opened: Opened, kafka: KafkaBroker | RunningKafka) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT)
    async with opened() as events:
        topic = events.queue.topics.events
        with operator(settings) as admin:
            admin.create_partitions({topic: 2})
            # The controller responds before the broker applies it.
            await until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 2, seconds=120)
        assert f"{topic} must have 1 partition: delete it, and" in await unusable(events.queue)
        await to_thread.run_sync(delete_topic, topic, settings)
        assert f"there is no topic {topic}: `committerd topics create`" in await unusable(events.queue)


async def test_no_event_comes_before_one_that_the_topic_refuses(
    opened: Opened, kafka: KafkaBroker | RunningKafka
) -> None:
    """Records of which a broker refuses one are sent again one by one."""
    too_large, numbers = MessageSizeTooLargeError(), count(1)
    async with opened() as events:
        with operator(settings_for(kafka.bootstrap_servers, **PATIENT)) as admin:
            await to_thread.run_sync(configure_topic, admin, events.queue.topics.events, "max.message.bytes", "1000")
        refused = 0
        while not refused:  # a broker may take a record after it has reported the new limit
            number = next(numbers)
            values = (b"first %d" % number, b"x" * 100_000, b"last %d" % number)
            try:
                await events.queue._events._send_one_by_one(
                    [(Publication(key=None, value=value), too_large) for value in values]
                )
            except QueueUnavailable as error:
                refused = number if error.code == "record_refused" else 0
        found = await events.queue.events_tail(10)
        assert b"first %d" % refused in found
        assert b"last %d" % refused not in found


async def test_two_committers_at_once_tell_each_version_first_in_order(opened: Opened) -> None:
    """As one that was frozen, and has not noticed yet that another one has taken over."""
    async with opened() as events:
        events.table.create()
        await events.told()
        events.several = True
        async with events.feed() as frozen, events.feed() as active:
            for _ in range(20):
                events.table.write()
                latest = await Table(events.store).latest()
                assert latest is not None
                for feed in (frozen, active):
                    feed.reached(latest)
            for feed in (frozen, active):
                await events.caught_up(feed)
        found = [event["data"]["version"] for event in await events.all()]
        assert found == list(range(1, 22))


async def test_a_branch_is_told_from_where_it_begins(opened: Opened) -> None:
    async with opened() as events:
        events.table.create()
        events.table.write()
        events.table.open().create_branch("dev")
        place = branch_uri(events.table.uri, "dev")
        events.table, events.store = LanceTable(place), LocalStore(Path(place))
        below = events.table.version
        first, begins = await events.told()
        assert first == f"missed 1 to {below - 1}: new_topic"
        events.table.write()
        assert await events.told() == [first, begins, f"{below + 1} append 1 0"]
        assert [event["data"].get("branch") for event in await events.all()] == [None, "dev", "dev"]
