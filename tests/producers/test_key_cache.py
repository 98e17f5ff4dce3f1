"""Changes by key with what a `KeyCache` remembers: they change what the same changes without it change."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import CommitClient, staging
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


def test_large_fragments_are_left_to_pylance_and_what_an_index_covers(
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
    append(uri, [8], [9], [10])
    assert searched(uri, cache, 9) == [0, 1, 2, 3, 5]
    assert searched(uri, cache, 5) == [0, 1, 2, 3]
    lance.dataset(uri).optimize.optimize_indices()
    assert searched(uri, cache, 9) == list(range(7))


@pytest.mark.parametrize("max_bytes", [1, 3000, 20_000, 60_000])
def test_it_stays_within_its_memory_and_forgets_what_other_versions_had(tmp_path: Path, max_bytes: int) -> None:
    uri, cache = table_of(tmp_path), staging.KeyCache(max_bytes=max_bytes)
    for start in range(0, 3000, 100):
        append(uri, [start], [start + 1], list(range(start + 2, start + 90)))
        if start % 300 == 200:
            lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=10_000)
        for key in (start, start + 1, start + 95):
            found = lance.dataset(uri).scanner(filter=f"id = {key}", with_row_address=True).to_table()["_rowaddr"]
            assert {one >> 32 for one in found.to_pylist()} <= set(searched(uri, cache, key))
            assert cache._bytes <= max_bytes


def test_a_client_that_only_deletes_stays_within_its_memory(tmp_path: Path) -> None:
    uri, cache = (
        table_of(tmp_path, *([10 * one, 10 * one + 1] for one in range(20))),
        staging.KeyCache(max_bytes=60_000),
    )
    for key in range(0, 200, 10):
        for one in (key, key + 1):
            dataset = lance.dataset(uri)
            assert staging.delete(dataset, f"id = {one}", cache=cache).deleted == 1
            dataset.delete(f"id = {one}")
            assert cache._bytes <= 60_000


def test_what_fits_is_remembered_when_not_all_does(tmp_path: Path) -> None:
    parts = (list(range(first, first + 100)) for first in range(0, 2000, 100))
    uri, cache = table_of(tmp_path, *parts), staging.KeyCache(max_bytes=36_000)
    searched(uri, cache, 3)
    assert 1 < len(searched(uri, cache, 3)) < 20


def test_a_read_that_leaves_out_rows_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, cache = table_of(tmp_path, *([one, 100 + one] for one in range(20))), staging.KeyCache()
    options: dict[str, Any] = {"limit": 5}
    limited = lance.dataset(uri, default_scan_options=options)
    for _ in range(2):
        staging.delete(limited, "id = 3", cache=cache)
    monkeypatch.setattr(key_cache, "_can_be_opened_again", lambda _: True)
    for _ in range(2):
        cache.narrowed(limited, read_table(limited), {"id": pa.array([3], pa.int64())})
    monkeypatch.undo()
    assert staging.delete(lance.dataset(uri), "id = 15", cache=cache).deleted == 1


def test_an_error_while_it_reads_leaves_it_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, cache = table_of(tmp_path, [1], [2], [3], [4]), staging.KeyCache()
    searched(uri, cache, 3)
    with monkeypatch.context() as broken:

        def fails(*_: object, **_given: object) -> None:
            raise OSError("no connection")

        broken.setattr(key_cache, "_values", fails)
        with pytest.raises(OSError, match="no connection"):
            searched(uri, cache, 3)
    assert searched(uri, cache, 3) == [2]


class Slow:
    """Lets a thread that reads new fragments wait for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.reads = 0
        read = key_cache._values

        def slowly(*given: Any, **named: Any) -> Any:
            self.reads += 1
            self.reading.set()
            assert self.go_on.wait(30)
            return read(*given, **named)

        monkeypatch.setattr(key_cache, "_values", slowly)


def test_while_one_thread_reads_another_waits_and_does_not_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, cache = table_of(tmp_path, [1], [2], [3], [4]), staging.KeyCache()
    searched(uri, cache, 3)
    slow = Slow(monkeypatch)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(searched, uri, cache, 3)
        assert slow.reading.wait(30)
        second = threads.submit(searched, uri, cache, 4)
        with pytest.raises(TimeoutError):
            second.result(0.3)
        slow.go_on.set()
        assert (first.result(), second.result(), slow.reads) == ([2], [3], 1)


def test_a_thread_that_has_waited_long_enough_searches_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "_WAIT_SECONDS", 0.1)
    uri, cache = table_of(tmp_path, [1], [2], [3], [4]), staging.KeyCache()
    searched(uri, cache, 3)
    slow = Slow(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(searched, uri, cache, 3)
        assert slow.reading.wait(30)
        assert searched(uri, cache, 3) == [0, 1, 2, 3]
        slow.go_on.set()
        assert first.result() == [2]


def test_an_index_that_pylance_can_not_describe_may_cover_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pylance 4.0.0 raises for an index without details, as old releases wrote them."""
    uri, cache = table_of(tmp_path, [1], [2], [3], [4]), staging.KeyCache()
    lance.dataset(uri).create_scalar_index("value", "BTREE")
    searched(uri, cache, 3)
    assert searched(uri, cache, 3) == [2]

    def fails(_: object) -> None:
        raise RuntimeError("Index details are required")

    monkeypatch.setattr(lance.LanceDataset, "describe_indices", fails)
    assert searched(uri, cache, 3) == [0, 1, 2, 3]


def test_the_same_file_with_its_columns_named_otherwise_is_another_file(tmp_path: Path) -> None:
    uri, cache = table_of(tmp_path, *([one] for one in range(20))), staging.KeyCache()
    lance.dataset(uri).update({"value": "id + 1000"})
    dataset = lance.dataset(uri)
    for _ in range(2):
        staging.delete(dataset, "id = 3", cache=cache)
    table = read_table(dataset)
    swapped = []
    for one in table.fragments():
        (file,) = one.files
        file.fields[:] = [2, 1, 0]
        swapped.append(one.SerializeToString())
    view = key_cache.with_fragments(dataset, table, swapped)
    assert staging.delete(view, "id = 1003", cache=cache).deleted == 1


@pytest.mark.parametrize(("given", "error"), [("1", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError)])
def test_a_wrong_number_of_bytes_is_an_error_at_once(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_bytes"):
        staging.KeyCache(max_bytes=given)


def test_a_copy_is_empty_and_has_the_same_limit() -> None:
    copied = pickle.loads(pickle.dumps(staging.KeyCache(max_bytes=7)))
    assert (copied._max_bytes, repr(copied)) == (7, "<KeyCache of 0 fragments, 0 bytes>")


def test_a_client_without_memory_for_keys_has_no_cache() -> None:
    assert CommitClient("b:1", dataset="events", key_cache_bytes=0)._key_cache() is None
    assert repr(CommitClient("b:1", dataset="events")._key_cache()).startswith("<KeyCache")
    with pytest.raises(ValueError, match="key_cache_bytes"):
        CommitClient("b:1", dataset="events", key_cache_bytes=-1)


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
