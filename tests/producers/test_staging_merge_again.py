"""Merges that were refused: what may be staged once more as it is, and what must be executed again."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import Reexecution, RetryableConflict, staging
from committerd_client.staging import StagedMerge, merge_again
from committerd_client.staging.merge_again import to_look_through
from committerd_common.messages import DataFile, DataFragment, DeletionFile
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

DELETE: dict[str, Any] = {
    "when_matched_update_all": False,
    "when_matched_delete": True,
    "when_not_matched_insert_all": False,
}
ADD: dict[str, Any] = {"when_matched_update_all": False}
"""Rows with new keys; the others are not changed."""
CHANGE: dict[str, Any] = {"when_not_matched_insert_all": False}
CONDITION: dict[str, Any] = {"when_matched_update_all": "target.value < 0"}
REPLACE: dict[str, Any] = {"when_not_matched_by_source_delete": True}


def rows(*keys: int, value: int = 1) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array([value] * len(keys), pa.int64())})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Keys 0 to 11 in four fragments."""
    lance.write_dataset(rows(*range(12), value=0), tmp_path / "t.lance", max_rows_per_file=3)
    return str(tmp_path / "t.lance")


def refused(work: StagedMerge) -> Reexecution:
    error = RetryableConflict("refused", uuid=work.transaction.uuid)
    return Reexecution(error=error, work=work, attempt=2, attempts_max=10, seconds_left=None)


def merged(uri: str, source: Any, again: StagedMerge | None = None, **clauses: Any) -> StagedMerge:
    asked = None if again is None else refused(again)
    return staging.merge_insert(lance.dataset(uri), source, on="key", again=asked, **clauses)


def written(work: StagedMerge) -> list[str]:
    return [file.path for one in work.transaction.update.new_fragments for file in one.files]


def contents(uri: str) -> dict[int, int]:
    found = lance.dataset(uri).to_table()
    made = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
    assert len(made) == found.num_rows, "a key is there twice"
    return made


def append(uri: str, *keys: int) -> None:
    lance.write_dataset(rows(*keys, value=-1), uri, mode="append")


def compact(uri: str) -> None:
    lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=1_000)


def delete(uri: str, predicate: str) -> None:
    lance.dataset(uri).delete(predicate)


def restore(uri: str, version: int) -> None:
    then: Any = lance.dataset(uri, version=version)
    then.restore()


def rename(uri: str, key: int, to: int) -> None:
    lance.dataset(uri).update({"key": f"{to}"}, f"key = {key}")


def add_column(uri: str) -> None:
    lance.dataset(uri).add_columns(pa.field("more", pa.int64()))


async def test_after_appends_of_other_keys_the_same_files_are_staged_again(uri: str) -> None:
    first = merged(uri, rows(1, 5, 20))
    append(uri, 30, 31)
    assert (await commit(uri, first)).status is Status.RETRYABLE
    second = merged(uri, rows(1, 5, 20), first)
    assert written(second) == written(first)
    assert second.transaction.uuid != first.transaction.uuid
    assert second.transaction.read_version == first.transaction.read_version + 1
    assert second.read_uuid != first.read_uuid
    assert (second.inserted, second.updated, second.deleted) == (1, 2, 0)
    append(uri, 32)
    assert (await commit(uri, second)).status is Status.RETRYABLE
    third = merged(uri, rows(1, 5, 20), second)
    assert written(third) == written(first)
    assert (await commit(uri, third)).status is Status.COMMITTED
    assert contents(uri) == dict.fromkeys(range(12), 0) | dict.fromkeys((30, 31, 32), -1) | dict.fromkeys((1, 5, 20), 1)


async def test_after_an_append_of_one_of_its_keys_it_is_executed_anew(uri: str) -> None:
    first = merged(uri, rows(1, 20))
    append(uri, 20)
    second = merged(uri, rows(1, 20), first)
    assert (second.inserted, second.updated) == (0, 2)
    assert (await commit(uri, second)).status is Status.COMMITTED
    assert contents(uri)[20] == 1


