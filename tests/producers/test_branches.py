"""Clients and helpers of a branch: every change goes to the branch's folder and queue, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd_batch.job import Job, JobOptions
from committerd_client import CommitClient, Staged, SyncCommitClient, TableMissing, staging
from committerd_client.compacting import compact
from committerd_client.maintenance.table import read_state
from committerd_client.queue_status import table_position
from committerd_client.staging.transactions import read_table
from committerd_client.table_location import require_same_branch
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene

pytestmark = pytest.mark.pylance


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A table with two fragments, an index, and the branch `team/exp` of them."""
    uri = str(tmp_path / "events.lance")
    lance.write_dataset(pa.table({"id": [1, 2, 3], "n": [1, 2, 3]}), uri)
    lance.write_dataset(pa.table({"id": [4, 5], "n": [4, 5]}), uri, mode="append")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).create_branch("team/exp")
    return uri


def checked_out(root: str) -> Any:
    """The branch, as pylance's users open it: by way of the table's root."""
    return lance.dataset(root).checkout_version(("team/exp", None))


ROWS = pa.table({"id": [2, 9], "n": [20, 90]})
HELPERS: dict[str, Callable[[Any], Any]] = {
    "add_columns": lambda d: staging.add_columns(d, {"m": "n + 1"}),
    "drop_columns": lambda d: staging.drop_columns(d, ["n"]),
    "alter_columns": lambda d: staging.alter_columns(d, {"path": "n", "name": "k"}),
    "append": lambda d: staging.append(write_fragments(ROWS, d, mode="append"), dataset=d),
    "overwrite": lambda d: staging.overwrite(write_fragments(ROWS, d, mode="overwrite"), ROWS.schema, dataset=d),
    "delete": lambda d: staging.delete(d, "id = 1"),
    "merge_insert": lambda d: staging.merge_insert(d, ROWS, on="id"),
    "merge_insert from a reader": lambda d: staging.merge_insert(d, ROWS.to_reader(), on="id"),
    "update": lambda d: staging.update(d, {"n": "n + 1"}, where="id > 1"),
    "update_config": lambda d: staging.update_config(d, config={"a": "b"}),
    "create_index": lambda d: staging.create_index(d, "n", "BTREE"),
    "drop_index": lambda d: staging.drop_index(d, "id_idx"),
    "restore": lambda d: staging.restore(d, d.version),
    "reserve_fragments": lambda d: staging.reserve_fragments(d, 3),
    "compact_files": lambda d: staging.compact_files(d).rewrite(range(100, 110)),
}


