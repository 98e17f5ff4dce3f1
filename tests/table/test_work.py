"""Which work counts as heavy."""

from __future__ import annotations

import pytest

from committerd.table.work import LIGHT_FRAGMENTS_MAX, at_once, heavy_size
from committerd_common.messages import DataFragment, Transaction
from tests.lance.operations import create_index, delete, update
from tests.lance.samples import fragment, index, manifest, table, transaction


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


async def test_at_once_is_at_once() -> None:
    assert await at_once(lambda: 3, size=1) == 3
