"""The dashboards as documents: they are generated, whole, and ask for what there is. Their queries run elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from prometheus_client import CollectorRegistry

from committerd.telemetry import Metrics
from scripts.generate import dashboard, fleet_dashboard
from scripts.generate.dashboard_panels import CHOSEN
from tests.deploy import alerts
from tests.deploy.promql import known_metrics, metrics


def parsed(expr: str) -> str:
    """A query without Grafana's variables, for a parser that does not know them."""
    return re.sub(r"\$__rate_interval", "1m", expr)


BOTH = pytest.mark.parametrize("file", [alerts.DASHBOARD, alerts.FLEET], ids=lambda file: file.stem)


def test_they_are_what_the_panels_say_and_the_same_each_time() -> None:
    for file, made in ((alerts.DASHBOARD, dashboard), (alerts.FLEET, fleet_dashboard)):
        assert made.text() == made.text()
        assert file.read_text(encoding="utf-8") == made.text()


@BOTH
def test_it_is_a_dashboard_as_grafana_describes_one(file: Path) -> None:
    """Read by the types of Grafana's own schema, and written again: nothing is unknown to them, nothing is missing."""
    plugins.register_default_plugins()
    whole = alerts.dashboard(file)
    again = json.loads(json.dumps(models.Dashboard.from_json(whole), cls=JSONEncoder))
    assert again == whole


@BOTH
def test_each_query_names_metrics_that_there_are(file: Path) -> None:
    known = known_metrics() | {"ALERTS"}
    for title, expr in alerts.queries(file):
        assert metrics(parsed(expr)) <= known, title


def test_each_metric_is_on_it() -> None:
    """Of a histogram its quantiles or its mean are enough."""
    shown = {name for _, expr in alerts.queries() for name in metrics(parsed(expr))}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    wanted = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known_metrics()}
    assert wanted - families == set()


def test_each_query_is_of_the_chosen_datasets_and_its_series_are_named_after_them() -> None:
    """Those of processes are of the processes that serve these datasets, and are named after the process."""
    selector = re.compile(r"(\w*)\{([^{}]*)\}")
    of_process = {metric.name for metric in Metrics(CollectorRegistry()).process.descriptions}
    for panel in alerts.panels():
        for target in panel["targets"]:
            found = selector.findall(target["expr"])
            assert found, panel["title"]
            chosen = [name for name, matchers in found if matchers.startswith(CHOSEN)]
            others = {name for name, matchers in found if not matchers.startswith(CHOSEN)}
            assert chosen, panel["title"]
            assert all(name in of_process or name.startswith("process_") for name in others), panel["title"]
            assert others or target["legendFormat"].startswith("{{dataset}}"), panel["title"]


def test_it_shows_one_dataset_until_somebody_chooses_more() -> None:
    """So its cost does not grow with the datasets. All namespaces is `.*`, which matches series without that label."""
    source, namespace, dataset = alerts.dashboard()["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert (namespace["name"], dataset["name"]) == ("namespace", "dataset")
    assert (namespace["includeAll"], namespace["allValue"], namespace["current"]["value"]) == (True, ".*", "$__all")
    assert dataset["multi"]
    assert not dataset["includeAll"]
    assert not dataset.get("current", {}).get("value")
    for one in (namespace, dataset):
        assert one["query"].startswith("label_values(committerd_active")


def test_the_fleets_queries_are_few_and_each_gives_few_series() -> None:
    """The queries of its variable and its marks among them."""
    _, namespace = alerts.dashboard(alerts.FLEET)["templating"]["list"]
    assert namespace["name"] == "namespace"
    found = [target for panel in alerts.panels(alerts.FLEET) for target in panel["targets"]]
    assert len(found) + 2 <= 40
    page = (alerts.ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert f"with {len(found)} queries" in " ".join(page.split())
    for panel in alerts.panels(alerts.FLEET):
        assert not panel.get("repeat")
        for target in panel["targets"]:
            first = re.match(r"(topk|bottomk)\(10,|(count|max)\(|sum by \(outcome\)|sum\(", target["expr"])
            assert first, target["expr"]
            assert target.get("instant") or panel["type"] == "timeseries", panel["title"]


@BOTH
def test_every_panel_asks_the_chosen_data_source_and_has_its_own_id_and_place(file: Path) -> None:
    whole = alerts.dashboard(file)
    assert whole["uid"] == whole["title"].replace(" ", "-")
    assert "id" not in whole  # Grafana's own
    assert len({panel["id"] for panel in whole["panels"]}) == len(whole["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in whole["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in alerts.panels(file):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]
