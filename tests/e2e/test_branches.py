"""A branch of a table, served as a table of its own, beside the table's main branch."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import lance
import pytest

from committerd_common.messages import Status
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.lance_table import run_in_4
from harness.places import StorePlace, place_named
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_APPEND_IN_4 = """
import json, sys, lance, pyarrow as pa
table = lance.write_dataset(pa.table({"id": [int(sys.argv[2])]}), sys.argv[1], mode="append")
print(json.dumps({"version": table.version, "ids": table.to_table()["id"].to_pylist()}))
"""


S3 = pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.long])
OTHERS = [
    pytest.param("s3-express", marks=[pytest.mark.s3, pytest.mark.long]),
    pytest.param("s3+ddb", marks=[pytest.mark.s3, pytest.mark.dynamodb]),
    pytest.param("gcs", marks=[pytest.mark.gcs, pytest.mark.long]),
]
"""Stores that list in another order, leave the versions to another service, or are reached through obstore."""


def place_of(request: pytest.FixtureRequest, name: str) -> StorePlace | None:
    """A table there; None = in the test's folder."""
    return None if name == "local" else place_named(name, request.getfixturevalue)


@pytest.fixture
def main(
    request: pytest.FixtureRequest,
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> Scene:
    """A dataset on each store."""
    place = place_of(request, request.param)
    return Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch)


def branched(main: Scene, name: str, *, of: Scene | None = None) -> AbstractContextManager[Scene]:
    """Make a branch of the main branch, or of another one, and return its dataset."""
    table = (of or main).table
    table.open().create_branch(name, table.version)
    scene = main.branched(name, main.folder / "of-branches" / name)
    scene.table.brought = {**table.brought}
    scene.table.new_ids(1000 * (1 + len(name)))  # its rows have other ids
    return scene


def read_as_users_do(main: Scene, branch: str) -> list[int]:
    """The ids of a branch, by its name."""
    root = lance.dataset(main.table.uri, storage_options=dict(main._place.storage_options))
    return sorted(root.checkout_version((branch, None)).to_table()["id"].to_pylist())


@pytest.mark.parametrize("main", ["local", *OTHERS], indirect=True)
def test_two_committers_serve_a_table_and_its_branch_side_by_side(main: Scene) -> None:
    with main:
        ids = main.table.create()
        main.started()
        ids += main.committed(2)
        (unit,) = main.ask(main.table.append(), app_id="loads", app_version="7")
        ids += main.table.brought[unit.uuid]
        with branched(main, "team/exp") as branch:
            assert branch.name == f"{main.name}.tree.team..exp"
            branch.started()  # nobody adopts a position: the branch has a queue of its own
            # The unit is in the branch's rows.
            (again,) = branch.ask(branch.table.append(), app_id="loads", app_version="7")
            assert (again.status, again.reason) == (Status.DUPLICATE, "app_version_seen")
            # Versions from before the branch began lie in main's folder: what was read there can't be compared.
            (old,) = branch.ask(branch.table.append(read_version=1))
            assert (old.status, old.reason) == (Status.UNDECIDED, "history_gap")
            theirs = [*ids, *branch.committed(2)]
            ids += main.committed(2)
            theirs += branch.table.write()  # pylance commits in between, and committerd goes on
            theirs += branch.committed()
            assert read_as_users_do(main, "team/exp") == sorted(branch.table.ids()) == sorted(theirs)
            assert sorted(main.table.ids()) == sorted(ids)
            # Main's position is not the branch's, and each record has its outcome.
            assert "branch" not in main.position()
            assert branch.position()["branch"] == "team/exp"
            for here, other in ((main, branch), (branch, main)):
                (answer,) = here.ask(here.table.append(), dataset=other.table.uri)
                assert (answer.status, answer.reason) == (Status.INVALID, "wrong_dataset")
                assert json.loads(here.command("audit", "--json"))["good"] is True
            if "://" not in main.table.uri:
                written = run_in_4(_APPEND_IN_4, branch.table.uri, "99999")
                theirs += [99999, *branch.committed()]
                assert sorted(written["ids"]) == sorted(theirs[:-1])
                assert sorted(branch.table.ids_in_4()) == read_as_users_do(main, "team/exp") == sorted(theirs)


@pytest.mark.parametrize("main", ["local", S3], indirect=True)
def test_what_main_has_taken_from_a_served_branch_survives_the_maintenance_of_both(main: Scene) -> None:
    with main:
        ids = main.table.create()
        main.started()
        ids += main.committed()
        with branched(main, "exp") as branch:
            branch.started()
            ids += branch.committed(2)
            ids += main.committed()
            assert "of branch 'exp' are version" in main.command("promote", "exp", main.table.uri)
            position = main.position()
            assert "branch" not in position
            ids += main.committed()  # main's committer goes on, at its own position
            assert sorted(main.table.ids()) == sorted(ids)
            for one in (branch, main):
                one.command("maintain", "--once")
                assert json.loads(one.command("audit", "--json"))["good"] is True
            assert sorted(main.table.ids()) == sorted(ids)
            branch.committed()


@pytest.mark.parametrize("main", ["local"], indirect=True)
def test_a_branch_of_a_branch_begins_with_neither_position(main: Scene) -> None:
    with main:
        ids = main.table.create()
        main.started()
        ids += main.committed()
        with branched(main, "a") as first:
            first.started()
            ids += first.committed(3)
            with branched(main, "b", of=first) as second:
                second.started()
                mine = [*ids, *second.committed()]
                assert read_as_users_do(main, "b") == sorted(mine)
                assert read_as_users_do(main, "a") == sorted(ids)
                assert (second.position()["branch"], second.position()["next"]) == ("b", 1)


