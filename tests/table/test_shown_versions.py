"""The versions for commands that only show a table: found by few requests, however many there are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from committerd.table.versions import Table
from committerd_common.paths import VERSIONS, NamingScheme, manifest_key
from tests.simulation.store import Bucket, FakeStore

_HEADS_MAX = 3 * 32


class Counting(FakeStore):
    """Counts its requests, and the keys that it lists."""

    heads = 0
    listed = 0

    async def head(self, key: str) -> int | None:
        self.heads += 1
        return await super().head(key)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        keys = await super().list(prefix, start_after=start_after, limit=limit)
        self.listed += len(keys)
        return keys


def store_of(
    versions: Iterable[int], scheme: NamingScheme = NamingScheme.V2, *, lists_whole_folders: bool = False
) -> Counting:
    bucket = Bucket()
    for version in versions:
        bucket.put(manifest_key(version, scheme), b"")
    return Counting(bucket, lists_whole_folders=lists_whole_folders)


@pytest.mark.parametrize("first", [1, 2, 4_000, 9_899, 9_900, 9_901])
async def test_ten_thousand_versions_are_not_listed(first: int) -> None:
    store = store_of(range(first, 10_001))
    assert list(await Table(store).shown_versions()) == list(range(first, 10_001))
    assert store.listed <= 100
    assert store.heads <= _HEADS_MAX


async def test_millions_of_versions_take_few_more_requests() -> None:
    store = store_of(range(9_999_001, 10_000_001))
    assert list(await Table(store).shown_versions()) == list(range(9_999_001, 10_000_001))
    assert store.listed <= 100
    assert store.heads <= 2 * _HEADS_MAX


async def test_older_versions_with_tags_are_left_out() -> None:
    store = store_of([3, 4, 17, *range(9_000, 10_001)])
    assert list(await Table(store).shown_versions()) == list(range(9_000, 10_001))


async def test_other_files_in_the_folder_are_no_versions() -> None:
    store = store_of(range(1, 1_001))
    await store.put(f"{VERSIONS}00000.tmp", b"")
    await store.put(f"{VERSIONS}latest_version_hint.json", b"")
    assert list(await Table(store).shown_versions()) == list(range(1, 1_001))
    assert store.listed <= 100


@pytest.mark.parametrize(
    ("versions", "scheme", "lists_whole_folders"),
    [
        ([], NamingScheme.V2, False),
        ([1], NamingScheme.V2, False),
        ([3, *range(50, 90)], NamingScheme.V2, False),
        ([*range(1, 400), *range(401, 441)], NamingScheme.V2, False),
        (range(1, 400), NamingScheme.V1, False),
        (range(1, 400), NamingScheme.V2, True),
    ],
    ids=["no table", "a version", "few", "a gap near the latest", "names that don't sort", "listings without an order"],
)
async def test_otherwise_all_are_listed(
    versions: Iterable[int], scheme: NamingScheme, lists_whole_folders: bool
) -> None:
    store = store_of(versions, scheme, lists_whole_folders=lists_whole_folders)
    assert list(await Table(store).shown_versions()) == list(versions)


@pytest.mark.parametrize(
    ("versions", "scheme"),
    [
        ([3, 4, 17, *range(2_000, 5_001)], NamingScheme.V2),
        ([*range(1, 3_000), *range(3_001, 5_001)], NamingScheme.V2),
        ([*range(1, 4_990), *range(4_991, 5_001)], NamingScheme.V2),
        (range(1, 1_001), NamingScheme.V2),
        (range(1, 2_002), NamingScheme.V2),
        (range(1, 3_000), NamingScheme.V1),
    ],
    ids=["tags", "a gap", "a gap near the latest", "a page", "two pages and a version", "names that don't sort"],
)
async def test_a_long_history_is_listed_in_parts_without_a_loss(versions: Iterable[int], scheme: NamingScheme) -> None:
    store = store_of(versions, scheme)
    # Other files before, behind and between the versions; the last are more than a page.
    # Other files before, behind and between the versions; the last are more than a page.
    between = manifest_key(2_345, NamingScheme.V2)
    for key in (f"{VERSIONS}0.tmp", f"{VERSIONS}hint.json", *(f"{between}-{number}" for number in range(1_500))):
        await store.put(key, b"")
    assert await Table(store).versions() == list(versions)
