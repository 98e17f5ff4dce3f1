"""One process commits to many datasets: what happens to one of them happens to no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from committerd_common.messages import Status
from harness.child import Launch
from harness.daemon import Daemon
from harness.fault_proxy import FaultProxy
from harness.fleet import Fleet, active, replace
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import s3_place
from harness.s3 import S3Endpoint
from harness.scene import STAYS, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

LETTERS = ("a", "b", "c")


@pytest.fixture
def fleet(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Fleet]:
    """Three datasets, each with a table of a row."""
    names = [f"{dataset}-{letter}" for letter in LETTERS]
    with Fleet(kafka=kafka.bootstrap_servers, names=names, folder=tmp_path, launch=launch) as made:
        yield made


def created(fleet: Fleet) -> dict[str, list[int]]:
    """Create the tables; returns the ids of their rows."""
    return {name: scene.table.create() for name, scene in fleet.scenes.items()}


def commit_to_all(fleet: Fleet, ids: dict[str, list[int]], count: int = 3) -> None:
    """Commit Appends to each dataset, and note their ids."""
    for name in ids:
        ids[name] += fleet.scenes[name].committed(count)


def starts(member: Daemon, fleet: Fleet) -> list[int]:
    """How often the committer of each dataset has started in this process."""
    started = [line["dataset"] for line in member.lines("start.done")]
    return [started.count(name) for name in fleet.scenes]


def audit_all(fleet: Fleet, ids: dict[str, list[int]]) -> None:
    """Fail unless each table has exactly these rows, and its outcomes are true."""
    for name, scene in fleet.scenes.items():
        scene.audit(ids[name])


def test_a_process_commits_to_all_of_its_datasets_and_another_takes_them_over(fleet: Fleet) -> None:
    ids = created(fleet)
    first = fleet.member(**STAYS)
    first.wait_ready(text="3 datasets: 3 active, 0 standby, 0 not well")
    assert {line["dataset"] for line in first.lines("kafka.assigned")} == set(fleet.scenes)
    commit_to_all(fleet, ids)
    second = fleet.member(**STAYS)
    second.wait_ready(text="0 not well")
    until(lambda: sum(active(second, name) for name in fleet.scenes) == 1)  # they share the datasets out
    until(lambda: sum(active(first, name) for name in fleet.scenes) == 2)
    commit_to_all(fleet, ids)
    assert [line["dataset"] for line in second.lines("dataset.start")] == sorted(fleet.scenes)
    first.stop()
    assert first.code == 0
    second.wait_ready(text="3 active")
    commit_to_all(fleet, ids)
    assert {line["dataset"] for line in second.lines("start.done")} == set(fleet.scenes)
    audit_all(fleet, ids)


@pytest.mark.slow
def test_after_a_kill_the_other_process_takes_over_within_the_session_timeout(fleet: Fleet) -> None:
    ids = created(fleet)
    first, second = fleet.member(), fleet.member()
    until(lambda: all(active(first, name) or active(second, name) for name in fleet.scenes), seconds=120)
    transactions = {name: scene.table.appends(50) for name, scene in fleet.scenes.items()}
    offsets = {name: scene.stage(*transactions[name]) for name, scene in fleet.scenes.items()}
    first.kill()
    for name, scene in fleet.scenes.items():
        assert {one.status for one in scene.topics.wait_answers(offsets[name])} <= {Status.COMMITTED, Status.DUPLICATE}
        ids[name] += [i for one in transactions[name] for i in scene.table.brought[one.uuid]]
    second.wait_ready(text="3 active")
    audit_all(fleet, ids)


def test_a_crash_is_that_of_one_dataset_which_starts_anew(fleet: Fleet) -> None:
    ids = created(fleet)
    crashes = fleet.folder / "crashes"
    crashes.write_text("")
    command = (sys.executable, "-m", "tests.e2e.crashing_committer", str(crashes), "run")
    member = fleet.member(command=command, **STAYS)
    member.wait_ready(text="3 active")
    unlucky, *others = fleet.scenes
    crashes.write_text(unlucky)
    offsets = fleet.scenes[unlucky].append()
    said = member.wait_line("dataset.crashed", dataset=unlucky)
    assert "a bug" in said["exception"]
    member.wait_ready(text="1 not well; " + f"{unlucky}: its committer has crashed, and starts anew: KeyError('a bug')")
    for name in others:
        ids[name] += fleet.scenes[name].committed()
    assert member.metric("committerd_restarts_total", dataset=unlucky, cause="crash") >= 1
    until(lambda: member.metric("committerd_not_served", dataset=unlucky) == 1)
    assert sum(member.metric("committerd_restarts_total", dataset=name) for name in others) == 0
    crashes.write_text("")
    assert fleet.scenes[unlucky].topics.wait_answers(offsets)[0].status is Status.COMMITTED
    until(lambda: member.metric("committerd_not_served", dataset=unlucky) == 0)
    table = fleet.scenes[unlucky].table
    ids[unlucky] += [i for brought in table.brought.values() for i in brought if i not in ids[unlucky]]
    audit_all(fleet, ids)


def test_a_dataset_that_refuses_to_run_or_can_not_be_opened_leaves_the_others_alone(fleet: Fleet) -> None:
    ids = created(fleet)
    refuses, wrong, good = fleet.scenes
    fleet.scenes[refuses].topics.make_staged()
    member = fleet.member(fleet.tables(refuses, good), **STAYS)
    member.wait_ready(text="2 active")
    ids[refuses] += fleet.scenes[refuses].committed()
    member.stop()
    fleet.scenes[refuses].topics.recreate_staged()
    text = fleet.tables().replace(f'uri = "{fleet.scenes[wrong].table.uri}"', 'uri = "ftp://nowhere/t.lance"')
    member = fleet.member(text, **STAYS)
    said = member.wait_ready(text=f"{refuses}: refused: the table's position is of topic")
    assert "1 active, 0 standby, 2 not well" in said
    assert f"{wrong}: can't be served: tables of the scheme ftp:// are not served" in said
    assert member.metric("committerd_restarts_total", dataset=wrong, cause="settings") >= 1
    ids[good] += fleet.scenes[good].committed(2)
    fleet.scenes[good].audit(ids[good])


@pytest.mark.s3
def test_a_store_that_hangs_holds_up_its_own_table_alone(
    kafka: KafkaBroker | RunningKafka, s3: S3Endpoint, dataset: str, tmp_path: Path, launch: Launch
) -> None:
    names = [f"{dataset}-{letter}" for letter in LETTERS]
    with FaultProxy(s3.url) as proxy:
        places = {names[0]: s3_place(s3, proxy=proxy.url), names[1]: s3_place(s3)}
        with Fleet(kafka=kafka.bootstrap_servers, names=names, folder=tmp_path, places=places, launch=launch) as fleet:
            ids = created(fleet)
            member = fleet.member(**STAYS)
            member.wait_ready(text="3 active")
            commit_to_all(fleet, ids, 1)
            held = proxy.hold(method="PUT", path=r"\.manifest")
            scene = fleet.scenes[names[0]]
            waiting = scene.table.append()
            offsets = scene.stage(waiting)
            held.wait()
            for name in names[1:]:
                ids[name] += fleet.scenes[name].committed(3)
            held.release()
            assert scene.topics.wait_answers(offsets)[0].status is Status.COMMITTED
            ids[names[0]] += scene.table.brought[waiting.uuid]
            audit_all(fleet, ids)


def test_tables_come_go_and_change_by_the_file_while_the_others_are_served(fleet: Fleet) -> None:
    ids = created(fleet)
    stays, changes, comes = fleet.scenes
    file = fleet.folder / "datasets.toml"
    replace(file, fleet.tables(stays, changes))
    member = fleet.member("", DAEMON__DATASETS_FILE=str(file), **STAYS)
    member.wait_ready(text="2 datasets: 2 active")
    replace(file, "[datasets.x]\nuri = 1\n")
    said = member.wait_line("datasets.refused")["error"]
    assert f"daemon.datasets_file '{file}': datasets.x.uri: Input should be a valid string" in said
    member.wait_ready(text="2 active, 0 standby, 0 not well; as before, because daemon.datasets_file")
    assert member.metric("committerd_datasets_file_wrong") == 1
    file.unlink()
    until(lambda: member.metric("committerd_datasets_changes_total", change="refused") == 2)
    for name in (stays, changes):  # so that no line of the log is equal to one before
        ids[name] += fleet.scenes[name].committed()
    replace(file, fleet.tables(more={changes: "commit.group_records_max = 7"}))
    line = member.wait_line("datasets.changed")
    assert (line["added"], line["changed"], line["removed"]) == ([comes], [changes], [])
    until(lambda: starts(member, fleet) == [1, 2, 1])
    member.wait_ready(text="3 datasets: 3 active")
    assert member.metric("committerd_datasets_file_wrong") == 0
    commit_to_all(fleet, ids)
    assert starts(member, fleet) == [1, 2, 1]
    replace(file, fleet.tables(stays, comes))
    member.wait_line("datasets.changed", removed=[changes])
    member.wait_ready(text="2 datasets: 2 active")
    until(lambda: member.metric("committerd_table_version", dataset=changes) == 0)
    ids[comes] += fleet.scenes[comes].committed()
    listed = json.loads(fleet.command("datasets", "--json", DAEMON__DATASETS_FILE=str(file)))
    assert {one["dataset"]: one["unacknowledged"] for one in listed["datasets"]} == {stays: 0, comes: 0}
    assert all(one["committer"] for one in listed["datasets"])
    audit_all(fleet, ids)


def test_datasets_are_found_by_their_topics(fleet: Fleet) -> None:
    ids = created(fleet)
    goes, stays, comes = fleet.scenes
    prefix, file, two = stays.rpartition("-")[0], fleet.folder / "datasets.json", fleet.folder / "two.toml"
    uri = fleet.scenes[stays].table.uri.replace(stays, "{name}")

    def find(pattern: str, *words: str, good: bool = True) -> list[str]:
        there = str(file)
        said = fleet.command("datasets", "find", pattern, "--uri", uri, *words, good=good, DAEMON__DATASETS_FILE=there)
        return said.splitlines()

    two.write_text(fleet.tables(goes, stays))
    fleet.command("topics", "create", file=two)
    assert find(f"{prefix}-.") == [f"added: {goes}", f"added: {stays}", f"Nothing was written: --apply writes {file}."]
    assert not file.exists()
    find(f"{prefix}-.", "--apply")
    member = fleet.member("", DAEMON__DATASETS_FILE=str(file), **STAYS)
    member.wait_ready(text="2 datasets: 2 active")
    for name in (goes, stays):
        ids[name] += fleet.scenes[name].committed()
    fleet.scenes[comes].topics.make_staged()  # the committer makes the others
    fleet.scenes[goes].topics.delete_staged()
    assert find(f"{prefix}-.", "--apply") == [f"added: {comes}", f"removed: {goes}"]
    member.wait_line("datasets.changed", added=[comes], removed=[goes])
    member.wait_ready(text="2 datasets: 2 active")
    for name in (stays, comes):
        ids[name] += fleet.scenes[name].committed()
        fleet.scenes[name].audit(ids[name])
    held = file.read_text()
    assert find(f"{prefix}-.", "--apply") == []
    assert f"no topic NAME.staged has a NAME that matches '{prefix}'" in find(prefix, "--apply", good=False)
    assert file.read_text() == held


def test_commands_take_the_dataset_by_its_name(fleet: Fleet) -> None:
    created(fleet)
    file = fleet.folder / "committerd.toml"
    file.write_text(fleet.tables())
    made = json.loads(fleet.command("topics", "create", "--json", file=file))
    assert len(made["created"]) == 3 * len(fleet.scenes)
    first, *_ = fleet.scenes
    said = fleet.command("status", file=file, good=False)
    assert "the settings name 3 datasets, choose one with --dataset NAME: " + ", ".join(sorted(fleet.scenes)) in said
    listed = fleet.command("datasets", file=file, good=False)
    assert [line.split()[0] for line in listed.splitlines()[1:]] == sorted(fleet.scenes)
    assert [line.split()[2:] for line in listed.splitlines()[1:]] == [["NOBODY", "0"]] * 3
    shown = json.loads(fleet.command("position", "show", "--dataset", first, "--json", file=file))
    assert shown["refusal"] is None
    assert f"the settings name no dataset 'x'; they name {first}" in fleet.command(
        "status", "--dataset", "x", file=file, good=False
    )
    nothing = fleet.folder / "nothing.toml"
    nothing.write_text("[datasets]\n")
    for words in (("topics", "check"), ("topics", "create"), ("datasets",)):
        said = fleet.command(*words, DAEMON__DATASETS_FILE=str(nothing))
        assert said == "The settings name no dataset.\n", words
    said = fleet.command("status", DAEMON__DATASETS_FILE=str(nothing), good=False)
    assert "the settings name no dataset: name a table as [datasets.NAME] with uri" in said
