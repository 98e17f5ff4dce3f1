"""Changes by key with what a `KeyCache` remembers: they change what the same changes without it change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import staging
from committerd_client.staging import key_cache
from committerd_client.staging.equalities import asked_values
from committerd_client.staging.transactions import read_table
from tests.producers import key_cache_history
from tests.producers.direct_commit import commit
from tests.producers.key_cache_history import SCHEMA, append, rows, table_of
from tests.producers.old_pylance import in_4

pytestmark = pytest.mark.pylance


def searched(uri: str, cache: staging.KeyCache, *ids: int) -> list[int]:
    """The ids of the fragments that are searched for these keys."""
    dataset = lance.dataset(uri)
    left = cache.narrowed(dataset, read_table(dataset), {"id": pa.array(ids, pa.int64())})
    return [one.fragment_id for one in left.get_fragments()]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are enough."""
    monkeypatch.setattr(key_cache, "_FRAGMENTS_MIN", 2)


def test_only_fragments_that_may_have_the_key_are_searched(tmp_path: Path) -> None:
    uri, cache = table_of(tmp_path, [1, 2], [3], [4], [5]), staging.KeyCache()
    assert searched(uri, cache, 3) == [0, 1, 2, 3], "the first call remembers nothing"
    assert searched(uri, cache, 3) == [1]
    assert searched(uri, cache, 2, 5) == [0, 3]
    assert searched(uri, cache, 9) == []
    append(uri, [9, 3])
    assert searched(uri, cache, 3) == [1, 4], "one new fragment is searched, and not read beforehand"
    append(uri, [9])
    assert searched(uri, cache, 9) == [4, 5]
    assert searched(uri, cache, 3) == [1, 4]


def test_a_row_that_is_deleted_when_the_keys_are_read_is_found_after_a_restore(tmp_path: Path) -> None:
    uri, cache = table_of(tmp_path, [1, 2], [3], [4], [5]), staging.KeyCache()
    dataset = lance.dataset(uri)
    before = dataset.version
    dataset.delete("id = 1")
    searched(uri, cache, 1)
    assert searched(uri, cache, 1) == [0]
    earlier: Any = dataset.checkout_version(before)
    earlier.restore()
    assert searched(uri, cache, 1) == [0]
    staged = staging.delete(lance.dataset(uri), "id = 1", cache=cache)
    assert staged.deleted == 1


def test_large_fragments_and_an_indexed_column_are_left_to_pylance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "_ROWS_MAX", 3)
    uri, cache = table_of(tmp_path, [1, 2, 3, 4], [5], [6], [7]), staging.KeyCache()
    searched(uri, cache, 5)
    assert searched(uri, cache, 5) == [0, 1]
    lance.dataset(uri).create_scalar_index("value", "BTREE")
    assert searched(uri, cache, 5) == [0, 1]
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    assert searched(uri, cache, 5) == [0, 1, 2, 3]


@pytest.mark.parametrize("max_bytes", [1, 3000, 6000, 20_000])
def test_it_stays_within_its_memory_and_forgets_what_other_versions_had(tmp_path: Path, max_bytes: int) -> None:
    uri, cache = table_of(tmp_path), staging.KeyCache(max_bytes=max_bytes)
    for start in range(0, 3000, 100):
        append(uri, [start], [start + 1], list(range(start + 2, start + 90)))
        if start % 300 == 200:
            lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=10_000)
        for key in (start, start + 1, start + 95):
            found = lance.dataset(uri).scanner(filter=f"id = {key}", with_row_address=True).to_table()["_rowaddr"]
            assert {one >> 32 for one in found.to_pylist()} <= set(searched(uri, cache, key))
            assert cache._size() <= max_bytes


@pytest.mark.parametrize(
    ("predicate", "asked"),
    [
        ("id = 7", {"id": [7]}),
        ("id=-7", {"id": [-7]}),
        (" `id` in (1,  2,3 ) ", {"id": [1, 2, 3]}),
        ("name = 'it''s'", {"name": ["it's"]}),
        ("name IN ('a', '')", {"name": ["a", ""]}),
        ("id = 7 OR true", {}),
        ("id = 7 AND value = 1", {}),
        ("NOT id = 7", {}),
        ("id = 7.0", {}),
        ("id = '7'", {}),
        ("name = 7", {}),
        ("id IN (1, 'a')", {}),
        ("id != 7", {}),
        ("id NOT IN (7)", {}),
        ("id = 99999999999999999999", {}),
        ("name = 'a\\'", {}),
        ('name = "a"', {}),
        ("other = 7", {}),
        ("ID = 7", {}),
        ("id IN ()", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_what_a_predicate_asks_of_a_column(predicate: str, asked: dict[str, list[Any]]) -> None:
    assert {name: values.to_pylist() for name, values in asked_values(predicate, SCHEMA).items()} == asked


def test_random_histories_change_the_same_rows_with_and_without_it(tmp_path: Path) -> None:
    for seed in range(8):
        key_cache_history.run(tmp_path / str(seed), seed)


def test_so_they_do_with_pylance_4(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.producers import key_cache_history
for seed in range(4):
    key_cache_history.run(Path({str(tmp_path)!r}) / str(seed), seed)
print("done")
"""
    assert in_4(program).endswith("done\n")


async def test_the_changes_of_a_client_that_remembers_are_committed(tmp_path: Path) -> None:
    uri, cache = table_of(tmp_path, *([one] for one in range(20))), staging.KeyCache()
    for value in range(1, 6):
        for staged in (
            staging.merge_insert(lance.dataset(uri), rows([value, 100 + value], value), on="id", cache=cache),
            staging.delete(lance.dataset(uri), f"id = {10 + value}", cache=cache),
            staging.update(lance.dataset(uri), {"value": "-1"}, "id IN (7, 8)", cache=cache),
        ):
            assert (await commit(uri, staged)).status is Status.COMMITTED
    found = {one["id"]: one["value"] for one in lance.dataset(uri).to_table().to_pylist()}
    wanted = dict.fromkeys(range(20), 0) | {value: value for value in range(1, 6)} | {7: -1, 8: -1}
    wanted = {key: value for key, value in wanted.items() if key not in range(11, 16)}
    assert found == wanted | {100 + value: value for value in range(1, 6)}
