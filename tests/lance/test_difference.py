"""What a version changed of the fragments and rows of the one below it."""

from __future__ import annotations

import pytest

from committerd.lance.format.fragment_list import NO_FRAGMENTS, FragmentList, pack_fragments
from committerd.lance.versions.difference import Difference, changed_chunks, difference
from committerd_common.messages import DataFragment


def fragment(number: int, rows: int, deleted: int | None = None) -> DataFragment:
    """`deleted`: rows that its deletion file names; None = it has none."""
    made = DataFragment(id=number, physical_rows=rows)
    if deleted is not None:
        made.deletion_file.num_deleted_rows = deleted
        made.deletion_file.SetInParent()
    return made


def between(before: FragmentList, after: FragmentList) -> Difference:
    return difference(changed_chunks(before, after))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [fragment(0, 10)], (1, 0, 10, 0)),
        ([fragment(0, 10)], [fragment(0, 10), fragment(1, 5, 2)], (1, 0, 3, 0)),
        ([fragment(0, 10)], [fragment(0, 10, 4)], (0, 0, 0, 4)),
        ([fragment(0, 10, 4)], [fragment(0, 10)], (0, 0, 4, 0)),
        ([fragment(0, 10, 4), fragment(1, 6)], [fragment(2, 12)], (1, 2, 12, 12)),
        ([fragment(0, 0)], [fragment(0, 0), fragment(1, 3)], (1, 0, 3, 0)),
        ([fragment(0, 0)], [fragment(1, 3)], (1, 1, 3, None)),
        ([fragment(0, 9, 1)], [fragment(0, 9, 0)], (0, 0, None, None)),
    ],
    ids=["first", "added", "deleted", "restored", "rewritten", "kept of unknown size", "unknown size", "unknown rows"],
)
def test_the_difference_of_two_versions(
    before: list[DataFragment], after: list[DataFragment], expected: tuple[object, ...]
) -> None:
    assert between(pack_fragments(before), pack_fragments(after)) == expected


def test_what_two_versions_share_is_not_looked_at() -> None:
    table = pack_fragments(fragment(number, 7) for number in range(50_000))
    assert len(table.chunks) > 1
    first, *_ = table.chunks
    followed = table.with_added(pack_fragments([fragment(50_000, 1)]))
    assert first not in changed_chunks(table, followed).before
    assert between(table, followed) == (1, 0, 1, 0)
    read_anew = pack_fragments(fragment(number, 7) for number in range(50_000))
    assert changed_chunks(table, read_anew).size == 0
    assert between(NO_FRAGMENTS, NO_FRAGMENTS) == (0, 0, 0, 0)
