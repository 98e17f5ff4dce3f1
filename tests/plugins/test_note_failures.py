"""The plugin that records failed tests, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import pytest
@pytest.fixture
def broken(): raise OSError
def test_good(): pass
@pytest.mark.parametrize("word", ["a b", "c - d"])
def test_bad(word): assert not word
def test_of_a_broken_fixture(broken): pass
"""


def test_each_that_failed_is_named_as_pytest_takes_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE)
    noted = tmp_path / "failures"
    command = [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-c", "/dev/null"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COMMITTERD_FAILURES": str(noted)}
    plugin = ["-p", "tests.plugins.note_failures"]
    done = subprocess.run(
        [*command, *plugin, str(tmp_path)], capture_output=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    names = noted.read_text().splitlines()
    assert names == [
        "test_it.py::test_bad[a b]",
        "test_it.py::test_bad[c - d]",
        "test_it.py::test_of_a_broken_fixture",
    ]
