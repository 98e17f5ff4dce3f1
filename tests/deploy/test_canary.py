"""A rollout in steps: what a part of the datasets tries, what the others keep, and where it ends."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CASES, MINIMAL, Chart, Manifest, Rendered, environment, merged

CANARY = next(path for path in CASES if path.name == "canary-values.yaml")
MANY: dict[str, Any] = {
    "datasets": {f"table-{number:03}": {"uri": f"s3://lake/{number}.lance"} for number in range(300)}
}
NEWER: dict[str, Any] = {"image": {"tag": "0.9.0"}}


def deployments(rendered: Rendered) -> dict[str, Manifest]:
    """The committers, by dataset."""
    return {
        one["metadata"]["annotations"]["committerd/dataset"]: one["spec"]
        for one in rendered.of("Deployment")
        if one["metadata"]["labels"]["app.kubernetes.io/component"] == "committer"
    }


def image(spec: Manifest) -> str:
    (container,) = spec["template"]["spec"]["containers"]
    return str(container["image"])


def canaries(chart: Chart, **canary: Any) -> set[str]:
    """Which of 300 datasets run the newer image."""
    made = deployments(chart.render(merged(MINIMAL, MANY, {"canary": {**NEWER, **canary}})))
    return {name for name, spec in made.items() if image(spec) == "committerd:0.9.0"}


def test_canaries_are_those_that_are_named(chart: Chart) -> None:
    assert canaries(chart) == set()
    assert canaries(chart, datasets=["table-007", "table-123"]) == {"table-007", "table-123"}


def test_each_step_adds_datasets_to_those_of_the_step_before(chart: Chart) -> None:
    steps = [canaries(chart, datasets=["table-007"], percent=percent) for percent in (0, 1, 10, 50, 100)]
    for before, after in itertools.pairwise(steps):
        assert before < after
    assert steps[0] == {"table-007"}
    assert 15 <= len(steps[2]) <= 50
    assert 110 <= len(steps[3]) <= 190
    assert len(steps[4]) == 300


def test_a_new_dataset_makes_no_other_a_canary(chart: Chart) -> None:
    before = canaries(chart, percent=10)
    datasets = {**MANY["datasets"], "another": {"uri": "s3://lake/another.lance"}}
    values = merged(MINIMAL, {"datasets": datasets, "canary": {**NEWER, "percent": 10}})
    after = {name for name, spec in deployments(chart.render(values)).items() if image(spec) == "committerd:0.9.0"}
    assert after - {"another"} == before


def test_only_canaries_differ_and_no_pod_of_theirs_restarts_when_all_get_what_they_tried(chart: Chart) -> None:
    tried = {"commit": {"coalesce": "none"}}
    canary = {**NEWER, "settings": tried, "percent": 50}
    before, during, after = (
        deployments(chart.render(merged(MINIMAL, MANY, wishes)))
        for wishes in ({}, {"canary": canary}, {**NEWER, "settings": {**MINIMAL["settings"], **tried}})
    )
    changed = {name for name in MANY["datasets"] if during[name] != before[name]}
    assert 110 <= len(changed) <= 190
    for name in MANY["datasets"]:
        assert during[name] == (after if name in changed else before)[name]
    assert all(before[name]["template"] != after[name]["template"] for name in MANY["datasets"])


def test_a_canary_tries_image_and_settings_and_its_own_settings_win(chart: Chart) -> None:
    rendered = chart.render(CANARY)
    made = deployments(rendered)
    audit, events = made["events.tree.audit"], made["events"]
    assert image(audit) == "registry.example.com/committerd:0.9.0"
    assert image(events) == "registry.example.com/committerd:0.1.0"
    assert audit["template"]["metadata"]["labels"]["app.kubernetes.io/version"] == "0.9.0"
    variables = environment(audit["template"])
    assert variables["COMMITTERD_COMMIT__COALESCE"] == "none"
    assert variables["COMMITTERD_COMMIT__INTERVAL_SECONDS_MIN"] == "0"
    assert "COMMITTERD_COMMIT__COALESCE" not in environment(events["template"])
    own = {"datasets": {"events": {"uri": "s3://lake/e", "settings": {"commit": {"coalesce": "all"}}}}}
    canary = {"datasets": ["events"], "settings": {"commit": {"coalesce": "none"}}}
    (one,) = deployments(chart.render(merged(MINIMAL, own, {"canary": canary}))).values()
    assert environment(one["template"])["COMMITTERD_COMMIT__COALESCE"] == "all"


def test_maintenance_heartbeat_and_topics_of_a_canary_go_with_it(chart: Chart) -> None:
    rendered = chart.render(CANARY)
    maintained = {
        one["metadata"]["annotations"]["committerd/dataset"]: image(one["spec"])
        for one in rendered.of("Deployment")
        if one["metadata"]["labels"]["app.kubernetes.io/component"] == "maintenance"
    }
    assert maintained["events.tree.audit"] == "registry.example.com/committerd-maintain:0.9.0"
    assert maintained["events"] == "registry.example.com/committerd-maintain:0.1.0"
    tests = {environment(pod).get("COMMITTERD_DATASET__BRANCH"): pod for pod in rendered.of("Pod")}
    assert image({"template": tests["audit"]}) == "registry.example.com/committerd:0.9.0"
    partitions = {
        tuple(container["args"]): environment(job["spec"]["template"]).get("COMMITTERD_KAFKA__OUTCOME_PARTITIONS")
        for job in rendered.of("Job")
        for container in job["spec"]["template"]["spec"]["containers"]
    }
    assert partitions[("--queue=events.tree.audit",)] == "4"
    assert all(found is None for names, found in partitions.items() if "--queue=events" in names)


def test_a_digest_is_a_canary_too(chart: Chart) -> None:
    digest = "sha256:" + "ab" * 32
    values = merged(MINIMAL, {"canary": {"image": {"digest": digest}, "datasets": ["events"]}})
    (made,) = deployments(chart.render(values)).values()
    assert image(made) == f"committerd@{digest}"
    assert made["template"]["metadata"]["labels"]["app.kubernetes.io/version"] == "ab" * 6


def test_a_newer_chart_restarts_no_pod_whose_image_is_named(chart: Chart, tmp_path: Path) -> None:
    copy = tmp_path / "committerd"
    shutil.copytree(chart.folder, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "9.9.9", "appVersion": "9.9.9"}))
    for pinned in ({"tag": "0.1.0"}, {"digest": "sha256:" + "0" * 64}):
        values = merged(MINIMAL, {"image": pinned})
        assert deployments(Chart(chart.helm, copy).render(values)) == deployments(chart.render(values))


def test_a_new_pod_must_stay_ready_before_the_next_is_replaced(chart: Chart) -> None:
    assert deployments(chart.render(MINIMAL))["events"]["minReadySeconds"] == 10
    assert deployments(chart.render(merged(MINIMAL, {"minReadySeconds": 0})))["events"]["minReadySeconds"] == 0


@pytest.mark.parametrize(
    ("canary", "sentence"),
    [
        ({**NEWER, "datasets": ["evnets"]}, 'canary.datasets names "evnets", and there is no such dataset: events'),
        ({"percent": 10}, "there is nothing that they try"),
        ({"datasets": ["events"]}, "there is nothing that they try"),
    ],
)
def test_a_canary_that_would_try_nothing_is_refused(chart: Chart, canary: dict[str, Any], sentence: str) -> None:
    assert sentence in chart.refusal(merged(MINIMAL, {"canary": canary}))


@pytest.mark.parametrize(
    "canary",
    [{"percent": 101}, {"percent": "10%"}, {"settings": {"http": {"port": 1}}}, {"image": {"repository": "other"}}],
)
def test_the_schema_bounds_a_canary(chart: Chart, canary: dict[str, Any]) -> None:
    assert "don't meet the specifications of the schema" in chart.refusal(merged(MINIMAL, {"canary": canary}))
