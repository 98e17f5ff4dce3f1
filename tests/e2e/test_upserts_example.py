"""The example that follows change records: run, killed as it were, and run again on the same input."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_follows_the_changes_however_often_they_are_read(scene: Scene) -> None:
    rng, model, lines = random.Random(7), dict[int, str](), list[str]()
    for number in range(60):
        key, name = rng.randrange(12), f"name {number}" if rng.random() < 0.7 else None
        lines.append(json.dumps({"id": key, "name": name}))
        if name is None:
            model.pop(key, None)
        else:
            model[key] = name
    scene.started()
    first = run(scene, lines[:40])
    assert first.count(": committed") == len(first.splitlines()) >= 2
    again = run(scene, lines)
    assert again.count("in the table already") == len(first.splitlines())
    assert again.count(": committed") >= 1
    rows = scene.table.open().to_table().to_pylist()
    assert len(rows) == len(model)
    assert {row["id"]: row["name"] for row in rows} == model


def run(scene: Scene, lines: list[str]) -> str:
    """What the example prints for these changes."""
    command = [sys.executable, str(ROOT / "examples" / "upserts.py"), "--batch", "20", "--uri", scene.table.uri]
    command += ["--bootstrap-servers", scene.topics.servers, "--dataset", scene.name]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'producers'}"}
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
