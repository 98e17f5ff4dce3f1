"""The cleanup of a branch, and of a table that has branches: what another branch names stays."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import DataFile, FragmentMetadata

from bench.long_history import write
from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.format.manifest_file import manifest_position
from committerd.maintenance.branches import OtherBranches
from committerd.maintenance.names import owner
from committerd.maintenance.versions import KeepReason
from committerd.queue.port import TopicIdentity
from committerd.stores.local import LocalStore
from committerd.stores.port import TailOrError
from committerd_common.messages import Manifest
from harness.lance_table import run_in_4
from tests.maintenance.scene import Scene

pytestmark = pytest.mark.pylance

_COUNT_IN_4 = """
import json, sys, lance
print(json.dumps([lance.dataset(uri).count_rows() for uri in sys.argv[1:]]))
"""


def rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 10)})


def branch_of(main: Scene, name: str) -> Scene:
    """The branch, for a cleanup of its own; its clocks are hours ahead."""
    made = Scene(Path(main.root).parent)
    made.branch, made.uri, made.hours = name, f"{main.root}/tree/{name}", 30
    return made


@pytest.fixture
def main(tmp_path: Path) -> Scene:
    """A table of two versions, and its branch `exp` with four of its own, all old."""
    made = Scene(tmp_path)
    made.write(0)
    made.write(10, mode="append")
    made.hours = 30
    lance.dataset(made.root).create_branch("exp")
    uri = f"{made.root}/tree/exp"
    lance.write_dataset(rows(20), uri, mode="append")
    lance.write_dataset(rows(30), uri, mode="append")
    lance.dataset(uri).delete("id < 25")
    lance.dataset(uri).optimize.compact_files()
    return made


def promoted(main: Scene, first: int) -> str:
    """Bring a data file of the branch to main, by a base path; returns the file's key in the branch's folder."""
    branch, table = lance.dataset(f"{main.root}/tree/exp"), lance.dataset(main.root)
    version = next(one["version"] for one in branch.versions() if first in _ids(branch, one["version"]))
    (file,) = branch.checkout_version(version).get_fragments()[-1].metadata.files
    table.add_bases([lance.DatasetBasePath(f"{main.root}/tree/exp", name="exp", is_dataset_root=True)])
    (base,) = lance.dataset(main.root).base_paths()
    here = DataFile(
        file.path, file.fields, file.column_indices, file.file_major_version, file.file_minor_version, None, base
    )
    fragment = FragmentMetadata(id=0, files=[here], physical_rows=10)
    table = lance.dataset(main.root)
    lance.LanceDataset.commit(main.root, lance.LanceOperation.Append([fragment]), read_version=table.version)
    assert first in _ids(lance.dataset(main.root), None)
    return f"data/{file.path}"


def _ids(table: lance.LanceDataset, version: int | None) -> list[int]:
    found: list[int] = (table if version is None else table.checkout_version(version)).to_table()["id"].to_pylist()
    return found


async def test_a_branch_is_cleaned_up_and_mains_files_are_not_touched(main: Scene) -> None:
    branch = branch_of(main, "exp")
    before = {one for one in main.files("") if not one.startswith("tree/")}
    found, cleaned = await branch.clean()
    assert found.choice.removable == (2, 3, 4, 5, 6)
    assert cleaned.versions == 5
    assert {one for one in main.files("") if not one.startswith("tree/")} == before
    assert branch.read_all() == {7: 15}
    assert len(branch.files("data")) == 1
    assert run_in_4(_COUNT_IN_4, branch.uri, main.root) == [15, 20]
    # Main keeps the version at which the branch began, and all that the branch names.
    lance.dataset(main.root).delete("id < 15")
    lance.dataset(main.root).optimize.compact_files()
    found, _ = await main.clean()
    assert found.choice.kept[2] is KeepReason.BRANCH
    assert branch.read_all() == {7: 15}


async def test_what_main_has_taken_from_a_branch_stays(main: Scene) -> None:
    taken, branch = promoted(main, 20), branch_of(main, "exp")
    found, _ = await branch.clean()
    assert 3 in found.choice.removable
    assert taken in {f"data/{one}" for one in branch.files("data")}
    assert sorted(_ids(lance.dataset(main.root), None)) == list(range(30))
    assert run_in_4(_COUNT_IN_4, main.root) == [30]
    # An old version of main that names it is enough, and when no version does, it goes.
    lance.dataset(main.root).delete("id >= 20")
    await branch.clean()
    assert taken in {f"data/{one}" for one in branch.files("data")}
    await main.clean()
    await branch.clean()
    assert taken not in {f"data/{one}" for one in branch.files("data")}


async def test_what_main_takes_while_the_branch_is_cleaned_up_stays(main: Scene) -> None:
    branch = branch_of(main, "exp")
    cleaning = branch.cleaning()
    found = await cleaning.look()
    taken = promoted(main, 20)
    cleaned = await cleaning.clean(found)
    assert cleaned.versions == 5
    assert taken in {f"data/{one}" for one in branch.files("data")}
    assert sorted(_ids(lance.dataset(main.root), None)) == list(range(30))


async def test_what_main_takes_by_a_base_path_that_is_a_plain_folder_stays(main: Scene) -> None:
    branch = branch_of(main, "exp")
    (file, *_) = lance.dataset(branch.uri).checkout_version(3).get_fragments()[-1].metadata.files
    table = lance.dataset(main.root)
    table.add_bases([lance.DatasetBasePath(f"{branch.uri}/data", name="plain", is_dataset_root=False)])
    (base,) = lance.dataset(main.root).base_paths()
    here = DataFile(
        file.path,
        file.fields,
        file.column_indices,
        file.file_major_version,
        file.file_minor_version,
        None,
        base,
    )
    fragment = FragmentMetadata(id=0, files=[here], physical_rows=10)
    lance.LanceDataset.commit(
        main.root, lance.LanceOperation.Append([fragment]), read_version=lance.dataset(main.root).version
    )
    await branch.clean()
    assert sorted(_ids(lance.dataset(main.root), None)) == list(range(30))


async def test_what_a_branch_of_the_branch_and_a_tag_name_stays(main: Scene) -> None:
    branch = branch_of(main, "exp")
    lance.dataset(main.root).create_branch("child", ("exp", 3))
    lance.dataset(main.root).create_branch("grandchild", ("child", 3))
    lance.dataset(main.root).tags.create("release", ("exp", 4))
    lance.dataset(main.root).tags.create("of-main", 2)
    found, _ = await branch.clean()
    assert found.choice.kept[3] is KeepReason.BRANCH
    assert found.choice.kept[4] is KeepReason.TAG
    assert found.choice.removable == (2, 5, 6)
    for child in ("child", "grandchild"):
        assert lance.dataset(f"{main.root}/tree/{child}").count_rows() == 30
        await branch_of(main, child).clean()
    # Without the branch between them, the younger one still says where its line left this branch.
    os.unlink(f"{main.root}/_refs/branches/child.json")
    found, _ = await branch.clean()
    assert found.choice.kept[3] is KeepReason.BRANCH
    assert lance.dataset(f"{main.root}/tree/grandchild").count_rows() == 30


def _half(body: bytes) -> bytes:
    return body[: len(body) // 2]


def _encoded(length: int) -> bytes:
    """As Protobuf writes a length below 16,384."""
    return bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])


def _with_last_fragment(body: bytes, length: Callable[[int, int], int]) -> bytes:
    """With a wrong length of the last fragment. `length`: from its real length, and that of all fields behind it."""
    position = manifest_position(body, len(body))
    start, (size,) = position + 4, struct.unpack_from("<I", body, position)
    manifest, rest = body[start : start + size], body[start + size :]
    last = Manifest.FromString(manifest).fragments[-1].SerializeToString()
    before, _, behind = manifest.rpartition(b"\x12" + _encoded(len(last)) + last)
    damaged = before + b"\x12" + _encoded(length(len(last), len(behind))) + last + behind
    return body[:position] + struct.pack("<I", len(damaged)) + damaged + rest


def _cut_off(body: bytes) -> bytes:
    return _with_last_fragment(body, lambda own, behind: own + behind + 1)


def _hiding_what_follows(body: bytes) -> bytes:
    return _with_last_fragment(body, lambda own, behind: own + behind)


@pytest.mark.parametrize("damage", [_half, _cut_off, _hiding_what_follows])
@pytest.mark.parametrize("other", ["", "tree/side/"])
async def test_nothing_goes_while_a_version_of_another_branch_cannot_be_read(
    main: Scene, other: str, damage: Callable[[bytes], bytes]
) -> None:
    lance.dataset(main.root).create_branch("side")
    branch = branch_of(main, "exp")
    before = branch.files("")
    damaged = f"{other}_versions/{2**64 - 1 - 2}.manifest"
    body = main.get(damaged)
    main.put(damaged, damage(body))
    with pytest.raises(CorruptTable, match=rf"another branch of the table: .*{2**64 - 1 - 2}.*delete the branch"):
        await branch.clean()
    assert {one for one in branch.files("") if not one.startswith("_maintenance")} == before
    main.put(damaged, body)
    await branch.clean()
    assert branch.versions() == [7]


async def test_nothing_goes_where_the_lineage_cannot_be_read(main: Scene) -> None:
    main.put("_refs/branches/exp.json", b"[")
    found, _ = await branch_of(main, "exp").clean()
    assert set(found.choice.kept.values()) == {KeepReason.COUNT, KeepReason.UNKNOWN}


async def test_a_branch_that_is_given_as_a_table_is_not_cleaned_up(main: Scene) -> None:
    branch = branch_of(main, "exp")
    branch.branch, branch.root = "", branch.uri
    with pytest.raises(UnsupportedTable, match=r"is the branch 'exp' of a table.*dataset\.branch to exp"):
        await branch.clean()


async def test_a_branch_whose_folder_lies_in_one_of_the_branchs_folders_stays_whole(main: Scene) -> None:
    for name in ("exp/_indices", "exp/data", "exp/_transactions"):
        lance.dataset(main.root).create_branch(name)
        lance.write_dataset(rows(100), f"{main.root}/tree/{name}", mode="append")
    assert owner("_indices/_versions/1.manifest") is not None  # by its key alone it could be a file of an index
    await branch_of(main, "exp").clean()
    for name in ("exp/_indices", "exp/data", "exp/_transactions"):
        assert lance.dataset(f"{main.root}/tree/{name}").count_rows() == 30


class CountingReads(LocalStore):
    """Notes which manifests are read together."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self.reads: list[Sequence[str]] = []

    async def get(self, key: str) -> bytes | None:
        self.reads.append([key])
        return await super().get(key)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        self.reads.append(keys)
        return await super().get_tails(keys, size=size)


async def test_the_versions_of_another_branch_are_read_many_together_each_once_and_with_progress(
    tmp_path: Path,
) -> None:
    identity = TopicIdentity(cluster_id="cluster", topic="topic", topic_id="id")
    write(tmp_path / "table", versions=600, members=1, fragments=0, identity=identity)
    store, progress = CountingReads(tmp_path / "table"), list[int]()

    def reads(versions: int) -> Callable[[int], None]:
        progress.append(-versions)
        return progress.append

    others = OtherBranches(root=store, own="exp", open=lambda _: store)
    assert await others.names(reads) == await others.names(reads) == set()
    assert len(store.reads) <= 600 / 32
    read = [key for keys in store.reads for key in keys]
    assert len(read) == len(set(read)) == 600
    assert (progress[0], sum(progress)) == (-600, 0)
