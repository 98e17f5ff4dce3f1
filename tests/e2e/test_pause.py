"""A queue that an operator pauses: nothing is settled until it is resumed, whoever is active, and everybody is told."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pytest

from committerd_client import SyncCommitClient
from committerd_common.messages import Status
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import s3_place
from harness.s3 import S3Endpoint
from harness.scene import STAYS, Scene, until
from harness.toxiproxy import Toxiproxy
from tests.commands.running import answered, printed, run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

ONE_EACH = {"COMMIT__GROUP_RECORDS_MAX": "1", "COMMIT__VERIFY_FILES": "never"}
"""A version for each record, one right after the other."""


def _pauses(scene: Scene, reason: str) -> int:
    """Pause the queue; returns the version."""
    return int(answered(scene, "pause", "--reason", reason, "--by", "ann")["version"])


def test_while_it_is_busy_it_stops_at_once_and_every_record_is_settled_after_it_is_resumed(scene: Scene) -> None:
    ids = scene.table.create()
    first, second = scene.started(**STAYS, **ONE_EACH), scene.daemon(**STAYS, **ONE_EACH)
    second.wait_ready(text="standby")
    transactions = scene.table.appends(300)
    offsets = scene.stage(*transactions[:200])
    until(lambda: scene.table.version > 5)
    first.freeze()
    offsets += scene.stage(*transactions[200:250])  # so that work is left, however far it came
    version = _pauses(scene, "a backup")
    first.thaw()
    said = first.wait_ready(text="paused since")
    assert said.endswith(" by ann: a backup")
    assert first.wait_line("queue.paused")["reason"] == "a backup"
    position = scene.position()["next"]
    assert position <= 200  # what was staged last before the pause waits
    offsets += scene.stage(*transactions[250:])
    until(lambda: first.metric("committerd_paused") == 1)
    assert (first.metric("committerd_active"), second.metric("committerd_paused")) == (1, 0)
    until(lambda: first.metric("committerd_queue_lag_records") == 300 - position)
    # A standby that takes over, and a member that starts, honour it too.
    first.stop()
    second.wait_ready(text="paused since")
    assert not list(second.lines("version.committed"))
    assert scene.table.version == version
    assert scene.position()["next"] == position
    assert all(one.offset < position for one in scene.topics.read_outcomes())
    shown = printed(scene, "status")
    assert "commits nothing: the queue is paused since" in shown
    assert answered(scene, "status")["table"]["paused"]["who"] == "ann"
    with SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        until(lambda: client.status().why == "paused")
        assert "paused: a backup (by ann)" in client.status().text
    # Nobody else's pause is replaced.
    refused = run(scene, "pause", "--reason", "another")
    assert (refused.code, "by ann: a backup" in refused.err) == (1, True)
    assert scene.table.version == version
    assert answered(scene, "resume", "--reason", "the backup is done")["version"] == version + 1
    assert {answer.status for answer in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    second.wait_line("queue.resumed")
    until(lambda: second.metric("committerd_paused") == 0)
    assert "not paused" in printed(scene, "resume")
    scene.audit([*ids, *(i for one in transactions for i in scene.table.brought[one.uuid])])


@pytest.mark.s3
@pytest.mark.slow
def test_a_committer_that_never_rests_leaves_an_operator_as_far_from_the_store_a_turn(
    kafka: KafkaBroker | RunningKafka,
    s3: S3Endpoint,
    toxiproxy: Toxiproxy,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> None:
    proxy = toxiproxy.proxy(s3.url)
    place = s3_place(s3, proxy=proxy.url)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
        scene.table.create()
        transactions = scene.table.appends(300)
        proxy.add("latency", latency=60)
        daemon = scene.started(**STAYS, **ONE_EACH, STORE__RECHECK_SECONDS="1")
        scene.stage(*transactions)
        until(lambda: scene.table.version > 5)
        scene.command("pause", "--reason", "busy")
        assert scene.position()["next"] < 300
        daemon.wait_ready(text="paused since")


def test_other_writers_neither_end_a_pause_nor_bring_one_back(scene: Scene) -> None:
    ids = scene.table.create()
    scene.started(**STAYS)
    ids += scene.committed(2)
    before = scene.table.version
    paused = _pauses(scene, "repairs")
    (offset,) = scene.append()
    restored = lance.dataset(scene.table.uri, version=before)
    restored.restore()  # type: ignore[no-untyped-call]  # its metadata has no pause
    assert scene.table.version == paused + 1
    assert "paused since" in printed(scene, "status")
    assert scene.table.version == paused + 1
    resumed = answered(scene, "resume")["version"]
    (answer,) = scene.topics.wait_answers([offset])
    assert (answer.status, answer.version) == (Status.COMMITTED, resumed + 1)
    lance.dataset(scene.table.uri, version=paused).restore()  # type: ignore[no-untyped-call]  # its metadata has the pause
    ids += scene.committed(1)
    assert "committerd.paused" not in scene.table.metadata()
    assert json.loads(scene.table.metadata()["committerd.position"])["next"] == 4


def test_maintenance_waits_too(scene: Scene) -> None:
    scene.table.create()
    scene.started(**STAYS)
    scene.committed(12)
    version = _pauses(scene, "a backup")
    said = answered(scene, "maintain", "--once")
    assert (said["event"], said["reason"]) == ("paused", "a backup")
    assert scene.table.version == version
    assert answered(scene, "resume")["version"] == version + 1


def test_there_is_nothing_to_pause_before_the_first_commit(scene: Scene) -> None:
    assert "there is no table" in run(scene, "pause", "--reason", "x").err
    scene.table.create()
    ran = run(scene, "pause", "--reason", "x")
    assert (ran.code, "no committer has committed to it yet" in ran.err) == (2, True)
    assert run(scene, "pause", "--reason", " ").code == 2
