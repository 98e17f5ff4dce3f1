"""`committerd maintain` is killed at random moments while others write and read. `make maintain-soak` runs longer."""

from __future__ import annotations

import random

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from scripts.maintenance_soak import maintainer_of, soak

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]


def test_killed_maintenance_loses_nothing_and_leaves_nothing(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    maintainer = maintainer_of(scene, kafka.bootstrap_servers)
    found = soak(scene, maintainer, seconds=15, kills=True, rng=random.Random(7))
    assert found.problems == []
    assert found.kills >= 2
    assert len(scene.table.open().get_fragments()) < 100
