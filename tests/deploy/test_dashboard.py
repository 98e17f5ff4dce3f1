"""The dashboard as a document: that it is generated, whole, and asks for what there is. Its queries run elsewhere."""

from __future__ import annotations

import json
import re

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from scripts.generate import dashboard
from tests.deploy import alerts
from tests.deploy.promql import known_metrics, metrics


def parsed(expr: str) -> str:
    """A query without Grafana's variables, for a parser that does not know them."""
    return re.sub(r"\$__rate_interval", "1m", expr)


def test_it_is_what_the_panels_say_and_the_same_each_time() -> None:
    assert dashboard.text() == dashboard.text()
    assert alerts.DASHBOARD.read_text(encoding="utf-8") == dashboard.text()


def test_it_is_a_dashboard_as_grafana_describes_one() -> None:
    """Read by the types of Grafana's own schema, and written again: nothing is unknown to them, nothing is missing."""
    plugins.register_default_plugins()
    whole = alerts.dashboard()
    again = json.loads(json.dumps(models.Dashboard.from_json(whole), cls=JSONEncoder))
    assert again == whole


def test_each_query_names_metrics_that_there_are() -> None:
    known = known_metrics()
    for title, expr in alerts.queries():
        assert metrics(parsed(expr)) <= known, title


def test_each_metric_is_on_it() -> None:
    """Of a histogram its quantiles or its mean are enough."""
    shown = {name for _, expr in alerts.queries() for name in metrics(parsed(expr))}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    wanted = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known_metrics()}
    assert wanted - families == set()


def test_each_query_is_of_the_chosen_datasets_and_its_series_are_named_after_them() -> None:
    selector = re.compile(r"\{([^{}]*)\}")
    for title, expr in alerts.queries():
        selectors = selector.findall(expr)
        assert selectors, title
        for found in selectors:
            assert found.startswith('namespace=~"$namespace",dataset=~"$dataset"'), title
    for panel in alerts.panels():
        for target in panel["targets"]:
            assert target["legendFormat"].startswith("{{dataset}}"), panel["title"]


def test_its_variables_work_with_and_without_the_labels() -> None:
    """All is `.*`, which matches a series that lacks the label as well."""
    source, *labels = alerts.dashboard()["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert [one["name"] for one in labels] == ["namespace", "dataset"]
    for one in labels:
        assert one["includeAll"]
        assert one["allValue"] == ".*"
        assert one["current"]["value"] == "$__all"
        assert one["query"].startswith("label_values(committerd_active")


def test_every_panel_asks_the_chosen_data_source_and_has_its_own_id_and_place() -> None:
    whole = alerts.dashboard()
    assert whole["uid"] == "committerd"
    assert "id" not in whole  # Grafana's own
    assert len({panel["id"] for panel in whole["panels"]}) == len(whole["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in whole["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in alerts.panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]
