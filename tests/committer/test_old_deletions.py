"""Deletion files of old versions that a cleanup has removed: what needs one is executed again, and is not INVALID."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd.committer import direct
from committerd.committer.deciding import DecideOptions
from committerd.queue.outcomes import Status
from committerd.table.backoff import Backoff
from committerd.table.prepare import Prepared
from committerd.table.versions import Table
from committerd_client import staging
from committerd_common.messages import DataFragment, Transaction
from committerd_common.messages import Status as StatusNumber
from committerd_common.own_properties import IN_ORDER, ROWS
from tests.committer.bench import Bench, record
from tests.lance import samples
from tests.lance.operations import delete
from tests.lance.samples import fragment, manifest, transaction
from tests.table.scene import ANY, Scene, read_at, sources

AT_1, AT_2, OURS = 1, 2, 77
"""Numbers of the deletion files: of version 1, of version 2, of what is staged."""


def with_deletions(scene: Scene, number: int, *rows: int, of: int = 0) -> DataFragment:
    made = fragment(of)
    made.deletion_file.CopyFrom(samples.deletion_file(len(rows), number=number))
    return scene.write_deletions(made, *rows)


def rewrite(read: int, *old: DataFragment) -> Transaction:
    rows = sum(one.physical_rows - one.deletion_file.num_deleted_rows for one in old)
    group = Transaction.Rewrite.RewriteGroup(old_fragments=old, new_fragments=[fragment(9, rows=rows)])
    made = transaction(read, rewrite=Transaction.Rewrite(groups=[group]), transaction_properties={ROWS: IN_ORDER})
    made.uuid = str(uuid.uuid4())
    return made


async def first_fragment(scene: Scene) -> DataFragment:
    return (await scene.latest()).manifest.fragments[0]


def ours(scene: Scene) -> Transaction:
    made = read_at(delete(with_deletions(scene, OURS, 0, 7)), 1)
    made.uuid = str(uuid.uuid4())
    return made


async def deleted_meanwhile(scene: Scene) -> Transaction:
    """Others deleted another row of the same fragment."""
    theirs = with_deletions(scene, AT_2, 0, 5)
    scene.write_version(manifest(theirs, fragment(1), version=2), read_at(delete(theirs), 1))
    return ours(scene)


async def moved_meanwhile(scene: Scene) -> Transaction:
    """Others compacted the fragment."""
    assert isinstance(await scene.commit(rewrite(1, await first_fragment(scene))), Prepared)
    return ours(scene)


async def deleted_and_moved_meanwhile(scene: Scene) -> Transaction:
    """Others deleted another row of the fragment, and then compacted it."""
    staged = await deleted_meanwhile(scene)
    assert isinstance(await scene.commit(rewrite(2, await first_fragment(scene))), Prepared)
    return staged


async def deleted_while_moving(scene: Scene) -> Transaction:
    """Others deleted a row of a fragment that ours compacts."""
    staged = rewrite(1, await first_fragment(scene))
    await deleted_meanwhile(scene)
    return staged


@dataclass(frozen=True, slots=True)
class Case:
    stage: Callable[[Scene], Awaitable[Transaction]]
    gone: int
    """The number of the deletion file that is gone."""


CASES = [
    Case(deleted_meanwhile, AT_1),
    Case(deleted_meanwhile, AT_2),
    Case(moved_meanwhile, AT_1),
    Case(deleted_and_moved_meanwhile, AT_1),
    Case(deleted_and_moved_meanwhile, AT_2),
    Case(deleted_while_moving, AT_1),
]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(with_deletions(scene, AT_1, 0), fragment(1), version=1))
    return scene


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.stage.__name__}-{case.gone}")
async def test_are_a_reason_to_execute_again(case: Case, scene: Scene) -> None:
    staged = await case.stage(scene)
    (path,) = scene.root.glob(f"_deletions/0-*-{case.gone}.bin")
    path.unlink()
    answer = await directly(scene, staged)
    assert (answer.status, answer.reason) == (Status.RETRYABLE, "read_version_gone")
    assert "a cleanup has removed it. Read the latest version and do the work again" in answer.message

    bench = Bench(scene, DecideOptions(verify_files="never"))
    bench.arrive(record(0, staged))
    formed = await bench.assembler.assemble(await bench.head(), bench.intake)
    assert formed is not None
    assert [(one.status, one.reason) for one in formed.own.settled.refusals] == [
        (StatusNumber.RETRYABLE, "read_version_gone")
    ]

    if case == Case(deleted_meanwhile, AT_2):
        return  # it was the latest version's, so the table is damaged
    latest = await scene.latest()
    again = delete(removed=(latest.manifest.fragments[0].id,))
    again.uuid, again.read_version = str(uuid.uuid4()), latest.version
    assert (await directly(scene, again)).status is Status.COMMITTED


async def directly(scene: Scene, staged: Transaction, table: Table | None = None) -> direct.DirectOutcome:
    rng = random.Random(0)
    return await direct.commit(
        table or scene.table(), staged, options=ANY, sources=sources(random=rng), backoff=Backoff(rng)
    )


@pytest.mark.pylance
async def test_a_delete_that_was_planned_before_a_cleanup_is_executed_again_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": range(40)}), uri, max_rows_per_file=20)
    lance.dataset(uri).delete("id = 1")
    scene = Scene(tmp_path / "t")
    table = scene.table()
    planned = lance.dataset(uri)
    first = staging.delete(planned, "id in (5, 6)").transaction
    # A committer that works has read all of these versions before they are gone.
    other = staging.delete(planned, "id = 30").transaction
    assert (await directly(scene, other, table)).status is Status.COMMITTED
    lance.dataset(uri).delete("id = 7")
    other = staging.delete(lance.dataset(uri), "id = 31").transaction
    assert (await directly(scene, other, table)).status is Status.COMMITTED
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))
    answer = await directly(scene, first, table)
    assert (answer.status, answer.reason) == (Status.RETRYABLE, "read_version_gone")
    again = staging.delete(lance.dataset(uri), "id in (5, 6)").transaction
    assert (await directly(scene, again, table)).status is Status.COMMITTED
    assert lance.dataset(uri).count_rows() == 34
