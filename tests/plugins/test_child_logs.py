"""The plugin that keeps the logs of child processes, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import sys
from harness.child import ChildProcess

def run(folder, text):
    child = ChildProcess([sys.executable, "-c", f"print({text!r})"], log=folder / "child.log")
    child._wait(timeout=30)

def test_good(tmp_path): run(tmp_path, "of the good one")
def test_bad(tmp_path):
    run(tmp_path, "of the bad one")
    assert False
"""


def test_a_failed_test_shows_and_keeps_what_its_children_printed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE)
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-c", "/dev/null", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COMMITTERD_KEPT_LOGS": str(kept)}
    done = subprocess.run(
        [*command, "-p", "tests.plugins.child_logs", f"--basetemp={tmp_path / 'base'}", str(tmp_path / "test_it.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "of the bad one" in done.stdout
    assert "of the good one" not in done.stdout
    (log,) = kept.rglob("*.log")
    assert log.read_text() == "of the bad one\n"
    assert "test_bad" in log.parent.name
