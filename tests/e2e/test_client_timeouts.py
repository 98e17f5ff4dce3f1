"""A commit that times out says what is missing, with a real committer in each state."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from committerd_client import CommitTimeout, SyncCommitClient
from committerd_client.queue_status import QueueStatus
from harness.scene import Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _timed_out(scene: Scene, transaction: Any, why: str) -> CommitTimeout:
    """The time-out that names this cause; on a busy machine, a short one knows less."""
    with SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        handle, named = client.submit(transaction), list[str]()
        for seconds in (3, 12, 30):
            with pytest.raises(CommitTimeout) as raised:
                handle.outcome(timeout=seconds)
            if raised.value.why == why:
                return raised.value
            named.append(raised.value.why)
    raise AssertionError(f"they name {named} as the cause, and not {why!r}")


def test_no_table(scene: Scene) -> None:
    scene.daemon().wait_ready(text="waits for the table")
    transaction = scene.table.append()
    found = _timed_out(scene, transaction, "no_table")
    assert f"There is no table at {scene.table.uri}: records wait until somebody creates it" in str(found)
    assert "client.create(schema)" in str(found)


def test_a_committer_that_refuses_and_one_that_is_well(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started()
    scene.committed(2)
    until(lambda: scene.topics.group_offset() == 2)
    client = SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri)
    latest = scene.table.version
    said = f"1 committer runs in group committerd.{scene.name}, no record waits, and the table is at version {latest}."
    statuses: list[QueueStatus] = []

    def is_well() -> bool:
        statuses.append(client.status())
        return str(statuses[-1]) == said

    until(is_well)  # on a busy machine, a look may know less
    well = statuses[-1]
    assert well.ok
    assert (well.committers, well.waiting, well.version, well.refusal) == (1, 0, latest, None)
    shutil.rmtree(scene.table.uri)
    transaction = scene.table.append()
    daemon.wait_refused("table_gone")
    refused = _timed_out(scene, transaction, "refuses")
    assert f"there is no table at {scene.table.uri}, but the group has acknowledged offset 2" in str(refused)
    until(lambda: client.status().why == "refuses")


def test_no_committer_and_then_one_that_stands_still(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started(KAFKA__SESSION_TIMEOUT_MS="120000")  # longer than it stands still
    scene.committed(1)
    until(lambda: scene.topics.group_offset() == 1)
    daemon.freeze()
    try:
        _timed_out(scene, scene.table.append(), "stalled")
        behind = _timed_out(scene, scene.table.append(), "behind")
        assert "1 record is ahead of it" in str(behind)
    finally:
        daemon.thaw()
    daemon.stop()
    gone = _timed_out(scene, scene.table.append(), "no_committer")
    assert f"consumer group committerd.{scene.name} has no member" in str(gone)
