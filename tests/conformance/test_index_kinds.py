"""Indices of every kind that pylance 14.0.2 builds, beside compactions: queries through them find what a scan finds.

An index passes the compaction of a part of what it was built on; a Delete passes a compaction that leaves indices to be
remapped. Then pylance deletes rows and optimizes the index.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance.query import MatchQuery, MinHashQuery

from committerd.committer import direct
from committerd.committer.direct import DirectOutcome
from committerd.lance.operations.permissions import ANYTHING
from committerd.lance.versions.indices import holds_addresses
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions
from committerd.table.versions import Table
from committerd_client import Staged, staging
from tests.table.scene import sources

pytestmark = pytest.mark.pylance

ROWS = 300
"""An index of product quantization needs 256."""
SCALAR = {
    "BTREE": "id",
    "BITMAP": "few",
    "ZONEMAP": "id",
    "BLOOMFILTER": "id",
    "LABEL_LIST": "labels",
    "NGRAM": "text",
    "INVERTED": "text",
    "RTREE": "point",
    "MINHASHLSH": "text",
}
VECTOR = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
KINDS = (*SCALAR, *VECTOR)
LOOKED_UP = (3, 60, 130, 250, 299, 305)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    vectors = np.random.default_rng(first).standard_normal((count, 8)).astype("float32")
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "few": pa.array([one % 7 for one in numbers], pa.int64()),
            "labels": [[f"l{one % 7}", f"x{one}"] for one in numbers],
            "text": [f"word{one % 5} row{one}" for one in numbers],
            "point": [f"POINT ({one} {one})" for one in numbers],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
        }
    )


def create(root: Path, *, stable: bool) -> lance.LanceDataset:
    return lance.write_dataset(rows(0, ROWS), root, max_rows_per_file=50, enable_stable_row_ids=stable)


def column_of(kind: str) -> str:
    return SCALAR.get(kind, "vector")


def parameters(kind: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {} if kind in SCALAR else {"num_partitions": 2}
    return wanted | ({"num_sub_vectors": 2} if kind.endswith("PQ") else {})


async def commit(root: Path, staged: Staged, *, trusts_rewrites: bool = False) -> DirectOutcome:
    return await direct.commit(
        Table(LocalStore(root, durable=False)),
        staged.transaction,
        options=PrepareOptions(allowed=ANYTHING, verify_files=True, trusts_rewrites=trusts_rewrites),
        sources=sources(),
        backoff=Backoff(random.Random(0)),
    )


async def compact(root: Path, dataset: lance.LanceDataset, *groups: list[int]) -> None:
    done = staging.compact_files(dataset, groups=list(groups), target_rows_per_fragment=1000)
    assert len(done.groups) == len(groups)
    first, count = (await commit(root, staging.reserve_fragments(dataset, done.ids_needed))).reserved
    assert (await commit(root, done.rewrite(range(first, first + count)))).status is Status.COMMITTED


def filters(kind: str, number: int) -> Iterator[str]:
    """Filters that an index of this kind can use."""
    if kind == "LABEL_LIST":
        yield f"array_has_any(labels, ['x{number}'])"
        yield f"array_has_any(labels, ['l{number % 7}'])"
    elif kind == "NGRAM":
        yield f"contains(text, 'row{number}')"
    elif kind == "RTREE":
        low, high = number - 1, number + 1
        corners = f"{low} {low}, {high} {low}, {high} {high}, {low} {high}, {low} {low}"
        yield f"st_intersects(point, 'POLYGON (({corners}))')"
    elif kind == "BITMAP":
        yield f"few = {number % 7}"
    else:
        yield f"id = {number}"


def check(root: Path, kind: str) -> None:
    """Queries through the index find each row that a scan finds, once."""
    dataset = lance.dataset(root)
    there = sorted(dataset.to_table(columns=["id"]).column("id").to_pylist())
    if kind == "INVERTED":
        for number in LOOKED_UP:
            query = MatchQuery(f"row{number}", "text")
            found = dataset.scanner(full_text_query=query, columns=["id", "_score"], limit=1000).to_table()
            assert found.column("id").to_pylist() == [number] * (number in there)
    elif kind == "MINHASHLSH":
        for number in LOOKED_UP:
            scanner = dataset.scanner(nearest=MinHashQuery(f"word{number % 5} row{number}", "text"), limit=1000)
            assert "MinHashSearch" in scanner.explain_plan()
            found = scanner.to_table().column("id").to_pylist()
            assert len(found) == len(set(found))
            assert set(found) <= set(there)
            assert found[:1] == [number] or number not in there
    elif kind in SCALAR:
        for one in (one for number in LOOKED_UP for one in filters(kind, number)):
            scanner = dataset.scanner(filter=one, columns=["id"])
            assert "ScalarIndex" in scanner.explain_plan(), one
            scanned = dataset.scanner(filter=one, columns=["id"], use_scalar_index=False).to_table()
            found = scanner.to_table().column("id").to_pylist()
            assert sorted(found) == sorted(scanned.column("id").to_pylist()), one
    else:
        nearest: dict[str, Any] = {"column": "vector", "q": np.zeros(8, "float32"), "k": len(there), "nprobes": 100}
        if "HNSW" in kind:
            nearest["ef"] = 2000
        scanner = dataset.scanner(columns=["id", "_distance"], nearest=nearest)
        assert "ANN" in scanner.explain_plan()
        assert sorted(scanner.to_table().column("id").to_pylist()) == there


def check_later_work(root: Path, kind: str) -> None:
    """As `check`, also after pylance has deleted rows, and has optimized the index."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(root, kind)
        lance.dataset(root).delete("id in (3, 120, 299)")
        check(root, kind)
        lance.dataset(root).optimize.optimize_indices()
        check(root, kind)


