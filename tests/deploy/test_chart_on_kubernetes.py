"""The chart installed into a real Kubernetes API, in namespaces that enforce the Pod Security Standard `restricted`.

Nothing is scheduled there, so what a controller would do is done here: each template's Pod is created, and must be
admitted without a warning.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import CASES, MINIMAL, Chart, HelmError, Manifest, merged
from tests.deploy.parts_kubernetes import BUILDS, Answer, KubeApiServer

pytestmark = BUILDS

PLURALS = {
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "CronJob": "apis/batch/v1/namespaces/{}/cronjobs",
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PrometheusRule": "apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
    "Service": "api/v1/namespaces/{}/services",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "ServiceMonitor": "apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
}


class Namespace:
    """One that admits only Pods that meet `restricted`."""

    def __init__(self, cluster: KubeApiServer) -> None:
        self.name = f"t-{uuid.uuid4().hex[:10]}"
        self._cluster = cluster
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        made = cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.name, "labels": labels}})
        assert made.status == 201, made.message
        # No controller runs that would make it.
        self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})

    def ask(self, method: str, kind: str, *, name: str = "", query: str = "", body: object = None) -> Answer:
        path = PLURALS[kind].format(self.name)
        return self._cluster.ask(method, f"/{path}{'/' if name else ''}{name}{query}", body)

    def patch(self, path: str, body: object) -> None:
        changed = self._cluster.ask("PATCH", path, body, content="application/merge-patch+json")
        assert changed.status == 200, changed.message

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Answer:
        """Create it; a field that Kubernetes doesn't know is an error."""
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        body = copy.deepcopy(manifest)
        body["metadata"]["namespace"] = self.name
        return self.ask("POST", manifest["kind"], query=query, body=body)

    def install(self, chart: Chart, values: dict[str, Any], command: str = "install") -> str:
        """`helm install` without hooks, as there is nothing that would run them, and without waiting; what it says."""
        return chart.run(
            command, "committerd", chart.folder, "--namespace", self.name, "--no-hooks",
            "--kubeconfig", self._cluster.kubeconfig(), values=values,
        )  # fmt: skip


@pytest.fixture
def namespace(cluster: KubeApiServer) -> Iterator[Namespace]:
    made = Namespace(cluster)
    yield made
    cluster.ask("DELETE", f"/api/v1/namespaces/{made.name}")


