"""One active committer, any number of standbys: what they report, how one leaves and another takes over."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest

from committerd_common.messages import Status
from harness.daemon import Daemon
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _get(daemon: Daemon, path: str) -> str:
    with urllib.request.urlopen(daemon.url() + path, timeout=30) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def test_active_and_standby_say_which_they_are(scene: Scene) -> None:
    ids = scene.table.create()
    active = scene.started(**STAYS)
    standby = scene.daemon(**STAYS)
    standby.wait_ready(text="standby")
    ids += scene.committed(3)
    assert active.wait_ready(text="position 3") == f"active: version {scene.table.version}, position 3"
    assert standby.ready()[0]
    for daemon in (active, standby):
        assert json.loads(_get(daemon, "/livez")) == {"live": True, "problems": []}
    assert (active.metric("committerd_active"), standby.metric("committerd_active")) == (1, 0)
    assert active.metric("committerd_transactions_total", operation="append", outcome="committed") == 3
    assert standby.metric("committerd_transactions_total") == 0
    until(lambda: active.metric("committerd_table_version") == scene.table.version)
    until(lambda: active.metric("committerd_queue_lag_records") == 0)
    assert active.metric("committerd_table_fragments") == len(scene.table.open().get_fragments())
    until(lambda: active.metric("committerd_submit_to_outcome_seconds_count", outcome="committed") == 3)
    scene.audit(ids)


@pytest.mark.slow
def test_sigterm_ends_in_order_and_a_standby_takes_over_at_once(scene: Scene) -> None:
    ids = scene.table.create()
    slow = {"COMMIT__GROUP_RECORDS_MAX": "10", "COMMIT__INTERVAL_SECONDS_MIN": "1"}  # 20 s for all, on any disk
    # Their session is a minute: who takes over sooner was told.
    first, second = scene.started(**STAYS, **slow), scene.daemon(**STAYS)
    second.wait_ready(text="standby")
    transactions = scene.table.appends(200)
    offsets = scene.stage(*transactions)
    until(lambda: scene.table.version > 2)
    first.stop()
    ended = time.monotonic()
    assert first.code == 0
    # Its commits have outcomes and are acknowledged: the standby owes nothing and continues behind them.
    start = second.wait_line("start.done")
    assert time.monotonic() - ended < 40
    assert start["answers_from"] == start["position"]
    assert 0 < start["position"] < 200
    assert {answer.status for answer in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    evidence = scene.audit([*ids, *(i for t in transactions for i in scene.table.brought[t.uuid])])
    assert len(evidence.outcomes) == 200  # none was published twice
    # So does a committer without a standby.
    second.stop()
    assert second.code == 0


def test_a_setting_that_is_misspelt_ends_it_at_once_with_its_name(scene: Scene) -> None:
    daemon = scene.daemon(KAFKA__BOOTSTRAP_SERVER="x:1")
    until(lambda: not daemon.running())
    assert daemon.code == 2
    said = daemon.log.read_text()
    assert "COMMITTERD_KAFKA__BOOTSTRAP_SERVER: no such setting" in said
    assert "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS" in said
