"""`committerd audit` accepts a running queue, and rejects forged or missing outcomes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import lance
import pytest
from kafka import TopicPartition

from committerd_common.messages import Outcome, Status
from harness.scene import STAYS, Scene, until
from tests.commands.running import answered, printed
from tests.commands.story import Story

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_what_happened_is_proved(story: Story) -> None:
    scene = story.scene
    found = answered(scene, "audit")
    assert (found["good"], found["findings"], found["unchecked"]) == (True, [], {})
    counts = found["counts"]
    assert counts["versions"] == scene.table.version
    assert (counts["transactions committed"], counts["transactions refused"]) == (6, 3)
    assert (counts["outcomes"], counts["records with an outcome in a version"]) == (9, 9)
    text = printed(scene, "audit", "--versions", "1")
    assert "Could not be checked:" in text
    assert "Nothing was found" in text


def test_versions_records_and_outcomes_that_are_gone_are_counted_and_no_finding(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started(**STAYS)
    for _ in range(3):
        scene.committed()
    scene.table.open().cleanup_old_versions(timedelta(0))
    scene.committed()
    until(lambda: scene.topics.group_offset() == 4, seconds=120)
    daemon.stop()
    scene.append(2)
    scene.topics.truncate(1)
    for partition in range(8):
        scene.topics.admin.delete_records({TopicPartition(scene.topics.outcomes, partition): -1})
    found = answered(scene, "audit")
    assert found["good"]
    assert (found["counts"]["staged records"], found["counts"]["records pending"]) == (5, 2)
    assert found["unchecked"] == {
        "versions that were not read (cleaned up, or not asked for)": 3,
        "records settled by versions that were not read": 1,
        "records whose outcome has expired": 3,
    }


def test_false_outcomes_and_a_second_commit_are_found(scene: Scene) -> None:
    ids = scene.table.create()
    scene.started(**STAYS)  # a new start would read what is forged below
    transaction = scene.table.append()
    (answer,) = scene.ask(transaction)
    until(lambda: scene.topics.group_offset() == 1, seconds=120)
    forged = Outcome()
    forged.CopyFrom(answer)
    forged.status, forged.reason = Status.INVALID, "schema"
    for value in (forged.SerializeToString(), b"\xff no outcome"):
        scene.topics.producer.send(scene.topics.outcomes, key=answer.uuid.encode(), value=value, partition=3)
    scene.topics.producer.flush()
    # Lance itself ignores uuids: the same file twice means the same rows twice.
    again = scene.table.open().read_transaction(answer.version)
    lance.LanceDataset.commit(
        scene.table.uri, replace(again, read_version=answer.version, transaction_properties={}), detached=False
    )
    assert len(scene.table.ids()) == len(ids) + 2
    found = answered(scene, "audit", code=1)
    assert again.uuid == transaction.uuid
    assert found["findings_by_code"] == {"committed_twice": 1, "outcome_false": 1, "outcome_undecodable": 1}
    text = printed(scene, "audit", code=1)
    assert "Found: 3" in text
    assert f"transaction {transaction.uuid} was committed in version {answer.version} and again here" in text
