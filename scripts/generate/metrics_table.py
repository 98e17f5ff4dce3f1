"""`docs/metrics.md`, from `committerd.telemetry`."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from committerd.telemetry import DATASET, OTHER, Description, IngestMetrics, MaintenanceMetrics, Metrics

FILE, SOURCE = "docs/metrics.md", "committerd/telemetry.py"

INTRODUCTION = f"""# Metrics

Served on `/metrics`, in Prometheus' text format or OpenMetrics. Names and labels are an API: they
change only with a note in the changelog. Labels take the values listed below, or `{OTHER}`; none
of them comes from a record, except for `producer` of `committerd_waiting_records`. The label
`{DATASET}` names the dataset by its topics (`dataset.queue`, default: `dataset.name`); metrics
without it belong to the process. A series begins with its first event, except where the first must
be seen as an increase. `process_*` (memory, CPU, file descriptors) stand beside them on Linux.
`committerd maintain` serves the metrics that begin with `committerd_maintenance_`, `committerd ingest` those
that begin with `committerd_ingest_`, and a committer the others.

This page is generated from `committerd/telemetry.py` (`make docs`).
"""


def page(metrics: Sequence[Description]) -> str:
    """Return the page: a table of the metrics, and one of their labels."""
    rows = ["| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    labels: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for metric in metrics:
        names = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {names} | {metric.meaning} |")
        if metric.name != "committerd_build_info":  # its values change with each release
            for label, values in metric.labels.items():
                if label == DATASET:
                    continue
                labels.setdefault((label, tuple(values)), []).append(metric.name)
    rows += ["", "## Labels", "", "| label | of | values |", "|---|---|---|"]
    for (label, values), users in labels.items():
        of = ", ".join(f"`{name}`" for name in dict.fromkeys(users))
        rows.append(f"| `{label}` | {of} | {', '.join(f'`{value}`' for value in values)} |")
    return INTRODUCTION + "\n" + "\n".join(rows) + "\n"


def described() -> Sequence[Description]:
    """Return the descriptions of all metrics: of a committer, of its process, of maintenance, of ingest."""
    committer = Metrics(CollectorRegistry()).of("events")
    maintenance = MaintenanceMetrics(CollectorRegistry()).of("events")
    ingest = IngestMetrics(CollectorRegistry()).of("events")
    return (*committer.descriptions, *committer.process.descriptions, *maintenance.descriptions, *ingest.descriptions)


def text() -> str:
    """Return the page of all metrics."""
    return page(described())