def test_whether_it_can_catch_up_is_said(uri: str) -> None:
    first = merged(uri, rows(1, 20))
    assert not first.can_catch_up, "nobody asked for it"
    append(uri, 30)
    second = merged(uri, rows(1, 20), first)
    compact(uri)
    third = merged(uri, rows(1, 20), second)
    assert (second.can_catch_up, third.can_catch_up) == (True, True)
    assert written(third) != written(second) == written(first)
    reader = merged(uri, rows(1, 20).to_reader(), third)
    assert (reader.can_catch_up, reader.merge) == (False, None), "a reader is used up"


def test_at_the_same_version_it_is_staged_once_more(uri: str) -> None:
    first = merged(uri, rows(1, 20))
    second = merged(uri, rows(1, 20), first)
    assert second.transaction.update == first.transaction.update
    # Without the name of the hash, it would conflict with each Append that names its keys.
    assert second.transaction.transaction_properties == first.transaction.transaction_properties
    assert second.transaction.transaction_properties["committerd.key-hash"] == "blake2b-8"
    assert second.transaction.read_version == first.transaction.read_version
    assert second.transaction.uuid != first.transaction.uuid


def test_with_stable_row_ids_it_is_executed_anew_and_can_not_catch_up(tmp_path: Path) -> None:
    uri = str(tmp_path / "stable.lance")
    lance.write_dataset(rows(*range(12), value=0), uri, enable_stable_row_ids=True)
    first = merged(uri, rows(1, 20))
    second = merged(uri, rows(1, 20), first)
    assert (second.can_catch_up, second.merge) == (False, None)
    assert written(second) != written(first)


def test_it_is_staged_at_the_version_that_its_caller_has_read(uri: str) -> None:
    """The source may have been computed from that version, which only its caller knows."""
    first = merged(uri, rows(1, 20))
    append(uri, 30)
    read = lance.dataset(uri)
    append(uri, 31)
    second = staging.merge_insert(read, rows(1, 20), on="key", again=refused(first))
    assert second.transaction.read_version == read.version
    assert written(second) == written(first)


Change = Callable[[str], Any]


@pytest.mark.parametrize(
    ("clauses", "change", "stays"),
    [
        pytest.param({}, compact, False, id="the fragments that it changes are compacted"),
        pytest.param({}, lambda uri: delete(uri, "key = 0"), False, id="a row beside one that it changes is deleted"),
        pytest.param({}, lambda uri: delete(uri, "key < 3"), False, id="a fragment that it changes is deleted"),
        pytest.param({}, lambda uri: delete(uri, "key = 9"), True, id="a row elsewhere is deleted"),
        pytest.param({}, lambda uri: delete(uri, "key >= 9"), True, id="a fragment elsewhere is deleted"),
        pytest.param({}, lambda uri: rename(uri, 9, 20), False, id="a key comes there"),
        pytest.param({}, lambda uri: rename(uri, 9, 40), True, id="another key comes"),
        pytest.param({}, add_column, False, id="a column is added"),
        pytest.param(DELETE, lambda uri: append(uri, 30), True, id="deletion by keys"),
        pytest.param(CHANGE, lambda uri: append(uri, 30), True, id="update alone"),
        pytest.param(ADD, lambda uri: append(uri, 30), True, id="insertion alone, rows appended"),
        pytest.param(ADD, lambda uri: delete(uri, "key = 1"), False, id="insertion alone, rows deleted"),
        pytest.param(ADD, lambda uri: delete(uri, "key < 3"), False, id="insertion alone, a fragment deleted"),
        pytest.param(CONDITION, lambda uri: append(uri, 30), True, id="condition, rows appended"),
        pytest.param(CONDITION, lambda uri: delete(uri, "key = 1"), False, id="condition, rows deleted"),
        pytest.param({}, lambda uri: lance.write_dataset(rows(30), uri, mode="overwrite"), False, id="all is replaced"),
    ],
)  # fmt: skip
def test_what_came_since_decides(uri: str, clauses: dict[str, Any], change: Change, stays: bool) -> None:
    source = rows(1, 20)
    first = merged(uri, source.select(["key"]) if clauses is DELETE else source, **clauses)
    change(uri)
    second = merged(uri, source.select(["key"]) if clauses is DELETE else source, first, **clauses)
    assert (second.transaction.update == first.transaction.update) is stays
    assert second.transaction.read_version == lance.dataset(uri).version


