"""Whether a queue is paused, as maintenance sees it: the newest version of the queue decides."""

from __future__ import annotations

import anyio.lowlevel

from committerd.queue.port import TopicIdentity
from committerd.queue.position import PAUSED_KEY, Pause, encode_metadata, start_of
from committerd.stores.port import Tail
from committerd.table.pause_watch import PauseWatch
from committerd.table.versions import Table
from tests.simulation.store import Bucket, FakeStore
from tests.table.putting import put_version

START = start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0)
PAUSE = Pause(reason="a backup", since_ms=1)
PAUSED, RUNNING = encode_metadata(START, {}, PAUSE), encode_metadata(START, {})


async def test_a_version_of_the_queue_begins_and_ends_a_pause_and_no_other_does() -> None:
    bucket = Bucket()
    watch = PauseWatch(Table(FakeStore(bucket)))
    assert await watch.look() is None
    put_version(bucket, 1, RUNNING)
    assert await watch.look() is None
    put_version(bucket, 2, PAUSED)
    assert [await watch.look() for _ in range(2)] == [PAUSE, PAUSE]
    put_version(bucket, 3, RUNNING, ours=False)
    assert await watch.look() == PAUSE
    assert await PauseWatch(Table(FakeStore(bucket))).look() == PAUSE
    put_version(bucket, 4, RUNNING)
    put_version(bucket, 5, PAUSED, ours=False)
    assert await watch.look() is None


async def test_without_a_version_of_the_queue_the_latest_decides_and_one_that_is_spoilt_is_left_out() -> None:
    bucket = Bucket()
    put_version(bucket, 1, RUNNING, ours=False)
    put_version(bucket, 2, PAUSED, ours=False)
    watch = PauseWatch(Table(FakeStore(bucket)))
    assert await watch.look() == PAUSE
    put_version(bucket, 3, PAUSED | {PAUSED_KEY: "{"}, ours=False)
    assert await watch.look() == PAUSE


async def test_another_table_at_the_place_is_looked_at_anew() -> None:
    bucket = Bucket()
    for version in (1, 2):
        put_version(bucket, version, PAUSED)
    watch = PauseWatch(Table(FakeStore(bucket)))
    assert await watch.look() == PAUSE
    bucket.delete_all()
    put_version(bucket, 1, RUNNING)
    assert await watch.look() is None


async def test_versions_of_others_are_read_many_at_once_with_one_read_for_each() -> None:
    bucket = Bucket()
    put_version(bucket, 1, PAUSED)
    for version in range(2, 1001):
        put_version(bucket, version, RUNNING, ours=False)
    store = CountingReads(bucket)
    assert await PauseWatch(Table(store)).look() == PAUSE
    assert len(store.read) == len(set(store.read)) == 1000
    assert 128 <= store.most <= 256


class CountingReads(FakeStore):
    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.read: list[str] = []
        self._running = self.most = 0

    async def get_tail(self, key: str, size: int) -> Tail | None:
        self.read.append(key)
        self._running += 1
        self.most = max(self.most, self._running)
        for _ in range(10):  # a store takes a while
            await anyio.lowlevel.checkpoint()
        found = await super().get_tail(key, size)
        self._running -= 1
        return found
