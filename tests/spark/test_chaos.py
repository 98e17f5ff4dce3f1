"""A stream whose driver, committer and broker are killed; `make spark-chaos` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.spark_chaos.chaos import Chaos, Plan

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.long]


@pytest.mark.usefixtures("spark_java")
@pytest.mark.timeout(1800)
def test_every_row_is_in_the_table_once_whatever_is_killed(tmp_path: Path) -> None:
    plan = Plan(batches=12, beside=0, clients=3, driver_kills=2, daemon_kills=2, kafka_kills=1, seed=11, minutes_max=25)
    report = Chaos(plan, tmp_path, print).run()
    assert not report.wrong
    assert (report.kills["committerd"], report.kills["kafka"]) == (2, 1)
    assert report.kills["driver"] >= 1  # both, unless the stream ended before its last signal
    assert report.driver_starts >= 1 + report.kills["driver"]
    assert report.rows == 12 * 20 + report.appended_by_clients
    unexpected = {name for name in report.outcomes if not name.startswith(("COMMITTED", "DUPLICATE", "RETRYABLE"))}
    assert not unexpected
