"""Change events through a real committer: killed between commit and event, with versions of pylance, on a new topic."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import TopicAlreadyExistsError

from harness.kafka_topics import configure_topic
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "change-events.md").read_text(encoding="utf-8")
COMMITTED, MISSED = "committerd.version.committed", "committerd.versions.missed"
LAG = "committerd_change_events_lag_versions"


class EventsTopic:
    def __init__(self, scene: Scene) -> None:
        self.name = scene.topics.events
        self._scene = scene

    def events(self) -> list[dict[str, Any]]:
        """All events in the topic, each as it came first."""
        found = dict[str, dict[str, Any]]()
        for record in self._scene.topics.read_events():
            assert dict(record.headers)["content-type"] == b"application/cloudevents+json; charset=UTF-8"
            event = json.loads(record.value)
            found.setdefault(event["id"], event)
        return list(found.values())

    def until_told(self) -> list[dict[str, Any]]:
        """Wait until the latest version is told; returns all events."""
        until(lambda: self._told() == self._scene.table.version, seconds=180)
        return self.events()

    def _told(self) -> int:
        return max((event["data"]["version"] for event in self.events() if event["type"] == COMMITTED), default=0)

    def replace(self) -> None:
        """Delete the topic and make it again; waits until the broker knows the new one."""
        admin, before = self._scene.topics.admin, self._id()
        admin.delete_topics([self.name])

        def made() -> bool:
            try:
                admin.create_topics({self.name: {"num_partitions": 1, "replication_factor": 1, "configs": {}}})
            except TopicAlreadyExistsError:  # the broker has not deleted it yet
                return False
            return True

        until(made, seconds=120)
        until(lambda: self._id() not in ("", before), seconds=120)

    def _id(self) -> str:
        """The topic's id; empty if there is none, or no leader yet."""
        (described,) = self._scene.topics.admin.describe_topics([self.name])
        led = all(partition["leader_id"] >= 0 for partition in described["partitions"])
        return "" if described["error_code"] or not led else str(described["topic_id"])


def versions_of(events: list[dict[str, Any]]) -> list[int]:
    return [event["data"]["version"] for event in events if event["type"] == COMMITTED]


def test_each_version_is_told_in_order_whatever_happens(scene: Scene) -> None:
    scene.table.create(rows=3)
    daemon = scene.started(KAFKA__CHANGE_EVENTS="true", **STAYS | {"KAFKA__SESSION_TIMEOUT_MS": "10000"})
    topic = EventsTopic(scene)
    topic.until_told()
    scene.committed(3)
    scene.table.write(2)  # by pylance, while the committer runs
    scene.committed()
    topic.until_told()
    until(lambda: daemon.metric(LAG) == 0)

    # Kafka refuses events: commits go on, and the committer says that events wait. Then it dies.
    configure_topic(scene.topics.admin, topic.name, "max.message.bytes", "10")

    def waits() -> bool:
        scene.committed()  # a broker may take an event after it has reported the new limit
        return daemon.metric(LAG) > 0 and "change events wait behind version" in daemon.ready()[1]

    until(waits)
    before = len(topic.events())
    daemon.kill()
    scene.table.open().delete("id = 0")
    scene.table.open(1).restore()
    configure_topic(scene.topics.admin, topic.name, "max.message.bytes", str(1024 * 1024))
    assert len(topic.events()) == before
    daemon.start()
    scene.committed()  # the version before it puts back what the Restore dropped of the queue's keys
    events = topic.until_told()

    versions = {one.number: one for one in scene.table.versions()}
    assert versions_of(events) == list(range(1, max(versions) + 1))
    assert {event["type"] for event in events} == {COMMITTED}
    rows = 0
    for data in (event["data"] for event in events):
        version = versions[data["version"]]
        assert (data["uuid"], data["through_queue"]) == (version.uuid, version.ours)
        members = [member.uuid for member in version.members]
        assert data["transactions"] == (members if version.ours else [version.uuid])
        rows += data["rows_added"] - data["rows_removed"]
        assert rows == scene.table.open(data["version"]).count_rows()
    assert ["restore"] in [event["data"]["operations"] for event in events]

    # On a new topic they go on where they were, and say so first. A committer that loses its session meanwhile starts
    # again, and then begins with the latest version.
    told = scene.table.version
    topic.replace()
    scene.committed()
    first, *others = topic.until_told()
    assert (first["type"], first["data"]["reason"], first["data"]["first"]) == (MISSED, "new_topic", 1)
    last = first["data"]["last"]
    assert last in (told - 1, told)
    assert versions_of(others) == list(range(last + 1, scene.table.version + 1))

    printed = consumed(scene, topic)
    assert printed[0].startswith(f"read the table at version {last}:")
    assert printed[-1] == f"version {scene.table.version}: append, 1 rows more"


def consumed(scene: Scene, topic: EventsTopic) -> list[str]:
    """What the page's consumer prints."""
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    program = program.replace("localhost:9092", scene.topics.servers).replace('"events.events"', f'"{topic.name}"')
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: list[str] = done.stdout.splitlines()
    return printed
