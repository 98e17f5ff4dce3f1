"""The findings of random damage and random changes, each as the smallest case that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyroaring import BitMap

from committerd.errors import CorruptTable
from committerd.queue.outcomes import Status
from committerd.table.prepare import Prepared
from committerd_common.index_details import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX
from committerd_common.messages import DataFragment, IndexMetadata, Transaction
from committerd_common.row_ids import decode_versions
from tests.lance import samples
from tests.lance.operations import create_index, delete, update
from tests.lance.samples import column, fragment, index, manifest, transaction
from tests.table.scene import Scene, append, read_at, rejected

HUGE = 2**32 - 1


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), fragment(1), version=1))
    return scene


def with_deletions_of_type(number: int) -> DataFragment:
    made = fragment(0, deleted=1)
    made.deletion_file.file_type = number  # type: ignore[assignment]  # not one of them
    return made


def rewriting(old: DataFragment, new: DataFragment) -> Transaction:
    group = Transaction.Rewrite.RewriteGroup(old_fragments=[old], new_fragments=[new])
    return transaction(rewrite=Transaction.Rewrite(groups=[group]))


def projecting(*columns: object) -> Transaction:
    return transaction(project=Transaction.Project(schema=columns))  # type: ignore[arg-type]


def named(name: str, **other: object) -> IndexMetadata:
    made = index(1, name=name)
    for key, value in other.items():
        setattr(made, key, value)
    return made


def system_index(name: str) -> IndexMetadata:
    return index(1, name=name, fields=())


def column_with(**other: object) -> object:
    made = column(0)
    for key, value in other.items():
        setattr(made, key, value)
    return made


def with_offsets(bitmap: bytes) -> Transaction:
    made = update()
    made.update.updated_fragment_offset_bitmaps[0] = bitmap
    return made


def with_old_field_metadata(number: int) -> Transaction:
    made = transaction(update_config=Transaction.UpdateConfig())
    made.update_config.field_metadata[number].metadata["a"] = "b"
    return made


def everything() -> bytes:
    full = BitMap(range(2**24))
    full.run_optimize()
    return bytes(full.serialize())


REFUSED: list[tuple[str, Callable[[], Transaction]]] = [
    # Each of these reached the invariants, an exception of another library, or the table.
    ("field_id_twice", lambda: projecting(column(0), column(0))),
    ("fragment_without_files", lambda: projecting(column(7))),
    ("schema", lambda: projecting(column_with(parent_id=3))),
    ("schema", lambda: projecting(column_with(id=-1))),
    ("schema", lambda: projecting(column_with(name="a\0"))),
    ("schema", lambda: projecting(column_with(logical_type="text"))),
    ("deletion_file_type", lambda: delete(with_deletions_of_type(7))),
    ("deletion_file_type", lambda: rewriting(with_deletions_of_type(7), fragment(0, name="new"))),
    ("fragment_ids_exhausted", lambda: rewriting(fragment(0), fragment(2**32, name="new"))),
    (
        "fragment_ids_exhausted",
        lambda: transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=HUGE)),
    ),
    ("physical_rows_too_many", lambda: append(1, fragment(0, rows=2**32, name="new"))),
    ("index_bitmap", lambda: create_index(named("i", fragment_bitmap=b"\0"))),
    ("index_bitmap", lambda: create_index(named("i", fragment_bitmap=everything()))),
    ("index_created_at", lambda: create_index(named("i", created_at=2**62))),
    ("index_details", lambda: create_index(system_index(FRAGMENT_REUSE_INDEX))),
    ("index_details", lambda: create_index(system_index(MEM_WAL_INDEX))),
    ("updated_offsets", lambda: with_offsets(b"\0")),
    ("unknown_version", lambda: transaction(restore=Transaction.Restore(version=2**64 - 1))),
    ("base_path", lambda: transaction(0, clone=Transaction.Clone(ref_path="a\0b"))),
    ("unknown_field", lambda: with_old_field_metadata(HUGE)),
]


@pytest.mark.parametrize(("code", "staged"), REFUSED)
async def test_stops_nobody_else(code: str, staged: Callable[[], Transaction], scene: Scene) -> None:
    made = staged()
    if made.WhichOneof("operation") != "clone":
        made = read_at(made, 1)
    assert await rejected(scene, made) == (Status.INVALID, code)


async def test_row_versions_that_nobody_can_read_are_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1, stable=True))
    changed = (await scene.latest()).manifest.fragments[0]
    changed.inline_created_at_versions = b"\xff"
    assert await rejected(scene, read_at(update(changed), 1)) == (Status.INVALID, "row_versions")


async def test_row_versions_of_other_rows_are_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1, stable=True))
    changed = (await scene.latest()).manifest.fragments[0]
    changed.inline_last_updated_at_versions = bytes.fromhex("0a080a040a0210031001")  # of 3 rows
    staged = read_at(update(changed), 1)
    staged.update.updated_fragment_offsets[0].values.append(7)
    assert await rejected(scene, staged) == (Status.INVALID, "row_versions")


async def test_four_billion_rows_cost_nothing(tmp_path: Path) -> None:
    """Rows that move are found by their ids, but a range of ids stays a range."""
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1, stable=True))
    staged = read_at(update(new_fragments=[fragment(0, rows=HUGE, name="new")]), 1)
    started = time.process_time()
    committed = await scene.commit(staged)
    assert time.process_time() - started < 5
    assert isinstance(committed, Prepared)
    made = committed.file.manifest.fragments[-1]
    runs = decode_versions(made.inline_created_at_versions, fragment=made.id, staged=False)
    assert [(run.rows, run.version) for run in runs] == [(HUGE, 2)]


def bringing(ids: range) -> DataFragment:
    return samples.with_row_ids(fragment(0, name="new"), [ids])


@pytest.mark.parametrize(
    "staged",
    [
        append(1, bringing(range(10))),
        append(1, bringing(range(5, 15))),
        append(1, bringing(range(100, 110)), samples.with_row_ids(fragment(0, name="other"), [range(105, 115)])),
        read_at(update(new_fragments=[bringing(range(5, 15))]), 1),
        read_at(update(new_fragments=[bringing(range(10))]), 1),
        read_at(update(samples.with_row_ids(fragment(0), [range(1, 11)])), 1),
        read_at(delete(samples.with_row_ids(fragment(0), [range(1, 11)])), 1),
        read_at(
            rewriting(
                samples.with_row_ids(fragment(0), [range(10)]),
                samples.with_row_ids(fragment(0, name="new"), [range(10, 20)]),
            ),
            1,
        ),
    ],
)
async def test_row_ids_of_other_rows_are_refused(staged: Transaction, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1, stable=True))
    assert await rejected(scene, staged) == (Status.INVALID, "row_ids")


async def test_few_bytes_that_stand_for_very_many_rows_cost_nothing(tmp_path: Path) -> None:
    """An unordered sequence of 109 bytes, before four billion rows without ids."""
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1, stable=True))
    many = samples.with_row_ids(fragment(0, rows=HUGE, name="new"), [range(one, one + 1) for one in range(9, 0, -1)])
    started = time.process_time()
    committed = await scene.commit(read_at(update(new_fragments=[many], removed_fragment_ids=[0]), 1))
    assert time.process_time() - started < 5
    assert isinstance(committed, Prepared)


async def test_an_index_of_lance_outlives_its_fields(scene: Scene) -> None:
    """Another writer made it with a field, which is dropped later."""
    scene.write_version(manifest(fragment(0), version=2), indices=[index(1, name=MEM_WAL_INDEX, fields=(2,))])
    committed = await scene.commit(read_at(projecting(column(0), column(1)), 2))
    assert isinstance(committed, Prepared)
    assert [one.name for one in committed.file.indices] == [MEM_WAL_INDEX]


async def test_row_ids_do_not_run_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1, stable=True, next_row_id=2**64 - 5))
    assert await rejected(scene, append(1, fragment(0, name="new"))) == (Status.INVALID, "row_ids")


async def test_a_violation_that_was_there_before_stops(scene: Scene) -> None:
    """Only what the transaction brings is its producer's fault."""
    scene.write_version(manifest(fragment(0), fragment(0), version=2))
    with pytest.raises(CorruptTable):
        await scene.commit(append(1))


