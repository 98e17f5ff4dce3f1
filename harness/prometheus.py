"""Runs Prometheus as a child process, and promtool. Both come from the system's packages.

with Prometheus(targets=[Target(daemon.url(), {"dataset": "events"})], rules=ALERTS) as prometheus:
    prometheus.query("committerd_active")
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness import PartMissingError
from harness.server import Server

INSTALL = "install Prometheus (Debian, Ubuntu: apt-get install prometheus; macOS: brew install prometheus)"
_SECONDS_MAX = 30


@dataclass(frozen=True, slots=True)
class Target:
    """A scrape target: its URL, and labels for the series that lack them."""

    url: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """A time series: labels, and (Unix seconds, value) in order of time."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]


class Prometheus(Server):
    """Scrapes and evaluates rules every second, or less often."""

    name = "prometheus"

    def __init__(self, *, targets: Sequence[Target], rules: str = "", seconds: int = 1) -> None:
        """`rules`: the text of a rules file. `seconds`: between two scrapes, and two evaluations."""
        super().__init__()
        self._data = self.folder / "data"
        (self.folder / "rules.yml").write_text(rules or "groups: []\n", encoding="utf-8")
        found = [{"targets": [urlsplit(one.url).netloc], "labels": dict(one.labels)} for one in targets]
        configuration = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{seconds}s"),
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "committerd", "honor_labels": True, "static_configs": found}],
        }
        # JSON is YAML.
        (self.folder / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")

    def command(self, port: int) -> Sequence[str | Path]:
        return [
            _program("prometheus"),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._data}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(self.url + "/-/ready", timeout=5).close()
            flags: dict[str, str] = self._ask("status/flags")
            return flags["storage.tsdb.path"] == str(self._data)
        except (OSError, ValueError, KeyError):
            return False

    def query(self, expr: str) -> list[Series]:
        """The current value of an expression. Raises `ValueError` with Prometheus' message if it is invalid."""
        found = self._ask("query", query=expr)
        return [Series(one["metric"], [_sample(one["value"])]) for one in found["result"]]

    def query_range(self, expr: str, *, start: float, end: float, step: float = 1) -> list[Series]:
        """The values of an expression between two times (Unix seconds), every `step` seconds."""
        found = self._ask("query_range", query=expr, start=str(start), end=str(end), step=str(step))
        return [Series(one["metric"], [_sample(pair) for pair in one["values"]]) for one in found["result"]]

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """The pending and firing alerts with this name: `labels`, `annotations`, `state`."""
        return [one for one in self._ask("alerts")["alerts"] if one["labels"]["alertname"] == name]

    def rules(self) -> list[dict[str, Any]]:
        """The loaded rules, each with its `health` and `lastError`."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what: str, **arguments: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS_MAX) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            said = json.load(error)
            raise ValueError(f"{said['errorType']}: {said['error']} in {arguments}") from error


def promtool(*words: str | Path) -> tuple[bool, str]:
    """Run promtool; returns whether it succeeded, and its output. Raises `PartMissingError`."""
    command = [_program("promtool"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode == 0, done.stdout + done.stderr


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise PartMissingError(f"there is no `{name}`: {INSTALL}")
    return found


def _sample(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
