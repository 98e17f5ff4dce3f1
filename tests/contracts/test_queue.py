"""The contract of every queue (`committerd.queue.port.Queue`)."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from committerd.errors import RefusedToRun
from committerd.queue.port import (
    Acknowledged,
    Assigned,
    Fetched,
    FetchFailed,
    Publication,
    Queue,
    Record,
    Revoked,
    record_size,
)
from harness.kafka import KafkaBroker, RunningKafka
from tests.contracts.clusters import Cluster, KafkaCluster, MemoryCluster
from tests.kafka.staging import PATIENT, assignment, failure, revocation, settings_for, take, take_what_comes

TEN = [b"%d" % number for number in range(10)]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka, among other datasets", marks=pytest.mark.kafka),
    ]
)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "memory":
        return MemoryCluster()
    kafka: KafkaBroker | RunningKafka = request.getfixturevalue("kafka")
    settings, others = settings_for(kafka.bootstrap_servers, **PATIENT), 0 if request.param == "kafka" else 2
    return KafkaCluster(settings, request.getfixturevalue("dataset"), others=others)


async def arrivals(queue: Queue, cluster: Cluster) -> list[int]:
    """The offsets of all records that arrive."""
    return [record.offset for record in await take_what_comes(queue, quiet_seconds=cluster.patience)]


async def all_that_fit(queue: Queue, cluster: Cluster, count: int) -> list[Record]:
    """What arrives while none is settled: at least so many records."""
    return [*await take(queue, count), *await take_what_comes(queue, quiet_seconds=cluster.patience)]


async def test_nothing_is_delivered_before_a_seek_says_from_where(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN)
        generation = await assignment(queue)
        assert await arrivals(queue, cluster) == []
        await queue.seek(generation, 7)
        assert [record.value for record in await take(queue, 3)] == [b"7", b"8", b"9"]


async def test_records_arrive_in_order_and_whole(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        headers = [("producer", b"spark"), ("producer", b"again"), ("empty", b"")]
        await cluster.stage([b"first", b"", b"last"], headers)
        records = await take(queue, 3)
        assert [(r.offset, r.value, r.key) for r in records] == [
            (0, b"first", b"key"),
            (1, b"", b"key"),
            (2, b"last", b"key"),
        ]
        assert all(list(r.headers) == headers for r in records)


async def test_a_seek_drops_what_was_on_its_way(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN)
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await anyio.sleep(cluster.patience)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(queue.seek, generation, 8)
            await anyio.lowlevel.checkpoint()
            assert [record.offset for record in await take(queue, 2)] == [8, 9]
        await queue.seek(generation, 0)
        assert [record.offset for record in await take(queue, 10)] == list(range(10))


async def test_the_last_of_several_seeks_counts(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN)
        generation = await assignment(queue)
        async with anyio.create_task_group() as tasks:
            for offset in (0, 5, 2, 9):
                tasks.start_soon(queue.seek, generation, offset)
                await anyio.lowlevel.checkpoint()
        assert [record.offset for record in await take(queue, 1)] == [9]
        assert await arrivals(queue, cluster) == []


async def test_calls_of_an_old_generation_do_nothing(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN)
        generation = await assignment(queue)
        await queue.seek(generation - 1, 0)
        await queue.done(generation - 1, 1, 1)
        assert await arrivals(queue, cluster) == []
        assert not await queue.acknowledge(generation - 1, 2, "")
        assert await queue.acknowledged() is None


async def test_fetching_stops_at_the_limit_and_goes_on_when_there_is_room(cluster: Cluster) -> None:
    async with cluster.member(outstanding_records_max=40) as queue:
        await cluster.stage([b"x"] * 2_000)
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        held = await all_that_fit(queue, cluster, 40)
        assert len(held) < 2_000
        records: list[Record] = [*held]
        while len(records) < 2_000:
            await queue.done(generation, len(held), sum(map(record_size, held)))
            held = await take(queue, 1)
            records += held
        assert await arrivals(queue, cluster) == []
    assert [record.offset for record in records] == list(range(2_000))


async def again(queue: Queue, generation: int, start: int, end: int, *, records_max: int = 400) -> list[Record]:
    """Read these records again."""
    records = list[Record]()
    while start + len(records) < end:
        wanted = min(records_max, end - start - len(records))
        found = await queue.read_again(generation, start + len(records), records_max=wanted)
        assert isinstance(found, Fetched)
        assert 0 < len(found.records) <= wanted
        records += found.records
    return records


async def test_records_are_read_again_while_deliveries_go_on(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN, [("producer", b"spark")])
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        records = await take(queue, 10)
        assert await again(queue, generation, 2, 8, records_max=4) == records[2:8]
        await cluster.stage([b"10"])
        assert [record.offset for record in await take(queue, 1)] == [10]
        assert await again(queue, generation, 8, 10) == records[8:]
        assert await again(queue, generation, 0, 3, records_max=1) == records[:3]
        assert await arrivals(queue, cluster) == []


async def test_what_is_read_again_is_outstanding(cluster: Cluster) -> None:
    async with cluster.member(outstanding_records_max=40) as queue:
        await cluster.stage([b"x"] * 2_000)
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        held = await all_that_fit(queue, cluster, 40)
        room = len(held), sum(map(record_size, held))
        assert await again(queue, generation, 0, len(held)) == held
        await queue.done(generation, *room)
        assert await arrivals(queue, cluster) == []
        await queue.done(generation, *room)
        assert (await take(queue, 1))[0].offset == len(held)


async def test_a_seek_ends_what_is_outstanding_of_what_was_read_again(cluster: Cluster) -> None:
    async with cluster.member(outstanding_records_max=40) as queue:
        await cluster.stage([b"x"] * 100)
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        held = await all_that_fit(queue, cluster, 40)
        await again(queue, generation, 0, len(held))
        await queue.seek(generation, 50)
        assert (await take(queue, 20))[0].offset == 50


async def test_offsets_without_a_record_can_not_be_read_again(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN)
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await take(queue, 10)
        failed = await queue.read_again(generation, 50, records_max=1)
        assert isinstance(failed, FetchFailed)
        assert failed.generation == generation
        assert "50" in failed.reason
        assert [record.value for record in await again(queue, generation, 8, 10)] == TEN[8:]


async def test_an_acknowledgement_is_kept_with_its_metadata(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await cluster.stage(TEN)
        generation = await assignment(queue)
        assert await queue.acknowledged() is None
        assert await queue.acknowledge(generation, 3, '{"version":7}')
        assert await queue.acknowledged() == Acknowledged(offset=3, metadata='{"version":7}')


async def test_ranges_are_half_open_and_hold_what_is_still_there(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        assert await queue.bounds() == (0, 0)
        assert await queue.read(0, 5) == []
        await cluster.stage(TEN)
        assert await queue.bounds() == (0, 10)
        record, *_ = found = await queue.read(3, 6)
        assert [one.value for one in found] == [b"3", b"4", b"5"]
        assert [record.offset for record in await queue.read(8, 99)] == [8, 9]
        assert [record.offset for record in await queue.read(2, 9, bytes_max=3 * record_size(record))] == [2, 3, 4]
        assert [record.offset for record in await queue.read(2, 9, bytes_max=0)] == [2]
        assert await queue.read(10, 12) == []
        assert await queue.read(5, 5) == []
        await cluster.delete_before(8)
        assert await queue.bounds() == (8, 10)
        assert [record.offset for record in await queue.read(2, 9)] == [8]


async def test_outcomes_go_where_their_producer_reads_and_else_to_partition_0(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        assert await queue.outcomes_tail(10) == []
        places = (0, 3, 7, 8, -1)
        await queue.publish(
            [Publication(key=b"k", value=b"%d" % n, headers=[("h", b"v")], partition=n) for n in places]
        )
        assert [value for _, value, _ in await cluster.outcomes(0)] == [b"0", b"8", b"-1"]
        ((key, value, headers),) = await cluster.outcomes(3)
        assert (key, value, list(headers)) == (b"k", b"3", [("h", b"v")])
        assert set(await queue.outcomes_tail(1)) == {b"3", b"7", b"-1"}
        assert sorted(await queue.outcomes_tail(10)) == [b"-1", b"0", b"3", b"7", b"8"]


async def test_dead_letters_have_a_topic_of_their_own(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await queue.dead_letter([Publication(key=None, value=b"bad", headers=[("committerd-reason", b"why")])])
        ((key, value, headers),) = await cluster.letters()
        assert (key, value, list(headers)) == (None, b"bad", [("committerd-reason", b"why")])
        assert await queue.outcomes_tail(10) == []


async def test_a_standby_takes_over_when_the_owner_leaves_and_not_before(cluster: Cluster) -> None:
    joined: list[Queue] = []
    leave = anyio.Event()

    async def own() -> None:
        async with cluster.member() as owner:
            joined.append(owner)
            generation = await assignment(owner)
            await owner.seek(generation, 0)
            await cluster.stage(TEN)
            await take(owner, 10)
            assert await owner.acknowledge(generation, 4, "mine")
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own)
        await _until_acknowledged(joined)
        async with cluster.member() as standby:
            with anyio.move_on_after(2 * cluster.patience) as quiet:
                await standby.next_event()
            assert quiet.cancelled_caught
            assert not await standby.acknowledge(1, 5, "not mine")
            leave.set()
            generation = await assignment(standby)
            assert await standby.acknowledged() == Acknowledged(offset=4, metadata="mine")
            await standby.seek(generation, 4)
            assert [record.offset for record in await take(standby, 6)] == [4, 5, 6, 7, 8, 9]


async def _until_acknowledged(joined: list[Queue]) -> None:
    with anyio.fail_after(60):
        while not joined or await joined[0].acknowledged() is None:  # noqa: ASYNC110  # nothing announces it
            await anyio.sleep(0.05)


@pytest.mark.parametrize("offset", [3, 99])
async def test_a_position_outside_the_log_is_told_and_then_the_member_begins_anew(
    cluster: Cluster, offset: int
) -> None:
    async with cluster.member() as queue:
        generation = await assignment(queue)
        await cluster.stage(TEN)
        await cluster.delete_before(8)
        await queue.seek(generation, offset)
        assert (await failure(queue)).generation == generation
        assert (await revocation(queue)).generation == generation
        again = await assignment(queue)
        assert again == generation + 1
        await queue.seek(again, 8)
        assert [record.offset for record in await take(queue, 2)] == [8, 9]


async def test_a_topic_made_anew_has_another_id_and_nothing_is_fetched_from_it_for_long(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        generation = await assignment(queue)
        await cluster.stage([b"old"] * 3)
        await queue.seek(generation, 0)
        await take(queue, 3)
        before = await queue.identity()
        await cluster.recreate_topic()
        await cluster.stage([b"new"] * 6)
        after = await queue.identity()
        assert (after.topic, after.cluster_id) == (before.topic, before.cluster_id)
        assert after.topic_id != before.topic_id
        fetched: list[bytes] = []
        told = False
        with anyio.fail_after(120):
            while not told or len(fetched) < 6:
                match await queue.next_event():
                    case Assigned(generation=generation):
                        fetched.clear()
                        await queue.seek(generation, 0)
                    case FetchFailed() | Revoked():
                        # The name alone does not show it, until the metadata is refreshed.
                        told = True
                        fetched.clear()
                    case Fetched(records=records):
                        fetched += [record.value for record in records]
        assert fetched == [b"new"] * 6


async def test_a_topic_that_is_gone_is_no_topic(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        await assignment(queue)
        await cluster.delete_topic()
        with pytest.raises(RefusedToRun) as refused:
            await _asked_for_its_identity(queue)
        assert refused.value.code == "topic_gone"


async def _asked_for_its_identity(queue: Queue) -> None:
    """Ask again and again: a broker may know a topic for a moment after it was deleted."""
    with anyio.fail_after(60):
        while True:
            await queue.identity()
            await anyio.sleep(0.05)


async def test_it_tells_what_time_it_is_for_the_brokers(cluster: Cluster) -> None:
    async with cluster.member() as queue:
        first = await queue.time_ms()
        assert first is not None
        await cluster.stage([b"dated"])
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        (record,) = await take(queue, 1)
        last = await queue.time_ms()
        assert last is not None
        # The broker that leads the partition may have another clock than the one that responds; here it is the same.
        assert first - 100 <= record.timestamp_ms <= last + 100
