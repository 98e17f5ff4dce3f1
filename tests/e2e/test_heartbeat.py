"""`committerd heartbeat`, and a cluster's view of two members: both are ready."""

from __future__ import annotations

import json

from committerd_common.messages import Status
from harness.scene import STAYS, Scene, until
from tests.commands.running import answered, printed


def test_a_heartbeat_goes_the_whole_way_and_leaves_one_key(scene: Scene) -> None:
    ids = scene.table.create(3)
    active = scene.started(**STAYS)
    standby = scene.daemon(**STAYS)
    assert "standby" in standby.wait_ready(text="standby")
    assert active.ready()[0]
    assert json.loads(scene.command("heartbeat", "--json"))["version"] == 2
    first = scene.table.metadata()
    assert f"{scene.name}: committed in version 3" in scene.command("heartbeat")
    second = scene.table.metadata()
    assert [key for key in second if not key.startswith("committerd.")] == ["heartbeat"]
    assert second["heartbeat"] >= first["heartbeat"]
    scene.audit(ids)


def test_where_it_may_not_be_committed_it_is_answered_and_no_dead_letter(scene: Scene) -> None:
    scene.table.create(1)
    daemon = scene.started(**STAYS, COMMIT__ALLOWED_OPERATIONS="append")  # a new start would publish again
    said = printed(scene, "heartbeat", COMMIT__ALLOWED_OPERATIONS="append")
    assert "Nothing was committed, because update_config is not allowed" in said
    assert answered(scene, "heartbeat", COMMIT__ALLOWED_OPERATIONS="append")["version"] is None
    assert [outcome.status for outcome in scene.topics.read_outcomes()] == [Status.EXPIRED] * 2
    assert scene.topics.read_letters() == []
    assert "heartbeat" not in scene.table.metadata()
    assert scene.position()["next"] == 2
    assert daemon.metric("committerd_transactions_total", outcome="expired") == 2


def test_without_a_table_nothing_is_staged(scene: Scene) -> None:
    scene.daemon().wait_ready(text="waits for the table")
    said = scene.command("heartbeat", "--timeout", "60", good=False)
    assert f"there is no table at {scene.table.uri}" in said
    assert scene.topics.read_staged() == []


def test_a_heartbeat_that_nobody_answered_in_time_is_never_committed(scene: Scene) -> None:
    scene.table.create(1)
    first = scene.started()
    first.stop()
    said = scene.command("heartbeat", "--timeout", "8", good=False)
    assert "committerd: timeout: " in said
    again = scene.started()
    until(lambda: again.metric("committerd_transactions_total", outcome="expired") >= 1)
    assert "heartbeat" not in scene.table.metadata()
