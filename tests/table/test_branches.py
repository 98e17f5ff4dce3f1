"""Which branches a table has, as Lance keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd.errors import RefusedToRun
from committerd.stores.local import LocalStore
from committerd.table.branches import branches, require_branch

pytestmark = pytest.mark.pylance


@pytest.fixture
def root(tmp_path: Path) -> LocalStore:
    table = lance.write_dataset(pa.table({"id": [1]}), tmp_path)
    for name in ("b", "team/exp", "Größe"):
        table.create_branch(name)
    return LocalStore(tmp_path, durable=False)


async def test_all_branches_are_found_by_their_names(root: LocalStore) -> None:
    assert await branches(root) == ["Größe", "b", "team/exp"]
    for name in ("b", "team/exp"):
        await require_branch(root, name)


async def test_a_table_without_branches_has_none(tmp_path: Path) -> None:
    with pytest.raises(RefusedToRun, match=r"has no branch 'exp'; it has none\. Create it with pylance"):
        await require_branch(LocalStore(tmp_path, durable=False), "exp")


async def test_the_first_of_many_branches_are_named(root: LocalStore, tmp_path: Path) -> None:
    known = (tmp_path / "_refs" / "branches" / "b.json").read_bytes()
    for number in range(30):
        (tmp_path / "_refs" / "branches" / f"c{number:02}.json").write_bytes(known)
    with pytest.raises(RefusedToRun, match=r"it has 'Größe', 'b', 'c00', .*'c17', \.\.\.\.") as caught:
        await require_branch(root, "exp")
    assert caught.value.code == "branch_missing"


async def test_a_branch_without_a_version_is_refused(root: LocalStore, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tree" / "team" / "exp")
    with pytest.raises(RefusedToRun, match="no version of it in tree/team/exp/_versions/") as caught:
        await require_branch(root, "team/exp")
    assert caught.value.code == "branch_missing"
