"""Metrics: names, closed label sets, and the correct counting of requests to a store."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from committerd.errors import PutUnknown, StoreUnavailable
from committerd.stores.local import LocalStore
from committerd.stores.measured import MeasuredStore
from committerd.stores.port import Created, Exists
from committerd.telemetry import OPERATIONS, OTHER, SECONDS, MaintenanceMetrics, Metrics, Telemetry
from scripts.generate.metrics_table import described

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def telemetry(registry: CollectorRegistry) -> Telemetry:
    return Metrics(registry).of("events")


def families(registry: CollectorRegistry) -> dict[str, str]:
    """The type of each of our metrics, by its documented name."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in registry.collect()
        if family.name.startswith("committerd_")
    }


def test_the_registry_holds_what_is_described(telemetry: Telemetry, registry: CollectorRegistry) -> None:
    described = (*telemetry.descriptions, *telemetry.process.descriptions)
    assert families(registry) == {metric.name: metric.kind for metric in described}


def test_the_documentation_lists_each_metric_with_type_unit_and_labels() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    documented = [
        [cell.strip().replace("`", "") for cell in row.strip("|").split("|")]
        for row in page
        if row.startswith("| `committerd_")
    ]
    assert documented == [
        [metric.name, metric.kind, metric.unit, ", ".join(metric.labels), metric.meaning.replace("`", "")]
        for metric in described()
    ]


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in described():
        assert re.fullmatch(r"committerd_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.meaning.endswith(".")
        assert "|" not in metric.meaning


def value(registry: CollectorRegistry, name: str, dataset: str = "events", **labels: str) -> float | None:
    """The value of a dataset's series; None if there is none."""
    return registry.get_sample_value(name, {"dataset": dataset, **labels})


def test_two_registries_share_nothing() -> None:
    one, two = CollectorRegistry(), CollectorRegistry()
    Metrics(one).of("events").foreign_commits.add()
    Metrics(two).of("events")
    assert value(one, "committerd_foreign_commits_total") == 1
    assert value(two, "committerd_foreign_commits_total") == 0


def test_datasets_of_one_process_have_series_of_their_own(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    events, clicks = metrics.of("events"), metrics.of("clicks")
    events.foreign_commits.add()
    clicks.table_version.set(7)
    name = "committerd_foreign_commits_total"
    assert (value(registry, name), value(registry, name, "clicks")) == (1, 0)
    assert value(registry, "committerd_table_version", "clicks") == 7
    assert events.process is clicks.process


def test_what_belongs_to_the_process_has_no_dataset(telemetry: Telemetry) -> None:
    assert all(next(iter(metric.labels)) == "dataset" for metric in telemetry.descriptions)
    assert not any("dataset" in metric.labels for metric in telemetry.process.descriptions)


def test_a_dataset_that_goes_takes_all_its_series_along(registry: CollectorRegistry) -> None:
    metrics, maintenance = Metrics(registry), MaintenanceMetrics(registry)
    metrics.of("events").foreign_commits.add()
    before = samples(registry)
    clicks, of_clicks = metrics.of("clicks"), maintenance.of("clicks")
    clicks.conflicts.add(ours="append", theirs="no such", verdict="retryable")
    clicks.oldest_pending_age.track(lambda: 1.0)
    of_clicks.failures.add(step="cleanup")
    clicks.forget()
    of_clicks.forget()
    assert samples(registry) == before
    clicks.foreign_commits.add()
    clicks.dead_letters.add(reason="wrong_dataset")
    assert samples(registry) == before
    metrics.of("clicks").dead_letters.add(reason="wrong_dataset")
    assert value(registry, "committerd_dead_letters_total", "clicks", reason="wrong_dataset") == 1


def test_series_that_are_named_at_each_scrape(registry: CollectorRegistry) -> None:
    metrics, name = Metrics(registry), "committerd_waiting_records"
    events, clicks = metrics.of("events"), metrics.of("clicks")
    now: dict[str, float] = {"flood\n": 300, "other": 5}
    events.waiting_records.track(lambda: now)
    clicks.waiting_records.track(lambda: {"other": 1})
    assert value(registry, name, producer="flood\n") == 300
    now.clear()
    now["next"] = 400
    assert value(registry, name, producer="flood\n") is None
    assert value(registry, name, producer="next") == 400
    again = metrics.of("clicks")
    again.waiting_records.track(lambda: {"other": 2})
    clicks.forget()
    assert value(registry, name, "clicks", producer="other") == 2
    again.forget()
    again.forget()
    assert value(registry, name, "clicks", producer="other") is None
    assert value(registry, name, producer="next") == 400


def test_what_was_forgotten_takes_nothing_from_a_dataset_that_is_served_again(registry: CollectorRegistry) -> None:
    metrics, maintenance = Metrics(registry), MaintenanceMetrics(registry)
    old, old_maintenance = metrics.of("clicks"), maintenance.of("clicks")
    old.forget()
    old_maintenance.forget()
    new = metrics.of("clicks")
    maintenance.of("clicks").failures.add(step="cleanup")
    new.dead_letters.add(reason="wrong_dataset")
    new.submit_to_outcome.observe(1, outcome="committed")
    before = samples(registry)
    old.dead_letters.add(5, reason="wrong_dataset")
    old.submit_to_outcome.observe(7, outcome="committed")
    old.refused_to_run.set(1, cause="topic_id")
    old.oldest_pending_age.track(lambda: 9.0)
    assert samples(registry) == before
    old.forget()
    old_maintenance.forget()
    assert samples(registry) == before
    new.dead_letters.add(reason="wrong_dataset")
    assert value(registry, "committerd_dead_letters_total", "clicks", reason="wrong_dataset") == 2


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Each series of committerd's metrics, and its value; without those that tell when a counter began."""
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith("committerd_") and not sample.name.endswith("_created")
    }


def test_few_series_exist_before_the_first_event(registry: CollectorRegistry) -> None:
    """Each table has as many, on each of its members. docs/operating.md names the number."""
    metrics = Metrics(registry)
    of_process = len(samples(registry))
    metrics.of("events")
    known = len(samples(registry))
    assert known - of_process <= 150
    names = [sample.name for family in registry.collect() for sample in family.samples]
    first = known + len([name for name in names if name.startswith("process_")])
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert f"an idle standby has {first}," in " ".join(page.split())


def test_a_value_outside_the_closed_set_counts_as_other(telemetry: Telemetry, registry: CollectorRegistry) -> None:
    for number in range(3):
        telemetry.dead_letters.add(reason=f"made up {number}")
    telemetry.conflicts.add(ours="append", theirs="no such", verdict="retryable")
    name = "committerd_dead_letters_total"
    assert value(registry, name, reason=OTHER) == 3
    assert {
        sample.labels["reason"] for family in registry.collect() for sample in family.samples if sample.name == name
    } == {"app_marks_full", OTHER}
    labels = {"ours": "append", "theirs": OTHER, "verdict": "retryable"}
    assert value(registry, "committerd_conflicts_total", **labels) == 1


def test_a_forgotten_label_is_an_error_that_names_the_labels(telemetry: Telemetry) -> None:
    with pytest.raises(ValueError, match=r"\['operation', 'outcome'\], not \['operation'\]"):
        telemetry.transactions.add(operation="append")
    with pytest.raises(ValueError, match=r"\[\], not \['x'\]"):
        telemetry.foreign_commits.add(x="y")


def test_what_an_alert_must_see_from_its_first_event_begins_at_zero(
    telemetry: Telemetry, registry: CollectorRegistry
) -> None:
    assert value(registry, "committerd_dead_letters_total", reason="app_marks_full") == 0
    assert value(registry, "committerd_dead_letters_total", reason="wrong_dataset") is None
    assert value(registry, "committerd_submit_to_outcome_seconds_count", outcome="undecided") == 0
    assert value(registry, "committerd_refused_to_run", cause=OTHER) == 0
    telemetry.refused_to_run.set(1, cause="log_rewritten")
    assert value(registry, "committerd_refused_to_run", cause="log_rewritten") == 1


def test_operations_are_the_15_of_the_format() -> None:
    assert len(OPERATIONS) == 15
    assert {"append", "rewrite", "update_mem_wal_state", "update_bases"} < set(OPERATIONS)


def test_a_tracked_level_is_asked_at_each_scrape(telemetry: Telemetry, registry: CollectorRegistry) -> None:
    ages = iter([1.5, 2.5])
    telemetry.oldest_pending_age.track(lambda: next(ages))
    name = "committerd_oldest_pending_age_seconds"
    assert [value(registry, name) for _ in range(2)] == [1.5, 2.5]


async def test_a_timed_stage_is_observed_when_it_fails_too(telemetry: Telemetry, registry: CollectorRegistry) -> None:
    with telemetry.commit_duration.timed(stage="judge"):
        await anyio.sleep(0.03)
    with pytest.raises(KeyError), telemetry.commit_duration.timed(stage="judge"):
        raise KeyError
    name = "committerd_commit_duration_seconds"
    assert value(registry, f"{name}_count", stage="judge") == 2
    assert 0.03 <= (value(registry, f"{name}_sum", stage="judge") or 0) < 60


def test_buckets_reach_from_a_millisecond_to_a_minute() -> None:
    assert (SECONDS[0], SECONDS[-1]) == (0.001, 60)
    assert list(SECONDS) == sorted(SECONDS)


async def test_requests_to_a_store_are_counted_by_what_they_found(
    telemetry: Telemetry, registry: CollectorRegistry, tmp_path: Path
) -> None:
    store = MeasuredStore(LocalStore(tmp_path), telemetry)
    assert await store.put_if_absent("o", b"body") == Created()
    assert await store.put_if_absent("o", b"other") == Exists()
    await store.put("p", b"")
    assert await store.get("o") == b"body"
    assert await store.get("missing") is None
    await store.get_range("missing", 0, 1)
    await store.get_tail("missing", 1)
    await store.head("missing")
    await store.copy("missing", "q")
    await store.list("")
    await store.delete("p")
    assert requests(registry) == {
        ("put_if_absent", "ok"): 1,
        ("put_if_absent", "exists"): 1,
        ("put", "ok"): 1,
        ("get", "ok"): 1,
        ("get", "absent"): 1,
        ("get_range", "absent"): 1,
        ("get_tail", "absent"): 1,
        ("head", "absent"): 1,
        ("copy", "absent"): 1,
        ("list", "ok"): 1,
        ("delete", "ok"): 1,
    }
    labels = {"operation": "get", "status": "absent"}
    name = "committerd_store_request_duration_seconds_count"
    assert value(registry, name, **labels) == 1


class FailingStore(LocalStore):
    """Every read raises the given error."""

    def __init__(self, root: Path, error: BaseException | None) -> None:
        super().__init__(root)
        self._error = error

    async def get(self, key: str) -> bytes | None:
        if self._error is not None:
            raise self._error
        await anyio.sleep_forever()
        return None


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailable("down"), "unavailable"),
        (PutUnknown("lost"), "unknown"),
        (ValueError("bug"), "failed"),
    ],
)
async def test_a_request_that_fails_is_counted_and_its_error_passed_on(
    telemetry: Telemetry,
    registry: CollectorRegistry,
    tmp_path: Path,
    error: Exception,
    status: str,
) -> None:
    store = MeasuredStore(FailingStore(tmp_path, error), telemetry)
    with pytest.raises(type(error)) as raised:
        await store.get("o")
    assert raised.value is error
    assert requests(registry) == {("get", status): 1}


async def test_a_cancelled_request_is_counted_as_such(
    telemetry: Telemetry, registry: CollectorRegistry, tmp_path: Path
) -> None:
    store = MeasuredStore(FailingStore(tmp_path, None), telemetry)
    with anyio.move_on_after(0.01):
        await store.get("o")
    assert requests(registry) == {("get", "cancelled"): 1}


def requests(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["operation"], sample.labels["status"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "committerd_store_requests_total"
    }


def test_the_exposition_is_read_back_by_a_parser(telemetry: Telemetry, registry: CollectorRegistry) -> None:
    from prometheus_client import generate_latest

    telemetry.commit_transactions.observe(7)
    parsed = {f.name for f in text_string_to_metric_families(generate_latest(registry).decode())}
    assert {"committerd_commit_transactions", "committerd_build_info"} <= parsed
