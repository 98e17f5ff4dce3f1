"""Which work counts as heavy."""

from __future__ import annotations

import pytest

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.transactions.transaction import footprint
from committerd.table.heavy_work import LIGHT_FRAGMENTS_MAX, at_once, following_size, heavy_size, heavy_size_to_judge
from committerd_common.messages import DataFragment, Manifest, Transaction
from tests.lance.operations import create_index, delete, update
from tests.lance.samples import fragment, index, manifest, table, transaction, with_row_ids


def append(*fragments: DataFragment) -> Transaction:
    return transaction(append=Transaction.Append(fragments=fragments))


SMALL = table(manifest(fragment(0)))


@pytest.mark.parametrize(
    "light",
    [append(fragment(0)), delete(removed=(0,)), update(), transaction(update_config=Transaction.UpdateConfig())],
)
def test_what_is_small_is_light(light: Transaction) -> None:
    assert heavy_size(light, SMALL) == 0


def test_many_fragments_are_heavy() -> None:
    assert heavy_size(append(*(fragment(0) for _ in range(LIGHT_FRAGMENTS_MAX + 1))), SMALL) > 10_000


def test_an_append_that_brings_row_ids_is_heavy() -> None:
    one = fragment(0)
    one.inline_row_ids = bytes(100_000)
    assert heavy_size(append(one), SMALL) > 100_000
    assert heavy_size(append(*(fragment(0) for _ in range(LIGHT_FRAGMENTS_MAX))), SMALL) == 0


def test_what_is_large_is_heavy() -> None:
    large = delete(removed=(0,))
    large.delete.predicate = "x" * 100_000
    assert heavy_size(large, SMALL) > 100_000


def test_what_is_rare_is_heavy_however_small() -> None:
    assert 0 < heavy_size(create_index(index(1)), SMALL) < 1000
    assert heavy_size(create_index(index(1)), None) > 0


def test_a_change_of_a_table_of_many_fragments_is_heavy() -> None:
    large = table(manifest(*(fragment(number) for number in range(30_000))))
    assert heavy_size(delete(removed=(0,)), large) > 0
    assert heavy_size(append(fragment(0)), large) == 0


def test_judging_a_change_of_few_fragments_is_light_however_many_the_table_has() -> None:
    large = table(manifest(*(fragment(number) for number in range(30_000))))
    assert heavy_size_to_judge(delete(removed=(0,)), large) == 0
    assert heavy_size_to_judge(delete(fragment(9), removed=(0, 20_000, 29_999)), large) == 0
    assert heavy_size_to_judge(delete(removed=tuple(range(0, 30_000, 5000))), large) > 0
    assert heavy_size_to_judge(delete(removed=tuple(range(100))), SMALL) == 0
    assert heavy_size_to_judge(create_index(index(1)), SMALL) > 0
    assert heavy_size_to_judge(delete(removed=(0,)), None) == 0


def moved(*old: DataFragment) -> Footprint:
    group = Transaction.Rewrite.RewriteGroup(old_fragments=old, new_fragments=[old[0]])
    return footprint(transaction(rewrite=Transaction.Rewrite(groups=[group])), staged=False)


def test_a_few_rows_are_followed_lightly() -> None:
    read = manifest(fragment(0, rows=10**9, deleted=10**8), fragment(1))
    staged = delete(fragment(0, rows=10**9, deleted=10**8 + 3), removed=(1,))
    assert following_size(staged, read, [moved(fragment(0), fragment(1))] * 50) == 0


@pytest.mark.parametrize(
    ("staged", "read", "theirs"),
    [
        (delete(removed=(0,)), manifest(fragment(0, rows=5000)), [moved(fragment(0))] * 10),
        (update(fragment(0, rows=10**6, deleted=50_000)), manifest(fragment(0, rows=10**6)), [moved(fragment(0))]),
        (
            delete(fragment(0, rows=10**6, deleted=5)),
            manifest(fragment(0, rows=10**6)),
            [moved(with_row_ids(fragment(0), [range(place, place + 1) for place in range(0, 10**5, 2)]))],
        ),
        (
            delete(removed=tuple(range(1000))),
            manifest(*(fragment(number, rows=1) for number in range(1000))),
            [moved(*(fragment(number, rows=1) for number in range(1000)))],
        ),
    ],
    ids=["rows through many", "rows", "row ids", "fragments"],
)
def test_following_much_is_heavy(staged: Transaction, read: Manifest, theirs: list[Footprint]) -> None:
    assert following_size(staged, read, theirs) == staged.ByteSize()
    assert following_size(staged, read, [moved(fragment(5000))]) == 0


def test_a_staged_file_that_does_not_say_how_many_rows_it_has_may_have_all() -> None:
    staged = delete(fragment(0, rows=10**6, deleted=5))
    staged.delete.updated_fragments[0].deletion_file.num_deleted_rows = 0
    assert following_size(staged, manifest(fragment(0, rows=10**6)), [moved(fragment(0))]) > 0


async def test_at_once_is_at_once() -> None:
    assert await at_once(lambda: 3, size=1) == 3
