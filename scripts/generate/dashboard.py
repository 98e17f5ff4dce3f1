"""Grafana's dashboard, from `dashboard_panels`.

Helm reads only files below the chart's folder, so dashboard and alerts lie there. Compose mounts the same files.
"""

from __future__ import annotations

import itertools
import json
from typing import TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from scripts.generate.dashboard_panels import ROWS, Panel, Query

FILE, SOURCE = "helm/committerd/files/dashboard.json", "scripts/generate/dashboard_panels.py"

_DATA_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_STAT_WIDTH, _STAT_HEIGHT = 3, 4
_LINES_WIDTH, _LINES_HEIGHT = 8, 8

_PanelT = TypeVar("_PanelT", stat.Panel, timeseries.Panel)


def text() -> str:
    """Return the dashboard as JSON; the same panels give the same text."""
    made = (
        dashboard.Dashboard("committerd")
        .uid("committerd")
        .description("Queued commits for Lance tables: what each dataset commits, refuses and waits for.")
        .tags(["committerd", "lance"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_chosen("namespace", "label_values(committerd_active, namespace)"))
        .with_variable(_chosen("dataset", 'label_values(committerd_active{namespace=~"$namespace"}, dataset)'))
        .annotation(
            dashboard.AnnotationQuery()
            .name("Alerts")
            .datasource(_DATA_SOURCE)
            .enable(True)
            .icon_color("red")
            .expr('ALERTS{alertname=~"Committerd.+",alertstate="firing",dataset=~"$dataset"}')
        )
    )
    numbers = itertools.count(1)
    for row in ROWS:
        made = made.with_row(dashboard.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            made = made.with_panel(_stat(panel, next(numbers)) if panel.stat else _lines(panel, next(numbers)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _chosen(name: str, query: str) -> dashboard.QueryVariable:
    """Return a matcher for a label's value. All is `.*`, which also matches series without the label."""
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(_DATA_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _target(query: Query, number: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).range().legend_format(query.legend)
    return made.ref_id(chr(ord("A") + number))


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


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green" if panel.red_below is None else "red")]
    if panel.red_below is not None:
        steps.append(models.Threshold(value=panel.red_below, color="green"))
    if panel.red_from is not None:
        steps.append(models.Threshold(value=panel.red_from, color="red"))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
