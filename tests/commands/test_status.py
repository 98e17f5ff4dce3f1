"""`committerd status`: the state of table and queue, and of one of them if the other is unavailable."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from harness.scene import Scene
from tests.commands.running import answered, printed, run
from tests.commands.story import Story

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_AWAY = {"KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "KAFKA__REQUEST_TIMEOUT_MS": "1000"}
_NO_STORE = {
    "DATASET__URI": "s3://bucket/table",
    "S3__ENDPOINT_URL": "http://127.0.0.1:1",
    "S3__REGION": "us-east-1",
    "S3__ACCESS_KEY_ID": "anybody",
    "S3__SECRET_ACCESS_KEY": "anything",
    "S3__ATTEMPTS": "1",
}


def test_it_says_where_table_and_queue_stand_while_a_committer_runs(story: Story) -> None:
    scene = story.scene
    found = answered(scene, "status")
    table, queue = found["table"], found["queue"]
    latest = scene.table.open()
    assert (table["uri"], table["version"]) == (scene.table.uri, latest.version)
    assert table["position"]["next_offset"] == 9
    newest = table["versions"][0]
    assert (newest["operation"], newest["from_queue"], newest["fragments"]) == (
        "append",
        False,
        len(latest.get_fragments()),
    )
    manifests = {path.stat().st_size for path in Path(scene.table.uri, "_versions").glob("*.manifest")}
    assert {one["manifest_bytes"] for one in table["versions"]} <= manifests
    assert abs(newest["timestamp_ms"] - time.time() * 1000) < 3_600_000
    counts = {(one["status"], one["reason"]): one["count"] for one in table["answers"]}
    assert counts == {
        ("COMMITTED", ""): 6,
        ("DUPLICATE", "uuid_seen"): 1,
        ("INVALID", "record_undecodable"): 1,
        ("INVALID", "wrong_dataset"): 1,
    }
    assert table["growth"]["versions"] == latest.version - 1
    assert table["growth"]["fragments"] == len(latest.get_fragments()) - 1
    assert (queue["log_start"], queue["log_end"], queue["acknowledged"], queue["pending"]) == (0, 9, 9, 0)
    assert (queue["oldest_unread"], queue["refusal"]) == (None, None)
    assert [member["active"] for member in queue["group"]["members"]] == [True]
    assert (queue["group"]["state"], found["problems"]) == ("Stable", [])


def test_it_prints_a_page_for_people(story: Story) -> None:
    lines = printed(story.scene, "status", "--versions", "2").splitlines()
    fields = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    assert fields["active"] == f"{socket.gethostname()} at 127.0.0.1"
    assert fields["dataset"] == story.scene.name
    assert fields["position"].startswith(f"next offset 9 of {story.scene.name}.staged")
    assert fields["pending"] == "0 records"
    assert fields["a committer"] == "runs"
    assert fields["group"].endswith("(active)")
    (start,) = [i for i, line in enumerate(lines) if line.startswith("version  when")]
    assert [line.split()[3] for line in lines[start + 1 : start + 3]] == ["others", "queue"]


def test_without_kafka_the_table_is_told(story: Story) -> None:
    found = answered(story.scene, "status", code=1, **_AWAY)
    assert found["table"]["version"] == story.scene.table.version
    assert found["queue"] is None
    assert "no Kafka broker of 127.0.0.1:1 could be used" in found["problems"][0]


def test_without_the_store_the_queue_is_told(story: Story) -> None:
    found = answered(story.scene, "status", code=1, **_NO_STORE)
    assert found["table"] is None
    assert (found["queue"]["log_end"], found["queue"]["pending"]) == (9, None)
    assert found["problems"][0].startswith("s3://bucket/table: store_unavailable: ")
    assert "acknowledged:  below 9" in printed(story.scene, "status", code=1, **_NO_STORE)


def test_what_waits_and_what_a_committer_would_refuse(scene: Scene) -> None:
    before = run(scene, "status")
    assert before.code == 1
    assert "no table yet" in before.out
    assert "refuses: topic_gone" in before.out
    assert "topics create" in before.out
    printed(scene, "topics", "create")
    scene.table.create()
    scene.append(2)
    scene.stage(*[scene.table.append() for _ in range(3)], headers={"producer": "flood"})
    found = answered(scene, "status", code=1)  # no committer runs
    assert (found["queue"]["pending"], found["queue"]["oldest_unread"]["offset"]) == (5, 0)
    most = [(one["producer"], one["records"]) for one in found["queue"]["most_waiting"]]
    assert most == [("flood", 3), ("no producer", 2)]
    assert 0 <= found["queue"]["oldest_unread"]["age_ms"] < 3_600_000
    assert found["queue"]["retention_ms"] == 14 * 24 * 3_600_000
    shown = printed(scene, "status", code=1)
    assert "5 records; the oldest waits for" in shown
    assert "flood 3, no producer 2 (of the first 5 records)" in shown
    # A copy of the story's table under another name: its position is of another topic.
    scene.table.open().update_metadata({"committerd.position": _POSITION, "committerd.format": "1"})
    refused = answered(scene, "status", code=1)
    assert refused["queue"]["refusal"]["code"] == "topic_id"
    assert refused["queue"]["pending"] is None


_POSITION = (
    '{"cluster_id":"c","era":0,"last":-1,"leader_epoch":0,"next":1,"settled":[],"sha256":"","topic":"t","topic_id":"x"}'
)
