"""Groups: one Deployment serves many datasets, from a settings file in a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from committerd.settings.load import ServedDatasets, load_served
from tests.deploy.chart import CASES, MINIMAL, Chart, Manifest, Rendered, environment, merged

GROUPS = next(path for path in CASES if path.name == "groups-values.yaml")
GROUP = "rel-committerd-group-small"


@pytest.fixture(scope="module")
def rendered(chart: Chart) -> Rendered:
    return chart.render(GROUPS)


def served(
    rendered: Rendered, template: Manifest, folder: Path, monkeypatch: pytest.MonkeyPatch, group: str = GROUP
) -> ServedDatasets:
    """What a Pod's process serves: by its environment, and by the file that the ConfigMap mounts."""
    for name, value in environment(template).items():
        monkeypatch.setenv(name, value)
    file = folder / Path(environment(template)["COMMITTERD_DAEMON__DATASETS_FILE"]).name
    file.write_text(rendered.one("ConfigMap", group)["data"][file.name])
    monkeypatch.setenv("COMMITTERD_DAEMON__DATASETS_FILE", str(file))
    return load_served()


def test_one_deployment_serves_all_datasets_of_its_group(
    rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committers = [
        one["metadata"]["name"]
        for one in rendered.of("Deployment")
        if one["metadata"]["labels"]["app.kubernetes.io/component"] == "committer"
    ]
    assert sorted(committers) == ["rel-committerd-busy", GROUP]
    deployment = rendered.one("Deployment", GROUP)
    assert deployment["spec"]["replicas"] == 2
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["command"] == ["committerd", "run"]
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert {"name": "datasets", "mountPath": "/etc/committerd", "readOnly": True} in container["volumeMounts"]
    assert {"name": "datasets", "configMap": {"name": GROUP}} in template["spec"]["volumes"]
    found = served(rendered, template, tmp_path, monkeypatch)
    assert set(found.datasets) == {"first", "second.v2", "first.tree.audit..may"}
    first, second = found.datasets["first"], found.datasets["second.v2"]
    assert (first.store.recheck_seconds, first.s3.region) == (60, "eu-central-1")
    assert (second.store.recheck_seconds, second.s3.region) == (2.5, "eu-central-1")
    assert (second.commit.group_records_max, second.commit.coalesce) == (200, "none")
    assert list(second.dataset.aliases) == ["s3://old-lake/second.lance"]
    assert found.datasets["first.tree.audit..may"].dataset.branch == "audit/may"
    assert found.shared.kafka.topics_mode == "check"
    assert found.shared.kafka.group == "committerd.default.rel-committerd-group-small"


def test_one_process_maintains_those_of_its_tables_that_are_to_be(
    rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = rendered.one("Deployment", f"{GROUP}-maintenance")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert (container["command"], container["args"]) == (["committerd", "maintain"], ["--tables", "1"])
    assert container["resources"]["requests"] == {"cpu": "250m", "memory": "2Gi"}
    found = served(rendered, template, tmp_path, monkeypatch)
    assert set(found.datasets) == {"first", "first.tree.audit..may"}


def test_a_cronjob_maintains_a_group_by_a_schedule_of_its_own(chart: Chart) -> None:
    values = yaml.safe_load(GROUPS.read_text(encoding="utf-8"))
    wishes = {"maintenance": {"kind": "CronJob"}, "groups": {"small": {"maintenance": {"schedule": "7 3 * * *"}}}}
    jobs = {job["metadata"]["name"]: job for job in chart.render(merged(values, wishes)).of("CronJob")}
    assert jobs.keys() == {f"{GROUP}-tidy", "rel-committerd-busy-tidy"}
    assert jobs[f"{GROUP}-tidy"]["spec"]["schedule"] == "7 3 * * *"
    (container,) = jobs[f"{GROUP}-tidy"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert [*container["command"], *container["args"]] == ["committerd", "maintain", "--once", "--tables", "1"]


def test_a_table_more_restarts_no_committer_as_the_file_is_read_again(chart: Chart) -> None:
    values = yaml.safe_load(GROUPS.read_text(encoding="utf-8"))
    more = merged(values, {"datasets": {"third": {"uri": "s3://lake/third.lance", "group": "small"}}})
    before, after = chart.render(values), chart.render(more)
    for name in (GROUP, "rel-committerd-busy"):
        assert before.one("Deployment", name) == after.one("Deployment", name)
    assert before.one("ConfigMap", GROUP)["data"] != after.one("ConfigMap", GROUP)["data"]
    maintenance = [one.one("Deployment", f"{GROUP}-maintenance")["spec"]["template"] for one in (before, after)]
    assert maintenance[0]["spec"] == maintenance[1]["spec"]
    assert maintenance[0]["metadata"]["annotations"] != maintenance[1]["metadata"]["annotations"]  # it restarts


def test_alerts_know_the_datasets_of_a_group_and_its_processes(rendered: Rendered) -> None:
    listed, *_ = rendered.one("PrometheusRule")["spec"]["groups"]
    recorded = {
        name: {rule["labels"]["dataset"] for rule in listed["rules"] if rule["record"] == f"committerd:dataset:{name}"}
        for name in ("owned", "expected")
    }
    tables = {"first", "second.v2", "first.tree.audit..may", "busy"}
    assert recorded == {"owned": tables | {"group-small"}, "expected": tables}
    template = rendered.one("Deployment", GROUP)["spec"]["template"]
    assert template["metadata"]["annotations"]["committerd/dataset"] == "group-small"  # of the process's own metrics


def test_topics_and_heartbeats_of_a_group_have_its_settings_and_environment(chart: Chart) -> None:
    values = yaml.safe_load(GROUPS.read_text(encoding="utf-8"))
    own = {"settings": {"kafka": {"outcome_partitions": 4}}, "extraEnv": [{"name": "TZ", "value": "UTC"}]}
    rendered = chart.render(merged(values, {"groups": {"small": own}}))
    jobs = {
        len(container["args"]): environment(job["spec"]["template"])
        for job in rendered.of("Job")
        for container in job["spec"]["template"]["spec"]["containers"]
    }
    assert jobs[3]["COMMITTERD_KAFKA__OUTCOME_PARTITIONS"] == "4"
    assert "COMMITTERD_KAFKA__OUTCOME_PARTITIONS" not in jobs[1]
    tests = {environment(pod)["COMMITTERD_DATASET__URI"]: environment(pod) for pod in rendered.of("Pod")}
    assert tests["s3://lake/second.lance"]["TZ"] == "UTC"
    assert tests["s3://lake/second.lance"]["COMMITTERD_COMMIT__GROUP_RECORDS_MAX"] == "200"
    assert "COMMITTERD_DAEMON__DATASETS_FILE" not in tests["s3://lake/second.lance"]
    assert tests["s3://lake/second.lance"]["COMMITTERD_KAFKA__GROUP"].endswith("group-small")


def test_a_group_is_a_canary_as_a_whole(chart: Chart) -> None:
    values = yaml.safe_load(GROUPS.read_text(encoding="utf-8"))
    canary = {"canary": {"image": {"tag": "0.9.0"}, "datasets": ["group-small"]}}
    rendered = chart.render(merged(values, canary))
    images = {
        where: pod["spec"]["containers"][0]["image"] for where, pod in rendered.pods() if not where.startswith("Job")
    }
    newer = {where for where, image in images.items() if image.endswith(":0.9.0")}
    assert newer == {where for where in images if "busy" not in where}


def test_three_hundred_tables_are_one_deployment_and_a_config_map_that_kubernetes_takes(chart: Chart) -> None:
    datasets = {
        f"table-{number:03}": {"uri": f"s3://lake/team-{number % 20}/{number}.lance", "group": "all"}
        for number in range(300)
    }
    rendered = chart.render(merged(MINIMAL, {"groups": {"all": {}}, "datasets": datasets}))
    (deployment,) = rendered.of("Deployment")
    assert len(rendered.of("PodDisruptionBudget")) == 1
    text = rendered.one("ConfigMap", deployment["metadata"]["name"])["data"]["datasets.toml"]
    assert text.count("uri = ") == 300
    assert len(text) < 500_000  # Kubernetes' own limit is 1 MiB


def test_what_an_idle_table_of_a_group_costs_is_bounded_unless_told_otherwise(chart: Chart) -> None:
    names = ("MAINTAIN__INTERVAL_SECONDS", "MAINTAIN__CLEANUP_SECONDS", "STORE__RECHECK_SECONDS")

    def chosen(of_group: Mapping[str, Any], **settings: Any) -> list[str | None]:
        datasets = {"events": {"uri": "s3://lake/events.lance", "group": "small"}}
        whole = {
            "groups": {"small": {"settings": of_group}},
            "datasets": datasets,
            "settings": settings,
            "topicsJob": {"enabled": True},
            "maintenance": {"enabled": True},
        }
        rendered = chart.render(merged(MINIMAL, whole))
        topics = environment(rendered.one("Job")["spec"]["template"])
        committer, maintenance = (
            environment(rendered.one("Deployment", name)["spec"]["template"])
            for name in (GROUP, f"{GROUP}-maintenance")
        )
        assert committer["COMMITTERD_STORE__RECHECK_SECONDS"] == maintenance["COMMITTERD_STORE__RECHECK_SECONDS"]
        return [
            topics["COMMITTERD_KAFKA__OUTCOME_PARTITIONS"],
            *(maintenance.get(f"COMMITTERD_{name}") for name in names),
        ]

    other = {
        "kafka": {"outcome_partitions": 4},
        "maintain": {"interval_seconds": 60},
        "store": {"recheck_seconds": 20},
    }
    assert chosen({}) == ["1", "300", "3600", "60"]
    assert chosen({}, **other) == ["4", "60", "3600", "20"]
    assert chosen(other) == ["4", "60", "3600", "20"]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"group": "large"}, 'dataset "events": group "large" is not in `groups`: small'),
        ({"group": "small", "replicas": 3}, 'dataset "events": replicas belongs to its Pods'),
        ({"group": "small", "maintenance": {"schedule": "1 * * * *"}}, "maintenance.schedule belongs to its process"),
        ({"group": "small", "settings": {"kafka": {"outcome_partitions": 4}}}, "settings.kafka is the same for all"),
        (
            {"group": "small", "settings": {"s3": {"access_key_id": {"secretKeyRef": {"name": "a", "key": "b"}}}}},
            "settings.s3.access_key_id comes from a Secret",
        ),
        ({"name": "group-small", "group": "small"}, 'dataset "group-small" has the name of a group'),
        ({"group": "small", "uri": "/data/events.lance"}, "mount one with extraVolumes"),
    ],
)
def test_what_a_dataset_of_a_group_can_not_have(chart: Chart, entry: dict[str, Any], sentence: str) -> None:
    values = {"groups": {"small": {}}, "datasets": {"events": {"uri": "s3://lake/events.lance", **entry}}}
    assert sentence in chart.refusal(merged(MINIMAL, values))
