"""`committerd explain`: what became of a transaction, for each fate that it can have."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from committerd.commands.explain.advice import REASONS, STATUSES, plain_text
from committerd.queue.outcomes import Status
from committerd.reasons import INVALID_REASONS, UNSUPPORTED_REASONS
from committerd_client import staging
from committerd_common.messages import Outcome
from committerd_common.messages import Status as Number
from harness.scene import Scene, until
from tests.commands.running import answered, printed, run
from tests.commands.story import Story

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_AWAY = {"KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "KAFKA__REQUEST_TIMEOUT_MS": "1000"}


def test_a_transaction_that_was_staged_twice(story: Story) -> None:
    found = answered(story.scene, "explain", story.twice.uuid)
    assert (found["state"], found["status"], found["reason"]) == ("committed", "DUPLICATE", "uuid_seen")
    assert [one["status"] for one in found["outcomes"]] == ["COMMITTED", "DUPLICATE"]
    (version,) = {one["version"] for one in found["outcomes"]}
    assert found["version"]["version"] == version
    assert found["version"]["operation"] == "append"
    assert found["version"]["offset"] == found["outcomes"][0]["offset"]
    assert not found["not_searched"]
    page = printed(story.scene, "explain", story.twice.uuid.upper())
    assert f"it is in version {version}" in page
    assert plain_text(STATUSES[Status.DUPLICATE].todo) in page


def test_a_dead_letter(story: Story) -> None:
    uuid_ = story.elsewhere.uuid
    found = answered(story.scene, "explain", uuid_, code=3)
    assert (found["state"], found["status"], found["reason"]) == ("refused", "INVALID", "wrong_dataset")
    letter = answered(story.scene, "dead", "show", str(found["dead_letter"]))
    assert letter["uuid"] == uuid_
    page = printed(story.scene, "explain", uuid_, code=3)
    assert plain_text(REASONS["wrong_dataset"]) in page
    assert f"committerd dead show {found['dead_letter']}" in page
    assert "producer:" in page
    assert "lost" in page


def test_a_transaction_that_nobody_knows(story: Story) -> None:
    found = answered(story.scene, "explain", str(uuid.uuid4()), code=5)
    assert (found["state"], found["outcomes"], found["version"]) == ("no_trace", [], None)


def test_a_commit_of_another_writer(story: Story) -> None:
    # Its outcome is nowhere; the version names it.
    foreign = story.scene.table.open().read_transaction(story.scene.table.version).uuid
    found = answered(story.scene, "explain", foreign)
    assert (found["state"], found["version"]["from_queue"]) == ("committed", False)
    assert "another writer" in printed(story.scene, "explain", foreign)


def test_without_kafka_the_table_tells(story: Story) -> None:
    found = answered(story.scene, "explain", story.twice.uuid, code=0, **_AWAY)
    assert (found["state"], found["status"], found["outcomes"]) == ("committed", "COMMITTED", [])
    assert "127.0.0.1:1" in found["not_searched"]["topics"]
    unknown = answered(story.scene, "explain", str(uuid.uuid4()), code=1, **_AWAY)
    assert unknown["state"] == "not_known"


def test_what_waits_conflicts_and_shares_a_version(scene: Scene) -> None:
    table = scene.table
    table.create(10)
    waiting = [table.append() for _ in range(3)]
    printed(scene, "topics", "create")
    scene.stage(*waiting, headers={"producer": "etl"})
    found = answered(scene, "explain", waiting[2].uuid, code=4)
    assert (found["state"], found["waiting"]["ahead"], found["waiting"]["held_back"]) == ("waiting", 2, False)
    assert "behind 2 records" in printed(scene, "explain", waiting[2].uuid, code=4)
    scene.started()
    until(lambda: scene.topics.group_offset() == 3)
    found = answered(scene, "explain", waiting[2].uuid)
    others = found["version"]["together_with"]
    assert {one["uuid"] for one in others} < {one.uuid for one in waiting}
    assert all(one["producer"] == "etl" for one in others)

    # Both delete the same row of the same fragment, read at the same version.
    row = f"id = {table.ids()[0]}"
    first, second = (staging.delete(table.open(), row).transaction for _ in range(2))
    (done,) = scene.ask(first, producer="janitor")
    assert done.status == Number.COMMITTED
    (refused,) = scene.ask(second)
    assert refused.status == Number.RETRYABLE
    found = answered(scene, "explain", second.uuid, code=3)
    _assert_collision(found, done.version, first.uuid)
    page = printed(scene, "explain", second.uuid, code=3)
    assert f"with version {done.version}: delete of janitor" in page
    assert plain_text(STATUSES[Status.RETRYABLE].todo) in page
    # The outcome of a refusal names no version: the one that settled it is found by its position.
    assert found["version"]["version"] == scene.table.version


def _assert_collision(found: dict[str, Any], version: int, uuid_: str) -> None:
    collision = found["collision"]
    assert (collision["version"], collision["operation"], collision["producers"]) == (version, "delete", ["janitor"])
    assert collision["uuids"] == [uuid_]
    assert len(collision["fragments"]) == 1


def test_an_outcome_of_a_later_version(scene: Scene) -> None:
    scene.table.create()
    printed(scene, "topics", "create")
    uuid_ = str(uuid.uuid4())
    (offset,) = scene.stage(b"of a later version")
    outcome = Outcome(uuid=uuid_, reason="set_aside", offset=offset, topic_id=scene.topics.topic_id())
    outcome.status = 99  # type: ignore[assignment]
    scene.topics.producer.send(scene.topics.outcomes, value=outcome.SerializeToString(), key=uuid_.encode())
    scene.topics.producer.flush()
    found = answered(scene, "explain", uuid_, code=1)
    assert (found["state"], found["status"], found["reason"]) == ("not_known", "99", "set_aside")
    assert "it knows status 99" in printed(scene, "explain", uuid_, code=1)


def test_every_status_has_advice_and_every_reason_is_real() -> None:
    assert set(STATUSES) == set(Status)
    of_refusals = {"mark_moved", "read_version_lost", "schema_differs", "table_exists", "version_cleaned_up"}
    assert set(REASONS) <= {*INVALID_REASONS, *UNSUPPORTED_REASONS, *of_refusals}


def test_usage(story: Story) -> None:
    assert run(story.scene, "explain").code == 2
    assert json.loads(run(story.scene, "explain", story.twice.uuid, "--json").out)["uuid"] == story.twice.uuid
