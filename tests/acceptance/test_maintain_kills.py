"""Maintenance, committer and clients are killed at random moments. `make maintain-soak` runs longer."""

from __future__ import annotations

import random

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.acceptance.maintenance_soak.soak import soak

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]


def test_whatever_is_killed_nothing_is_lost_and_nothing_is_left(
    scene: Scene, kafka: KafkaBroker | RunningKafka
) -> None:
    found = soak(scene, kafka.bootstrap_servers, seconds=20, rng=random.Random(7), hour_seconds=5)
    assert found.problems == []
    assert found.kills.keys() == {"maintenance", "committer", "client"}
    assert found.queries >= 3
