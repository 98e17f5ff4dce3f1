"""Maintenance, committer and clients are killed at random moments. `make maintain-soak` runs longer."""

from __future__ import annotations

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.acceptance.maintenance_soak.soak import Plan, Soak

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.long]


def test_whatever_is_killed_nothing_is_lost_and_nothing_is_left(
    scene: Scene, kafka: KafkaBroker | RunningKafka
) -> None:
    plan = Plan(
        seconds=20,
        appends=100,
        upserts=5,
        deletes=5,
        seed=7,
        hour_seconds=5,
        fragments=300,
        unindexed_rows=500,
        version_seconds=0,
        kills=True,
    )
    soak = Soak(scene, kafka.bootstrap_servers, plan, print)
    assert soak.run() == []
    assert soak.kills.keys() == {"maintenance", "committer", "client"}
    assert soak.read.queries >= 3
    assert soak.read.old + soak.read.late >= 1  # on a busy machine all may end too late to count
