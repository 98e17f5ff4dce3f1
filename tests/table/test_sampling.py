"""What a sample of the versions says of the queue: the same as all versions, from few reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from committerd.committer.loading import Loading, load
from committerd.errors import CorruptTable
from committerd.queue.port import TopicIdentity
from committerd.queue.position import AppMark, Pause, Position, encode_metadata, start_of
from committerd.stores.port import Tail
from committerd.table.sampling import Sampled, sample
from committerd.table.versions import Table
from committerd_common.paths import NamingScheme, manifest_key
from tests.simulation.store import Bucket, FakeStore
from tests.table.putting import put_version

_COUNT = 2_000
_READS_MAX = 400
_POSITION = start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0)
_PAUSE = Pause(reason="a backup", since_ms=1)


class _Counting(FakeStore):
    """Counts what is read."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.reads = 0

    async def get_tail(self, key: str, size: int) -> Tail | None:
        self.reads += 1
        return await super().get_tail(key, size)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self.reads += 1
        return await super().get_range(key, start, end)

    async def get(self, key: str) -> bytes | None:
        self.reads += 1
        return await super().get(key)


class _History:
    """Writes versions, one after the other."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.metadata: list[dict[str, str]] = [{}]
        """What each version carries; there is no version 0."""
        self._position = _POSITION

    @property
    def latest(self) -> int:
        return len(self.metadata) - 1

    def queue(self, count: int = 1, *, pause: Pause | None = None) -> None:
        """Versions of the queue."""
        for _ in range(count):
            self._position = replace(self._position, next_offset=self._position.next_offset + 1)
            mark = AppMark(run="r", version=self._position.next_offset, uuid="u", table_version=1, used_ms=1)
            self._put(encode_metadata(self._position, {"app": mark}, pause), ours=True)

    def others(self, upto: int) -> None:
        """Versions of another writer up to this one, which carry on what they found."""
        while self.latest < upto:
            self._put(self.metadata[-1])

    def restore(self, version: int) -> None:
        """A Restore by another writer."""
        self._put(self.metadata[version])

    def drop_keys(self) -> None:
        """Another writer replaces the configuration."""
        self._put({})

    def spoil(self, *versions: int) -> None:
        for version in versions:
            self.bucket.spoil(manifest_key(version, NamingScheme.V2), b"no manifest")

    def _put(self, metadata: dict[str, str], *, ours: bool = False) -> None:
        self.metadata.append(metadata)
        put_version(self.bucket, self.latest, metadata, ours=ours)


def _bottom(made: _History) -> None:
    made.queue(3)


def _nowhere(made: _History) -> None:
    """Other writers have committed all of it."""


def _middle(made: _History) -> None:
    for number in range(1, 5):
        made.others(number * 400)
        made.queue()


def _paused(made: _History) -> None:
    made.queue(5)
    made.others(900)
    made.queue(pause=_PAUSE)


def _restored(made: _History) -> None:
    """A Restore has hidden a pause, and the newest versions of the queue."""
    made.queue(200)
    made.others(300)
    made.queue(400)
    made.queue(pause=_PAUSE)
    made.others(1500)
    made.restore(150)


def _dropped(made: _History) -> None:
    made.queue(10)
    made.others(600)
    made.drop_keys()


def _restored_often(made: _History) -> None:
    """More often than a search looks below Restores: all versions are read."""
    made.queue(20)
    for number in range(12):
        made.others(100 + 150 * number)
        made.restore(1 + number)


def _at_the_top(made: _History) -> None:
    made.others(_COUNT)
    made.queue()


@pytest.mark.parametrize(
    ("tell", "reads_max"),
    [(one, _READS_MAX) for one in (_bottom, _nowhere, _middle, _paused, _restored, _dropped, _at_the_top)]
    + [(_restored_often, 2 * _COUNT)],
)
async def test_a_sample_says_what_all_versions_say(tell: Callable[[_History], None], reads_max: int) -> None:
    made = _History()
    tell(made)
    made.others(_COUNT)
    await _assert_same(made, reads_max=reads_max)


@pytest.mark.parametrize("spoilt", [[1800], range(1790, 1810), range(1900, 1999), [3, 1500, 1999], range(1980, 2000)])
async def test_versions_that_can_not_be_read_are_no_obstacle(spoilt: Sequence[int]) -> None:
    made = _History()
    made.queue(3)
    made.others(1799)
    made.queue(1, pause=_PAUSE)
    made.others(_COUNT)
    made.spoil(*spoilt)
    await _assert_same(made, reads_max=2 * _COUNT)


async def test_a_short_history_is_read_as_a_whole() -> None:
    # The Restore hides a version of the queue right below it.
    made = _History()
    made.queue(2)
    made.others(100)
    made.queue(1, pause=_PAUSE)
    made.restore(50)
    made.others(250)
    found = await _assert_same(made, reads_max=2 * 250)
    assert found.pause == _PAUSE


async def test_what_lies_below_a_missing_version_does_not_count() -> None:
    made = _History()
    made.queue(3)
    made.others(400)
    made.bucket.delete(manifest_key(350, NamingScheme.V2))
    assert (await _assert_same(made, reads_max=_READS_MAX)).newest_ours == 0


async def test_the_latest_version_must_be_readable() -> None:
    made = _History()
    assert await _sampled(_Counting(made.bucket)) == Sampled()
    made.queue(2)
    made.spoil(2)
    with pytest.raises(CorruptTable):
        await _sampled(_Counting(made.bucket))


async def _sampled(store: FakeStore) -> Sampled:
    table = Table(store)
    return await sample(table, await table.versions())


async def _assert_same(made: _History, *, reads_max: int) -> Sampled:
    store = _Counting(made.bucket)
    found = await _sampled(store)
    assert store.reads <= reads_max
    loaded = await load(Table(FakeStore(made.bucket)), Loading(monotonic=lambda: 0.0, later=True))
    expected: tuple[int, Position | None, object, object, int] = (
        loaded.version,
        loaded.position,
        dict(loaded.marks),
        loaded.pause,
        loaded.newest_ours,
    )
    assert (found.version, found.position, dict(found.marks), found.pause, found.newest_ours) == expected
    return found
