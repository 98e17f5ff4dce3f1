"""The fleet's dashboard on a real Prometheus with 300 datasets: each query finds the worst, and ten at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from committerd.dev.parts import free_port
from committerd.telemetry import MaintenanceMetrics, Metrics, Telemetry
from harness import PartMissingError
from harness.prometheus import Prometheus, Target
from harness.scene import until
from tests.deploy import alerts

pytestmark = pytest.mark.slow

DATASETS = 300
WORST = "table-007"
NEEDS_TIME = {"Outcomes by status", "Versions", "CPU", "Memory, of the limit", "Alerts", "Stalled"}
"""Panels that show no dataset, or one only after a minute."""


def _serve(metrics: Metrics, maintenance: MaintenanceMetrics) -> list[Telemetry]:
    """300 datasets, of which one is worse than the others in everything."""
    metrics.process.kafka_connected.set(0)
    served = []
    now = time.time()
    for number in range(DATASETS):
        name = f"table-{number:03}"
        telemetry, upkeep = metrics.of(name), maintenance.of(name)
        worst = name == WORST
        served.append(telemetry)
        telemetry.active.set(1)
        telemetry.table_fragments.set(1000 if worst else number)
        telemetry.manifest_bytes.set(1e9 if worst else number)
        telemetry.app_marks_used_ratio.set(0.9 if worst else 0.001 * (number % 100))
        telemetry.queue_lag_records.set(5000 if worst else number)
        telemetry.waiting_records.track(_waiting(4000 if worst else number))
        telemetry.oldest_pending_age.set(700 if worst else number)
        telemetry.staged_retention.set(1000)
        telemetry.refused_to_run.set(float(worst), cause="topic_id")
        telemetry.held_back_seconds.set(100 if worst else 0)
        telemetry.topic_problems.set(float(worst))
        telemetry.paused.set(float(worst))
        upkeep.small_fragments.set(5000 if worst else number)
        upkeep.fragments_wanted.set(1000)
        upkeep.succeeded.set(now - (90_000 if worst else number), step="cleanup")
        upkeep.left_alone.set(2.0 * worst, what="indices")
        upkeep.stored.set(1e12 if worst else number)
    return served


def _waiting(records: int) -> Callable[[], Mapping[str, float]]:
    return lambda: {"loader": records}


COUNTED = (
    "committerd_transactions_total",
    "committerd_submit_to_outcome_seconds_count",
    "committerd_dead_letters_total",
    "committerd_internal_errors_total",
    "committerd_commit_retries_total",
    "committerd_store_failed_requests_total",
)
"""What `_happen` counts."""


def _happen(telemetry: Telemetry, *, times: int) -> None:
    for _ in range(times):
        telemetry.transactions.add(operation="append", outcome="retryable")
        telemetry.submit_to_outcome.observe(20, outcome="retryable")
        telemetry.dead_letters.add(reason="app_marks_full")
        telemetry.internal_errors.add(stage="judge")
        telemetry.commit_retries.add(reason="foreign")
        telemetry.process.store_failed_requests.add(service="s3", fault="throttled")


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    registry, port = CollectorRegistry(), free_port()
    served = _serve(Metrics(registry), MaintenanceMetrics(registry))
    (worst,) = [one for one, number in zip(served, range(DATASETS), strict=True) if f"table-{number:03}" == WORST]
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        _happen(worst, times=1)
        with Prometheus(targets=[Target(f"http://127.0.0.1:{port}", {"namespace": "lake"})], seconds=5) as prometheus:
            until(lambda: len(prometheus.query("committerd_active")) == DATASETS)
            _happen(worst, times=5)
            until(lambda: all(prometheus.query(f"max({counted}) == 6") for counted in COUNTED))
            yield prometheus
    except PartMissingError as error:
        pytest.skip(str(error))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_each_query_finds_the_worst_and_ten_at_most(prometheus: Prometheus) -> None:
    for title, expr in alerts.queries(alerts.FLEET):
        query = expr.replace("$namespace", "lake").replace("$__rate_interval", "20s")
        found = prometheus.query(query)
        assert len(found) <= 10, title
        if title in NEEDS_TIME:
            continue
        assert found, f"{title}: nothing came of {query}"
        datasets = [one.labels["dataset"] for one in found if "dataset" in one.labels]
        if datasets and title not in ("Fewest members", "Most outcomes"):
            assert datasets[0] == WORST, title


def test_the_numbers_are_those_of_the_fleet(prometheus: Prometheus) -> None:
    shown = {
        panel["title"]: prometheus.query(panel["targets"][0]["expr"].replace("$namespace", "lake"))
        for panel in alerts.panels(alerts.FLEET)
        if panel["type"] == "stat"
    }
    numbers = {title: [value for _, value in found[0].samples] for title, found in shown.items()}
    assert numbers["Datasets"] == [DATASETS]
    assert numbers["Without an active member"] == [0]
    assert numbers["Refuse to run"] == [1]
    assert numbers["Largest lag"] == [5000]
    assert numbers["Oldest record without an outcome"] == [700]
    assert numbers["Processes"] == [1]


def test_one_dataset_of_300_is_shown_by_the_other_dashboard(prometheus: Prometheus) -> None:
    """As Grafana asks when nobody has chosen yet: the series of that dataset alone, or of its process."""
    variables = {"$__rate_interval": "20s", "$namespace": ".*", "$dataset": WORST}
    for title, expr in alerts.queries():
        query = expr
        for name, value in variables.items():
            query = query.replace(name, value)
        found = prometheus.query(query)
        assert {one.labels.get("dataset", WORST) for one in found} <= {WORST}, title
        assert found or title not in ("Lag", "Memory"), f"{title}: nothing came of {query}"
