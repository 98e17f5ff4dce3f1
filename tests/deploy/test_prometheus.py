"""A real Prometheus, two real members under load: every query and every alert finds data, and alerts fire."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import yaml

from harness import PartMissingError
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import answer
from harness.kafka import KafkaBroker, RunningKafka
from harness.prometheus import Prometheus, Series, Target
from harness.s3 import S3Endpoint
from harness.scene import until
from tests.deploy import alerts
from tests.deploy.observed import Members, let_everything_happen, two_members
from tests.deploy.promql import metrics, operands, shortened

pytestmark = [pytest.mark.kafka, pytest.mark.s3, pytest.mark.dynamodb, pytest.mark.pylance, pytest.mark.slow]

QUIET = {
    "Refuses to run",
    "Can't be served by its process",
    "Started anew after an error, in an hour",
    "Failures of what all datasets share, in an hour",
    "Changes of the datasets file, in an hour",
    "Datasets file is wrong",
    "Paused by an operator",
    "Repeated calls to Kafka",
    "Manifests put into place",
    "Rows followed through compactions",
    "Outcomes published again",
    "Wrong settings of topics",
    "Versions still to be read after the start",
    "Versions that the ledger has dropped",
    "Records held back",
    "Applications forgotten",
    "Internal errors",
    "Errors of the machine",
    "Held back by an open Kafka transaction",
    "Rows that an index lacks",
    "Tasks that wait",
    "Files deleted",
    "Bytes deleted",
    "Steps that failed",
    "Until certificates and credentials end",
    "Left alone by maintenance",
    "Records that wait in topics",
    "Age of the oldest record that waits in a process",
    "Partitions that began again",
    "Bytes that wait to be written",
}
"""Panels of what need not happen here: they show zeros. All others show something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A dataset to which everything has happened, and Prometheus, which has seen it."""

    members: Members
    prometheus: Prometheus
    began: float
    ended: float


def quick_rules(name: str) -> str:
    """The alerts with a thirtieth of their durations; a record is late after two seconds."""
    text = alerts.ALERTS.read_text(encoding="utf-8")
    groups = yaml.safe_load(text)["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule["expr"] = shortened(rule["expr"]).replace("> 60\n", "> 2\n")
        rule["for"] = shortened(rule["for"])
    expected = {"namespace": "lake", "dataset": name}
    rules = [
        {**one, "labels": expected if "expected" in one["record"] else {"namespace": "lake"}} for one in alerts.listed()
    ]
    return yaml.safe_dump({"groups": [*groups, {"name": "datasets", "rules": rules}]})


@pytest.fixture(scope="module")
def observed(
    kafka: KafkaBroker | RunningKafka,
    s3: S3Endpoint,
    dynamodb: DynamoDBEndpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Observed]:
    name, folder = f"observed-{time.time_ns():x}", tmp_path_factory.mktemp("observed")
    with ExitStack() as stack:
        members = stack.enter_context(two_members(kafka.bootstrap_servers, name, folder, s3, dynamodb))
        try:
            prometheus = stack.enter_context(Prometheus(targets=members.targets(), rules=quick_rules(name)))
        except PartMissingError as error:
            pytest.skip(str(error))
        began = time.time()
        let_everything_happen(members, prometheus)
        time.sleep(2)  # two scrapes more
        yield Observed(members=members, prometheus=prometheus, began=began, ended=time.time())


def numbers(found: list[Series]) -> list[float]:
    return [value for series in found for _, value in series.samples if math.isfinite(value)]


def chosen(expr: str, dataset: str) -> str:
    """A query of the dashboard as Grafana sends it."""
    variables = {"$__rate_interval": "10s", "$namespace": ".*", "$dataset": dataset}
    for name, value in variables.items():
        expr = expr.replace(name, value)
    assert "$" not in expr
    return expr


@pytest.mark.parametrize("all_datasets", [False, True], ids=["one", "all"])
def test_every_query_of_the_dashboard_returns_data(observed: Observed, all_datasets: bool) -> None:
    dataset = ".*" if all_datasets else observed.members.scene.name
    shown: dict[str, list[float]] = {}
    for title, expr in alerts.queries():
        query = chosen(expr, dataset)
        values = numbers(observed.prometheus.query_range(query, start=observed.began, end=observed.ended))
        assert values, f"{title}: nothing came of {query}"
        shown.setdefault(title, []).extend(values)
    assert {title for title, values in shown.items() if not any(values)} <= QUIET


def test_the_variables_find_the_labels(observed: Observed) -> None:
    found = {
        (one.labels["namespace"], one.labels["dataset"])
        for name in ("committerd_active", "committerd_build_info", "process_start_time_seconds")
        for one in observed.prometheus.query(name)
    }
    assert found == {("lake", observed.members.scene.name)}


def test_a_dashboard_of_targets_without_labels_shows_them(observed: Observed) -> None:
    """As in a Prometheus that was told nothing of datasets: series of processes lack the label, and All matches."""
    bare = Prometheus(targets=[Target(one.url) for one in observed.members.targets()])
    with bare:
        until(lambda: len(bare.query("committerd_active")) == 2)
        for title, expr in alerts.queries():
            if title in ("Active members", "Kafka responds", "Members", "Lag", "Manifest"):
                assert bare.query(chosen(expr, ".*")), title


def test_every_vector_of_every_alert_returns_data(observed: Observed) -> None:
    def values(expr: str) -> list[float]:
        return numbers(observed.prometheus.query_range(expr, start=observed.began, end=observed.ended))

    for rule in alerts.alerts():
        for operand in operands(shortened(rule["expr"])):
            assert values(operand), f"{rule['alert']}: nothing came of {operand}"
        for metric in metrics(rule["expr"]):
            assert values(metric), f"{rule['alert']}: there is no {metric}"


def test_prometheus_evaluates_every_rule(observed: Observed) -> None:
    rules = observed.prometheus.rules()
    assert len(rules) == len(alerts.alerts()) + len(alerts.listed())
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


def test_what_happened_was_told_while_it_did(observed: Observed) -> None:
    """Of the load itself: dead letters, conflicts, and failures of the store."""
    fired = {
        series.labels["alertname"]
        for series in observed.prometheus.query_range(
            'ALERTS{alertstate="firing"}', start=observed.began, end=observed.ended
        )
    }
    assert "CommitterdDeadLetters" in fired
    assert not {"CommitterdTwoActiveMembers", "CommitterdUndecided", "CommitterdRefusedToRun"} & fired


def test_a_store_that_fails_with_work_pending_is_told(observed: Observed) -> None:
    members, prometheus = observed.members, observed.prometheus
    since = time.time()
    members.s3.fault(answer(503), method="PUT", times=None)
    try:
        (offset,) = members.scene.append()
        states = _states(prometheus, "CommitterdStalled", since=since)
    finally:
        members.s3.clear()
    assert states == {"pending", "firing"}
    members.scene.topics.wait_answers([offset])
    until(lambda: not prometheus.alerts("CommitterdStalled"))


def test_no_process_at_all_is_told(observed: Observed) -> None:
    """Both stand still, as on a machine that is gone: nothing can be scraped, and no takeover comes."""
    members, prometheus = observed.members, observed.prometheus
    until(lambda: not prometheus.alerts("CommitterdNoActiveMember"))
    since = time.time()
    for daemon in (members.active, members.standby):
        daemon.freeze()
    try:
        states = _states(prometheus, "CommitterdNoActiveMember", since=since)
        (told,) = prometheus.alerts("CommitterdNoActiveMember")
    finally:
        for daemon in (members.active, members.standby):
            daemon.thaw()
    assert states == {"pending", "firing"}
    assert told["labels"] == {
        "alertname": "CommitterdNoActiveMember",
        "severity": "critical",
        "namespace": "lake",
        "dataset": members.scene.name,
    }
    assert told["annotations"]["summary"] == f"{members.scene.name}: nobody commits"
    until(lambda: not prometheus.alerts("CommitterdNoActiveMember"), seconds=60)


def _states(prometheus: Prometheus, name: str, *, since: float) -> set[str]:
    """The states that an alert has had since then (Unix seconds), once it fires: Prometheus keeps short ones too."""
    until(lambda: any(one["state"] == "firing" for one in prometheus.alerts(name)))
    found = prometheus.query_range(f'ALERTS{{alertname="{name}"}}', start=since, end=time.time() + 1)
    return {series.labels["alertstate"] for series in found}
