"""Grafana's dashboard for a fleet, from `fleet_panels`: its number of queries does not grow with the datasets."""

from __future__ import annotations

from scripts.generate.dashboard import document, written
from scripts.generate.fleet_panels import ROWS

FILE, SOURCE = "helm/committerd/files/fleet.json", "scripts/generate/fleet_panels.py"


def text() -> str:
    """Return the dashboard as JSON; the same panels give the same text."""
    whole = document(
        "committerd fleet",
        uid="committerd-fleet",
        description="Queued commits for many Lance tables: the worst of them.",
    )
    return written(whole, ROWS, alerts_of='namespace=~"$namespace"')
