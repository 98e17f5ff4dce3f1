"""Grafana's dashboard, from `dashboard_panels`.

Helm reads only files below the chart's folder, so dashboard and alerts lie there. Compose mounts the same files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from scripts.generate.dashboard_panels import ROWS, Panel, Query, Row

FILE, SOURCE = "helm/committerd/files/dashboard.json", "scripts/generate/dashboard_panels.py"

_DATA_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_STAT_WIDTH, _STAT_HEIGHT = 3, 4
_LINES_WIDTH, _LINES_HEIGHT = 8, 8

_PanelT = TypeVar("_PanelT", stat.Panel, timeseries.Panel, bargauge.Panel)


def text() -> str:
    """Return the dashboard as JSON; the same panels give the same text."""
    whole = document(
        "committerd",
        uid="committerd",
        description="Queued commits for Lance tables: what a dataset commits, refuses and waits for.",
    )
    dataset = _chosen("dataset", 'label_values(committerd_active{namespace=~"$namespace"}, dataset)')
    whole = whole.with_variable(dataset)
    return written(whole, ROWS, alerts_of='dataset=~"$dataset"')


def document(title: str, *, uid: str, description: str) -> dashboard.Dashboard:
    """Return a dashboard without panels, with variables for the data source and the namespace."""
    namespace = _chosen("namespace", "label_values(committerd_active, namespace)")
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["committerd", "lance"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        # All is `.*`, which also matches series without the label.
        .with_variable(
            namespace.include_all(True)
            .all_value(".*")
            .current(models.VariableOption(selected=True, text="All", value="$__all"))
        )
    )


def written(whole: dashboard.Dashboard, rows: Sequence[Row], *, alerts_of: str) -> str:
    """Return the dashboard with these rows as JSON. `alerts_of`: whose alerts are marked, as matchers of labels."""
    whole = whole.annotation(
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(_DATA_SOURCE)
        .enable(True)
        .icon_color("red")
        .expr(f'ALERTS{{alertname=~"Committerd.+",alertstate="firing",{alerts_of}}}')
    )
    numbers = itertools.count(1)
    for row in rows:
        whole = whole.with_row(dashboard.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            whole = whole.with_panel(_KINDS[panel.kind](panel, next(numbers)))
    return json.dumps(whole.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _chosen(name: str, query: str) -> dashboard.QueryVariable:
    """Return a matcher for a label's value: the first that there is, until somebody chooses others."""
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(_DATA_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
    )


def _target(query: Query, number: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    return (made.instant() if query.instant else made.range()).ref_id(chr(ord("A") + number))


def _filled(made: _PanelT, panel: Panel) -> _PanelT:
    if panel.description:
        made = made.description(panel.description)
    for index, query in enumerate(panel.queries or [Query(expr=panel.expr)]):
        made = made.with_target(_target(query, index))
    return made


def _stat(panel: Panel, number: int) -> stat.Panel:
    made = (
        stat.Panel()
        .id(number)
        .title(panel.title)
        .datasource(_DATA_SOURCE)
        .unit(panel.unit)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(kinds.BigValueGraphMode.AREA)
        .thresholds(_thresholds(panel))
        .span(_STAT_WIDTH)
        .height(_STAT_HEIGHT)
    )
    return _filled(made, panel)


def _lines(panel: Panel, number: int) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .id(number)
        .title(panel.title)
        .datasource(_DATA_SOURCE)
        .unit(panel.unit)
        .min(0)
        .line_width(1)
        .fill_opacity(10)
        .show_points(kinds.VisibilityMode.NEVER)
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .display_mode(kinds.LegendDisplayMode.LIST)
            .placement(kinds.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .span(_LINES_WIDTH)
        .height(_LINES_HEIGHT)
    )
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    return _filled(made, panel)


def _bars(panel: Panel, number: int) -> bargauge.Panel:
    made = (
        bargauge.Panel()
        .id(number)
        .title(panel.title)
        .datasource(_DATA_SOURCE)
        .unit(panel.unit)
        .min(0)
        .no_value("none")
        .orientation(kinds.VizOrientation.HORIZONTAL)
        .display_mode(kinds.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(panel))
        .span(_LINES_WIDTH)
        .height(_LINES_HEIGHT)
    )
    return _filled(made, panel)


_KINDS = {"stat": _stat, "lines": _lines, "bars": _bars}


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green" if panel.red_below is None else "red")]
    if panel.red_below is not None:
        steps.append(models.Threshold(value=panel.red_below, color="green"))
    if panel.red_from is not None:
        steps.append(models.Threshold(value=panel.red_from, color="red"))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
