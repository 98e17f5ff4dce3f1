"""Rows that are followed through Rewrites: what a record does wrong, and where the work runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from committerd.queue.outcomes import Status
from committerd.table.heavy_work import LIGHT_FOLLOWED_MAX
from committerd.table.prepare import Prepared, prepare
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from tests.lance.operations import delete
from tests.lance.samples import fragment, manifest, transaction, with_row_ids
from tests.table.scene import ANY, Scene, read_at, rejected, sources

T = TypeVar("T")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t")


def rewrite(old: DataFragment, new: DataFragment, *, read: int, uuid: str | None = None) -> Transaction:
    group = Transaction.Rewrite.RewriteGroup(old_fragments=[old], new_fragments=[new])
    made = transaction(read, rewrite=Transaction.Rewrite(groups=[group]), transaction_properties={ROWS: IN_ORDER})
    made.uuid = uuid or made.uuid
    return made


async def test_damaged_row_ids_of_a_staged_rewrite_refuse_the_rewrite_alone(scene: Scene) -> None:
    first = manifest(fragment(0), fragment(1), version=1, stable=True)
    scene.write_version(first)
    new = fragment(9)
    new.inline_row_ids = b"\xff"
    changed = DataFragment()
    changed.CopyFrom(first.fragments[0])
    changed.deletion_file.CopyFrom(fragment(0, deleted=1).deletion_file)
    scene.write_deletions(changed, 3)
    assert isinstance(await scene.commit(read_at(delete(changed), 1)), Prepared)
    staged = rewrite(first.fragments[0], new, read=1, uuid="1b1c2d3e-4f50-4617-8283-94a5b6c7d8e9")
    assert await rejected(scene, staged) == (Status.INVALID, "row_ids")


@pytest.mark.parametrize("stable", [False, True], ids=["by order", "by ids"])
@pytest.mark.parametrize("rows", [LIGHT_FOLLOWED_MAX // 2, LIGHT_FOLLOWED_MAX])
async def test_rows_that_take_long_to_follow_are_followed_in_a_thread(scene: Scene, rows: int, stable: bool) -> None:
    first = manifest(fragment(0, rows=rows), fragment(1), version=1, stable=stable)
    scene.write_version(first)
    old, new = first.fragments[0], fragment(9, rows=rows)
    if stable:
        with_row_ids(new, [range(rows)])
    assert isinstance(await scene.commit(rewrite(old, new, read=1)), Prepared)
    sizes: list[int] = []

    async def work(call: Callable[[], T], *, size: int) -> T:
        sizes.append(size)
        return call()

    staged = read_at(delete(removed=(0,)), 1)
    staged.uuid = "1b1c2d3e-4f50-4617-8283-94a5b6c7d8e9"
    table = scene.table()
    prepared = await prepare(table, await table.latest(), staged, options=ANY, sources=sources(), work=work)
    assert isinstance(prepared, Prepared)
    assert f"{rows} rows were followed" in prepared.judged.note
    assert bool(sizes) is (rows == LIGHT_FOLLOWED_MAX)
    assert all(size == staged.ByteSize() for size in sizes)
