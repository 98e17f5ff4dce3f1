"""A store whose listings have no order: what is looked for instead of listed, and what a listing has missed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from committerd.committer.current_head import CurrentHead
from committerd.committer.loading import Loading, load
from committerd.queue.port import TopicIdentity
from committerd.queue.position import start_of
from committerd.stores.local import LocalStore
from committerd.table.manifests import RECENT_SECONDS_MAX
from committerd.table.versions import Table
from committerd_common.paths import NamingScheme, manifest_key
from tests.table.scene import Scene


class Unordered(LocalStore):
    """Counts its listings, which leave out the keys in `missed`."""

    lists_whole_folders = True
    lists = 0
    missed: Collection[str] = ()

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        self.lists += 1
        listed = await super().list(prefix, start_after=start_after)
        return [key for key in listed if key not in self.missed][:limit]


@pytest.fixture(params=list(NamingScheme))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t", request.param)


async def listed(scene: Scene) -> tuple[Table, Unordered]:
    """A table of which a listing has been made."""
    table = Table(store := Unordered(scene.root, durable=False))
    await table.latest_version()
    store.lists = 0
    return table, store


@pytest.mark.parametrize("above", [0, 1, 2, 6, 200])
async def test_the_versions_above_a_recent_one_are_not_listed(scene: Scene, above: int) -> None:
    scene.write_versions(3)
    table, store = await listed(scene)
    scene.write_versions(*range(4, 4 + above))
    assert await table.latest_version(recent=3) == 3 + above
    assert store.lists == 0
    assert await table.latest_version() == 3 + above
    assert store.lists > 0


async def test_where_listings_have_an_order_the_latest_is_listed(scene: Scene) -> None:
    scene.write_versions(3, 5)
    table = Table(LocalStore(scene.root, durable=False))
    assert await table.latest_version(recent=3) == 5


async def test_a_head_that_was_the_latest_long_ago_proves_nothing(scene: Scene) -> None:
    scene.write_versions(3)
    table, store = await listed(scene)
    now = 0.0
    loaded = await load(table, Loading(monotonic=lambda: now))
    topic = TopicIdentity(cluster_id="c", topic="t", topic_id="i")
    current = CurrentHead(loaded.head(start_of(topic, 0)), lambda: now, loaded.older, 1, read_at=loaded.read_at)
    scene.write_versions(5)  # a cleanup has removed version 4
    store.lists, now = 0, RECENT_SECONDS_MAX
    assert await current.still_latest(age_max=10.0)
    assert store.lists == 0
    now = 2 * RECENT_SECONDS_MAX + 1
    assert not await current.still_latest(age_max=10.0)
    assert store.lists > 0


@pytest.mark.parametrize("whole_folders", [True, False])
async def test_a_version_that_a_listing_has_missed_is_there_nevertheless(scene: Scene, whole_folders: bool) -> None:
    scene.write_versions(1, 2, *range(4, 12))
    table, store = await listed(scene)
    store.lists_whole_folders = whole_folders
    store.missed = [manifest_key(version, scene.scheme) for version in (7, 8, 10)]
    assert await table.versions() == [1, 2, *range(4, 12)]
    assert await table.versions_above(8) == [9, 10, 11]
    assert await table.versions_above(11) == []
