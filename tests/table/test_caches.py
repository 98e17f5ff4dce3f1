"""Caches are bounded in bytes, drop what was used least recently, and answer only with what fits."""

from __future__ import annotations

from dataclasses import replace

from pyroaring import BitMap

from committerd.lance.format.fragment_list import pack_fragments
from committerd.lance.format.manifest_file import ManifestFile
from committerd.table.caches import REUSE_BYTES_MAX, DeletionVectorCache, ManifestCache, ReuseCache
from committerd_common.messages import Manifest
from tests.lance.samples import fragment, manifest, reuse_content, reuse_index, table

FRAGMENTS = 5000
FIRST = table(manifest(*(fragment(number) for number in range(FRAGMENTS)), version=1))
SIZE = FIRST.fragments.size


def appended(before: ManifestFile) -> ManifestFile:
    """The next version: one fragment more, and the others shared."""
    outline = Manifest()
    outline.CopyFrom(before.outline)
    outline.version += 1
    added = pack_fragments([fragment(len(before.fragments))])
    return replace(before, outline=outline, fragments=before.fragments.with_added(added))


def versions(count: int) -> list[ManifestFile]:
    made = [FIRST]
    while len(made) < count:
        made.append(appended(made[-1]))
    return made


def kept(bytes_max: int, *files: ManifestFile, versions_max: int = 10_000) -> list[int]:
    """The versions that stay when they are kept in this order."""
    cache = ManifestCache(versions_max=versions_max, bytes_max=bytes_max)
    for file in files:
        cache.put(file.version, file)
    return [file.version for file in files if file.version in cache]


def test_versions_that_share_their_fragments_take_little() -> None:
    files = versions(200)
    assert kept(3 * SIZE, *files) == list(range(1, 201))
    assert len(files[-1].fragments) == FRAGMENTS + 199


def test_versions_that_share_nothing_take_all_they_have() -> None:
    alone = [table(manifest(*(fragment(number) for number in range(FRAGMENTS)), version=one)) for one in range(1, 6)]
    assert kept(int(2.5 * SIZE), *alone) == [3, 4, 5]


def test_the_last_one_stays_whatever_it_takes() -> None:
    assert kept(0, *versions(3)) == [3]


def test_there_are_no_more_than_a_number_of_them() -> None:
    assert kept(3 * SIZE, *versions(9), versions_max=4) == [6, 7, 8, 9]


def test_the_least_recently_used_goes_first() -> None:
    made = ManifestCache(versions_max=2, bytes_max=3 * SIZE)
    first, second, third = versions(3)
    made.put(1, first)
    made.put(2, second)
    assert made.get(1) is first
    made.put(3, third)
    assert (made.get(1), made.get(2), made.get(3)) == (first, None, third)


def test_one_that_is_kept_again_counts_once() -> None:
    made = ManifestCache(versions_max=10, bytes_max=SIZE // 2)
    first, second = versions(2)
    for _ in range(5):
        made.put(1, first)
    made.put(2, second)
    assert 1 in made
    made.clear()
    assert 1 not in made
    made.put(1, first)
    assert made.get(1) is first


def test_the_content_of_deletion_files_is_cached() -> None:
    found: list[bool] = []
    vectors = DeletionVectorCache(note=found.append)
    assert vectors.rows("s3://a", "k", fragment(0, deleted=2)) is None
    vectors.add("s3://a", "k", BitMap([1, 2]))
    assert vectors.rows("s3://a", "k", fragment(0, deleted=2)) == BitMap([1, 2])
    assert vectors.rows("s3://b", "k", fragment(0, deleted=2)) is None
    assert found == [False, True, False]


def test_what_does_not_fit_the_fragment_is_not_taken_for_its_rows() -> None:
    vectors = DeletionVectorCache()
    vectors.add("", "k", BitMap([1, 20]))
    assert vectors.rows("", "k", fragment(0, rows=100, deleted=3)) is None
    assert vectors.rows("", "k", fragment(0, rows=20, deleted=2)) is None
    uncounted = fragment(0, rows=100, deleted=2)
    uncounted.deletion_file.num_deleted_rows = 0
    assert vectors.rows("", "k", uncounted) == BitMap([1, 20])


def test_the_least_recently_used_deletion_vectors_are_dropped_first() -> None:
    vectors = DeletionVectorCache(5 * 600)
    for number in range(4):
        vectors.add("", f"k{number}", BitMap([number]))
    assert vectors.rows("", "k0", fragment(0, deleted=1)) is not None
    for number in range(4, 7):
        vectors.add("", f"k{number}", BitMap([number]))
    assert vectors.bytes <= 3000
    assert vectors.rows("", "k0", fragment(0, deleted=1)) is not None
    assert vectors.rows("", "k1", fragment(0, deleted=1)) is None
    before = vectors.bytes
    vectors.add("", "k0", BitMap([0]))
    assert vectors.bytes == before
    vectors.add("", "large", BitMap(range(0, 100_000, 3)))
    assert vectors.rows("", "large", fragment(0, rows=100_000, deleted=33_334)) is None


def test_the_content_of_a_reuse_index_is_cached_for_the_same_index() -> None:
    cache, index = ReuseCache(REUSE_BYTES_MAX), reuse_index(1, ([0], [5]))
    assert cache.content(index) is None
    content = reuse_content(index.index_details.value)
    cache.add(index, content)
    assert cache.content(reuse_index(1, ([0], [5]))) is content
    assert cache.content(reuse_index(1, ([0], [6]))) is None
    assert cache.content(reuse_index(2, ([0], [5]))) is None
    cache.clear()
    assert (cache.content(index), cache.bytes) == (None, 0)


def test_the_least_recently_used_reuse_indices_are_dropped_first() -> None:
    indices = [reuse_index(number, ([0], [5])) for number in range(4)]
    content = reuse_content(indices[0].index_details.value)
    measured = ReuseCache(REUSE_BYTES_MAX)
    measured.add(indices[0], content)
    cache = ReuseCache(3 * measured.bytes)
    for index in indices[:3]:
        cache.add(index, content)
    assert cache.content(indices[0]) is content
    cache.add(indices[3], content)
    assert cache.bytes == 3 * measured.bytes
    assert [cache.content(index) is content for index in indices] == [True, False, True, True]
    cache.add(indices[3], content)
    assert cache.bytes == 3 * measured.bytes
    large = reuse_index(9, *[([number], [number + 1]) for number in range(20)])
    cache.add(large, reuse_content(large.index_details.value))
    assert cache.content(large) is None
