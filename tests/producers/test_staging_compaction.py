"""Compaction in two transactions: what is kept after a conflict, and the effect on indices."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import staging
from committerd_client.staging.uncommitted import would_commit
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

ROWS = 400
OPTIONS: Any = {"target_rows_per_fragment": 200}
"""Two groups of four fragments with 50 rows."""


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    vectors = np.random.default_rng(first).random((count, 4), np.float32)
    return pa.table(
        {
            "id": ids,
            "text": [f"word{one} common" for one in ids],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4),
        }
    )


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def stable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def uri(tmp_path: Path, stable: bool) -> str:
    lance.write_dataset(rows(0, ROWS), tmp_path / "t.lance", max_rows_per_file=50, enable_stable_row_ids=stable)
    return str(tmp_path / "t.lance")


async def rewrite(uri: str, done: staging.Compacted, *, remap: bool = False) -> Status:
    dataset = lance.dataset(uri)
    reserved = await commit(uri, staging.reserve_fragments(lance.dataset(uri), done.ids_needed))
    first, count = reserved.reserved
    if remap:
        done = staging.with_remapped_indices(dataset, done, range(first, first + count))
    return (await commit(uri, done.rewrite(range(first, first + count)))).status


def fragment_ids(uri: str) -> list[int]:
    return [one.fragment_id for one in lance.dataset(uri).get_fragments()]


async def test_a_compaction_passes_appends(uri: str) -> None:
    done = staging.compact_files(lance.dataset(uri), **OPTIONS)
    assert (len(done.groups), done.ids_needed) == (2, 2)
    lance.write_dataset(rows(ROWS, 50), uri, mode="append")
    assert await rewrite(uri, done) is Status.COMMITTED
    assert fragment_ids(uri) == [8, 9, 10]
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(ROWS + 50))


async def test_a_compaction_passes_deletes_of_its_rows(uri: str) -> None:
    done = staging.compact_files(lance.dataset(uri), **OPTIONS)
    lance.dataset(uri).delete("id = 3 or (id >= 50 and id < 100)")
    assert await rewrite(uri, done) is Status.COMMITTED
    assert len(fragment_ids(uri)) == 2
    left = [one for one in range(ROWS) if one != 3 and not 50 <= one < 100]
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == left


async def test_after_a_conflict_only_the_groups_that_it_hit_are_done_again(uri: str) -> None:
    first = staging.compact_files(lance.dataset(uri), **OPTIONS)
    other = staging.compact_files(lance.dataset(uri), groups=[[0, 1]], target_rows_per_fragment=100)
    assert await rewrite(uri, other) is Status.COMMITTED
    assert await rewrite(uri, first) is Status.RETRYABLE
    again = staging.compact_files_again(lance.dataset(uri), first, **OPTIONS)
    assert again.read_version == lance.dataset(uri).version
    kept, fresh = again.groups
    assert kept == first.groups[1]
    assert [one.id for one in fresh.old] == [2, 3]
    assert await rewrite(uri, again) is Status.COMMITTED
    assert len(fragment_ids(uri)) == 3
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(ROWS))


async def test_another_schema_makes_all_of_it_anew(uri: str) -> None:
    first = staging.compact_files(lance.dataset(uri), **OPTIONS)
    lance.dataset(uri).add_columns({"more": "id + 1"})
    again = staging.compact_files_again(lance.dataset(uri), first, **OPTIONS)
    assert len(again.groups) == 2
    assert not [group for group in again.groups if group in first.groups]
    assert await rewrite(uri, again) is Status.COMMITTED
    assert lance.dataset(uri).count_rows("more = id + 1") == ROWS


async def test_nothing_is_left_when_others_have_compacted_it(uri: str) -> None:
    first = staging.compact_files(lance.dataset(uri), **OPTIONS)
    lance.dataset(uri).optimize.compact_files(**OPTIONS)
    assert staging.compact_files_again(lance.dataset(uri), first, **OPTIONS).groups == ()
    assert staging.compact_files(lance.dataset(uri), **OPTIONS).groups == ()


@pytest.mark.parametrize("kind", ["BTREE", "INVERTED", "IVF_FLAT"])
async def test_indices_answer_as_before_and_cover_all_rows_in_the_end(uri: str, stable: bool, kind: str) -> None:
    column = {"BTREE": "id", "INVERTED": "text", "IVF_FLAT": "vector"}[kind]
    parameters: dict[str, Any] = {"num_partitions": 2} if kind == "IVF_FLAT" else {}
    assert (await commit(uri, staging.create_index(lance.dataset(uri), column, kind, **parameters))).status is (
        Status.COMMITTED
    )
    lance.dataset(uri).delete("id >= 390")
    before = found(uri)
    done = staging.compact_files(lance.dataset(uri), **OPTIONS)
    # A B-tree of pylance 14 holds addresses even where row ids are stable.
    assert done.reindex == (() if stable and kind != "BTREE" else (f"{column}_idx",))
    assert await rewrite(uri, done) is Status.COMMITTED
    assert found(uri) == before
    if done.reindex:
        optimized = staging.optimize_indices(lance.dataset(uri), done.reindex)
        assert optimized is not None
        assert (await commit(uri, optimized)).status is Status.COMMITTED
    (index,) = lance.dataset(uri).describe_indices()
    assert sorted(one for segment in index.segments for one in segment.fragment_ids) == fragment_ids(uri)
    assert found(uri) == before


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "INVERTED", "IVF_FLAT"])
async def test_a_rewrite_carries_its_indices_as_that_of_pylance_does(uri: str, stable: bool, kind: str) -> None:
    column = {"BTREE": "id", "BITMAP": "id", "INVERTED": "text", "IVF_FLAT": "vector"}[kind]
    parameters: dict[str, Any] = {"num_partitions": 2} if kind == "IVF_FLAT" else {}
    staged = staging.create_index(lance.dataset(uri), column, kind, **parameters)
    assert (await commit(uri, staged)).status is Status.COMMITTED
    lance.dataset(uri).delete("id >= 390")
    lance.write_dataset(rows(ROWS, 50), uri, mode="append")
    before = found(uri)
    by_pylance = f"{uri}.copy"
    shutil.copytree(uri, by_pylance)
    lance.dataset(by_pylance).optimize.compact_files(**OPTIONS)
    assert await rewrite(uri, staging.compact_files(lance.dataset(uri), **OPTIONS), remap=True) is Status.COMMITTED
    assert found(uri) == before == found(by_pylance)
    assert covered(uri) == covered(by_pylance)
    assert covered(uri)
    assert {*os.listdir(f"{uri}/_indices")} >= {
        str(segment.uuid) for index in lance.dataset(uri).describe_indices() for segment in index.segments
    }


@pytest.mark.parametrize("kind", ["BTREE", "INVERTED", "IVF_FLAT"])
async def test_a_shallow_clone_has_its_rewritten_indices_in_its_own_folder(
    uri: str, tmp_path: Path, stable: bool, kind: str
) -> None:
    """pylance's own compaction looks for them in the folder of the source."""
    column = {"BTREE": "id", "INVERTED": "text", "IVF_FLAT": "vector"}[kind]
    parameters: dict[str, Any] = {"num_partitions": 2} if kind == "IVF_FLAT" else {}
    await commit(uri, staging.create_index(lance.dataset(uri), column, kind, **parameters))
    source = lance.dataset(uri)
    before, clone = found(uri), str(tmp_path / "clone.lance")
    source.shallow_clone(clone, source.version)
    assert await rewrite(clone, staging.compact_files(lance.dataset(clone), **OPTIONS), remap=True) is Status.COMMITTED
    assert found(clone) == before
    lance.write_dataset(rows(ROWS, 50), clone, mode="append")
    optimized = staging.optimize_indices(lance.dataset(clone), [f"{column}_idx"], num_indices_to_merge=1)
    assert optimized is not None
    assert (await commit(clone, optimized)).status is Status.COMMITTED
    assert covered(clone) == fragment_ids(clone)
    assert lance.dataset(clone).count_rows(f"id = {ROWS + 7}") == 1
    lance.write_dataset(rows(ROWS, 50), uri, mode="append")
    assert found(clone) == found(uri)


