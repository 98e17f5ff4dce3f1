"""A commit that times out says what is missing, with a real committer in each state."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from committerd_client import CommitTimeout, SyncCommitClient
from harness.scene import Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _timed_out(scene: Scene, transaction: Any, *, uri: str | None = None) -> CommitTimeout:
    client = SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=uri or scene.table.uri)
    with client, pytest.raises(CommitTimeout) as raised:
        client.commit(transaction, timeout=3)
    return raised.value


def test_no_table(scene: Scene) -> None:
    scene.daemon().wait_ready(text="waits for the table")
    transaction = scene.table.append()
    found = _timed_out(scene, transaction)
    assert found.why == "no_table"
    assert f"There is no table at {scene.table.uri}: records wait until somebody creates it" in str(found)
    assert "client.create(schema)" in str(found)


def test_a_committer_that_refuses_and_one_that_is_well(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started()
    scene.committed(2)
    until(lambda: scene.topics.group_offset() == 2)
    client = SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri)
    well = client.status()
    assert well.ok
    latest = scene.table.version
    assert (well.committers, well.waiting, well.version, well.refusal) == (1, 0, latest, None)
    assert str(well) == (
        f"1 committer runs in group committerd.{scene.name}, no record waits, and the table is at version {latest}."
    )
    shutil.rmtree(scene.table.uri)
    transaction = scene.table.append()
    daemon.wait_refused("table_gone")
    refused = _timed_out(scene, transaction)
    assert refused.why == "refuses"
    assert f"there is no table at {scene.table.uri}, but the group has acknowledged offset 2" in str(refused)
    assert not client.status().ok


def test_no_committer_and_then_one_that_stands_still(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started(KAFKA__SESSION_TIMEOUT_MS="30000")  # longer than it stands still
    scene.committed(1)
    until(lambda: scene.topics.group_offset() == 1)
    daemon.freeze()
    try:
        assert _timed_out(scene, scene.table.append()).why == "stalled"
        behind = _timed_out(scene, scene.table.append())
        assert behind.why == "behind"
        assert "1 record is ahead of it" in str(behind)
    finally:
        daemon.thaw()
    daemon.stop()
    gone = _timed_out(scene, scene.table.append())
    assert gone.why == "no_committer"
    assert f"consumer group committerd.{scene.name} has no member" in str(gone)
