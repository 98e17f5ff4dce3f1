"""A producer that stages many records at once does not make the others wait for all of them."""

from __future__ import annotations

import pytest

from committerd_common.messages import Status
from harness.audit import settled_ahead
from harness.scene import Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

FLOOD, FEW, IN_VERSION = 300, 3, 10


def test_others_are_answered_before_the_flood_ends_and_each_once_after_a_crash(scene: Scene) -> None:
    created = scene.table.create()
    daemon = scene.started()
    scene.committed()
    daemon.stop()
    flood = [scene.table.append() for _ in range(FLOOD)]
    few = [scene.table.append() for _ in range(FEW)]
    offsets = scene.stage(*flood, headers={"producer": "flood"})
    behind = scene.stage(*few, headers={"producer": "small"})
    daemon = scene.started(COMMIT__GROUP_RECORDS_MAX=str(IN_VERSION))
    until(lambda: scene.position()["settled"] != [] or scene.position()["next"] > behind[-1])
    daemon.kill()
    assert settled_ahead(scene.position()) <= set(behind)
    scene.started(COMMIT__GROUP_RECORDS_MAX=str(IN_VERSION))
    answers = scene.topics.wait_answers([*offsets, *behind])
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    at = {answer.uuid: answer.version for answer in answers}
    assert max(at[one.uuid] for one in few) < at[flood[-1].uuid]
    assert [at[one.uuid] for one in flood] == sorted(at[one.uuid] for one in flood)
    scene.audit(scene.expected_ids(*created))


def test_others_are_read_behind_more_records_than_may_wait(scene: Scene) -> None:
    created = scene.table.create()
    limits = {"COMMIT__GROUP_RECORDS_MAX": str(IN_VERSION), "KAFKA__OUTSTANDING_RECORDS_MAX": "60"}
    daemon = scene.started()
    scene.committed()
    daemon.stop()
    flood = [scene.table.append() for _ in range(FLOOD)]
    few = [scene.table.append() for _ in range(FEW)]
    offsets = scene.stage(*flood, headers={"producer": "flood"})
    behind = scene.stage(*few, headers={"producer": "small"})
    # So slowly that the end of the log is read long before half of the flood is settled.
    daemon = scene.started(**limits, COMMIT__INTERVAL_SECONDS_MIN="2")
    until(lambda: scene.position()["settled"] != [] or scene.position()["next"] > behind[-1], seconds=120)
    daemon.kill()
    assert settled_ahead(scene.position()) <= set(behind)
    scene.started(**limits)
    answers = scene.topics.wait_answers([*offsets, *behind])
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    at = {answer.uuid: answer.version for answer in answers}
    assert min(at[one.uuid] for one in few) < at[flood[FLOOD // 2].uuid]
    assert [at[one.uuid] for one in flood] == sorted(at[one.uuid] for one in flood)
    scene.audit(scene.expected_ids(*created))