def files_in(folder: Path) -> set[str]:
    return {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_works_in_the_branch_at_which_its_dataset_is_open(root: str, name: str) -> None:
    before = files_in(Path(root))
    staged: Staged = HELPERS[name](checked_out(root))
    assert staged.branch == "team/exp"
    assert staged.read_uuid == read_table(lance.dataset(f"{root}/tree/team/exp")).read_uuid
    assert not {one for one in files_in(Path(root)) - before if not one.startswith("tree/team/exp/")}
    by_folder: Staged = HELPERS[name](lance.dataset(f"{root}/tree/team/exp"))
    of_main: Staged = HELPERS[name](lance.dataset(root))
    assert (by_folder.branch, of_main.branch) == ("team/exp", "")
    for one in (staged, by_folder):
        require_same_branch(one, root, "team/exp")
        require_same_branch(one, f"{root}/tree/team/exp", "")
        with pytest.raises(
            staging.StagingError, match=r"staged for branch 'team/exp', .* to the main branch"
        ) as caught:
            require_same_branch(one, root, "")
        assert caught.value.code == "branch"
    with pytest.raises(staging.StagingError, match=r"staged for the main branch, .* to branch 'team/exp'"):
        require_same_branch(of_main, root, "team/exp")


def test_what_is_read_of_a_branch_needs_its_folder(root: str) -> None:
    with pytest.raises(staging.StagingError, match=r"lance.dataset\('.*/tree/team/exp'\)") as caught:
        read_state(checked_out(root))
    assert caught.value.code == "branch"
    assert read_state(lance.dataset(f"{root}/tree/team/exp")).version == 3
    assert staging.keys_of(checked_out(root), "id", ROWS) == staging.keys_of(lance.dataset(root), "id", ROWS)


def test_the_position_of_another_queue_is_not_the_branchs(root: str) -> None:
    known = '{"next":7,"topic_id":"t","era":0,"last":6,"sha256":"ab"%s}'
    carried, of_branch = {"committerd.position": known % ""}, {"committerd.position": known % ',"branch":"exp"'}
    assert table_position(carried, branch="exp") is None
    assert table_position(of_branch, branch="exp") == table_position(carried)


@pytest.mark.parametrize(("name", "why"), [("a//b", "two slashes"), ("a b", "other characters"), ("x.lock", "lock")])
def test_a_client_refuses_what_is_no_name_of_a_branch(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CommitClient("broker:9092", dataset="events", branch=name)


@pytest.fixture
def branch(scene: Scene, tmp_path: Path) -> Iterator[Scene]:
    """A branch with a committer, of a table that has one too."""
    lance.write_dataset(pa.table({"id": [1, 2], "n": [1, 2]}), scene.table.uri)
    scene.started()
    scene.table.open().create_branch("exp")
    with scene.branched("exp", tmp_path / "exp") as made:
        made.started()
        yield made


@pytest.mark.kafka
def test_a_client_of_a_branch_writes_to_it_and_to_nothing_else(
    kafka: KafkaBroker | RunningKafka, scene: Scene, branch: Scene
) -> None:
    def rows(uri: str) -> list[tuple[int, int]]:
        found = lance.dataset(uri).to_table().to_pydict()
        return sorted(zip(found["id"], found["n"], strict=True))

    servers, uri = kafka.bootstrap_servers, scene.table.uri
    with (
        SyncCommitClient(servers, dataset=scene.name, dataset_uri=uri, branch="exp", claim_check_above=1500) as client,
        SyncCommitClient(servers, dataset=scene.name, dataset_uri=uri) as of_main,
    ):
        client.append(pa.table({"id": [3], "n": [3]}))
        client.upsert(pa.table({"id": [2, 4], "n": [20, 4]}), on="id")
        client.delete("id = 1")
        client.update({"n": 104}, where="id = 4")
        client.commit(staging.update_config(lance.dataset(branch.table.uri), config={"long": "x" * 3000}))
        assert rows(branch.table.uri) == [(2, 20), (3, 3), (4, 104)]
        assert rows(uri) == [(1, 1), (2, 2)]
        of_branch = staging.delete(scene.table.open().checkout_version(("exp", None)), "id = 3")
        with pytest.raises(staging.StagingError, match="staged for branch 'exp'"):
            of_main.commit(of_branch)
        with pytest.raises(staging.StagingError, match="staged for the main branch"):
            client.commit(staging.delete(scene.table.open(), "id = 1"))
        assert client.commit(of_branch).version == branch.table.version
        found = client.resume(str(of_branch.transaction.uuid), since=client.bookmark())
        assert found.version == branch.table.version
        assert "1 committer runs" in str(client.status())
    with SyncCommitClient(servers, dataset=scene.name, dataset_uri=uri, branch="exp") as again:
        again.append(pa.table({"id": [5], "n": [5]}), app=("loads", 1))
        assert rows(branch.table.uri) == [(2, 20), (4, 104), (5, 5)]


@pytest.mark.kafka
def test_a_job_of_ray_or_daft_writes_into_a_branch(
    kafka: KafkaBroker | RunningKafka, scene: Scene, branch: Scene
) -> None:
    options: JobOptions = {"bootstrap_servers": kafka.bootstrap_servers, "dataset": scene.name, "branch": "exp"}
    job = Job(scene.table.uri, ROWS.schema, options, engine="test")
    job.finish([job.plan.task(iter(ROWS.to_batches()))])
    assert sorted(branch.table.ids()) == [1, 2, 2, 9]
    assert sorted(scene.table.ids()) == [1, 2]


@pytest.mark.kafka
async def test_a_branch_is_compacted_through_its_queue(
    kafka: KafkaBroker | RunningKafka, scene: Scene, branch: Scene
) -> None:
    uri = branch.table.uri
    async with CommitClient(
        kafka.bootstrap_servers, dataset=scene.name, dataset_uri=scene.table.uri, branch="exp"
    ) as client:
        for number in range(3):
            await client.append(pa.table({"id": [10 + number], "n": [0]}))
        done = await compact(client, lambda: lance.dataset(uri))
        assert done is not None
    assert len(lance.dataset(uri).get_fragments()) == 1
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 10, 11, 12]


@pytest.mark.kafka
def test_no_call_makes_a_branch(kafka: KafkaBroker | RunningKafka, scene: Scene, branch: Scene) -> None:
    name, uri = "gone", scene.table.uri
    scene.command("topics", "create", "--branch", name)
    with (
        scene.branched(name, scene.folder / "gone"),
        SyncCommitClient(kafka.bootstrap_servers, dataset=scene.name, dataset_uri=uri, branch=name) as client,
    ):
        calls: list[Callable[[], Any]] = [
            lambda: client.append(ROWS, create=True),
            lambda: client.upsert(ROWS, on="id", create=True),
            lambda: client.create(ROWS.schema),
            lambda: client.delete("true"),
        ]
        for call in calls:
            with pytest.raises(TableMissing, match=f"no branch '{name}' at .*create_branch"):
                call()
    assert not Path(uri, "tree", name).exists()
