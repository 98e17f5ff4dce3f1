"""Members of one version that are wrong, or that empty a fragment together."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from committerd_client import staging
from committerd_common.messages import Transaction
from committerd_common.paths import deletion_key
from committerd_common.row_ids import RowIds, encode_row_ids
from tests.conformance.facts import manifests
from tests.conformance.rounds import by_round

pytestmark = pytest.mark.pylance


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table of 40 rows in two fragments."""
    return table(tmp_path / "t.lance")


@pytest.fixture
def stable(tmp_path: Path) -> Path:
    """The same with stable row ids; the rows 3 and 4 have moved to fragment 2."""
    path = table(tmp_path / "t.lance", stable=True)
    lance.dataset(str(path)).update({"id": "id"}, where="id IN (3, 4)")
    return path


def table(path: Path, *, stable: bool = False) -> Path:
    lance.write_dataset(
        pa.table({"id": range(40)}),
        str(path),
        max_rows_per_file=20,
        data_storage_version="2.0",
        enable_stable_row_ids=stable,
    )
    return path


def updating(root: Path, condition: str, *row_ids: int) -> Transaction:
    """An Update; with `row_ids`, its new fragment claims to have these rows."""
    staged = staging.update(lance.dataset(str(root)), {"id": "id"}, where=condition).transaction
    if row_ids:
        (new,) = staged.update.new_fragments
        new.inline_row_ids = encode_row_ids(RowIds(tuple(range(one, one + 1) for one in row_ids)))
        new.physical_rows = len(row_ids)
    return staged


def deleting(root: Path, condition: str) -> Transaction:
    return staging.delete(lance.dataset(str(root)), condition).transaction


def deletion_file(root: Path, staged: Transaction) -> Path:
    (changed,) = staged.delete.updated_fragments
    return root / deletion_key(changed.id, changed.deletion_file, staged=True)


def ids(root: Path) -> list[int]:
    return sorted(lance.dataset(str(root)).to_table()["id"].to_pylist())


@pytest.mark.parametrize("wrong", ["missing", "lies", "garbage"])
async def test_a_member_with_a_wrong_deletion_file_is_refused_alone(root: Path, wrong: str) -> None:
    staged = [deleting(root, f"id = {number}") for number in (1, 2, 3)]
    file = deletion_file(root, staged[1])
    if wrong == "missing":
        file.unlink()
    else:
        # A record names the type of its file; both are refused as what they are not.
        file.write_bytes(bytes(BitMap([2, 3, 4]).serialize()) if wrong == "lies" else b"garbage")
    status, shared = await by_round(root, staged)
    assert (status, shared) == (["COMMITTED", "INVALID", "COMMITTED"], 2)
    assert ids(root) == [0, 2, *range(4, 40)]


async def test_a_member_that_moves_a_row_of_a_fragment_in_which_another_deletes_is_refused_alone(stable: Path) -> None:
    # Fragment 0 still lists row 3, which is in fragment 2 now.
    staged = [updating(stable, "id = 5"), updating(stable, "id = 2", 3), updating(stable, "id = 4")]
    status, _ = await by_round(stable, staged)
    assert status == ["COMMITTED", "INVALID", "COMMITTED"]
    assert ids(stable) == list(range(40))


async def test_a_member_whose_rows_are_followed_moves_no_more_rows_than_it_deletes(stable: Path) -> None:
    staged = [deleting(stable, "id = 5"), updating(stable, "id = 1", 1, 2), updating(stable, "id = 7")]
    done = staging.compact_files(lance.dataset(str(stable)), groups=[[0, 1]])
    reservation = staging.reserve_fragments(lance.dataset(str(stable)), done.ids_needed).transaction
    await by_round(stable, [reservation])
    rewrite = done.rewrite([3]).transaction
    assert await by_round(stable, [rewrite]) == (["COMMITTED"], 1)
    status, shared = await by_round(stable, staged)
    assert (status, shared) == (["COMMITTED", "INVALID", "COMMITTED"], 2)
    assert ids(stable) == [*range(5), *range(6, 40)]


async def test_members_that_empty_a_fragment_together_remove_it(root: Path) -> None:
    staged = [deleting(root, f"id >= {first} AND id < {first + 5}") for first in (0, 5, 10, 15)]
    status, shared = await by_round(root, staged)
    assert (set(status), shared) == ({"COMMITTED"}, 4)
    assert [one.fragment_id for one in lance.dataset(str(root)).get_fragments()] == [1]
    assert ids(root) == list(range(20, 40))


async def test_foreign_versions_before_a_round_are_merged_into_its_files(root: Path) -> None:
    staged = [deleting(root, f"id = {number}") for number in (1, 2)]
    lance.dataset(str(root)).delete("id = 3")
    rival = deleting(root, "id = 4")
    lance.dataset(str(root)).delete("id = 4")
    status, shared = await by_round(root, [*staged, rival])
    assert (status, shared) == (["COMMITTED", "COMMITTED", "RETRYABLE"], 2)
    assert ids(root) == [0, *range(5, 40)]


async def test_many_members_become_few_versions_with_one_file_for_each_fragment(root: Path) -> None:
    staged = [deleting(root, f"id = {number}") for number in range(40) if number % 4]
    before = max(manifests(root))
    files = len(list((root / "_deletions").iterdir()))
    status, shared = await by_round(root, staged)
    assert (set(status), shared) == ({"COMMITTED"}, 30)
    assert max(manifests(root)) == before + 1
    assert len(list((root / "_deletions").iterdir())) == files + 2
    assert ids(root) == list(range(0, 40, 4))
