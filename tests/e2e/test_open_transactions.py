"""A producer leaves a Kafka transaction open: no record behind it can be read, and this is reported everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from committerd_common.messages import Status
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


@pytest.fixture
def left_open(scene: Scene) -> Iterator[Any]:
    """A producer that has written one record in a transaction, and nothing since."""
    ids = scene.table.create()
    daemon = scene.started(**STAYS)
    ids += scene.committed()
    producer = KafkaProducer(
        bootstrap_servers=scene.topics.servers,
        transactional_id=f"{scene.name}.writer",
        transaction_timeout_ms=600_000,  # the coordinator does not end it during the test
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(scene.topics.staged, value=scene.table.append().SerializeToString(), partition=0)
    producer.flush()
    yield scene, daemon, ids
    producer.close()


def test_what_an_open_transaction_holds_back_is_seen_and_can_be_let_go(left_open: Any) -> None:
    scene, daemon, ids = left_open
    work = [scene.table.append() for _ in range(3)]
    offsets = scene.stage(*work)
    until(lambda: daemon.metric("committerd_held_back_records") == 4)
    until(lambda: daemon.metric("committerd_held_back_seconds") > 1)
    assert daemon.metric("committerd_active") == 1

    state = json.loads(scene.command("status", "--json"))["queue"]
    assert state["held_back"] == 4
    (one,) = state["open_transactions"]
    assert (one["transactional_id"], one["first_offset"]) == (f"{scene.name}.writer", offsets[0] - 1)
    said = scene.command("status")
    assert f"--abort {one['producer_id']}" in said
    assert "held back" in said

    assert str(one["producer_id"]) in scene.command("topics", "transactions", good=False)
    assert "has no open transaction" in scene.command("topics", "transactions", "--abort", "999999", good=False)
    abort = ("topics", "transactions", "--abort", str(one["producer_id"]))
    assert "Nothing was changed" in scene.command(*abort, good=False)
    assert "Ended" in scene.command(*abort, "--apply")
    answers = scene.topics.wait_answers(offsets)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    ids += [i for t in work for i in scene.table.brought[t.uuid]]
    assert sorted(scene.table.ids()) == sorted(ids)
    until(lambda: daemon.metric("committerd_held_back_records") == 0)
    assert "No Kafka transaction is open" in scene.command("topics", "transactions")


def test_more_partitions_are_refused_while_it_runs(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started(**STAYS)  # a new start would end with another error
    ids += scene.committed()
    scene.topics.admin.create_partitions({scene.topics.staged: 2})
    # The controller responds before the broker applies it.
    until(lambda: len(scene.topics.admin.describe_topics([scene.topics.staged])[0]["partitions"]) == 2)
    scene.append()
    said = daemon.wait_refused("topic_partitions")
    assert "has 2 partitions" in said
    assert sorted(scene.table.ids()) == sorted(ids)


def test_settings_of_a_topic_that_are_altered_while_it_runs_are_told(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started(**STAYS, KAFKA__TOPICS_RECHECK_SECONDS="1")  # a new start would refuse such a topic
    scene.committed()
    assert daemon.metric("committerd_topic_problems") == 0
    _alter(scene, {"retention.ms": "60000", "cleanup.policy": "compact"})
    until(lambda: daemon.metric("committerd_topic_problems") == 2)
    line = daemon.wait_line("kafka.topics_changed")
    assert "cleanup.policy" in str(line)
    _alter(scene, {"retention.ms": str(14 * 24 * 3600 * 1000), "cleanup.policy": "delete"})
    until(lambda: daemon.metric("committerd_topic_problems") == 0)


def _alter(scene: Scene, configs: dict[str, str]) -> None:
    scene.topics.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, scene.topics.staged, configs=configs)])
