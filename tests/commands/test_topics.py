"""`committerd topics` creates missing topics, compares settings, and changes nothing else."""

from __future__ import annotations

import pytest

from harness.kafka_topics import configure_topic
from harness.scene import Scene
from tests.commands.running import answered, printed

pytestmark = pytest.mark.kafka


def test_topics_are_made_once_and_what_is_wrong_is_named_and_left_alone(scene: Scene) -> None:
    missing = answered(scene, "topics", "check", code=1)
    names = [f"{scene.name}.{role}" for role in ("staged", "outcomes", "dead")]
    assert [(one["topic"], one["actual"]) for one in missing["checks"]] == [(name, "missing") for name in names]
    assert not [name for name in scene.topics.admin.list_topics() if name.startswith(scene.name)]

    # Even if the settings forbid it to a committer.
    made = answered(scene, "topics", "create", KAFKA__TOPICS_MODE="check")
    assert made["created"] == names
    assert all(one["good"] for one in made["checks"])
    found = {(one["topic"], one["setting"]): one["actual"] for one in made["checks"]}
    assert found[names[0], "partitions"] == "1"
    assert found[names[0], "message.timestamp.type"] == "LogAppendTime"
    assert found[names[1], "partitions"] == "8"
    assert "created" not in printed(scene, "topics", "create")

    configure_topic(scene.topics.admin, names[0], "retention.ms", "3600000")
    said = printed(scene, "topics", "create", code=1)
    (wrong,) = [line.split() for line in said.splitlines() if line.endswith("WRONG")]
    assert wrong == [names[0], "retention.ms", ">=", "1209600000", "(14", "days)", "3600000", "WRONG"]
    assert f"--entity-name {names[0]} --add-config retention.ms=1209600000" in said
    checked = answered(scene, "topics", "check", code=1)
    assert [one["setting"] for one in checked["checks"] if not one["good"]] == ["retention.ms"]


def test_the_topics_of_several_datasets_are_made_at_once(scene: Scene) -> None:
    queues = [f"{scene.name}.{number}" for number in range(3)]
    words = [f"--queue={queue}" for queue in queues]
    made = answered(scene, "topics", "create", *words)
    names = [f"{queue}.{role}" for queue in queues for role in ("staged", "outcomes", "dead")]
    assert made["created"] == names
    assert list(dict.fromkeys(one["topic"] for one in made["checks"])) == names
    configure_topic(scene.topics.admin, names[3], "retention.ms", "3600000")
    checked = answered(scene, "topics", "check", *words, code=1)
    assert [one["topic"] for one in checked["checks"] if not one["good"]] == [names[3]]


def test_a_dataset_whose_topics_cannot_be_made_does_not_stop_the_others(scene: Scene) -> None:
    """Kafka refuses a name that differs from another topic's by `.` and `_` alone."""
    first, refused, last = f"{scene.name}.a", f"{scene.name}_a", f"{scene.name}.b"
    made = answered(scene, "topics", "create", f"--queue={first}", f"--queue={refused}", f"--queue={last}", code=2)
    names = [f"{queue}.{role}" for queue in (first, last) for role in ("staged", "outcomes", "dead")]
    assert made["created"] == names
    assert list(dict.fromkeys(one["topic"] for one in made["checks"])) == names


def test_a_kafka_that_is_not_there_is_an_error(scene: Scene) -> None:
    settings = {"KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "KAFKA__REQUEST_TIMEOUT_MS": "1000"}
    assert printed(scene, "topics", "check", code=1, **settings) == ""
