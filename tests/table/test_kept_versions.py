"""How many versions stay in memory: shared parts count once."""

from __future__ import annotations

from dataclasses import replace

from committerd.lance.format.fragment_list import pack_fragments
from committerd.lance.format.manifest_file import ManifestFile
from committerd.table.kept_versions import KeptVersions
from committerd_common.messages import Manifest
from tests.lance.samples import fragment, manifest, table

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
    kept = KeptVersions(versions_max=versions_max, bytes_max=bytes_max)
    for file in files:
        kept.keep(file.version, file)
    return [file.version for file in files if file.version in kept]


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
    made = KeptVersions(versions_max=2, bytes_max=3 * SIZE)
    first, second, third = versions(3)
    made.keep(1, first)
    made.keep(2, second)
    assert made.get(1) is first
    made.keep(3, third)
    assert (made.get(1), made.get(2), made.get(3)) == (first, None, third)


def test_one_that_is_kept_again_counts_once() -> None:
    made = KeptVersions(versions_max=10, bytes_max=SIZE // 2)
    first, second = versions(2)
    for _ in range(5):
        made.keep(1, first)
    made.keep(2, second)
    assert 1 in made
    made.clear()
    assert 1 not in made
    made.keep(1, first)
    assert made.get(1) is first