async def being_built(root: Path, kind: str, *, stable: bool) -> tuple[lance.LanceDataset, Staged]:
    """A table to which rows are appended while an index of it is built; the version that the index has read."""
    dataset = create(root, stable=stable)
    index = staging.create_index(dataset, column_of(kind), kind, **parameters(kind))
    added = staging.append(write_fragments(rows(ROWS, 9), dataset), dataset=dataset)
    assert (await commit(root, added)).status is Status.COMMITTED
    return dataset, index


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_index_that_has_passed_a_compaction_finds_every_row_once(
    tmp_path: Path, kind: str, stable: bool
) -> None:
    root = tmp_path / "table"
    dataset, index = await being_built(root, kind, stable=stable)
    await compact(root, dataset, [0, 1], [2, 3])
    done = await commit(root, index)
    assert done.status is Status.COMMITTED
    assert "was built on 6 fragments, of which 4 were rewritten" in done.message
    check_later_work(root, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_index_of_row_ids_does_not_pass_a_compaction_of_its_rows_with_others(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "table"
    _, index = await being_built(root, kind, stable=True)
    await compact(root, lance.dataset(root), [5, 6])
    done = await commit(root, index)
    (built,) = index.transaction.create_index.new_indices
    if not holds_addresses(built):
        assert done.status is Status.RETRYABLE
        return
    assert done.status is Status.COMMITTED
    check_later_work(root, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_that_are_followed_through_a_deferred_remapping_are_gone_from_the_index(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "table"
    dataset = create(root, stable=False)
    build: Any = dataset.create_scalar_index if kind in SCALAR else dataset.create_index
    build(column_of(kind), kind, **parameters(kind))
    deletion = staging.delete(lance.dataset(root), "id in (60, 130, 131)")
    lance.dataset(root).optimize.compact_files(target_rows_per_fragment=150, defer_index_remap=True, num_threads=1)
    done = await commit(root, deletion, trusts_rewrites=True)
    assert done.status is Status.COMMITTED
    assert "3 rows were followed" in done.message
    check_later_work(root, kind)
