"""What the chart renders, for every file of values in ci/ and for single wishes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from committerd.commands.ingest.members import members
from committerd.settings.dataset import DatasetSettings
from committerd.settings.load import load_settings
from committerd_ingest.settings import Pipeline
from tests.deploy.chart import CASES, FOLDER, MINIMAL, Chart, HelmError, Manifest, Rendered, environment, merged
from tests.deploy.parts_kubernetes import KUBERNETES_VERSION

FULL = next(path for path in CASES if path.name == "full-values.yaml")
MAP = next(path for path in CASES if path.name == "map-values.yaml")
OPERATORS = ("ServiceMonitor", "PrometheusRule")
"""Kinds that the Prometheus operator adds to Kubernetes."""


@pytest.fixture(scope="module")
def full(chart: Chart) -> Rendered:
    return chart.render(FULL)


def deployment(chart: Chart, *wishes: dict[str, Any]) -> Manifest:
    return chart.render(merged(MINIMAL, *wishes)).one("Deployment")


def with_dataset(**more: Any) -> dict[str, Any]:
    return {"datasets": [{**MINIMAL["datasets"][0], **more}]}


@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_lint_finds_nothing(chart: Chart, values: Path) -> None:
    said = chart.run("lint", "--strict", "--kube-version", "1.36.3", chart.folder, values=values)
    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


@pytest.mark.parametrize("version", ["1.27", "1.32", "1.36"])
@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_every_supported_kubernetes_knows_every_field(chart: Chart, values: Path, version: str) -> None:
    objects = [one for one in chart.render(values).objects if one["kind"] not in OPERATORS]
    assert objects
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_the_daemon_accepts_the_settings_that_a_pod_gets(
    chart: Chart, values: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that comes from values; what a Secret would hold is made up."""
    for _, pod in chart.render(values).pods():
        if "COMMITTERD_DAEMON__DATASETS_FILE" in environment(pod):  # of a group: tests/deploy/test_chart_groups.py
            continue
        with monkeypatch.context() as patch:
            patch.setenv("COMMITTERD_KAFKA__BOOTSTRAP_SERVERS", "from-a-secret:9092")
            for name, value in environment(pod).items():
                patch.setenv(name, value if isinstance(value, str) else "made-up")
            settings = load_settings()
        assert settings.dataset.uri.endswith(
            ".lance?ddbTableName=commits" if "ddb" in settings.dataset.uri else ".lance"
        )


def test_settings_reach_the_pod_as_they_were_given(full: Rendered) -> None:
    events = environment(full.one("Deployment", "lake-events")["spec"]["template"])
    assert events["COMMITTERD_KAFKA__BOOTSTRAP_SERVERS"] == "b1.kafka:9093,b2.kafka:9093"
    assert events["COMMITTERD_KAFKA__OUTSTANDING_BYTES_MAX"] == "134217728"
    assert events["COMMITTERD_COMMIT__INTERVAL_SECONDS_MIN"] == "0.5"
    assert events["COMMITTERD_COMMIT__ALLOWED_OPERATIONS"] == "append,delete"
    assert events["COMMITTERD_DATASET__ALIASES"] == "s3://old-lake/events.lance"
    password = {"secretKeyRef": {"name": "kafka-login", "key": "password"}}
    assert events["COMMITTERD_KAFKA__SASL_PLAIN_PASSWORD"] == password
    assert "COMMITTERD_COMMIT__COALESCE" not in events
    assert events["TZ"] == "Etc/UTC"