def test_rows_that_a_restore_brings_back_are_found(uri: str) -> None:
    before: Any = lance.dataset(uri)
    delete(uri, "key = 10")
    first = merged(uri, rows(1, 10))
    assert (first.inserted, first.updated) == (1, 1)
    before.restore()
    second = merged(uri, rows(1, 10), first)
    assert (second.inserted, second.updated) == (0, 2)


def test_a_table_that_was_made_anew_has_none_of_the_files(uri: str) -> None:
    first = merged(uri, rows(20))
    shutil.rmtree(uri)
    lance.write_dataset(rows(30), uri)
    append(uri, 31)
    assert set(written(merged(uri, rows(20), first))).isdisjoint(written(first))


def test_files_that_are_old_are_written_anew(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = merged(uri, rows(1, 20))
    append(uri, 30)
    later = time.time() + 20 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    second = merged(uri, rows(1, 20), first)
    assert written(second) == written(first)
    append(uri, 31)
    monkeypatch.setattr(time, "time", lambda: later + 20 * 3600)
    assert set(written(merged(uri, rows(1, 20), second))).isdisjoint(written(first))


async def test_columns_alone_may_be_staged_again(uri: str) -> None:
    """If the rows have only some of the columns, data files are added to the table's fragments."""
    lance.dataset(uri).add_columns({"more": "cast(0 as bigint)"})
    source = pa.table({"key": pa.array([1, 2], pa.int64()), "value": pa.array([7, 7], pa.int64())})
    first = merged(uri, source, **CHANGE)
    lance.write_dataset(rows(30, value=-1).append_column("more", pa.array([5], pa.int64())), uri, mode="append")
    second = merged(uri, source, first, **CHANGE)
    assert second.transaction.update == first.transaction.update
    assert (await commit(uri, second)).status is Status.COMMITTED
    assert contents(uri) == dict.fromkeys(range(12), 0) | {1: 7, 2: 7, 30: -1}


async def test_rows_with_stable_ids_are_merged_whether_again_or_anew(tmp_path: Path) -> None:
    uri = str(tmp_path / "stable.lance")
    lance.write_dataset(rows(*range(12), value=0), uri, max_rows_per_file=3, enable_stable_row_ids=True)
    first = merged(uri, rows(1, 20))
    append(uri, 30)
    assert (await commit(uri, merged(uri, rows(1, 20), first))).status is Status.COMMITTED
    assert contents(uri) == dict.fromkeys(range(12), 0) | {1: 1, 20: 1, 30: -1}
    made: Any = lance.dataset(uri)
    made.validate()


def test_nothing_is_kept_where_it_is_of_no_use(uri: str) -> None:
    assert merged(uri, rows(1).to_reader()).merge is None
    assert merged(uri, rows(1), **REPLACE).merge is None
    assert merged(uri, rows(1)).merge is not None


def test_a_batch_is_compared_as_a_table_is(uri: str) -> None:
    (batch,) = rows(1, 20).to_batches()
    first = merged(uri, batch)
    append(uri, 30)
    assert written(merged(uri, batch, first)) == written(first)
    assert written(merged(uri, rows(1, 20).to_batches()[0], first)) == written(first)


def test_other_work_is_executed_anew(uri: str, tmp_path: Path) -> None:
    first = merged(uri, rows(1, 20))
    append(uri, 30)
    for other in (
        merged(uri, rows(1, 21), first),
        merged(uri, rows(1, 20, value=2), first),
        merged(uri, rows(1, 20).to_reader(), first),
        merged(uri, rows(1, 20).to_batches()[0], first),
        merged(uri, rows(1, 20), first, keys_max=1),
        merged(uri, rows(1, 20), first, **CHANGE),
        staging.merge_insert(lance.dataset(uri), rows(1, 20), on=["key", "value"], again=refused(first)),
    ):
        assert set(written(other)).isdisjoint(written(first))
    copy = str(tmp_path / "copy.lance")
    shutil.copytree(uri, copy)
    assert set(written(merged(copy, rows(1, 20), first))).isdisjoint(written(first))
    error = RetryableConflict("refused", uuid=first.transaction.uuid)
    bare = Reexecution(error=error, work=first.transaction, attempt=2, attempts_max=9, seconds_left=None)
    again = staging.merge_insert(lance.dataset(uri), rows(1, 20), on="key", again=bare)
    assert set(written(again)).isdisjoint(written(first))


def test_too_much_is_left_to_pylance(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    many = merged(uri, rows(1, 20, 21), keys_max=2)
    append(uri, 30)
    assert set(written(merged(uri, rows(1, 20, 21), many, keys_max=2))).isdisjoint(written(many))
    monkeypatch.setattr(merge_again, "_ROWS_MAX", 3)
    first = merged(uri, rows(1, 20))
    append(uri, 31, 32, 33)
    assert written(merged(uri, rows(1, 20), first)) == written(first)
    append(uri, 34)
    assert set(written(merged(uri, rows(1, 20), first))).isdisjoint(written(first))


# Compared with executing again

CHANGES: list[Callable[[str, random.Random], Any]] = [
    lambda uri, rng: append(uri, 100 + rng.randrange(10**6)),
    lambda uri, rng: append(uri, 100 + rng.randrange(10**6)),
    lambda uri, rng: None if (key := rng.randrange(12, 24)) in contents(uri) else append(uri, key),
    lambda uri, rng: delete(uri, f"key = {rng.randrange(24)}"),
    lambda uri, rng: delete(uri, f"key >= {rng.randrange(9, 12)} and key < 12"),
    lambda uri, rng: lance.dataset(uri).update({"value": "-5"}, f"key = {rng.randrange(24)}"),
    lambda uri, rng: compact(uri),
    lambda uri, rng: restore(uri, rng.randrange(1, lance.dataset(uri).version + 1)),
]


@pytest.mark.parametrize("seed", range(40))
async def test_it_does_what_an_execution_anew_does(uri: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    clauses = rng.choice([{}, {}, ADD, CHANGE, CONDITION, REPLACE])
    source = rows(*sorted(rng.sample(range(24), 3)))
    work = merged(uri, source, **clauses)
    for _ in range(rng.randrange(1, 4)):
        for _ in range(rng.randrange(1, 3)):
            rng.choice(CHANGES)(uri, rng)
        work = merged(uri, source, work, **clauses)
    copy = str(tmp_path / "copy.lance")
    shutil.copytree(uri, copy)
    assert (await commit(uri, work)).status is Status.COMMITTED
    assert (await commit(copy, merged(copy, source, **clauses))).status is Status.COMMITTED
    assert contents(uri) == contents(copy)


# The decision


def fragment(number: int, *, file: str = "", deleted: int = 0) -> DataFragment:
    made = DataFragment(id=number, files=[DataFile(path=file or f"{number}.lance")], physical_rows=10)
    if deleted:
        made.deletion_file.CopyFrom(DeletionFile(num_deleted_rows=deleted, id=deleted))
    return made


def packed(*fragments: DataFragment) -> list[bytes]:
    return [one.SerializeToString() for one in fragments]


@pytest.mark.parametrize(
    ("now", "changed", "all_matched", "others"),
    [
        ([fragment(1), fragment(2)], {1}, [], []),
        ([fragment(1), fragment(2), fragment(3)], {1}, [3], [3]),
        ([fragment(1), fragment(2, deleted=1)], {1}, [], None),
        ([fragment(1), fragment(2, file="other")], {1}, [2], None),
        ([fragment(1, deleted=1), fragment(2)], {1}, None, None),
        ([fragment(1, file="other"), fragment(2)], {1}, None, None),
        ([fragment(1), fragment(3)], {1}, [3], None),
        ([fragment(2), fragment(3)], {1}, None, None),
        ([], set(), None, None),
        ([fragment(1, deleted=1), fragment(2, deleted=1)], set(), None, None),
    ],
)
def test_what_is_to_be_looked_through(
    now: list[DataFragment], changed: set[int], all_matched: list[int] | None, others: list[int] | None
) -> None:
    for may_lose_rows, wanted in ((True, all_matched), (False, others)):
        found = to_look_through(packed(fragment(1), fragment(2)), packed(*now), changed, may_lose_rows=may_lose_rows)
        assert (found if found is None else [one.id for one in found]) == wanted


def test_a_fragment_that_had_lost_rows_is_looked_through_when_it_changes() -> None:
    before = packed(fragment(1), fragment(2, deleted=1))
    for now in (fragment(2), fragment(2, deleted=2)):
        assert to_look_through(before, packed(fragment(1), now), {1}, may_lose_rows=True) == [now]
