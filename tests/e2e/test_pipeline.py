"""A backlog of changes to one fragment: each needs the files of the previous one."""

from __future__ import annotations

import pytest

from committerd_client import staging
from committerd_common.messages import Status
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_deletes_of_one_fragment_that_wait_together_are_all_committed(scene: Scene) -> None:
    ids = scene.table.create(40)
    table = scene.table.open()
    deletes = [staging.delete(table, f"id = {gone}").transaction for gone in ids[:30]]
    daemon = scene.started(COMMIT__GROUP_RECORDS_MAX="1")
    answers = scene.topics.wait_answers(scene.stage(*deletes), timeout=120)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    assert daemon.metric("committerd_rebases_total", operation="delete") >= 29
    scene.audit(ids[30:])