def test_a_dataset_has_its_own_settings_false_and_zero_among_them(full: Rendered) -> None:
    (clicks,) = [one for one in full.of("Deployment") if one["metadata"]["name"] != "lake-events"]
    variables = environment(clicks["spec"]["template"])
    assert variables["COMMITTERD_DATASET__NAME"] == "Click_Stream.v2"
    assert variables["COMMITTERD_COMMIT__COALESCE"] == "none"
    assert variables["COMMITTERD_STORE__PROBE"] == "false"
    assert variables["COMMITTERD_COMMIT__INTERVAL_SECONDS_MIN"] == "0"
    assert variables["COMMITTERD_COMMIT__ALLOWED_OPERATIONS"] == "append,delete"
    assert variables["TZ"] == "Europe/Berlin"
    assert clicks["spec"]["replicas"] == 3
    assert clicks["spec"]["template"]["spec"]["serviceAccountName"] == "clicks"
    assert clicks["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"memory": "2Gi"}


def test_a_variable_given_by_name_wins_over_a_setting(chart: Chart) -> None:
    user = {"name": "COMMITTERD_KAFKA__SASL_PLAIN_USERNAME", "value": "other"}
    wishes = {"settings": {"kafka": {"sasl_plain_username": "one"}}, "extraEnv": [user]}
    variables = environment(deployment(chart, wishes)["spec"]["template"])
    assert variables["COMMITTERD_KAFKA__SASL_PLAIN_USERNAME"] == "other"


def test_two_members_and_one_at_a_time(chart: Chart) -> None:
    rendered = chart.render(MINIMAL)
    spec = rendered.one("Deployment")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    budget = rendered.one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == spec["selector"]
    for constraint in spec["template"]["spec"]["topologySpreadConstraints"]:
        assert constraint["labelSelector"] == spec["selector"]


def test_a_pod_keeps_no_volume_and_has_the_probes_of_the_daemon(chart: Chart) -> None:
    spec = deployment(chart)["spec"]["template"]["spec"]
    assert spec["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}]
    (container,) = spec["containers"]
    assert container["command"] == ["committerd", "run"]
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert container["ports"] == [{"name": "metrics", "containerPort": 9464}]
    assert environment(deployment(chart)["spec"]["template"])["COMMITTERD_HTTP__PORT"] == "9464"


def test_with_a_certificate_probes_and_prometheus_come_by_https(chart: Chart) -> None:
    http = {"tls_certfile": "/tls/tls.crt", "tls_keyfile": "/tls/tls.key", "token_file": "/tls/token"}
    monitor = {"enabled": True, "tlsConfig": {"serverName": "x"}, "authorization": {"credentials": {"name": "s"}}}
    wishes = {"settings": {"http": http}, "serviceMonitor": monitor, "maintenance": {"enabled": True}}
    rendered = chart.render(merged(MINIMAL, wishes))
    asked = [
        probe["httpGet"]
        for _, pod in rendered.pods()
        for container in pod["spec"]["containers"]
        for probe in container.values()
        if isinstance(probe, dict) and "httpGet" in probe
    ]
    assert len(asked) >= 3
    assert all(probe["scheme"] == "HTTPS" and probe["port"] == "metrics" for probe in asked)
    (endpoint,) = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint.items() >= {name: monitor[name] for name in ("tlsConfig", "authorization")}.items()


@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_no_pod_may_do_more_than_it_must(chart: Chart, values: Path) -> None:
    pods = list(chart.render(values).pods())
    assert pods
    for where, pod in pods:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, where
        assert spec["enableServiceLinks"] is False, where
        assert spec["securityContext"]["runAsNonRoot"] is True, where
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True, where
        assert spec["containers"][0]["resources"]["limits"]["memory"], where
        assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == {
            volume["name"] for volume in spec["volumes"]
        }, where


def test_selectors_choose_one_datasets_pods_and_no_others(full: Rendered) -> None:
    pods = [(where, pod["metadata"].get("labels", {})) for where, pod in full.pods()]
    assert len(pods) == 6  # two Deployments, two Jobs, two tests
    for kind in ("Deployment", "PodDisruptionBudget"):
        for one in full.of(kind):
            wanted = one["spec"]["selector"]["matchLabels"].items()
            assert [where for where, labels in pods if wanted <= labels.items()] == [
                f"Deployment {one['metadata']['name']}"
            ]
    service = full.one("Service")["spec"]
    assert service["clusterIP"] == "None"
    chosen = [where for where, labels in pods if service["selector"].items() <= labels.items()]
    assert sorted(chosen) == sorted(f"Deployment {one['metadata']['name']}" for one in full.of("Deployment"))
    policy = full.one("NetworkPolicy", "lake")["spec"]["podSelector"]["matchLabels"]
    assert all(policy.items() <= labels.items() for _, labels in pods)


def test_labels_of_the_selector_cant_be_changed_by_values(chart: Chart) -> None:
    made = deployment(chart, {"podLabels": {"app.kubernetes.io/component": "other", "tier": "data"}})
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["tier"] == "data"


def test_a_new_chart_alone_restarts_nothing(chart: Chart, tmp_path: Path) -> None:
    copy = tmp_path / "committerd"
    shutil.copytree(chart.folder, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "9.9.9"}))
    later = Chart(chart.helm, copy).render(MINIMAL).one("Deployment")
    assert later["metadata"]["labels"]["helm.sh/chart"] == "committerd-9.9.9"
    assert later["spec"] == deployment(chart)["spec"]


