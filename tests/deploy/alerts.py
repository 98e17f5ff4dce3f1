"""The alerts and the dashboard as files, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "helm" / "committerd" / "files" / "alerts.yml"
DATASETS = ROOT / "deploy" / "prometheus" / "datasets.yml"
ALERTS_TESTS = [ROOT / "deploy" / "prometheus" / name for name in ("alerts_test.yml", "alerts_maintenance_test.yml")]
DASHBOARD = ROOT / "helm" / "committerd" / "files" / "dashboard.json"
FLEET = ROOT / "helm" / "committerd" / "files" / "fleet.json"
RUNBOOKS = ROOT / "docs" / "runbooks"

Alert = dict[str, Any]


def alerts() -> list[Alert]:
    """All alerts, of all groups."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def listed() -> list[dict[str, Any]]:
    """The rules that say which datasets must have a committer."""
    groups = yaml.safe_load(DATASETS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def pages() -> dict[str, str]:
    """The runbook pages by the name of their alert."""
    return {page.stem: page.read_text(encoding="utf-8") for page in RUNBOOKS.glob("Committerd*.md")}


def dashboard(file: Path = DASHBOARD) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def panels(file: Path = DASHBOARD) -> list[dict[str, Any]]:
    """All panels that show something."""
    return [panel for panel in dashboard(file)["panels"] if panel["type"] != "row"]


def queries(file: Path = DASHBOARD) -> Iterator[tuple[str, str]]:
    """Each query of a dashboard with its panel's title."""
    for panel in panels(file):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
