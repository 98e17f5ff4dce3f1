"""A table with a feature that committerd does not know, behind a real committer: `commit.unknown = pylance`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

from committerd_common.messages import Status, Transaction
from harness.child import Launch, through
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace, place_named
from harness.scene import QUICK, STAYS, Scene, until
from tests.committer.test_by_pylance import detached, staged_by
from tests.e2e.stopped_committer import FOREIGN, STEPS
from tests.oracle.feature_tables import OVERLAYS, overlay, rows

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

BY_PYLANCE = {"COMMIT__UNKNOWN": "pylance"}


class Stopped:
    """A dataset with feature flag 2048, whose committer is stopped as `at` says."""

    def __init__(self, kafka: str, name: str, folder: Path, launch: Launch) -> None:
        self._says = folder / "steps"
        self._says.write_text("")
        launched = through(launch, "tests.e2e.stopped_committer", str(self._says))
        self.scene = Scene(kafka=kafka, name=name, folder=folder, launch=launched)

    def at(self, *words: str) -> None:
        self._says.write_text(" ".join(words))

    @property
    def is_done(self) -> bool:
        """Whether the step was reached."""
        return not self._says.read_text()

    def detached(self) -> list[str]:
        return [one.name for one in Path(self.scene.table.uri, "_versions").iterdir() if one.name.startswith("d")]


@pytest.fixture
def stopped(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Stopped]:
    made = Stopped(kafka.bootstrap_servers, dataset, tmp_path, launch)
    with made.scene:
        yield made


def created(scene: Scene) -> list[int]:
    """The ids of a new table whose rows have their lineage in data files."""
    ids = scene.table.create(10, enable_stable_row_ids=True)
    scene.table.open().update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "0"})
    scene.table.open().update({"id": "id"}, where="id > 0")
    return ids


def brought(scene: Scene, *transactions: Transaction) -> list[int]:
    return [one for transaction in transactions for one in scene.table.brought[transaction.uuid]]


@pytest.mark.long
def test_killed_at_each_step(stopped: Stopped) -> None:
    scene = stopped.scene
    ids = created(stopped.scene)
    daemon = scene.started(**BY_PYLANCE)
    for step in STEPS:
        staged = scene.table.append()
        stopped.at("kill", step)
        (offset,) = scene.stage(staged)
        until(lambda: stopped.is_done and not daemon.running())
        daemon.kill()  # closes its pipes
        daemon.start()
        (answer,) = scene.topics.wait_answers([offset])
        assert (step, answer.status) == (step, Status.COMMITTED)
        ids += brought(scene, staged)
        (again,) = scene.ask(staged)
        assert (again.status, again.version) == (Status.DUPLICATE, answer.version)
    scene.audit(ids)
    assert not stopped.detached()


@pytest.mark.parametrize("step", ["asks", "built", "put"])
def test_one_that_sleeps_and_wakes_after_another_has_taken_over(step: str, stopped: Stopped) -> None:
    scene = stopped.scene
    ids = created(scene)
    members = [scene.started(**BY_PYLANCE)]
    staged = scene.table.append()
    stopped.at("sleep", step)
    (offset,) = scene.stage(staged)
    until(lambda: stopped.is_done)
    members.append(scene.daemon(**BY_PYLANCE))
    (answer,) = scene.topics.wait_answers([offset])
    assert answer.status == Status.COMMITTED
    members[0].thaw()
    ids += [*brought(scene, staged), *scene.committed()]
    scene.audit(ids)
    # What pylance has built for the one that slept is on no version, and gone.
    until(lambda: not stopped.detached())


@pytest.mark.parametrize("step", ["built", "put"])
def test_another_writer_commits_in_between(step: str, stopped: Stopped) -> None:
    """What pylance has built is dropped, and the record must be read anew, unless it reads nothing."""
    scene = stopped.scene
    ids = created(stopped.scene)
    scene.started(**STAYS, **BY_PYLANCE)
    reads = scene.table.append(read_version=scene.table.version)
    stopped.at("append", step, scene.table.uri)
    (answer,) = scene.ask(reads)
    assert (answer.status, answer.reason) == (Status.RETRYABLE, "conflict")
    reads_nothing = scene.table.append()
    stopped.at("append", step, scene.table.uri)
    (answer,) = scene.ask(reads_nothing)
    assert answer.status == Status.COMMITTED
    assert sorted(scene.table.ids()) == sorted([*ids, FOREIGN, FOREIGN, *brought(scene, reads_nothing)])
    assert not stopped.detached()


def test_an_operation_that_committerd_does_not_know(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERLAYS, "1")
    scene = stopped.scene
    root = Path(scene.table.uri)
    lance.write_dataset(rows(0), str(root))
    scene.started(**STAYS, **BY_PYLANCE)
    (answer,) = scene.ask(staged_by(root, detached(overlay(root))))
    assert (answer.status, answer.operation, answer.version) == (Status.COMMITTED, "", 2)
    assert scene.table.open().to_table()["t"].to_pylist()[:5] == ["t0", "x", "t2", "y", "t4"]
    (answer,) = scene.ask(staged_by(root, detached(overlay(root))))
    assert answer.version == 3
    assert "Nothing was found" in scene.command("audit")


def test_what_operators_see(stopped: Stopped) -> None:
    """status and audit know the versions; maintenance says that it does not know the table's files."""
    scene = stopped.scene
    created(scene)
    scene.started(**STAYS, **BY_PYLANCE)
    scene.committed()
    assert "append         queue" in scene.command("status")
    assert "Nothing was found" in scene.command("audit")
    assert scene.command("maintain", "--once", good=False).count("does not know: update it") == 3


def test_without_the_setting_the_table_is_refused(stopped: Stopped) -> None:
    created(stopped.scene)
    daemon = stopped.scene.daemon(**STAYS)
    daemon.wait_refused("feature_flags")


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("s3+ddb", marks=[pytest.mark.s3, pytest.mark.dynamodb]),
        pytest.param("azure", marks=pytest.mark.azure),
        pytest.param("gcs", marks=pytest.mark.gcs),
    ]
)
def place(request: pytest.FixtureRequest) -> StorePlace:
    return place_named(request.param, request.getfixturevalue)


def test_in_a_bucket(
    place: StorePlace, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch
) -> None:
    """With a manifest store too, where the entry of a detached version would hide the latest one from pylance."""
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
        ids = created(scene)
        scene.started(**STAYS, **BY_PYLANCE)
        ids += scene.committed()
        ids += scene.table.write()
        ids += scene.committed()
        assert scene.table.version == 6
        assert sorted(scene.table.ids()) == sorted(ids)
        assert [one.ours for one in scene.table.versions()] == [False, False, False, True, False, True]


def test_on_a_branch_that_the_command_line_names(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    """The process of pylance builds on the branch too, not on main."""
    ids = created(scene)
    scene.table.open().create_branch("exp")
    with (
        scene.branched("exp", scene.folder / "exp") as branch,
        Daemon(
            name=scene.name,
            uri=scene.table.uri,
            kafka=kafka.bootstrap_servers,
            settings=QUICK | BY_PYLANCE,
            log=scene.folder / "exp" / "committerd.log",
            command=(sys.executable, "-m", "committerd", "run", "--branch", "exp"),
        ) as daemon,
    ):
        daemon.wait_ready(text="active")
        branch.table.new_ids(1000)
        mine = branch.committed(2)
        assert sorted(branch.table.ids()) == sorted([*ids, *mine])
        assert sorted(scene.table.ids()) == sorted(ids)
