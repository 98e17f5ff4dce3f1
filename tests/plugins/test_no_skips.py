"""The plugin that turns skips into failures, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SKIPS = {
    "a test": "import pytest\ndef test_a(): pytest.skip('no Kafka')\ndef test_b(): pass\n",
    "a module": "import pytest\npytest.skip('no Kafka', allow_module_level=True)\n",
    "a fixture": "import pytest\n@pytest.fixture\ndef f(): pytest.skip('x')\ndef test_a(f): pass\n",
}
PASSES = "import pytest\ndef test_a(): pass\n@pytest.mark.xfail\ndef test_b(): assert False\n"


def run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", f"--rootdir={folder}", "-c", "/dev/null", *arguments, str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


@pytest.mark.parametrize("what", SKIPS)
def test_a_skip_fails_the_run_and_is_named(tmp_path: Path, what: str) -> None:
    assert run(tmp_path, SKIPS[what]).returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    done = run(tmp_path, SKIPS[what], "-p", "tests.plugins.no_skips")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 skipped, and none may be: " in done.stdout
    assert "test_it.py" in done.stdout


def test_without_a_skip_it_changes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, PASSES, "-p", "tests.plugins.no_skips").returncode == pytest.ExitCode.OK