def covered(uri: str) -> list[int]:
    (index,) = lance.dataset(uri).describe_indices()
    return sorted(one for segment in index.segments for one in segment.fragment_ids)


async def test_after_a_conflict_the_indices_are_rewritten_for_all_groups(uri: str) -> None:
    assert (await commit(uri, staging.create_index(lance.dataset(uri), "id", "BTREE"))).status is Status.COMMITTED
    first = staging.compact_files(lance.dataset(uri), **OPTIONS)
    lance.dataset(uri).delete("id = 3")
    again = staging.compact_files_again(lance.dataset(uri), first, **OPTIONS)
    assert await rewrite(uri, again, remap=True) is Status.COMMITTED
    assert covered(uri) == fragment_ids(uri)
    assert [lance.dataset(uri).count_rows(f"id = {one}") for one in (2, 3, 4, 399)] == [1, 0, 1, 1]
    assert "ScalarIndexQuery" in lance.dataset(uri).scanner(filter="id = 7").explain_plan()


async def test_indices_are_rewritten_for_consecutive_ids_only(uri: str) -> None:
    assert (await commit(uri, staging.create_index(lance.dataset(uri), "id", "BTREE"))).status is Status.COMMITTED
    done = staging.compact_files(lance.dataset(uri), **OPTIONS)
    with pytest.raises(staging.StagingError, match=r"\[8, 11\] are not consecutive"):
        staging.with_remapped_indices(lance.dataset(uri), done, [8, 11])


