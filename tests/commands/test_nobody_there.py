"""`status` when no committer runs, and `position show` when the topic is gone: both say so, and print the rest."""

from __future__ import annotations

import json

import pytest

from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_a_committer_that_is_not_there_and_a_topic_that_is_gone(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started()
    scene.committed(2)
    daemon.stop()
    said = scene.command("status", good=False)
    assert f"no committer runs: consumer group committerd.{scene.name} has no member" in said
    assert "none runs" in said
    before = json.loads(scene.command("position", "show", "--json"))
    scene.topics.delete_staged()
    found = json.loads(scene.command("position", "show", "--json"))
    assert found["refusal"]["code"] == "topic_gone"
    assert found["topic"] is None
    assert found.keys() == before.keys()
    for same in ("table", "version", "position", "applications"):
        assert found[same] == before[same]
    page = scene.command("position", "show")
    assert "topic:         gone" in page
    assert f"there is no topic {scene.name}.staged" in page
