"""docs/day-two.md, followed literally: each command of a task, in its order, on a real dataset."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import lance
import pytest

from committerd_common.messages import Status
from harness.child import Launch
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


def _follow(lines: Sequence[str], scene: Scene, copy: Path | None = None) -> list[str]:
    """Run these lines with the settings of the scene's dataset; each must succeed. Returns what they print."""
    printed = []
    for line in lines:
        words = shlex.split(line)
        if words[0] == "cp":
            assert words == ["cp", "-r", "/data/events.lance", "/backup/events.lance"]
            assert copy is not None
            shutil.copytree(scene.table.uri, copy)
            continue
        assert words[0] == "committerd"
        ran = run(scene, *words[1:])
        assert ran.code == 0, f"{line}\n{ran.out}\n{ran.err}"
        printed.append(ran.out)
    return printed


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


def test_what_is_looked_at_before_a_dataset_is_retired_and_after_kafka_was_upgraded(scene: Scene) -> None:
    scene.table.create()
    scene.started(**STAYS)
    scene.committed(2)
    _is_drained(scene)
    (retire,), (upgraded,) = _blocks("Retire a dataset"), _blocks("Upgrade Kafka")
    status, *_ = _follow([*retire, *upgraded], scene)
    assert _DRAINED.search(status)