def definition(kind: str, plural: str) -> Manifest:
    """Enough of a kind of the Prometheus operator that the API server takes its objects."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture(scope="module")
def _operator(cluster: KubeApiServer) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind, plural in (("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules")):
        made = cluster.ask("POST", path, definition(kind, plural))
        assert made.status == 201, made.message


def pod_of(where: str, template: Manifest) -> Manifest:
    """What the controller of a Deployment or Job would create."""
    name = where.lower().replace(" ", "-")[:60]
    metadata = {**template.get("metadata", {}), "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.mark.usefixtures("_operator")
@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_every_object_and_every_pod_is_admitted_without_a_warning(
    chart: Chart, namespace: Namespace, values: Path
) -> None:
    rendered = chart.render(values, release="committerd")
    for one in [one for one in rendered.objects if one["kind"] != "Pod"]:
        made = namespace.create(one)
        assert (made.status, made.warnings) == (201, []), f"{one['kind']}: {made.message} {made.warnings}"
    accounts = {pod["spec"]["serviceAccountName"] for _, pod in rendered.pods()}
    for account in accounts:  # those that values name as existing
        namespace.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    for where, template in rendered.pods():
        admitted = namespace.create(pod_of(where, template))
        assert (admitted.status, admitted.warnings) == (201, []), f"{where}: {admitted.message} {admitted.warnings}"


def test_the_namespace_would_refuse_a_pod_that_may_more(chart: Chart, namespace: Namespace) -> None:
    wishes = {"securityContext": {"allowPrivilegeEscalation": True}, "serviceAccount": {"create": False}}
    ((where, template),) = [
        found for found in chart.render(merged(MINIMAL, wishes)).pods() if found[0].startswith("Deployment")
    ]
    refused = namespace.create(pod_of(where, template), dry_run=True)
    assert refused.status == 403
    assert 'violates PodSecurity "restricted' in refused.message


def test_helm_installs_upgrades_and_removes(chart: Chart, namespace: Namespace) -> None:
    said = namespace.install(chart, dict(MINIMAL))
    assert "logs --follow deployment/committerd-events" in said
    assert f"helm test --namespace {namespace.name} committerd" in said
    name = "committerd-events"
    first = namespace.ask("GET", "Deployment", name=name)
    assert first.status == 200, first.message
    assert first.body["spec"]["replicas"] == 2
    more = merged(
        MINIMAL, {"replicas": 3, "datasets": [*MINIMAL["datasets"], {"name": "more", "uri": "s3://lake/more.lance"}]}
    )
    namespace.install(chart, more, "upgrade")
    second = namespace.ask("GET", "Deployment", name=name)
    assert second.body["spec"]["replicas"] == 3
    assert second.body["spec"]["template"] == first.body["spec"]["template"]  # so no Pod is restarted
    assert namespace.ask("GET", "Deployment", name="committerd-more").status == 200
    namespace.install(chart, dict(MINIMAL), "upgrade")
    gone = namespace.ask("GET", "Deployment", name="committerd-more")
    # Deleted in the foreground or background: controllers, which don't run here, would end it.
    assert gone.status == 404 or "deletionTimestamp" in gone.body["metadata"]


def deployed(namespace: Namespace) -> dict[str, Manifest]:
    """The Deployments as the API server has them, by dataset."""
    return {
        one["metadata"]["annotations"]["committerd/dataset"]: one["spec"]
        for one in namespace.ask("GET", "Deployment").body["items"]
    }


def images(namespace: Namespace) -> dict[str, str]:
    return {name: spec["template"]["spec"]["containers"][0]["image"] for name, spec in deployed(namespace).items()}


def test_a_rollout_in_steps_changes_the_deployments_of_each_step_and_ends_without_a_change(
    chart: Chart, namespace: Namespace
) -> None:
    names = [f"table-{number:02}" for number in range(20)]
    datasets: Manifest = {"datasets": {name: {"uri": f"s3://lake/{name}.lance"} for name in names}}
    values = merged(MINIMAL, datasets)
    newer = {"image": {"tag": "0.9.0"}}
    namespace.install(chart, values)
    before = deployed(namespace)
    said = namespace.install(chart, merged(values, {"canary": {**newer, "datasets": ["table-03"]}}), "upgrade")
    assert "1 of 20 datasets are canaries: table-03" in said
    during = deployed(namespace)
    assert {name for name in names if during[name] != before[name]} == {"table-03"}
    assert images(namespace)["table-03"] == "committerd:0.9.0"
    namespace.install(chart, values, "upgrade")
    assert deployed(namespace) == before  # given up
    namespace.install(chart, merged(values, {"canary": {**newer, "percent": 50}}), "upgrade")
    half = list(images(namespace).values())
    assert 0 < half.count("committerd:0.9.0") < 20
    namespace.install(chart, merged(values, {"canary": {**newer, "percent": 100}}), "upgrade")
    whole = deployed(namespace)
    namespace.install(chart, merged(values, newer), "upgrade")
    assert deployed(namespace) == whole
    assert set(images(namespace).values()) == {"committerd:0.9.0"}


def test_an_upgrade_leaves_a_deployment_paused_whose_rollout_an_operator_has_paused(
    chart: Chart, namespace: Namespace
) -> None:
    """So that any change, not only those of `canary`, reaches the datasets one group after the other."""
    namespace.install(chart, dict(MINIMAL))
    url = f"/apis/apps/v1/namespaces/{namespace.name}/deployments/committerd-events"
    namespace.patch(url, {"spec": {"paused": True}})  # kubectl rollout pause
    namespace.install(chart, merged(MINIMAL, {"podLabels": {"tier": "gold"}}), "upgrade")
    made = deployed(namespace)["events"]
    assert made["paused"] is True
    assert made["template"]["metadata"]["labels"]["tier"] == "gold"


def test_helm_tells_what_is_wrong_before_anything_is_made(chart: Chart, namespace: Namespace) -> None:
    with pytest.raises(HelmError, match="the grace must be at least 5 seconds longer"):
        namespace.install(chart, merged(MINIMAL, {"terminationGracePeriodSeconds": 5}))
    assert namespace.ask("GET", "Deployment").body["items"] == []


def test_a_release_without_datasets_says_how_to_name_one(chart: Chart, namespace: Namespace) -> None:
    assert "Nothing runs yet: `datasets` is empty" in namespace.install(chart, {})
    assert namespace.ask("GET", "Deployment").body["items"] == []
