"""Writers at steady rates, maintenance and a reader beside each other. `make maintain-soak` runs it for longer."""

from __future__ import annotations

import re

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.acceptance.maintenance_soak.soak import Plan, Soak

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.long]


def test_rows_indices_and_old_versions_are_as_they_must_be(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    said: list[str] = []
    # How quick a machine is on which other tests run too is not asked here.
    plan = Plan(seconds=20, appends=20, upserts=4, deletes=4, seed=3, hour_seconds=10, rate_min=0.1, times_max=4.0)
    assert Soak(scene, kafka.bootstrap_servers, plan, said.append).run() == []
    text = "\n".join(said)
    done = re.search(r"(\d+) appends, (\d+) upserts, (\d+) deletes", text)
    assert done is not None
    assert all(int(one) >= least for one, least in zip(done.groups(), (40, 8, 8), strict=True)), text
    assert "at most, in times of its target, after 3 s: fragments 0." in text
    assert "writers " in text
    assert "maintenance " in text
