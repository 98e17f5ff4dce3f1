"""A fleet in trouble at random points, whose tables are all audited; `make fleet-kills` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker
from tests.acceptance.fleet_kills import run

pytestmark = [pytest.mark.kafka, pytest.mark.s3, pytest.mark.pylance, pytest.mark.slow, pytest.mark.long]


@pytest.mark.timeout(1800)
def test_each_table_is_right_after_kills_floods_and_troubles_of_stores(
    breakable_kafka: KafkaBroker, tmp_path: Path, launch: Launch
) -> None:
    report = run(9, 16, 42, broker=breakable_kafka, folder=tmp_path, launch=launch, tell=print)
    assert not report.wrong
    assert {"broker", "flood", "freeze", "kill", "stop", "store hangs", "table leaves"} <= report.happened.keys()