async def test_groups_are_rewritten_as_given_and_what_pylance_would_not_join_is_left_out(uri: str) -> None:
    assert (await commit(uri, staging.create_index(lance.dataset(uri), "id", "BTREE"))).status is Status.COMMITTED
    lance.write_dataset(rows(ROWS, 50), uri, mode="append")
    done = staging.compact_files(lance.dataset(uri), groups=[[5, 1], [3], [6, 8], [99, 100]], **OPTIONS)
    assert [[old.id for old in group.old] for group in done.groups] == [[1, 5]]
    assert await rewrite(uri, done, remap=True) is Status.COMMITTED
    assert covered(uri) == [0, 2, 3, 4, 6, 7, 9]
    assert [lance.dataset(uri).count_rows(f"id = {one}") for one in (50, 299, 449)] == [1, 1, 1]


def found(uri: str) -> list[list[int]]:
    """The results of a scalar, a text and a vector query, with an index if there is one."""
    table = lance.dataset(uri)
    nearest: dict[str, Any] = {"column": "vector", "q": np.full(4, 0.5, np.float32), "k": 10, "nprobes": 2}
    scans: list[dict[str, Any]] = [{"filter": "id > 380"}, {"filter": "text LIKE '%word17%'"}, {"nearest": nearest}]
    if any(index.name == "text_idx" for index in table.describe_indices()):
        scans.append({"full_text_query": "word17"})
    return [sorted(table.to_table(columns=["id"], **scan)["id"].to_pylist()) for scan in scans]


def test_results_of_another_version_are_refused(uri: str) -> None:
    dataset = lance.dataset(uri)
    results = [task.execute(dataset) for task in staging.compaction_tasks(dataset, **OPTIONS)]
    lance.dataset(uri).delete("id = 3")
    with pytest.raises(staging.StagingError, match="planned on version 1, and the dataset is open at 2"):
        staging.compacted(lance.dataset(uri), results)
    assert len(staging.compacted(dataset, results).groups) == 2


def test_a_rewrite_needs_ids_enough(uri: str) -> None:
    done = staging.compact_files(lance.dataset(uri), **OPTIONS)
    with pytest.raises(staging.StagingError, match="2 fragment ids are needed, and fewer were reserved"):
        done.rewrite([8])


# Changes in which pylance is stopped


async def test_segments_that_were_built_elsewhere_are_published(uri: str) -> None:
    dataset = lance.dataset(uri)
    segments = [
        dataset.create_index_uncommitted("id", "BTREE", name="ids", fragment_ids=[*part])
        for part in (range(4), range(4, 8))
    ]
    assert (await commit(uri, staging.add_index_segments(dataset, segments))).status is Status.COMMITTED
    (index,) = lance.dataset(uri).describe_indices()
    assert (index.name, len(index.segments), index.num_rows_indexed) == ("ids", 2, ROWS)
    assert "ScalarIndexQuery" in lance.dataset(uri).scanner(filter="id = 7").explain_plan()
    assert lance.dataset(uri).count_rows("id = 7") == 1


async def test_an_index_is_staged_on_what_others_have_committed_meanwhile(uri: str) -> None:
    old = lance.dataset(uri)
    lance.write_dataset(rows(ROWS, 50), uri, mode="append")
    staged = staging.create_index(old, "id", "BTREE", name="ids")
    assert (await commit(uri, staged)).status is Status.COMMITTED
    (index,) = lance.dataset(uri).describe_indices()
    assert index.num_rows_indexed == ROWS
    assert lance.dataset(uri).count_rows("id = 7 or id = 410") == 2


def test_a_change_that_commits_nothing_is_none_and_what_it_raises_is_raised(uri: str) -> None:
    dataset = lance.dataset(uri)
    assert would_commit(dataset, lambda opened: opened.count_rows(), expected=lambda _: True) is None
    with pytest.raises(TypeError, match="Vector column id must be"):
        staging.create_index(dataset, "id", "IVF_PQ")
    with pytest.raises(staging.StagingError, match="0 transactions in _transactions may be"):
        would_commit(dataset, lambda opened: opened.delete("id = 1"), expected=lambda _: False)
    assert lance.dataset(uri).version == 1
