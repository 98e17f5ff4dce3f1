"""The chart, rendered by helm: what a test gives as values, and the objects that come of it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.parts_kubernetes import KUBERNETES_VERSION

FOLDER = Path(__file__).resolve().parents[2] / "helm" / "committerd"
CASES = sorted(FOLDER.glob("ci/*-values.yaml"))
MINIMAL: Mapping[str, Any] = {
    "settings": {"kafka": {"bootstrap_servers": ["broker:9092"]}},
    "datasets": [{"name": "events", "uri": "s3://lake/events.lance"}],
}

Manifest = dict[str, Any]


class HelmError(Exception):
    """What helm said."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Objects of one release, hooks among them."""

    objects: Sequence[Manifest]

    def of(self, kind: str) -> list[Manifest]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Manifest:
        """The only one of a kind, or of a kind and name."""
        (found,) = [one for one in self.of(kind) if name in (None, one["metadata"]["name"])]
        return found

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """Every Pod that would run, with what makes it: metadata and spec."""
        for one in self.objects:
            where = f"{one['kind']} {one['metadata']['name']}"
            if one["kind"] == "Pod":
                yield where, one
            elif one["kind"] in ("Deployment", "Job"):
                yield where, one["spec"]["template"]
            elif one["kind"] == "CronJob":
                yield where, one["spec"]["jobTemplate"]["spec"]["template"]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart's folder and the helm that reads it."""

    helm: Path
    folder: Path = FOLDER

    def render(self, values: Mapping[str, Any] | Path, *, release: str = "rel") -> Rendered:
        """`helm template`. Raises `HelmError`."""
        text = self.run("template", release, self.folder, "--kube-version", KUBERNETES_VERSION, values=values)
        return Rendered([one for one in yaml.safe_load_all(text) if one])

    def refusal(self, values: Mapping[str, Any]) -> str:
        """Why it is not rendered."""
        try:
            self.render(values)
        except HelmError as error:
            return str(error)
        raise AssertionError("the chart was rendered")

    def run(self, *words: str | Path, values: Mapping[str, Any] | Path | None = None) -> str:
        """Run helm; returns what it printed. Raises `HelmError` with what it complained of."""
        with tempfile.TemporaryDirectory(prefix="committerd-helm-") as folder:
            given: list[str | Path] = []
            if isinstance(values, Path):
                given = ["--values", values]
            elif values is not None:
                file = Path(folder, "values.json")
                file.write_text(json.dumps(values))
                given = ["--values", file]
            command = [self.helm, *words, *given]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HelmError(done.stdout + done.stderr)
        return done.stdout


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Values as helm merges them: maps by key, anything else is replaced."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            before = whole.get(name)
            whole[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def environment(pod: Manifest) -> dict[str, Any]:
    """Variables of a Pod's container: text, or where it comes from. No name stands twice."""
    entries = pod["spec"]["containers"][0]["env"]
    found = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}
    assert len(found) == len(entries)
    return found