def test_names_that_kubernetes_would_not_take_stay_different(chart: Chart) -> None:
    names = ["a.b", "a_b", "a-b", "A-B", "x" * 200, "x" * 199 + "y", "...", "events"]
    datasets = [{"name": name, "uri": f"s3://lake/{number}"} for number, name in enumerate(names)]
    made = chart.render(merged(MINIMAL, {"datasets": datasets})).of("Deployment")
    called = [one["metadata"]["name"] for one in made]
    assert len(set(called)) == len(names)
    assert all(len(name) <= 50 and name.strip("-") == name for name in called)
    assert {"rel-committerd-a-b", "rel-committerd-events"} <= set(called)
    assert [one["metadata"]["annotations"]["committerd/dataset"] for one in made] == names


@pytest.mark.parametrize(
    ("release", "wishes", "prefix"),
    [
        ("123", {}, "committerd-123-committerd"),
        ("rel", {"nameOverride": "My_App"}, "rel-my-app"),
        ("rel", {"nameOverride": "my app!"}, "rel-my-app"),
        ("rel", {"fullnameOverride": "Lake.Tables_"}, "lake-tables"),
        ("rel", {"fullnameOverride": "7tables"}, "committerd-7tables"),
    ],
)
def test_objects_have_names_that_kubernetes_takes_whatever_the_release_is_called(
    chart: Chart, release: str, wishes: dict[str, Any], prefix: str
) -> None:
    own = {"fullnameOverride": "", "extraObjects": []}
    values = merged(yaml.safe_load(FULL.read_text(encoding="utf-8")), own, wishes)
    for one in chart.render(values, release=release).objects:
        name, labels = one["metadata"]["name"], one["metadata"]["labels"]
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name), name
        assert one["kind"] == "ConfigMap" or name.startswith(prefix), name
        for label, value in labels.items():
            assert isinstance(value, str), label
            assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value), (label, value)


def test_a_list_reaches_the_pod_item_by_item(chart: Chart) -> None:
    aliases = ["s3://lake/a,b.lance", "s3://lake/events-old.lance"]
    datasets = [{"name": "events", "uri": "s3://lake/events.lance", "aliases": aliases}]
    pod = chart.render(merged(MINIMAL, {"datasets": datasets})).one("Deployment")["spec"]["template"]
    text = environment(pod)["COMMITTERD_DATASET__ALIASES"]
    read = DatasetSettings(name="events", uri="s3://lake/events.lance", aliases=text)
    assert list(read.aliases) == aliases


