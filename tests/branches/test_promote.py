"""`committerd promote` on tables and branches of pylance 14.0.2."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

from committerd.__main__ import run_command_line
from committerd_common.messages import Status, Transaction
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace, place_named
from harness.scene import Scene
from tests.branches import histories
from tests.oracle import test_mem_wal as mem_wal
from tests.producers.old_pylance import in_4

pytestmark = pytest.mark.pylance

BRANCH = "audit/may"


@dataclass
class Tree:
    """A table of ten rows with a branch."""

    place: StorePlace
    stable: bool = False
    main: lance.LanceDataset = field(init=False)
    branch: lance.LanceDataset = field(init=False)

    def __post_init__(self) -> None:
        self.main = lance.write_dataset(
            rows(range(10)),
            self.place.uri,
            storage_options=dict(self.place.storage_options),
            enable_stable_row_ids=self.stable,
            max_rows_per_file=5,
            data_storage_version="2.0",
        )
        self.branch = self.main.create_branch(BRANCH)

    def now(self) -> lance.LanceDataset:
        return lance.dataset(self.place.uri, storage_options=dict(self.place.storage_options))

    def rows(self) -> dict[int, int]:
        found = self.now().to_table().to_pydict()
        assert len(set(found["id"])) == len(found["id"])
        return dict(zip(found["id"], found["v"], strict=True))

    def change_branch(self) -> dict[int, int]:
        """Append, delete and update on the branch; returns the rows that it has then."""
        self.branch.insert(rows(range(100, 105)))
        self.branch.delete("id in (4, 101)")
        self.branch.update({"v": "v + 1000"}, where="id in (5, 102)")
        changed = {number: number for number in (*range(10), *range(100, 105))}
        del changed[4], changed[101]
        return changed | {5: 1005, 102: 1102}

    def promote(self, *words: str, branch: str = BRANCH, good: bool = True) -> dict[str, Any]:
        return ran(self.place, branch, *words, good=good)

    def stopped(self, what: str, step: str) -> subprocess.CompletedProcess[str]:
        words = [
            "-m",
            "tests.branches.stopped",
            what,
            step,
            self.place.uri,
            "promote",
            BRANCH,
            self.place.uri,
            "--json",
        ]
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def rows(keys: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())})


def ran(place: StorePlace, *words: str, good: bool = True) -> dict[str, Any]:
    """Run the command in this process."""
    settings = {f"COMMITTERD_{name}": value for name, value in place.settings.items()}
    branch, *options = words
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, settings),
        mock.patch.object(sys, "argv", ["committerd", "promote", branch, place.uri, "--json", *options]),
        contextlib.redirect_stdout(out),
    ):
        try:
            run_command_line()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    assert code == (0 if good else 1), out.getvalue()
    shown: dict[str, Any] = json.loads(out.getvalue())
    return shown


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(StorePlace(str(tmp_path / "table.lance")), stable=request.param)


@pytest.fixture
def by_address(tmp_path: Path) -> Tree:
    return Tree(StorePlace(str(tmp_path / "table.lance")))


@pytest.mark.parametrize("seed", range(8))
def test_a_promotion_does_what_the_serial_execution_does(seed: int, tmp_path: Path) -> None:
    histories.run(seed, tmp_path, steps=30)


def test_a_fast_forward_brings_all_of_the_branch_in_one_version(tree: Tree) -> None:
    expected = tree.change_branch()
    tree.branch.update_config({"kept": "yes"})
    done = tree.promote()
    assert done["outcome"] == "promoted"
    assert done["fast_forward"] is True
    assert (done["first"], done["last"], done["version"]) == (2, 5, 2)
    assert tree.rows() == expected
    assert tree.now().config()["kept"] == "yes"


def test_old_pylance_reads_what_was_promoted(tmp_path: Path) -> None:
    tree = Tree(StorePlace(str(tmp_path / "table.lance")), stable=True)
    expected = tree.change_branch()
    tree.promote()
    program = f"import lance; print(lance.dataset({tree.place.uri!r}).to_table().to_pydict())"
    found = json.loads(in_4(program).replace("'", '"'))
    assert dict(zip(found["id"], found["v"], strict=True)) == expected


def test_rows_that_main_has_committed_meanwhile_stay(tree: Tree) -> None:
    expected = tree.change_branch()
    tree.main.insert(rows(range(200, 203)))
    tree.main.delete("id = 8")
    tree.main.update({"v": "-1"}, where="id = 7")
    del expected[8]
    assert tree.promote()["fast_forward"] is False
    assert tree.rows() == expected | {number: number for number in range(200, 203)} | {7: -1}


def test_a_conflict_names_both_transactions_and_commits_nothing(tree: Tree) -> None:
    tree.change_branch()
    tree.main.update({"v": "-1"}, where="id = 5")
    version = tree.now().version
    for words in ((), ("--dry-run",)):
        refused = tree.promote(*words, good=False)
        assert refused["reason"] == "promotion_conflict"
        assert (refused["branch_version"], refused["branch_operation"]) == (4, "update")
        assert refused["conflicting_version"] == version
        assert refused["conflicting_operation"] == "update"
        assert refused["rule"].startswith("same_row")
    assert tree.now().version == version


def test_a_dry_run_writes_nothing(tree: Tree) -> None:
    tree.change_branch()
    before = sorted(Path(tree.place.uri).rglob("*"))
    assert tree.promote("--dry-run")["outcome"] == "would_promote"
    assert sorted(Path(tree.place.uri).rglob("*")) == before


def test_a_second_promotion_goes_on_after_the_first(tree: Tree) -> None:
    expected = tree.change_branch()
    tree.main.insert(rows([300]))
    tree.promote()
    assert tree.promote()["outcome"] == "nothing"
    tree.branch.insert(rows([110]))
    tree.branch.update({"v": "v + 1"}, where="id in (5, 6, 103)")
    tree.branch.delete("id in (7, 104)")
    tree.main.insert(rows([301]))
    tree.promote()
    del expected[7], expected[104]
    assert tree.rows() == expected | {300: 300, 301: 301, 110: 110, 5: 1006, 6: 7, 103: 104}


@pytest.mark.parametrize("step", ["written", "put", "created"])
def test_a_promotion_that_is_killed_and_run_again_lands_once(by_address: Tree, step: str) -> None:
    expected = by_address.change_branch()
    assert by_address.stopped("kill", step).returncode == -9
    assert by_address.now().version == (2 if step == "created" else 1)
    assert by_address.promote()["outcome"] == ("nothing" if step == "created" else "promoted")
    assert by_address.promote()["outcome"] == "nothing"
    assert by_address.now().version == 2
    assert by_address.rows() == expected


def test_a_foreign_version_in_between_is_judged_too(by_address: Tree) -> None:
    expected = by_address.change_branch()
    foreign = "lance.write_dataset(pa.table({'id': [500], 'v': [500]}), uri, mode='append')"
    assert by_address.stopped(foreign, "put").returncode == 0
    assert by_address.now().version == 3
    assert by_address.rows() == expected | {500: 500}


def test_a_foreign_version_in_between_may_conflict(by_address: Tree) -> None:
    by_address.change_branch()
    refused = by_address.stopped("lance.dataset(uri).delete('id = 5')", "put")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["conflicting_version"] == 2
    assert by_address.now().version == 2


@pytest.fixture(params=["s3", "s3+ddb", "azure", "gcs"])
def bucket(request: pytest.FixtureRequest) -> StorePlace:
    return place_named(request.param, request.getfixturevalue)


@pytest.mark.s3
def test_a_branch_in_a_bucket_is_promoted(bucket: StorePlace) -> None:
    tree = Tree(bucket)
    expected = tree.change_branch()
    tree.main.insert(rows([300]))
    assert tree.promote()["outcome"] == "promoted"
    assert tree.rows() == expected | {300: 300}


@pytest.mark.kafka
def test_a_committer_goes_on_beside_a_promotion(
    kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path
) -> None:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        scene.table.create()
        scene.started()
        ids = scene.committed(3)
        main = lance.dataset(scene.table.uri)
        branch = main.create_branch(BRANCH)
        extra = main.to_table(limit=1)
        branch.insert(extra.set_column(0, extra.schema.field(0), pa.array([70_000], extra.schema.field(0).type)))
        offsets = scene.append(20)
        done = ran(StorePlace(scene.table.uri), BRANCH)
        assert done["outcome"] == "promoted"
        assert {one.status for one in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
        ids += scene.committed(2)
        found = lance.dataset(scene.table.uri).to_table()["id"].to_pylist()
        assert len(found) == len(set(found))
        assert {*ids, 70_000} <= set(found)


def test_what_can_not_be_promoted_is_refused_by_name(by_address: Tree) -> None:
    assert by_address.promote(branch="nowhere", good=False)["reason"] == "no_such_branch"
    assert by_address.promote(branch="../x", good=False)["reason"] == "no_such_branch"
    assert by_address.promote()["outcome"] == "nothing"
    by_address.branch.create_branch("of-branch")
    assert by_address.promote(branch="of-branch", good=False)["reason"] == "branch_of_branch"
    by_address.branch.insert(rows([100]))
    by_address.branch.insert(rows([101]))
    manifests = sorted(Path(by_address.place.uri, "tree", BRANCH, "_versions").glob("*.manifest"))
    body = manifests[1].read_bytes()
    manifests[1].unlink()
    assert by_address.promote(good=False)["reason"] == "branch_cleaned_up"
    manifests[1].write_bytes(body)
    lance.write_dataset(rows([1]), by_address.branch.uri, mode="overwrite")
    assert by_address.promote(good=False)["reason"] == "branch_replaced"
    assert by_address.now().version == 1


def test_a_gap_in_the_history_of_main_is_refused(tree: Tree) -> None:
    tree.change_branch()
    tree.main.insert(rows([200]))
    tree.main.insert(rows([201]))
    manifests = sorted(Path(tree.place.uri, "_versions").glob("*.manifest"))
    manifests[1].unlink()
    assert tree.promote(good=False)["reason"] == "history_gap"


def test_main_needs_the_folder_until_its_rows_are_home(tree: Tree) -> None:
    expected = tree.change_branch()
    assert tree.promote()["fragments_in_branch"] == 2
    tree.now().optimize.compact_files()
    assert tree.promote()["fragments_in_branch"] == 0
    assert tree.rows() == expected


def test_a_changed_schema_is_brought_where_main_has_no_new_rows(tree: Tree) -> None:
    expected = tree.change_branch()
    tree.branch.add_columns({"w": "v * 2"})
    tree.branch.drop_columns(["v"])
    tree.promote()
    found = tree.now().to_table().to_pydict()
    assert dict(zip(found["id"], found["w"], strict=True)) == {key: 2 * value for key, value in expected.items()}


@pytest.mark.parametrize("killed", [False, True])
def test_indices_follow_a_fast_forward(tree: Tree, killed: bool) -> None:
    expected = tree.change_branch()
    tree.branch.optimize.compact_files()
    tree.branch.create_scalar_index("v", "BTREE")
    if killed:
        assert tree.stopped("kill", "created").returncode == -9
        assert not tree.now().describe_indices()
    assert tree.promote("--dry-run")["indices"] == ["v_idx"]
    done = tree.promote()
    assert (done["indices"], done["index_version"], done["indices_left_out"]) == (["v_idx"], 3, [])
    assert tree.promote()["index_version"] == 3
    assert tree.now().version == 3
    assert "ScalarIndexQuery" in tree.now().scanner(filter="v = 1005").explain_plan()
    for _ in range(2):
        for value in expected.values():
            found = tree.now().to_table(filter=f"v = {value}")["id"].to_pylist()
            assert found == [key for key, one in expected.items() if one == value]
        tree.now().optimize.compact_files()
        tree.now().optimize.optimize_indices()


def test_an_index_is_left_out_where_main_has_moved(tree: Tree) -> None:
    tree.change_branch()
    tree.branch.create_scalar_index("v", "BTREE")
    tree.main.insert(rows([200]))
    done = tree.promote()
    assert (done["indices"], done["indices_left_out"]) == ([], ["v_idx"])
    assert not tree.now().describe_indices()


def test_an_index_that_is_to_be_remapped_later_is_left_out(by_address: Tree) -> None:
    by_address.change_branch()
    by_address.branch.create_scalar_index("v", "BTREE")
    by_address.branch.optimize.compact_files(defer_index_remap=True)
    done = by_address.promote()
    assert (done["indices"], done["indices_left_out"]) == ([], ["v_idx"])
    assert by_address.now().to_table(filter="v = 1005").num_rows == 1


def test_a_branch_that_only_built_an_index_brings_it(tree: Tree) -> None:
    tree.branch.create_scalar_index("id", "BTREE")
    tree.main.insert(rows([200]))
    done = tree.promote()
    assert (done["outcome"], done["indices"]) == ("nothing", ["id_idx"])
    assert tree.now().to_table(filter="id = 200").num_rows == 1
    assert tree.now().to_table(filter="id = 2").num_rows == 1


def test_a_promotion_says_which_indices_have_caught_up_with_a_mem_wal(tmp_path: Path) -> None:
    root = tmp_path / "table.lance"
    mem_wal.make(root)
    lance.dataset(str(root)).create_scalar_index("a", "BTREE")
    mem_wal.merge(lance.dataset(str(root)), generation=3)
    lance.dataset(str(root)).optimize.optimize_indices()
    main = lance.dataset(str(root))
    main.update_config({"a": "b"})  # any version says which indices had caught up before
    assert caught_up(root) == ["a_idx", "id_idx"]
    branch = main.create_branch(BRANCH)
    fragment, fields = branch.get_fragments()[0].update_columns(mem_wal.rows(0, 8), left_on="id", right_on="id")
    change = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
    lance.LanceDataset.commit(branch, change, read_version=branch.version)
    assert caught_up(root / "tree" / BRANCH) == ["id_idx"]  # as pylance says
    assert ran(StorePlace(str(root)), BRANCH)["outcome"] == "promoted"
    assert caught_up(root) == ["id_idx"]


def caught_up(root: Path) -> list[str]:
    return [one.index_name for one in mem_wal.details(root).index_catchup]


def test_two_promotions_at_once_bring_each_version_once(by_address: Tree) -> None:
    """The second one has seen more of the branch than the first, and is faster."""
    expected = by_address.change_branch()
    faster = (
        "b = lance.dataset(uri).checkout_version(('audit/may', None)); "
        "b.insert(pa.table({'id': [600], 'v': [600]})); "
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-m', 'committerd', 'promote', 'audit/may', uri], check=True)"
    )
    assert by_address.stopped(faster, "put").returncode == 0
    assert by_address.now().version == 2
    assert by_address.rows() == expected | {600: 600}


def test_a_writer_that_read_main_before_the_promotion_is_judged_against_it(tree: Tree) -> None:
    expected = tree.change_branch()
    early = [tree.now() for _ in range(3)]
    tree.promote()
    early[0].delete("id = 6")
    early[1].insert(rows([700]))
    early[2].update({"v": "v + 1"}, where="id in (4, 5)")  # pylance does it again on the promoted rows
    del expected[6]
    assert tree.rows() == expected | {700: 700, 5: 1006}


def test_keys_that_both_sides_inserted_conflict(tmp_path: Path) -> None:
    key = pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, pa.field("v", pa.int64())])

    def keyed(*keys: int) -> pa.Table:
        return pa.table({"id": list(keys), "v": list(keys)}, schema=schema)

    main = lance.write_dataset(keyed(1, 2), str(tmp_path / "table.lance"))
    branch = main.create_branch(BRANCH)
    for side, keys in ((branch, (3, 4)), (main, (4, 5))):
        side.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(keyed(*keys))
    refused = ran(StorePlace(main.uri), BRANCH, good=False)
    assert (refused["branch_version"], refused["conflicting_version"]) == (2, 2)
    assert refused["rule"] == "same_row_or_key"


@pytest.mark.parametrize("change", ["overwrite", "restore"])
def test_a_main_that_was_replaced_is_a_conflict(tree: Tree, change: str) -> None:
    tree.change_branch()
    if change == "overwrite":
        lance.write_dataset(rows(range(3)), tree.place.uri, mode="overwrite")
    else:
        tree.main.insert(rows([900]))
        lance.dataset(tree.place.uri, version=1).restore()  # type: ignore[no-untyped-call]
    before = tree.rows()
    refused = tree.promote(good=False)
    assert refused["reason"] == "promotion_conflict"
    assert refused["conflicting_operation"] == change
    assert tree.rows() == before


def test_a_promotion_that_main_has_taken_back_is_told(by_address: Tree) -> None:
    by_address.change_branch()
    by_address.promote()
    lance.dataset(by_address.place.uri, version=1).restore()  # type: ignore[no-untyped-call]
    refused = by_address.promote(good=False)
    assert (refused["conflicting_version"], refused["conflicting_operation"]) == (3, "restore")
    by_address.branch.insert(rows([110]))
    refused = by_address.promote(good=False)
    assert (refused["conflicting_version"], refused["conflicting_operation"]) == (3, "restore")


def test_rows_keep_their_lineage(tmp_path: Path) -> None:
    tree = Tree(StorePlace(str(tmp_path / "table.lance")), stable=True)
    tree.change_branch()
    tree.main.insert(rows([200]))
    version = tree.promote()["version"]
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    found = tree.now().to_table(columns=columns).to_pylist()
    lineage = {row["id"]: (row[columns[1]], row[columns[2]]) for row in found}
    assert lineage[0] == (1, 1)
    assert lineage[5] == (1, version)
    assert lineage[100] == lineage[102] == (version, version)
    assert lineage[200] == (2, 2)


def test_what_committerd_has_committed_to_a_branch_is_promoted(by_address: Tree, tmp_path: Path) -> None:
    fragments = lance.fragment.write_fragments(rows([800]), by_address.branch.uri)
    staged = Transaction(read_version=by_address.branch.version, uuid=str(uuid4()))
    for fragment in fragments:
        made = staged.append.fragments.add(physical_rows=1)
        for file in fragment.files:
            one = made.files.add(path=file.path, fields=file.fields, column_indices=file.column_indices)
            one.file_major_version, one.file_minor_version = file.file_major_version, file.file_minor_version
    (tmp_path / "staged.txn").write_bytes(staged.SerializeToString())
    command = ["committerd", "commit", by_address.branch.uri, str(tmp_path / "staged.txn"), "--json"]
    with mock.patch.object(sys, "argv", command), contextlib.suppress(SystemExit):
        run_command_line()
    by_address.main.insert(rows([900]))
    assert by_address.promote()["outcome"] == "promoted"
    assert by_address.rows() == {number: number for number in (*range(10), 800, 900)}
