"""docs/day-two.md, followed literally: each command of a task, in its order, on a real dataset."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import lance
import pytest

from committerd.dev.parts import free_ports
from committerd_client import CommitClient
from committerd_common.messages import Status
from harness.child import ChildProcess, Launch
from harness.fleet import Fleet, active, replace
from harness.java import kafka_tools
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace
from harness.scene import STAYS, Scene, until
from tests.commands.running import run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_DRAINED = re.compile(r"^pending: +0 records$", re.MULTILINE)
PAGE = Path(__file__).parents[2].joinpath("docs/day-two.md").read_text("utf-8")


def _blocks(heading: str) -> list[list[str]]:
    """The `sh` blocks of a task, each with its lines."""
    (section,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    return [[line.strip() for line in block.splitlines()] for block in blocks]


def _follow(
    lines: Sequence[str], scene: Scene, copy: Path | None = None, *, command: Callable[..., str] | None = None
) -> list[str]:
    """Run these lines; each must succeed. Returns what they print.

    `command`: runs a command of committerd; by default, with the settings of the scene's dataset.
    """
    printed = []
    for line in lines:
        words = shlex.split(line)
        if words[0] == "cp":
            assert words == ["cp", "-r", "/data/events.lance", "/backup/events.lance"]
            assert copy is not None
            shutil.copytree(scene.table.uri, copy)
            continue
        assert words[0] == "committerd"
        if command is not None:
            printed.append(command(*words[1:]))
            continue
        ran = run(scene, *words[1:])
        assert ran.code == 0, f"{line}\n{ran.out}\n{ran.err}"
        printed.append(ran.out)
    return printed


def _properties(heading: str) -> str:
    """The `properties` block of a task."""
    (section,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^ *```properties\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    return "\n".join(line.strip() for line in block.splitlines())


class MirrorMaker:
    """MirrorMaker 2 with the settings of the page, from one cluster to another; as a context manager."""

    def __init__(self, text: str, dataset: str, old: str, new: str, folder: Path) -> None:
        for said, meant in (
            ("old-kafka:9092", old),
            ("new-kafka:9092", new),
            ("events", re.escape(dataset).replace("\\", "\\\\")),
            ("replication.factor = 3", "replication.factor = 1"),  # a cluster of one
        ):
            assert said in text
            text = text.replace(said, meant)
        self._file, self._log = folder / "mm2.properties", folder / "mirror-maker.log"
        self._file.write_text(text)
        self._folder = folder

    def __enter__(self) -> MirrorMaker:
        words = [*kafka_tools(), "org.apache.kafka.connect.mirror.MirrorMaker", str(self._file)]
        self._process = ChildProcess(words, log=self._log, folder=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()


def _features(broker: KafkaBroker, *words: str) -> str:
    """What `kafka-features.sh` prints."""
    program = "org.apache.kafka.tools.FeatureCommand"
    command = [*kafka_tools(), program, "--bootstrap-server", broker.bootstrap_servers, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Committing:
    """A client that commits one Append after the other, and whose submits must all succeed; as a context manager."""

    def __init__(self, servers: str, scene: Scene) -> None:
        self._servers, self._scene = servers, scene
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self.ids: list[int] = []
        """Of the rows that are committed."""

    def wait_more(self, count: int) -> None:
        """Wait until so many more are committed."""
        wanted = len(self.ids) + count
        until(lambda: len(self.ids) >= wanted or self._failure is not None, seconds=240)
        assert self._failure is None, self._failure

    def __enter__(self) -> Committing:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._commit()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(240)
        assert self._failure is None, self._failure

    async def _commit(self) -> None:
        table = self._scene.table
        try:
            async with CommitClient(
                self._servers, dataset=self._scene.name, dataset_uri=table.uri, timeout=None
            ) as client:
                while not self._ended.is_set():
                    transaction = table.append()
                    await client.submit(transaction)
                    self.ids += table.brought[transaction.uuid]
        except Exception as error:  # noqa: BLE001  # the test's own thread raises it
            self._failure = error


def _is_drained(scene: Scene) -> None:
    until(lambda: _DRAINED.search(run(scene, "status").out) is not None)


def test_a_backup_is_a_whole_table(scene: Scene) -> None:
    ids = scene.table.create()
    scene.started(**STAYS)
    ids += scene.committed(3)
    copy = scene.folder / "backup.lance"
    (lines,) = _blocks("Take a backup")
    _follow(lines, scene, copy)
    assert sorted(lance.dataset(str(copy)).to_table()["id"].to_pylist()) == sorted(ids)
    scene.audit([*ids, *scene.committed(1)])


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["the same", "another"])
def test_a_dataset_goes_on_with_other_topics(
    scene: Scene, request: pytest.FixtureRequest, launch: Launch, cluster: str
) -> None:
    before, after = _blocks("Rename a dataset, or use another Kafka cluster")
    ids = scene.table.create()
    old = scene.started(**STAYS)
    settled = scene.table.appends(3)
    assert {answer.status for answer in scene.ask(*settled)} == {Status.COMMITTED}
    ids += [i for one in settled for i in scene.table.brought[one.uuid]]
    _is_drained(scene)
    _follow(before, scene)
    old.stop()
    fixture: KafkaBroker | RunningKafka = request.getfixturevalue(
        "kafka" if cluster == "the same" else "breakable_kafka"
    )
    name = f"{scene.name}-new" if cluster == "the same" else scene.name
    folder = scene.folder / "new"
    folder.mkdir()
    place = StorePlace(scene.table.uri)
    with Scene(kafka=fixture.bootstrap_servers, name=name, folder=folder, place=place, launch=launch) as renamed:
        new = renamed.daemon(**STAYS)
        new.wait_refused("topic_id")
        mirrored = renamed.stage(*settled)  # as a copy of the old topic has them
        _follow(after, renamed)
        assert {answer.status for answer in renamed.topics.wait_answers(mirrored)} == {Status.DUPLICATE}
        new.wait_ready(text="active: ")
        (answer,) = renamed.ask(transaction := renamed.table.append())
        assert answer.status is Status.COMMITTED
        ids += renamed.table.brought[transaction.uuid]
        assert sorted(renamed.table.open().to_table()["id"].to_pylist()) == sorted(ids)


@pytest.mark.slow
def test_a_table_moves(scene: Scene, kafka: KafkaBroker | RunningKafka, launch: Launch) -> None:
    before, after = _blocks("Move a table to another URI")
    ids = scene.table.create()
    old = scene.started(**STAYS)
    ids += scene.committed(3)
    _is_drained(scene)
    copy = scene.folder / "moved.lance"
    _follow(before, scene, copy)
    old.stop()
    folder = scene.folder / "new"
    folder.mkdir()
    place = StorePlace(str(copy))
    with Scene(kafka=kafka.bootstrap_servers, name=scene.name, folder=folder, place=place, launch=launch) as moved:
        new = moved.daemon(**STAYS)
        new.wait_ready(text="paused since")
        _follow(after, moved)
        new.wait_ready(text="active: ")
        (answer,) = moved.ask(transaction := moved.table.append())
        assert answer.status is Status.COMMITTED
        ids += moved.table.brought[transaction.uuid]
        assert sorted(moved.table.open().to_table()["id"].to_pylist()) == sorted(ids)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Rename a dataset, or use another Kafka cluster", "Move a table to another URI"])
def test_a_table_of_a_group_changes_while_the_others_are_served(
    kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch, task: str
) -> None:
    before, after = _blocks(task)
    stays, changes, file = f"{dataset}-a", f"{dataset}-b", tmp_path / "datasets.toml"
    with Fleet(kafka=kafka.bootstrap_servers, names=[stays, changes], folder=tmp_path, launch=launch) as fleet:
        old = fleet.scenes[changes]
        ids = {name: scene.table.create() for name, scene in fleet.scenes.items()}

        def command(*words: str) -> str:
            return fleet.command(*words, "--dataset", name, DAEMON__DATASETS_FILE=str(file))

        name, copy = changes, tmp_path / "moved.lance"
        replace(file, fleet.tables())
        member = fleet.member("", DAEMON__DATASETS_FILE=str(file), **STAYS)
        member.wait_ready(text="2 datasets: 2 active")
        for name, scene in fleet.scenes.items():
            ids[name] += scene.committed(3)
        _follow(before, old, copy, command=command)
        name, uri = (f"{changes}-new", old.table.uri) if "Rename" in task else (changes, str(copy))
        replace(file, f'{fleet.tables(stays)}[datasets.{changes}]\nname = "{name}"\nuri = "{uri}"\n')
        member.wait_line("datasets.changed")
        member.wait_line("refused" if "Rename" in task else "queue.paused", dataset=name)
        ids[stays] += fleet.scenes[stays].committed()
        _follow(after, old, command=command)
        own = tmp_path / "new"
        own.mkdir()
        place = StorePlace(uri)
        with Scene(kafka=kafka.bootstrap_servers, name=name, folder=own, place=place, launch=launch) as changed:
            until(lambda: active(member, name))
            (answer,) = changed.ask(transaction := changed.table.append())
            assert answer.status is Status.COMMITTED
            ids[changes] += changed.table.brought[transaction.uuid]
            assert sorted(changed.table.ids()) == sorted(ids[changes])
        fleet.scenes[stays].audit(ids[stays])
        assert [line["dataset"] for line in member.lines("start.done")].count(stays) == 1


@pytest.mark.slow
def test_a_lost_topic_is_made_again(scene: Scene) -> None:
    (lines,) = _blocks("A topic was lost")
    ids = scene.table.create()
    daemon = scene.started(**STAYS)
    ids += scene.committed(3)
    scene.topics.delete_staged()
    daemon.wait_refused("topic_gone")
    _follow(lines, scene)
    daemon.wait_ready(text="active: ")
    ids += scene.committed(1)
    assert sorted(scene.table.open().to_table()["id"].to_pylist()) == sorted(ids)


@pytest.mark.slow
def test_what_waits_comes_along_to_another_cluster(
    scene: Scene, kafka: KafkaBroker | RunningKafka, breakable_kafka: KafkaBroker, launch: Launch
) -> None:
    create, look_old, look_new, adopt = _blocks("Mirror a queue to another Kafka cluster")
    ids = scene.table.create()
    old = scene.started(**STAYS)
    ids += scene.committed(5)
    folder = scene.folder / "new"
    folder.mkdir()
    place = StorePlace(scene.table.uri)
    servers = breakable_kafka.bootstrap_servers
    with Scene(kafka=servers, name=scene.name, folder=folder, place=place, launch=launch) as moved:
        _follow(create, moved)
        mirror = MirrorMaker(
            _properties("Mirror a queue to another Kafka cluster"), scene.name, kafka.bootstrap_servers, servers, folder
        )
        with mirror:
            _, shown = _follow(look_old, scene)
            waiting = scene.table.appends(4)
            scene.stage(*waiting)
            facts = scene.shown_position()
            assert f"next offset {facts['position']['next_offset']} " in shown
            settled = facts["position"]["next_offset"] - facts["log_start"]
            whole = facts["log_end"] - facts["log_start"]
            assert 0 < settled < whole
            until(lambda: f"offsets 0 to {whole} " in _follow(look_new, moved)[0], seconds=300)
        old.stop()
        new = moved.daemon(**STAYS)
        new.wait_refused("topic_id")
        _follow([line.replace("7200", str(settled)) for line in adopt], moved)
        new.wait_ready(text="active: ")
        answers = moved.topics.wait_answers(range(settled, whole))
        assert {answer.status for answer in answers} == {Status.COMMITTED}
        brought = [i for one in waiting for i in scene.table.brought[one.uuid]]
        (answer,) = moved.ask(transaction := moved.table.append())
        assert answer.status is Status.COMMITTED
        last = moved.table.brought[transaction.uuid]
        assert sorted(moved.table.open().to_table()["id"].to_pylist()) == sorted([*ids, *brought, *last])
        audited = run(moved, "audit")
        assert audited.code == 0, audited.out + audited.err


@pytest.mark.slow
def test_kafka_is_upgraded_under_a_committer_and_a_client(dataset: str, tmp_path: Path, launch: Launch) -> None:
    finalise, check = _blocks("Upgrade Kafka")
    ports, data = free_ports(3), tmp_path / "kafka"
    data.mkdir()
    older = KafkaBroker(version="3.9.1", folder=data, ports=ports)
    newer = KafkaBroker(folder=data, ports=ports)
    with (
        closing(older),
        closing(newer),
        Scene(kafka=older.start().bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as scene,
    ):
        ids = scene.table.create()
        daemon = scene.started(**STAYS)
        process, topic = daemon.pid, scene.shown_position()["topic"]["topic_id"]
        with Committing(older.bootstrap_servers, scene) as client:
            client.wait_more(3)
            older.stop()
            newer.start()
            client.wait_more(3)
            assert "3.9" in _features(newer, "describe")
            (line,) = finalise
            words = shlex.split(line)
            assert words[:3] == ["kafka-features.sh", "--bootstrap-server", "kafka:9092"]
            _features(newer, *words[3:])
            assert re.search(r"metadata.version\b.*FinalizedVersionLevel: 4\.3", _features(newer, "describe"))
            client.wait_more(3)
        _follow(check, scene)
        assert (daemon.pid, scene.shown_position()["topic"]["topic_id"]) == (process, topic)
        assert list(daemon.lines("refused")) == []
        scene.audit([*ids, *client.ids])


def test_what_is_looked_at_before_a_dataset_is_retired_and_after_kafka_was_upgraded(scene: Scene) -> None:
    scene.table.create()
    scene.started(**STAYS)
    scene.committed(2)
    _is_drained(scene)
    (retire,), (_, upgraded) = _blocks("Retire a dataset"), _blocks("Upgrade Kafka")
    status, *_ = _follow([*retire, *upgraded], scene)
    assert _DRAINED.search(status)