def test_a_branch_that_does_not_exist_is_refused_until_it_does(scene: Scene, tmp_path: Path) -> None:
    ids = scene.table.create()
    scene.table.open().create_branch("other")
    with scene.branched("exp", tmp_path / "exp") as branch:
        daemon = branch.daemon()
        said = daemon.wait_refused("branch_missing")
        assert "has no branch 'exp'; it has 'other'" in said
        assert ".create_branch('exp')" in said
        assert not Path(branch.table.uri).exists()
        scene.table.open().create_branch("exp")
        daemon.wait_ready(text="active")
        ids += branch.committed()
        assert sorted(branch.table.ids()) == ids
        # pylance deletes the branch under the committer: it stops, and makes no table in the folder.
        branch.table.open()
        scene.table.open().branches.delete("exp")
        assert "has no branch 'exp'" in daemon.wait_refused("branch_missing")
        branch.stage(branch.table.staged_create(), headers={"create-only": "true"})
        # A branch of the same name is another one: what the queue has settled is not in it.
        scene.table.open().create_branch("exp")
        daemon.wait_refused("keys_missing")


def test_the_version_that_a_branch_is_restored_to_is_not_a_new_beginning(scene: Scene, tmp_path: Path) -> None:
    ids = scene.table.create()
    scene.started()
    ids += scene.committed()
    scene.table.open().create_branch("exp")
    with scene.branched("exp", tmp_path / "exp") as branch:
        branch.table.new_ids(1000)
        daemon = branch.started()
        began = branch.table.version
        branch.committed(2)
        before = branch.position()
        old = branch.table.open(began)
        old.restore()
        mine = branch.committed()
        assert branch.position()["next"] == before["next"] + 1
        assert sorted(branch.table.ids()) == sorted([*ids, *mine])
        # A backup of the branch's beginning, without what was committed to it: main's position does not count.
        daemon.stop()
        for one in Path(branch.table.uri, "_versions").glob("*.manifest"):
            if lance.dataset(branch.table.uri, version=began).version and one.name != f"{2**64 - 1 - began}.manifest":
                one.unlink()
        Path(branch.table.uri, "_versions", "latest_version_hint.json").unlink(missing_ok=True)
        daemon.start()
        daemon.wait_refused("keys_missing")


@pytest.mark.parametrize("way", ["option", "setting"])
def test_commands_take_a_branch(scene: Scene, tmp_path: Path, way: str) -> None:
    scene.table.create()
    scene.table.open().create_branch("exp")
    with scene.branched("exp", tmp_path / "exp") as branch:
        branch.started()
        mine = branch.committed()
        asked, chosen = (branch, ()) if way == "setting" else (scene, ("--branch", "exp"))
        state = json.loads(asked.command("status", "--json", *chosen))
        assert (state["dataset"], state["table"]["uri"]) == (branch.name, branch.table.uri)
        shown = json.loads(asked.command("position", "show", "--json", *chosen))
        assert (shown["table"], shown["position"]["next_offset"]) == (branch.table.uri, 1)
        assert json.loads(asked.command("audit", "--json", *chosen))["good"] is True
        assert json.loads(asked.command("probe", "--json", *chosen))["uri"] == branch.table.uri
        assert branch.name in asked.command("heartbeat", *chosen)
        asked.command("maintain", "--once", *chosen)
        asked.command("app", "list", *chosen)
        asked.command("topics", "check", *chosen)
        asked.command("dead", "list", *chosen)
        assert "a branch is not recreated" in asked.command("recreate", *chosen, good=False)
        (tmp_path / "more.csv").write_text("id\n5000\n")
        asked.command("append", scene.table.uri, str(tmp_path / "more.csv"), "--name", scene.name, *chosen)
        direct = branch.table.append()
        (tmp_path / "staged.pb").write_bytes(direct.SerializeToString())
        asked.command("commit", scene.table.uri, str(tmp_path / "staged.pb"), "--branch", "exp")
        assert sorted(branch.table.ids()) == sorted([0, *mine, 5000, *branch.table.brought[direct.uuid]])
        for words in (("status",), ("append", scene.table.uri, str(tmp_path / "more.csv")), ("probe", scene.table.uri)):
            assert "has no branch 'gone'" in scene.command(*words, "--branch", "gone", good=False)
        assert "two slashes" in scene.command("probe", scene.table.uri, "--branch", "a//b", good=False)


def test_a_branch_may_be_served_by_the_uri_of_its_folder(
    scene: Scene, kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    ids = scene.table.create()
    scene.started()
    ids += scene.committed()
    scene.table.open().create_branch("dev")
    (tmp_path / "dev").mkdir()
    place = StorePlace(f"{scene.table.uri}/tree/dev")
    with Scene(
        kafka=kafka.bootstrap_servers, name=f"{scene.name}-dev", folder=tmp_path / "dev", place=place, launch=launch
    ) as branch:
        daemon = branch.started()
        mine = branch.committed()
        daemon.stop()
        daemon.start()
        daemon.wait_ready(text="active")
        mine += branch.committed()
        assert sorted(branch.table.ids()) == sorted([*ids, *mine])


def test_main_is_served_as_ever_where_the_command_line_says_main(scene: Scene) -> None:
    scene.table.create()
    scene.started()
    scene.committed()
    state = json.loads(scene.command("status", "--json", "--branch", "main"))
    assert (state["dataset"], state["table"]["uri"]) == (scene.name, scene.table.uri)
