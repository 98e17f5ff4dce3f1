"""What cannot be read is its partition's trouble, and memory stays bounded, whatever begins again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.record.default_records import DefaultRecordBatch
from kafka.structs import OffsetAndMetadata

from committerd.errors import QueueUnavailable
from committerd.kafka.clients import open_client
from committerd_client.app_marks import AppMark
from committerd_client.errors import RetryableConflict
from committerd_client.headers import App
from committerd_common.request import MARK_MOVED
from committerd_ingest import partition as partition_module
from committerd_ingest.batches import fetched, poll, read_in_columns
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.decoding import RecordColumns
from committerd_ingest.kafka_facts import Topics
from committerd_ingest.marks import Note
from committerd_ingest.partition import PartitionWork
from committerd_ingest.pipeline import Ingest
from committerd_ingest.records import NO_TIMESTAMP, Partition, Record, Records
from committerd_ingest.routing import Filter
from committerd_ingest.settings import Pipeline
from committerd_ingest.source import Arrived, Assigned, Event, Sought, Source, Unreadable
from committerd_ingest.table import Said
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import Topic

PIPELINE = Pipeline(
    name="p",
    topics=["t"],
    topic_pattern="",
    topics_seconds=3600,
    format="json",
    columns=RecordColumns(),
    value_column="",
    start="earliest",
    on_error="stop",
    flush=FlushLimits(rows=100, bytes=10_000, seconds=3600),
    buffer_bytes_max=10_000,
    retry_seconds=3600,
)


def unopened() -> Any:
    raise AssertionError("nothing is opened here")


def no_broker() -> Any:
    raise QueueUnavailable("no Kafka broker could be used")


class Counted:
    """Counts how often a partition began again."""

    def __init__(self) -> None:
        self.again = 0
        self.changed = asyncio.Event()

    def began_again(self, reason: str) -> None:
        assert reason == "failed"
        self.again += 1
        self.changed.set()


@pytest.mark.parametrize("fails", [no_broker, unopened])
async def test_a_partition_is_tried_again_whatever_has_failed_and_counts_as_stopped(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[], Any]
) -> None:
    monkeypatch.setattr(partition_module, "_FAILED_SECONDS", 0.01)
    counted = Counted()
    work = PartitionWork(
        Partition("t", 0),
        PIPELINE,
        source=Source(unopened, topics=["t"], tell=lambda event: None),
        table=cast("Any", None),
        topics=Topics(fails),
        bad_records=cast("Any", None),
        figures=cast("Any", counted),
        writing=asyncio.Semaphore(),
    )
    running = asyncio.create_task(work.run())
    while counted.again < 3:
        counted.changed.clear()
        await asyncio.wait_for(counted.changed.wait(), 60)
    assert not running.done()
    assert work.stopped
    assert work.trouble is not None
    assert work.trouble.reason == "failed"
    assert "it failed 3 times without a commit between them: " in str(work.trouble)
    assert work.trouble.costly is (fails is unopened)
    running.cancel()


class Noted(Source):
    """Notes what is paused and resumed."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        super().__init__(unopened, topics=["t"], tell=tell)
        self.paused = set[Partition]()

    def pause(self, partitions: Sequence[Partition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self.paused -= set(partitions)


MARK = AppMark(app_id="p", run="id", version=3, uuid="", table_version=1, offset=0)


class Marked:
    """Stands for table, topics and figures of a partition; notes where the mark is moved, and from where."""

    opened = None

    def __init__(self, mark: AppMark | None = None) -> None:
        self.moves: list[tuple[int, int | None]] = []
        self._mark = mark

    async def identity(self, topic: str) -> tuple[str, str]:
        return "cluster", "id"

    async def says(self, app_id: str) -> Said[Note | None]:
        at: Any = None  # nothing is written
        note = None if self._mark is None else Note(topic_id="id", offset=0, at_ms=2**62)
        return Said(at, pa.schema([("id", pa.int64())]), self._mark, note)

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        return 0, 9

    async def write_note(self, app_id: str, note: object, unit: App) -> bool:
        self.moves.append((unit.version, unit.after))
        return False

    def took(self, step: str, seconds: float) -> None:
        pass

    def passed(self, records: int, *, unmatched: int) -> None:
        pass

    def wrote(self, **figures: int) -> None:
        pass


def work_with(
    marked: Any,
    *,
    pipeline: Pipeline = PIPELINE,
    writing: asyncio.Semaphore | None = None,
    bad_records: object = None,
) -> PartitionWork:
    return PartitionWork(
        Partition("t", 0),
        pipeline,
        source=Noted(lambda event: None),
        table=marked,
        topics=marked,
        bad_records=cast("Any", bad_records),
        figures=marked,
        writing=writing or asyncio.Semaphore(),
    )


async def test_the_mark_passes_records_of_other_routes_before_a_partition_stops() -> None:
    kinds = Filter(by="header", name="kind", mine=frozenset({"a"}), known=None, unmatched_bad=True)
    marked: Any = Marked()
    work = work_with(marked, pipeline=replace(PIPELINE, filter_of=lambda topic: kinds))
    work._topic_id = "id"
    records = [Record(5, 0, None, b"{}", [("kind", b"b")]), Record(7, 0, None, b"{", [("kind", b"a")])]
    for _ in range(2):  # Kafka may delete record 5 meanwhile: nobody reads it again
        with pytest.raises(partition_module.Stopped, match="offset 7 makes no row"):
            await work._write(Records.of(records), None)
        assert (work.mark, marked.moves) == (7, [(7, 0)])


async def test_a_partition_that_begins_again_while_memory_is_full_is_paused_again() -> None:
    sources: list[Noted] = []

    def open_source(tell: Callable[[Event], None]) -> Source:
        sources.append(Noted(tell))
        return sources[0]

    ingest = Ingest(
        PIPELINE,
        open_source=open_source,
        table=cast("Any", None),
        topics=Topics(no_broker),
        bad_records=cast("Any", None),
        figures=cast("Any", Counted()),
    )
    one, other = Partition("t", 0), Partition("t", 1)
    (source,) = sources
    happens = cast("Callable[[Event], None]", ingest._event)
    happens(Assigned([one, other]))
    for place in (one, other):
        happens(Sought(place, 1, by=ingest._works[place][0]))
        happens(Arrived(place, 1, Records.of([Record(0, 0, None, b"x" * 6_000)])))
    assert source.paused == {one, other}
    # It begins again: it has dropped its records, and the seek resumes it. The other one still holds its own.
    source.resume([one])
    happens(Sought(one, 2, by=ingest._works[one][0]))
    happens(Arrived(one, 2, Records.of([Record(1, 0, None, b"x" * 6_000)])))
    assert source.paused == {one, other}
    for place in (one, other):
        ingest._end(place)


class Recorded:
    """Stands for a consumer; notes where it reads on."""

    def __init__(self) -> None:
        self.offset = -1

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.offset = offset

    def pause(self, place: TopicPartition) -> None:
        pass

    resume = pause

    def commit_async(self, offsets: object, callback: object) -> None:
        pass


async def test_a_partition_that_is_given_out_twice_takes_its_records_once() -> None:
    """The seek of the work on its first assignment is done during the second one."""
    ingest, source = opened(Marked(MARK))
    consumer, place = Recorded(), TopicPartition("t", 0)

    async def sought() -> None:
        """What the thread does, until it has been told where the partition begins; then the records come."""
        source._run_calls(consumer)
        while consumer.offset <= 0:
            await asyncio.sleep(0)
            source._run_calls(consumer)
        records = records_of(consumer.offset, 9)
        source._later(source._tell, Arrived(Partition(*place), source._seeks[place], records))
        consumer.offset = -1

    source.assigned(consumer, [place])
    while source._calls.qsize() < 2:  # noqa: ASYNC110  # a note, and where it begins
        await asyncio.sleep(0)
    source.revoked([place])
    source.assigned(consumer, [place])
    for _ in range(2):
        await sought()
    await asyncio.sleep(0)
    work, running = ingest._works[Partition(*place)]
    assert work.buffer.records.offsets.tolist() == [3, 4, 5, 6, 7, 8]
    assert not work._broken
    running.cancel()


class Deaf(Marked):
    """Asked for the bounds of a partition, it waits until it is cancelled, and then goes on all the same."""

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 0, 9


def opened(marked: Any, pipeline: Pipeline = PIPELINE, registry: Any = None) -> tuple[Ingest, Source]:
    sources: list[Source] = []

    def open_source(tell: Callable[[Event], None]) -> Source:
        sources.append(Source(unopened, topics=["t"], tell=tell))
        return sources[0]

    ingest = Ingest(
        pipeline,
        open_source=open_source,
        table=marked,
        topics=marked,
        bad_records=cast("Any", None),
        figures=marked,
        registry=registry,
    )
    return ingest, sources[0]


async def turned() -> None:
    """Let everything go on that waits for nothing outside of the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def records_of(begin: int, end: int) -> Records:
    return Records.of([Record(number, 0, None, b"{}") for number in range(begin, end)])


async def test_work_ends_with_its_assignment_when_records_arrive_in_the_same_instant() -> None:
    """Otherwise it would go on beside the work on the next assignment, and pause and seek its partition."""
    ingest, source = opened(Marked(MARK))
    consumer, place = Recorded(), TopicPartition("t", 0)
    source.assigned(consumer, [place])
    await turned()
    source._run_calls(consumer)
    await turned()
    first, running = ingest._works[Partition(*place)]
    assert first._seek == source._seeks[place]
    source._later(source._tell, Arrived(Partition(*place), first._seek, records_of(3, 6)))
    source.revoked([place])
    source.assigned(consumer, [place])
    await turned()
    assert len(first.buffer.records) == 3
    assert running.cancelled()
    ingest._end(Partition(*place))


async def test_work_that_has_ended_asks_the_source_for_nothing_even_if_its_cancellation_is_lost() -> None:
    ingest, source = opened(Deaf(MARK))
    consumer, place = Recorded(), TopicPartition("t", 0)
    source.assigned(consumer, [place])
    await turned()
    _, running = ingest._works[Partition(*place)]
    source.revoked([place])
    await turned()
    assert running.done()
    assert source._calls.empty()


async def test_records_that_come_behind_a_gap_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other records come after those that were dropped, while a transaction waits for its turn."""
    marked: Any = Marked()
    writing = asyncio.Semaphore(0)
    work = work_with(marked, writing=writing)
    written: list[int] = []

    async def write(records: Records, schemas: object) -> None:
        written.extend(records.offsets)

    monkeypatch.setattr(work, "_write", write)
    work.sought(1)
    work.arrived(1, records_of(0, 10), 0)
    work.press()
    following = asyncio.create_task(work._next())
    await turned()
    work.arrived(1, records_of(5, 15), 0)
    work.arrived(1, records_of(15, 21), 0)
    writing.release()
    with pytest.raises(partition_module._BeginAgain, match="offset 5 came after 9"):
        await following
    assert written == []
    assert work.buffer.records.offsets.tolist() == list(range(10))
    assert not work.busy


async def test_bad_records_that_nobody_takes_hold_up_no_other_partition() -> None:
    """As many partitions as may write at once wait until their bad records are published."""

    class Held:
        def __init__(self) -> None:
            self.waits, self.go_on = asyncio.Event(), asyncio.Event()

        async def publish(self, origin: object, bad: object) -> None:
            self.waits.set()
            await self.go_on.wait()

    held, writing, marked = Held(), asyncio.Semaphore(1), cast("Any", Marked())
    work = work_with(marked, pipeline=replace(PIPELINE, on_error="dead-letter"), writing=writing, bad_records=held)
    work._topic_id = "id"
    work.sought(1)
    work.arrived(1, Records.of([Record(0, NO_TIMESTAMP, None, b"{")]), 0)
    work.press()
    following = asyncio.create_task(work._next())
    await asyncio.wait_for(held.waits.wait(), 60)
    async with writing:  # another partition writes, and this one waits for its turn
        held.go_on.set()
        await turned()
        assert marked.moves == []
        assert work.busy
    await asyncio.wait_for(following, 60)
    assert (marked.moves, work.mark) == ([(1, 0)], 1)
    assert not writing.locked()


async def test_records_that_arrive_while_the_mark_is_moved_wait_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the last records before a quiet hour would stay in memory for that hour."""

    class Moving(Marked):
        async def write_note(self, app_id: str, note: object, unit: App) -> bool:
            work.arrived(1, records_of(5, 6), 0)
            return await super().write_note(app_id, note, unit)

    marked: Any = Moving(MARK)
    each = FlushLimits(rows=1, bytes=10_000, seconds=3600)
    work = work_with(marked, pipeline=replace(PIPELINE, flush=each, mark_seconds=0))
    written: list[int] = []

    async def write(records: Records, schemas: object) -> None:
        written.extend(records.offsets)

    monkeypatch.setattr(work, "_write", write)
    work.sought(1)
    work.mark, work.reached, work._noted_at = 3, 5, time.monotonic()
    following = asyncio.create_task(work._next())
    await turned()
    assert (marked.moves, written) == ([(5, 3)], [5])
    assert following.done()


async def test_a_partition_whose_mark_was_moved_meanwhile_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "_FAILED_SECONDS", 3600)
    monkeypatch.setattr(partition_module, "_AGAIN_SECONDS", 0)
    reasons: asyncio.Queue[str] = asyncio.Queue()

    class Overtaken(Marked):
        async def write_note(self, app_id: str, note: object, unit: App) -> bool:
            raise RetryableConflict("the mark is elsewhere", code=MARK_MOVED)

        def began_again(self, reason: str) -> None:
            reasons.put_nowait(reason)

    marked: Any = Overtaken()  # it enters the partition, as another process does at the same time
    running = asyncio.create_task(work_with(marked).run())
    assert [await asyncio.wait_for(reasons.get(), 60) for _ in range(2)] == ["mark_moved"] * 2
    running.cancel()


class Silent:
    """Stands for a registry that has one schema in memory, and does not answer for the others at first."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    def lacks(self, ids: set[int]) -> set[int]:
        return ids - {GOOD}

    async def schemas(self, ids: set[int]) -> object:
        if self.lacks(ids):
            await self.answers.wait()
        return {}


GOOD, BAD = 1, 0
"""Ids of schemas, and the partitions whose records name them."""


class Fetching:
    """Stands for a consumer; notes what is paused, and where it reads on."""

    def __init__(self) -> None:
        self.paused = set[TopicPartition]()
        self.places = dict[TopicPartition, int]()

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.places[place] = offset

    def pause(self, place: TopicPartition) -> None:
        self.paused.add(place)

    def resume(self, place: TopicPartition) -> None:
        self.paused.discard(place)

    def commit_async(self, offsets: object, callback: object) -> None:
        pass


async def test_a_partition_that_waits_for_schemas_leaves_the_memory_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: dict[int, list[int]] = {GOOD: [], BAD: []}

    async def write(work: PartitionWork, records: Records, schemas: object) -> None:
        written[work.partition.number].extend(records.offsets)

    monkeypatch.setattr(PartitionWork, "_write", write)
    each = FlushLimits(rows=1, bytes=10_000, seconds=3600)
    registry: Any = Silent()
    ingest, source = opened(Marked(MARK), replace(PIPELINE, format="avro", flush=each), registry)
    consumer, places = Fetching(), {number: TopicPartition("t", number) for number in (GOOD, BAD)}

    async def run() -> None:
        for _ in range(5):
            await turned()
            source._run_calls(consumer)
        await turned()

    async def come(number: int, begin: int, end: int) -> None:
        """Records arrive; each takes 2,105 bytes."""
        assert places[number] not in consumer.paused
        value = number.to_bytes(5, "big") + b"x" * 2_000
        records = Records.of([Record(offset, 0, None, value) for offset in range(begin, end)])
        source._later(source._tell, Arrived(Partition("t", number), source._seeks[places[number]], records))
        await run()

    source.assigned(consumer, list(places.values()))
    await run()
    await come(BAD, 3, 10)
    assert places[BAD] in consumer.paused
    for offset in range(3, 9):
        await come(GOOD, offset, offset + 1)
    assert written == {GOOD: [3, 4, 5, 6, 7, 8], BAD: []}
    assert places[BAD] in consumer.paused
    registry.answers.set()
    await run()
    assert (written[BAD], consumer.places[places[BAD]]) == ([3], 4)
    for offset in range(4, 10):
        await come(BAD, offset, offset + 1)
    assert written[BAD] == [3, 4, 5, 6, 7, 8, 9]
    for number in places:
        ingest._end(Partition("t", number))


async def test_a_process_that_ends_fetches_nothing_more_whoever_seeks_or_resumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition has given records back, and seeks when the registry answers. Another one was paused for its memory,
    and there is room again. Otherwise the process would fetch and write until `daemon.drain_seconds` is over."""
    written: list[int] = []

    async def write(work: PartitionWork, records: Records, schemas: object) -> None:
        written.extend(records.offsets)

    monkeypatch.setattr(PartitionWork, "_write", write)
    each = FlushLimits(rows=1, bytes=10_000, seconds=3600)
    registry: Any = Silent()
    ingest, source = opened(Marked(MARK), replace(PIPELINE, format="avro", flush=each), registry)
    consumer, places = Fetching(), [TopicPartition("t", number) for number in (BAD, GOOD)]

    async def run() -> None:
        for _ in range(5):
            await turned()
            source._run_calls(consumer)
        await turned()

    source.assigned(consumer, places)
    await run()
    assert consumer.paused == set()
    value = BAD.to_bytes(5, "big") + b"x" * 2_000
    for begin, end in ((3, 4), (4, 10)):
        records = Records.of([Record(offset, 0, None, value) for offset in range(begin, end)])
        source._later(source._tell, Arrived(Partition("t", BAD), source._seeks[places[0]], records))
        await run()
    assert consumer.paused == {places[0]}
    ingest._full.add(Partition("t", GOOD))
    draining = asyncio.create_task(ingest._drain(3600))
    await run()
    registry.answers.set()
    await run()
    ingest._unbound()
    await run()
    assert (written, consumer.places[places[0]]) == ([3], 4)
    assert consumer.paused == set(places)
    await asyncio.wait_for(draining, 60)
    for number in (BAD, GOOD):
        ingest._end(Partition("t", number))


async def test_a_table_gets_no_columns_of_a_topic_that_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: Any = Marked()
    work = work_with(marked)
    work._topic_id = "the one before"
    monkeypatch.setattr(work, "_new_columns", lambda *_: pa.schema([("new", pa.int64())]))
    with pytest.raises(partition_module._BeginAgain, match="the topic's id is id, and was the one before"):
        await work._write(records_of(0, 1), {})


@pytest.mark.kafka
async def test_records_that_cannot_be_unpacked_are_their_partition_s_trouble(
    kafka: KafkaBroker | RunningKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if they were compressed by a library that is not here, or a disk had changed a byte."""
    validate = DefaultRecordBatch.validate_crc
    monkeypatch.setattr(
        DefaultRecordBatch, "validate_crc", lambda batch: b"poison" not in bytes(batch._buffer) and validate(batch)
    )
    servers = kafka.bootstrap_servers
    events: asyncio.Queue[Event] = asyncio.Queue()
    options = {
        "bootstrap_servers": servers,
        "group_id": f"unpacked-{uuid4().hex[:8]}",
        "auto_offset_reset": "none",
        "metadata_max_age_ms": 1000,
    }
    with contextlib.closing(Topic(servers, partitions=2)) as topic:
        source = Source(
            lambda: open_client(KafkaConsumer, options).client,
            topics=[topic.name],
            tell=events.put_nowait,
        )
        bad, good = Partition(topic.name, 0), Partition(topic.name, 1)
        await source.start()
        try:
            while True:  # the share is empty at first if the broker that was asked does not know the topic yet
                event = await asyncio.wait_for(events.get(), 120)
                if isinstance(event, Assigned) and set(event.partitions) == {bad, good}:
                    break
            topic.send_value(b"poison", partition=0)
            topic.flush()
            for place in (bad, good):
                await source.seek(place, 0, by=None)
            unreadable = await _next(events, Unreadable)
            assert (unreadable.partition, "Corrupt" in unreadable.why) == (bad, True)
            topic.send_value(b"1", partition=1)
            topic.flush()
            arrived = await _next(events, Arrived)
            assert (arrived.partition, [one.value for one in arrived.records]) == (good, [b"1"])
            await source.seek(bad, 0, by=None)  # as somebody does who looks whether it is still so
            assert (await _next(events, Unreadable)).partition == bad
        finally:
            await source.stop()


def test_what_is_left_of_a_paused_partition_comes_when_it_is_resumed(kafka: KafkaBroker | RunningKafka) -> None:
    """kafka-python keeps it for good if it has read another partition to its end meanwhile."""
    servers, count = kafka.bootstrap_servers, 12_000  # more than two polls return
    with (
        contextlib.closing(Topic(servers, partitions=2)) as topic,
        contextlib.closing(KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)) as consumer,
    ):
        for _ in range(count):
            topic.send_value(b"{}")
        topic.flush()
        long, short = places = [TopicPartition(topic.name, number) for number in range(2)]
        read_in_columns(consumer)
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        came: Counter[TopicPartition] = Counter()

        def wait(place: TopicPartition, most: int) -> None:
            until = time.monotonic() + 120
            while came[place] < most:
                assert time.monotonic() < until, came
                for one, found in poll(consumer, timeout_ms=50, batches_max=1).items():
                    came[one] += len(fetched(found))

        wait(long, 1)
        consumer.pause(long)
        assert came[long] < count
        topic.send_value(b"{}", partition=1)
        topic.flush()
        wait(short, 1)
        consumer.resume(long)
        wait(long, count)


async def test_the_topics_of_kafka_itself_match_no_pattern(kafka: KafkaBroker | RunningKafka) -> None:
    servers = kafka.bootstrap_servers
    with contextlib.closing(Topic(servers, partitions=1)) as topic:
        group = f"internal-{uuid4().hex[:8]}"
        with contextlib.closing(KafkaConsumer(bootstrap_servers=servers, group_id=group)) as consumer:
            place = TopicPartition(topic.name, 0)
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(0, "", -1)})  # so that there is a topic of offsets
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
            assert "__consumer_offsets" in admin.list_topics()
        topics = Topics(lambda: KafkaAdminClient(bootstrap_servers=servers))
        names = await topics.names()
        topics.close()
        assert topic.name in names
        assert "__consumer_offsets" not in names


async def _next(events: asyncio.Queue[Event], kind: type[Any]) -> Any:
    """The next event that is no `Sought`. Fails if it is of another kind, such as a group that is left."""
    while isinstance(event := await asyncio.wait_for(events.get(), 120), Sought):
        pass
    assert isinstance(event, kind), event
    return event
