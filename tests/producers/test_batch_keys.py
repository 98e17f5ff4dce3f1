"""Batches of the distributed writers that change a table by keys, beside Appends that name their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.queue.outcomes import Status
from committerd_batch.gathering import BatchFiles, gather, stage
from committerd_batch.target import Mode, Target
from committerd_client import Staged, staging
from committerd_client.errors import RetryableConflict
from committerd_client.reexecution import Reexecution
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

BATCHES = {
    "upsert": (Mode.UPSERT, [(1, "u"), (7, "u"), (8, "u")]),
    "delete": (Mode.DELETE, [(1, "d"), (7, "d"), (8, "d")]),
    "cdc": (Mode.CDC, [(1, "d"), (7, "d"), (8, "u")]),
    "cdc that only upserts": (Mode.CDC, [(1, "u"), (7, "u"), (8, "u")]),
    "cdc that only deletes": (Mode.CDC, [(1, "d"), (7, "d"), (8, "d")]),
}
"""By name: the mode, and each change as (key, what it does)."""


def rows(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": [value] * len(ids)})


def batch(uri: str, name: str) -> BatchFiles:
    """A batch, planned on the latest version and written by one task."""
    mode, changes = BATCHES[name]
    given = rows([key for key, _ in changes], "batch")
    options: dict[str, Any] = {}
    if mode is Mode.DELETE:
        given = given.select(["id"])
    if mode is Mode.CDC:
        given = given.append_column("op", pa.array([op for _, op in changes])).append_column("seq", given["id"])
        options = {"op_column": "op", "order_by": ("seq",)}
    plan = Target(uri=uri, keys=("id",), **options).plan(given.schema, mode, lance.dataset(uri))
    return gather(plan, [plan.task(given.to_batches())])


def appended(uri: str, key: int, *, named: bool) -> Staged:
    dataset, added = lance.dataset(uri), rows([key], "appended")
    keys = staging.keys_of(dataset, "id", added) if named else None
    return staging.append(write_fragments(added, dataset, mode="append"), dataset=dataset, keys=keys)


async def told(uri: str, name: str, key: int, *, named: bool, stable: bool) -> tuple[Status, list[tuple[int, str]]]:
    """The outcome of a batch that is staged before an Append of this key is committed, and the rows in the end; a batch
    that is refused is executed again.
    """
    lance.write_dataset(rows([0, 1], "old"), uri, enable_stable_row_ids=stable)
    gathered = batch(uri, name)
    staged = stage(gathered, lance.dataset(uri))
    assert staged is not None
    assert (await commit(uri, appended(uri, key, named=named))).status is Status.COMMITTED
    outcome = await commit(uri, staged)
    if outcome.status is Status.RETRYABLE:
        again = stage(gathered, lance.dataset(uri), refused(staged))
        assert again is not None
        assert (await commit(uri, again)).status is Status.COMMITTED
    found = lance.dataset(uri).to_table().to_pylist()
    return outcome.status, sorted((row["id"], row["value"]) for row in found)


def refused(work: Staged) -> Reexecution:
    error = RetryableConflict("refused", uuid=work.transaction.uuid)
    return Reexecution(error=error, work=work, attempt=2, attempts_max=10, seconds_left=None)


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable"])
@pytest.mark.parametrize("name", BATCHES)
async def test_an_append_that_names_its_keys_changes_no_outcome_of_a_batch_with_one_of_them(
    name: str, stable: bool, tmp_path: Path
) -> None:
    for key, _ in BATCHES[name][1][1:]:
        by_keys, without = [
            await told(str(tmp_path / f"{key}-{named}"), name, key, named=named, stable=stable)
            for named in (True, False)
        ]
        assert by_keys == without


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable"])
@pytest.mark.parametrize("name", BATCHES)
async def test_a_batch_passes_an_append_of_other_keys(name: str, stable: bool, tmp_path: Path) -> None:
    status, found = await told(str(tmp_path), name, 9, named=True, stable=stable)
    assert status is Status.COMMITTED
    kept = [(key, "batch") for key, kind in BATCHES[name][1] if kind == "u"]
    assert found == [(0, "old"), *kept, (9, "appended")]


async def test_a_row_that_was_appended_meanwhile_is_deleted_with_its_key(tmp_path: Path) -> None:
    status, found = await told(str(tmp_path), "cdc", 7, named=True, stable=False)
    assert status is Status.RETRYABLE
    assert found == [(0, "old"), (8, "batch")]
