"""`committerd tail`: outcomes as they are published, and an end without noise."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from committerd_common.messages import Outcome, Status
from harness.child import without_waits
from harness.scene import Scene
from tests.commands.running import run, tailing
from tests.commands.story import Story

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_SECONDS = 60


def _lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def _told(scene: Scene, count: int, *words: str) -> list[dict[str, Any]]:
    """The first outcomes of the last day that these filters let pass."""
    with tailing(scene, "--since", "1d", "--json", *words) as process:
        return [json.loads(line) for line in _lines(process, count)]


def test_what_is_published_is_printed_and_ctrl_c_ends_it(scene: Scene) -> None:
    scene.table.create()
    scene.started()
    scene.committed(1)  # so the topics exist
    with tailing(scene, "--json", "--since", "1d") as process:
        (first,) = _lines(process, 1)
        assert json.loads(first)["status"] == "COMMITTED"
        transaction = scene.table.append()
        (outcome,) = scene.ask(transaction, producer="etl")
        (line,) = _lines(process, 1)
        told = json.loads(line)
        assert (told["uuid"], told["version"], told["producer"]) == (transaction.uuid, outcome.version, "etl")
        process.send_signal(signal.SIGINT)
        assert process.wait(_SECONDS) == 0
        assert process.stderr is not None
        assert without_waits(process.stderr.read()) == ""


def test_filters(story: Story) -> None:
    scene = story.scene
    (lost,) = _told(scene, 1, "--producer", "lost")
    assert (lost["status"], lost["reason"], lost["offset"]) == ("INVALID", "wrong_dataset", story.elsewhere_offset)
    assert {one["offset"] for one in _told(scene, 2, "--status", "invalid")} == {story.garbage, story.elsewhere_offset}
    (duplicate,) = _told(scene, 1, "--reason", "uuid_seen", "--operation", "append")
    assert (duplicate["status"], duplicate["uuid"]) == ("DUPLICATE", story.twice.uuid)


def test_the_application_is_that_of_the_staged_record(scene: Scene) -> None:
    scene.table.create()
    scene.started()
    scene.committed(1)
    (outcome,) = scene.ask(scene.table.append(), app_id="query", app_version="1")
    assert outcome.status == Status.COMMITTED
    (told,) = _told(scene, 1, "--app-id", "query")
    assert told["uuid"] == outcome.uuid


def test_the_application_is_not_that_of_a_record_of_a_topic_that_was_made_anew(scene: Scene) -> None:
    assert run(scene, "topics", "create").code == 0
    (offset,) = scene.stage(b"a record", headers={"app-id": "query"})
    for topic_id, version in (("of-the-old-topic", 1), (scene.topics.topic_id(), 2)):
        outcome = Outcome(status=Status.COMMITTED, uuid="u", version=version, offset=offset, topic_id=topic_id)
        scene.topics.producer.send(scene.topics.outcomes, value=outcome.SerializeToString(), key=b"u")
        scene.topics.producer.flush()
    assert [one["version"] for one in _told(scene, 1, "--app-id", "query")] == [2]


def test_a_reader_that_has_seen_enough_ends_it(story: Story) -> None:
    with tailing(story.scene, "--since", "1d") as process:
        (line,) = _lines(process, 1)
        assert "COMMITTED" in line
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(_SECONDS) == 0
        assert process.stderr is not None
        assert without_waits(process.stderr.read()) == ""
