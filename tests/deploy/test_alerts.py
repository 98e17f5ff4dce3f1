"""The alerts as rules: well formed, tested near their thresholds, each with a page that helps."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from harness import PartMissingError
from harness.prometheus import promtool
from tests.deploy import alerts
from tests.deploy.chart import MINIMAL, Chart, merged
from tests.deploy.promql import known_metrics, metrics, prettified

NAMES = [rule["alert"] for rule in alerts.alerts()]
WANTED = {
    "stalled with work pending": "CommitterdStalled",
    "lag growing": "CommitterdLagGrowing",
    "oldest pending age": "CommitterdOldestPendingAge",
    "unread records past half of the topic's retention": "CommitterdUnreadPastHalfRetention",
    "conflict ratio": "CommitterdConflictRatio",
    "retries": "CommitterdCommitRetries",
    "unknown outcomes unsettled": "CommitterdUnknownOutcome",
    "dead letters": "CommitterdDeadLetters",
    "position refused": "CommitterdRefusedToRun",
    "no active member": "CommitterdNoActiveMember",
    "two active members": "CommitterdTwoActiveMembers",
    "manifest growth": "CommitterdManifestGrowth",
    "maintenance falls behind": "CommitterdMaintenanceBehind",
    "maintenance has done nothing for long": "CommitterdMaintenanceIdle",
    "maintenance can't rewrite what it should": "CommitterdMaintenanceLeavesAlone",
    "maintenance deletes nothing although bytes grow": "CommitterdMaintenanceDeletesNothing",
    "ingest has no process": "CommitterdIngestGone",
    "partitions of ingest are stopped": "CommitterdIngestStopped",
    "rows come late": "CommitterdIngestBehind",
    "records make no rows": "CommitterdIngestBadRecords",
    "throttling": "CommitterdThrottled",
    "Kafka away": "CommitterdKafkaDisconnected",
    "a member cut off from Kafka": "CommitterdMemberCutOff",
    "memory near its limit": "CommitterdMemoryNearLimit",
    "certificates near their end": "CommitterdCertificateExpires",
    "credentials near their end": "CommitterdCredentialsExpire",
    "late outcomes": "CommitterdLatencyBudget",
}


def checked(*words: str | Path) -> tuple[bool, str]:
    try:
        return promtool(*words)
    except PartMissingError as error:
        pytest.skip(str(error))


def test_whatever_an_operator_needs_to_be_told_has_an_alert() -> None:
    assert set(WANTED.values()) <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)


def test_prometheus_understands_them() -> None:
    good, said = checked("check", "rules", alerts.ALERTS)
    assert good, said
    assert f"{len(NAMES)} rules found" in said
    good, said = checked("check", "rules", alerts.DATASETS)
    assert good, said


@pytest.mark.slow
def test_each_fires_beyond_its_threshold_and_is_silent_before() -> None:
    good, said = checked("test", "rules", *alerts.ALERTS_TESTS)
    assert good, said


def scaled(rule: alerts.Alert, *, threshold: float = 1, wait: float = 1) -> alerts.Alert:
    """An alert that is a little too early or too late. Comparisons with 0 and 1 are no thresholds."""
    expr = re.sub(r"> (0\.\d+|[2-9]\d*|1\d+)", lambda found: f"> {float(found[1]) * threshold:f}", rule["expr"])
    return {**rule, "expr": expr, "for": f"{seconds(rule['for']) * wait:.0f}s"}


def seconds(duration: str) -> int:
    """Of Prometheus' way to write it."""
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


def forgetful(rule: alerts.Alert) -> alerts.Alert:
    """An alert that sees gauges only while their last scrape is there."""
    return {**rule, "expr": re.sub(r"last_over_time\(([^()\[]*)\[2m\]\)", r"\1", rule["expr"])}


CHANGES: dict[str, Callable[[alerts.Alert], alerts.Alert]] = {
    "never": lambda rule: {**rule, "expr": "vector(1) < 0"},
    "sooner": partial(scaled, threshold=0.94),
    "later": partial(scaled, threshold=1.07),
    "at-once": partial(scaled, wait=0.5),
    "patient": partial(scaled, wait=2),
    "forgetful": forgetful,
}


FOR = ("at-once", "patient")
"""Changes of `for` alone."""


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_the_unit_tests_notice_each_alert_that_fires_otherwise(change: str, tmp_path: Path) -> None:
    changed, groups = set(), yaml.safe_load(alerts.ALERTS.read_text(encoding="utf-8"))["groups"]
    for group in groups:
        rules = [CHANGES[change](rule) for rule in group["rules"]]
        changed |= {
            rule["alert"]
            for rule, before in zip(rules, group["rules"], strict=True)
            if (change in FOR and before["for"] != "0m") or (change not in FOR and rule["expr"] != before["expr"])
        }
        group["rules"] = rules
    if change == "forgetful":
        changed.remove(
            "CommitterdMemberMissing"
        )  # fewer are missing with one scrape more, so that it begins anew either way
    if change == "later":
        changed.remove("CommitterdRestarts")  # a count: there is nothing between three and four
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump({"groups": groups}))
    copies = [tmp_path / one.name for one in alerts.ALERTS_TESTS]
    for copy, test in zip(copies, alerts.ALERTS_TESTS, strict=True):
        named = f"rule_files: [{os.path.relpath(alerts.ALERTS, test.parent)}]"
        text = test.read_text(encoding="utf-8")
        assert named in text
        copy.write_text(text.replace(named, "rule_files: [alerts.yml]"))
    good, said = checked("test", "rules", *copies)
    assert not good
    assert changed
    assert {name for name in changed if name not in said} == set()