def test_a_branch_is_a_dataset_beside_that_of_its_table(chart: Chart) -> None:
    table = {"name": "events", "uri": "s3://lake/events.lance"}
    datasets = [table, {**table, "branch": "team/exp"}]
    values = {"datasets": datasets, "prometheusRule": {"enabled": True}, "maintenance": {"enabled": True}}
    rendered = chart.render(merged(MINIMAL, values))
    pods = [
        one["spec"]["template"]
        for one in rendered.objects
        if one["kind"] == "Deployment" and "maintenance" not in one["metadata"]["name"]
    ]
    assert [environment(pod)["COMMITTERD_DATASET__NAME"] for pod in pods] == ["events", "events"]
    assert [environment(pod).get("COMMITTERD_DATASET__BRANCH") for pod in pods] == [None, "team/exp"]
    queues = [pod["metadata"]["annotations"]["committerd/dataset"] for pod in pods]
    assert queues == ["events", DatasetSettings.model_validate(table | {"branch": "team/exp"}).queue]
    names = [one["metadata"]["name"] for one in rendered.objects if one["kind"] == "Deployment"]
    assert len(set(names)) == len(names)


def test_images_by_tag_and_by_digest(chart: Chart) -> None:
    def image(**wishes: str) -> str:
        (container,) = deployment(chart, {"image": wishes})["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    assert image() == "committerd:0.2.0"
    assert image(repository="r.example.com/c", tag="1") == "r.example.com/c:1"
    assert image(tag="1", digest="sha256:" + "0" * 64) == "committerd@sha256:" + "0" * 64


def test_topics_are_made_before_anything_else_with_a_login_of_their_own(full: Rendered) -> None:
    jobs, (account,) = (
        full.of("Job"),
        [one for one in full.of("ServiceAccount") if "helm.sh/hook" in one["metadata"].get("annotations", {})],
    )
    assert len(jobs) == 2
    for job in jobs:
        notes = job["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert int(account["metadata"]["annotations"]["helm.sh/hook-weight"]) < int(notes["helm.sh/hook-weight"])
        spec = job["spec"]["template"]["spec"]
        assert spec["serviceAccountName"] == account["metadata"]["name"] == "lake-topics"
        assert spec["containers"][0]["command"] == ["committerd", "topics", "create"]
        assert spec["containers"][0]["args"]
        login = environment(job["spec"]["template"])["COMMITTERD_KAFKA__SASL_PLAIN_USERNAME"]
        assert login == {"secretKeyRef": {"name": "kafka-admin", "key": "username"}}


def test_one_job_makes_the_topics_of_all_datasets_that_differ_in_nothing_that_topics_need(chart: Chart) -> None:
    jobs = {job["metadata"]["name"]: job for job in chart.render(MAP).of("Job")}
    made = {
        name: [word.removeprefix("--queue=") for word in job["spec"]["template"]["spec"]["containers"][0]["args"]]
        for name, job in jobs.items()
    }
    (other,) = made.keys() - {"rel-committerd-topics"}
    assert made == {"rel-committerd-topics": ["events", "events.tree.audit..may", "views"], other: ["clicks"]}
    partitions = {
        name: environment(job["spec"]["template"]).get("COMMITTERD_KAFKA__OUTCOME_PARTITIONS")
        for name, job in jobs.items()
    }
    assert partitions == {"rel-committerd-topics": None, other: "4"}
    many = {"datasets": {f"table-{number:03}": {"uri": f"s3://lake/{number}.lance"} for number in range(300)}}
    (job,) = chart.render(merged(MINIMAL, {"topicsJob": {"enabled": True}}, many)).of("Job")
    assert len(job["spec"]["template"]["spec"]["containers"][0]["args"]) == 300
    assert job["spec"]["activeDeadlineSeconds"] == 300 + 300 * 5


def test_datasets_of_several_files_come_together(chart: Chart, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    settings = {"settings": MINIMAL["settings"]}
    one.write_text(
        yaml.safe_dump({**settings, "datasets": {"events": {"uri": "s3://lake/e"}, "old": {"uri": "s3://lake/o"}}})
    )
    two.write_text(
        yaml.safe_dump({"datasets": {"clicks": {"uri": "s3://lake/c"}, "events": {"replicas": 3}, "old": None}})
    )
    text = chart.run(
        "template", "rel", chart.folder, "--kube-version", KUBERNETES_VERSION, "--values", one, "--values", two
    )
    rendered = Rendered([one for one in yaml.safe_load_all(text) if one])
    members = {one["metadata"]["name"]: one["spec"]["replicas"] for one in rendered.of("Deployment")}
    assert members == {"rel-committerd-events": 3, "rel-committerd-clicks": 2}


def test_a_map_and_a_list_of_the_same_datasets_make_the_same_objects(chart: Chart) -> None:
    entries: dict[str, dict[str, Any]] = {
        "clicks": {"uri": "s3://lake/c", "replicas": 1},
        "events": {"uri": "s3://lake/e"},
    }
    listed = [{"name": name, **entry} for name, entry in entries.items()]
    wishes: dict[str, Any] = {
        "prometheusRule": {"enabled": True},
        "topicsJob": {"enabled": True},
        "maintenance": {"enabled": True},
    }
    whole: dict[str, Any] = {"settings": MINIMAL["settings"], **wishes}
    assert chart.render({**whole, "datasets": entries}) == chart.render({**whole, "datasets": listed})


def test_topics_are_made_with_a_policy_of_their_own_as_that_of_the_release_comes_later(full: Rendered) -> None:
    (job, *_), policy = full.of("Job"), full.one("NetworkPolicy", "lake-topics")
    notes = policy["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == job["metadata"]["annotations"]["helm.sh/hook"]
    assert int(notes["helm.sh/hook-weight"]) < int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["egress"] == full.one("NetworkPolicy", "lake")["spec"]["egress"]
    for where, pod in full.pods():
        if where.startswith("Deployment"):
            chosen = policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            assert not chosen, where


def test_nothing_is_left_when_a_release_is_removed(full: Rendered) -> None:
    """Helm removes no hook with the release: each must go when it has done its work, or failed."""
    hooks = [one for one in full.objects if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    assert {one["kind"] for one in hooks} == {"Job", "NetworkPolicy", "Pod", "ServiceAccount"}
    for one in hooks:
        policy = one["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(",")
        assert {"hook-succeeded", "hook-failed"} <= {*policy}, one["metadata"]["name"]
        if one["kind"] in ("Job", "Pod"):  # then its log is all that is left
            assert "hook-failed" in one["metadata"]["annotations"]["helm.sh/hook-output-log-policy"]


def test_a_dataset_without_members_is_stopped(chart: Chart) -> None:
    stopped = {**MINIMAL["datasets"][0], "replicas": 0}
    assert deployment(chart, {"datasets": [stopped]})["spec"]["replicas"] == 0
    assert deployment(chart, {"replicas": 3})["spec"]["replicas"] == 3


def test_a_hook_never_uses_an_account_that_is_not_there_yet(chart: Chart) -> None:
    def account(**wishes: Any) -> str:
        job = chart.render(merged(MINIMAL, {"topicsJob": {"enabled": True}}, wishes)).one("Job")
        return str(job["spec"]["template"]["spec"]["serviceAccountName"])

    assert account() == "rel-committerd-topics"
    assert account(serviceAccount={"create": False, "name": "mine"}) == "mine"
    assert account(serviceAccount={"create": False}) == "default"
    assert account(topicsJob={"enabled": True, "serviceAccountName": "admin"}) == "admin"


def test_the_test_of_a_release_is_a_heartbeat_for_each_dataset(full: Rendered) -> None:
    pods = full.of("Pod")
    assert len(pods) == 2
    for pod in pods:
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert pod["spec"]["containers"][0]["command"] == ["committerd", "heartbeat", "--timeout", "60"]


def test_a_policy_lets_in_prometheus_and_out_what_is_named_and_names(full: Rendered, chart: Chart) -> None:
    spec = full.one("NetworkPolicy", "lake")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = spec["ingress"]
    assert ingress["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert ingress["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {53, 443, 9093}
    open_ways = chart.render(merged(MINIMAL, {"networkPolicy": {"enabled": True}})).one("NetworkPolicy")["spec"]
    assert open_ways["policyTypes"] == ["Ingress"]
    assert "egress" not in open_ways
    assert "from" not in open_ways["ingress"][0]


def test_prometheus_finds_the_pods_and_names_the_dataset(full: Rendered) -> None:
    monitor, service = full.one("ServiceMonitor"), full.one("Service")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    # Prometheus writes every character of an annotation's name that a label's may not have as an underscore.
    assert endpoint["honorLabels"] is True  # the metrics of a dataset name it themselves
    assert endpoint["relabelings"][0] == {
        "sourceLabels": ["__meta_kubernetes_pod_annotation_committerd_dataset"],
        "targetLabel": "dataset",
    }
    for one in full.of("Deployment"):
        assert "committerd/dataset" in one["spec"]["template"]["metadata"]["annotations"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("15s", "10s")


ALERTS = """
groups:
  - name: committerd
    rules:
      - record: committerd:lag:max
        expr: max(committerd_queue_lag_records)
      - alert: CommitterdStalled
        expr: committerd_queue_lag_records > 0
        for: 5m
        labels: {severity: critical, team: none}
        annotations:
          summary: '{{ $labels.dataset }} stands still'
          runbook_url: https://example.com/docs/runbooks/stalled.md
      - alert: CommitterdThrottled
        expr: "1"
"""


@pytest.fixture
def complete(chart: Chart, tmp_path: Path) -> Chart:
    """The chart with alerts and a dashboard that are known here."""
    copy = tmp_path / "committerd"
    shutil.copytree(chart.folder, copy)
    (copy / "files").mkdir(exist_ok=True)
    (copy / "files" / "alerts.yml").write_text(ALERTS)
    (copy / "files" / "dashboard.json").write_text('{"title": "{{dataset}}"}\n')
    return Chart(chart.helm, copy)


def test_alerts_are_those_of_the_file_with_runbooks_where_the_operator_keeps_them(complete: Chart) -> None:
    wishes = {
        "enabled": True,
        "ruleLabels": {"team": "lake"},
        "disabled": ["CommitterdThrottled"],
        "runbookBaseUrl": "https://wiki.example.com/r",
    }
    listed, group = complete.render(merged(MINIMAL, {"prometheusRule": wishes})).one("PrometheusRule")["spec"]["groups"]
    assert listed["name"] == "committerd-datasets"
    recorded, stalled = group["rules"]
    assert recorded == {"record": "committerd:lag:max", "expr": "max(committerd_queue_lag_records)"}
    assert stalled["labels"] == {"severity": "critical", "team": "lake"}
    assert stalled["annotations"] == {
        "summary": "{{ $labels.dataset }} stands still",
        "runbook_url": "https://wiki.example.com/r/stalled.md",
    }
    untouched = complete.render(merged(MINIMAL, {"prometheusRule": {"enabled": True}})).one("PrometheusRule")
    (made,), (given,) = untouched["spec"]["groups"][1:], yaml.safe_load(ALERTS)["groups"]
    assert (made["name"], made["rules"][0]) == (given["name"], given["rules"][0])
    # An expression is narrowed to the release's datasets; all else stays.
    assert {**made["rules"][1], "expr": ""} == {**given["rules"][1], "expr": ""}
    assert given["rules"][1]["expr"] in made["rules"][1]["expr"]


def test_the_dashboard_is_found_by_grafanas_sidecar_and_untouched(complete: Chart) -> None:
    wishes = {"dashboard": {"enabled": True, "annotations": {"grafana_folder": "Lake"}}}
    made = complete.render(merged(MINIMAL, wishes)).one("ConfigMap")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "Lake"}
    assert made["data"].keys() == {"committerd.json", "committerd-fleet.json"}
    assert made["data"]["committerd.json"] == '{"title": "{{dataset}}"}'


def test_objects_of_the_operator_come_along_with_templates_filled_in(full: Rendered) -> None:
    assert full.one("ConfigMap", "lake-extra")["data"] == {"release": "rel"}
    assert full.one("ConfigMap", "as-text")


def test_a_dataset_more_leaves_the_others_as_they_are(chart: Chart) -> None:
    more = {"datasets": [{"name": "more", "uri": "s3://lake/more.lance"}, *MINIMAL["datasets"]]}
    assert chart.render(merged(MINIMAL, more)).one("Deployment", "rel-committerd-events") == deployment(chart)
    assert deployment(chart, with_dataset(replicas=1))["spec"]["replicas"] == 1


def test_maintenance_runs_for_each_dataset_that_wants_it(chart: Chart) -> None:
    given = FOLDER / "ci" / "maintenance-values.yaml"
    rendered = chart.render(given)
    deployment = rendered.one("Deployment", "rel-committerd-events-maintenance")
    assert {one["metadata"]["name"] for one in rendered.of("Deployment")} == {
        "rel-committerd-events",
        "rel-committerd-events-maintenance",
        "rel-committerd-clicks",
    }
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["committerd", "maintain"]
    assert container["image"] == "registry.example.com/committerd-maintain:0.2.0"
    assert environment(pod)["COMMITTERD_MAINTAIN__HOURS"] == "20-6"
    assert "COMMITTERD_MAINTAIN__HOURS" not in environment(
        rendered.one("Deployment", "rel-committerd-events")["spec"]["template"]
    )
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    budget = rendered.one("PodDisruptionBudget", "rel-committerd-events-maintenance")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    service = rendered.one("Service", "rel-committerd-maintenance")
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (job,) = chart.render(merged(MINIMAL, {"maintenance": {"enabled": True, "kind": "CronJob"}})).of("CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["committerd", "maintain", "--once"]
    assert chart.render(MINIMAL).of("CronJob") == []


def test_each_pipeline_has_a_deployment_with_its_own_settings(chart: Chart) -> None:
    rendered = chart.render(FOLDER / "ci" / "ingest-values.yaml")
    orders = rendered.one("Deployment", "rel-committerd-orders-ingest")
    clicks = rendered.one("Deployment", "rel-committerd-clicks-ingest")
    assert (orders["spec"]["replicas"], clicks["spec"]["replicas"]) == (3, 1)
    pod = orders["spec"]["template"]
    assert orders["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert orders["spec"]["selector"] != clicks["spec"]["selector"]
    assert pod["metadata"]["annotations"]["committerd/dataset"] == "events"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["committerd", "ingest"]
    assert container["image"].startswith("committerd-maintain:")
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["resources"] == {"limits": {"memory": "2Gi"}}
    given = {name: value for name, value in environment(pod).items() if "_INGEST__" in name or "_DATASET__" in name}
    assert given == {
        "COMMITTERD_DATASET__NAME": "events",
        "COMMITTERD_DATASET__URI": "s3://lake/events.lance",
        "COMMITTERD_INGEST__PIPELINE": "orders",
        "COMMITTERD_INGEST__TOPICS": "orders,returns",
        "COMMITTERD_INGEST__OFFSET_COLUMN": "offset",
        "COMMITTERD_INGEST__FLUSH_SECONDS": "0.5",
    }
    of_group = environment(clicks["spec"]["template"])
    assert (of_group["COMMITTERD_DATASET__NAME"], of_group["COMMITTERD_INGEST__TOPIC_PATTERN"]) == (
        "clicks",
        "clicks-.*",
    )
    budget = rendered.one("PodDisruptionBudget", "rel-committerd-orders-ingest")
    assert budget["spec"]["selector"] == orders["spec"]["selector"]
    service = rendered.one("Service", "rel-committerd-ingest")
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    for wrong, said in (
        ({"dataset": "event", "settings": {"ingest": {"topics": ["a"]}}}, "there is no dataset"),
        ({"dataset": "events"}, "settings.ingest.topics or settings.ingest.topic_pattern is missing"),
        ({"dataset": "events", "settings": {"ingest": {"routes": {"events": {}}}}}, "routes needs `group` in place of"),
    ):
        with pytest.raises(HelmError, match=said):
            chart.render(merged(MINIMAL, {"ingest": {"pipelines": {"orders": wrong}}}))
    files = {"dataset": "events", "settings": {"ingest": {"source": "files", "folder": "s3://landing/orders"}}}
    rendered = chart.render(merged(MINIMAL, {"ingest": {"pipelines": {"files": files}}}))
    pod = rendered.one("Deployment", "rel-committerd-files-ingest")["spec"]["template"]
    assert environment(pod)["COMMITTERD_INGEST__FOLDER"] == "s3://landing/orders"


def test_a_pipeline_with_routes_has_the_settings_file_of_its_group(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load((FOLDER / "ci" / "ingest-values.yaml").read_text())
    rendered = chart.render(values)
    pod = rendered.one("Deployment", "rel-committerd-web-ingest")["spec"]["template"]
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "datasets"]
    (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "datasets"]
    given = environment(pod)
    assert given["COMMITTERD_DAEMON__DATASETS_FILE"] == f"{mount['mountPath']}/datasets.toml"
    # committerd reads them as the Pod has them.
    file = tmp_path / "datasets.toml"
    file.write_text(rendered.one("ConfigMap", volume["configMap"]["name"])["data"]["datasets.toml"])
    for name, value in (given | {"COMMITTERD_DAEMON__DATASETS_FILE": str(file)}).items():
        if name.startswith("COMMITTERD_"):
            monkeypatch.setenv(name, value)
    clicks, views = (one.pipeline for one in members() if isinstance(one.pipeline, Pipeline))
    assert (clicks.name, clicks.flush.bytes, views.name, views.topics) == ("web-clicks", 2**25, "web-views", ("web",))
    found = views.filter_of("web")
    assert found is not None
    assert sorted(found.mine) == ["scroll, page", "view"]
    routes: dict[str, Any] = {"ingest": {"routes": {"events": {}}}}
    for wrong, said in (
        ({"group": "small", "settings": routes}, 'there is no dataset "events" in group small: clicks, views'),
        ({"group": "large", "settings": routes}, 'no dataset of `datasets` is in group "large"'),
        ({"group": "small"}, "settings.ingest.routes is missing"),
        ({"group": "small", "dataset": "clicks", "settings": routes}, "dataset and group exclude each other"),
    ):
        with pytest.raises(HelmError, match=said):
            chart.render(merged(values, {"ingest": {"pipelines": {"web": None, "other": wrong}}}))


def test_maintenance_by_schedule_begins_at_another_minute_for_each_dataset(chart: Chart) -> None:
    jobs = {job["metadata"]["annotations"]["committerd/dataset"]: job for job in chart.render(MAP).of("CronJob")}
    schedules = {name: job["spec"]["schedule"] for name, job in jobs.items()}
    assert schedules.pop("events.tree.audit..may") == "5 4 * * *"
    assert len(set(schedules.values())) == 3
    for schedule in schedules.values():
        assert re.fullmatch(r"[0-5]?[0-9] \* \* \* \*", schedule)

    def resources(name: str) -> Any:
        (container,) = jobs[name]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        return container["resources"]

    assert resources("events.tree.audit..may") == {
        "requests": {"cpu": "100m", "memory": "1Gi"},
        "limits": {"memory": "2Gi"},
    }
    assert resources("events")["limits"] == {"memory": "8Gi"}
    fixed = {"maintenance": {"enabled": True, "kind": "CronJob", "schedule": "0 3 * * *"}}
    assert chart.render(merged(MINIMAL, fixed)).one("CronJob")["spec"]["schedule"] == "0 3 * * *"
    many = {"datasets": {f"table-{number:03}": {"uri": f"s3://lake/{number}.lance"} for number in range(300)}}
    spread = chart.render(merged(MINIMAL, {"maintenance": {"enabled": True, "kind": "CronJob"}}, many)).of("CronJob")
    at_once = Counter(job["spec"]["schedule"] for job in spread)
    assert max(at_once.values()) <= 15