@pytest.mark.parametrize("operation", ["delete", "restore"])
async def test_a_damaged_old_version_stops_nobody(operation: str, scene: Scene) -> None:
    """The damaged version is the read version, or the one that a Restore names."""
    scene.write_version(manifest(fragment(0), version=2))
    first = next(path for path in scene.root.glob("_versions/*614.manifest"))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    if operation == "delete":
        assert isinstance(await scene.commit(read_at(delete(removed=(0,)), 1)), Prepared)
    else:
        staged = transaction(2, restore=Transaction.Restore(version=1))
        assert await rejected(scene, staged) == (Status.INVALID, "unknown_version")


async def test_a_damaged_index_of_an_old_version_stops_nobody(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1), indices=[named("i", fragment_bitmap=b"\0")])
    scene.write_version(manifest(fragment(0), version=2))
    staged = read_at(rewriting(fragment(0), fragment(0, name="new")), 1)
    assert isinstance(await scene.commit(staged), Prepared)


async def test_a_dropped_column_leaves_no_file_behind(scene: Scene) -> None:
    """A Delete that was planned before a column was dropped names its file again; pylance 14 leaves it out."""
    changed = fragment(0, deleted=1)
    changed.files.append(samples.data_file("dropped", [7]))
    scene.write_files(changed)
    committed = await scene.commit(read_at(delete(changed), 1))
    assert isinstance(committed, Prepared)
    assert [file.path for file in committed.file.manifest.fragments[0].files] == ["f0.lance"]