def test_each_has_what_an_operator_reads() -> None:
    for rule in alerts.alerts():
        name, notes = rule["alert"], rule["annotations"]
        assert re.fullmatch(r"Committerd([A-Z][a-z]+)+", name)
        assert rule["labels"].keys() == {"severity"}, name
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert "for" in rule, name
        assert notes.keys() == {"summary", "description", "runbook_url"}, name
        assert notes["summary"].startswith("{{ with $labels.dataset }}{{ . }}: {{ end }}"), name
        assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
        assert (alerts.ROOT / notes["runbook_url"]).is_file(), name


def test_each_names_metrics_that_there_are() -> None:
    known = known_metrics()
    for rule in alerts.alerts():
        recorded = {one["record"] for one in alerts.listed()}
        assert metrics(rule["expr"]) <= known | recorded, rule["alert"]


def test_none_of_them_tells_members_apart() -> None:
    """An alert is of a dataset: it must not begin anew when another member takes over."""
    for rule in alerts.alerts():
        assert "instance" not in rule["expr"]
        assert "pod" not in rule["expr"]


def test_the_chart_installs_these_very_alerts(chart: Chart, tmp_path: Path) -> None:
    wishes = {"prometheusRule": {"enabled": True, "runbookBaseUrl": "https://example.com/runbooks"}}
    spec = chart.render(merged(MINIMAL, wishes)).one("PrometheusRule")["spec"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(spec))
    good, said = checked("check", "rules", tmp_path / "rules.yml")
    assert good, said
    rendered = [rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule]
    own = 'committerd:dataset:owned{namespace="default", release="rel"}'
    for rule, made in zip(alerts.alerts(), rendered, strict=True):
        rule["expr"] = prettified(f"({rule['expr']}) * on (namespace, dataset) group_left (owner) {own}")
        made["expr"] = prettified(made["expr"])
        rule["annotations"]["runbook_url"] = f"https://example.com/runbooks/{rule['alert']}.md"
        assert made == rule


def _alone(release: str, dataset: str, owner: str) -> dict[str, object]:
    """A unit test: the datasets of two releases have a dead letter each, and one release's rules tell of its own."""
    letters = 'committerd_dead_letters_total{{namespace="default",dataset="{}",reason="x"}}'
    series = [{"series": letters.format(name), "values": "0x2 1x10"} for name in ("events", "clicks")]
    fired = {"labels": f'{{dataset="{dataset}", owner="{owner}", reason="x"}}', "value": 1}
    query = 'count by (dataset, owner, reason) (ALERTS{alertname="CommitterdDeadLetters"})'
    expected = [{"expr": query, "eval_time": "10m", "exp_samples": [fired]}]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    return {"rule_files": [f"{release}.yml"], "evaluation_interval": "1m", "tests": [case]}


@pytest.mark.parametrize(
    ("release", "dataset", "own", "owner"),
    [("one", "events", {}, "lake"), ("two", "clicks", {"owner": "web"}, "web")],
)
def test_each_release_alerts_its_own_team_of_its_own_datasets(
    chart: Chart, tmp_path: Path, release: str, dataset: str, own: dict[str, str], owner: str
) -> None:
    datasets = [{"name": dataset, "uri": f"s3://lake/{dataset}.lance", **own}]
    values = merged(MINIMAL, {"prometheusRule": {"enabled": True, "owner": "lake"}, "datasets": datasets})
    spec = chart.render(values, release=release).one("PrometheusRule")["spec"]
    (tmp_path / f"{release}.yml").write_text(yaml.safe_dump(spec))
    (tmp_path / "test.yml").write_text(yaml.safe_dump(_alone(release, dataset, owner)))
    good, said = checked("test", "rules", tmp_path / "test.yml")
    assert good, said


def test_the_chart_lists_the_datasets_that_must_have_a_committer(chart: Chart) -> None:
    uri = "s3://lake/{}.lance"
    datasets: list[dict[str, object]] = [{"name": name, "uri": uri.format(name)} for name in ("events", "clicks")]
    datasets.append({"name": "stopped", "uri": uri.format("stopped"), "replicas": 0})
    values = merged(MINIMAL, {"prometheusRule": {"enabled": True}, "datasets": datasets})

    def listed(values: dict[str, object]) -> tuple[list[tuple[str, str]], int]:
        rendered = chart.render(values)
        rules = [one for group in rendered.one("PrometheusRule")["spec"]["groups"] for one in group["rules"]]
        expected = [one["labels"] for one in rules if one.get("record") == "committerd:dataset:expected"]
        marks = [one["labels"] for one in rules if one.get("record") == "committerd:datasets:listed"]
        assert marks == [{"namespace": "default"}]
        replicas = [one["spec"]["replicas"] for one in rendered.of("Deployment")]
        return [(one["namespace"], one["dataset"]) for one in expected], replicas.count(0)

    assert listed(values) == ([("default", "events"), ("default", "clicks")], 1)
    assert listed(merged(MINIMAL, {"prometheusRule": {"enabled": True}, "datasets": []})) == ([], 0)


def test_the_chart_installs_this_very_dashboard(chart: Chart) -> None:
    made = chart.render(merged(MINIMAL, {"dashboard": {"enabled": True}})).one("ConfigMap")
    assert json.loads(made["data"]["committerd.json"]) == alerts.dashboard()
    assert json.loads(made["data"]["committerd-fleet.json"]) == alerts.dashboard(alerts.FLEET)
