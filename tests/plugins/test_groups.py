"""The plugin that groups files into processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.groups import GROUPS, group

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import os
def test_a(record_property): record_property("process", os.getpid())
def test_b(record_property): record_property("process", os.getpid())
"""


def test_what_shares_a_part_is_one_group_and_any_other_file_is_one() -> None:
    assert group("tests/spark/test_write.py::test_a") == group("tests/spark/test_stream.py::test_b[x::y]")
    assert group("tests/e2e/test_demo.py::test_a") == group("tests/e2e/test_s3_demo.py::test_a")
    assert group("tests/stores/test_s3.py::test_a[x]") == "tests/stores/test_s3.py"


def test_every_file_of_a_group_is_there() -> None:
    for paths in GROUPS.values():
        for path in paths:
            assert (ROOT / path).exists(), path


def test_every_file_with_the_shared_session_of_spark_is_in_its_group() -> None:
    wanted = {
        f"tests/spark/{file.name}"
        for file in (ROOT / "tests" / "spark").glob("test_*.py")
        if "spark: SparkSession" in file.read_text(encoding="utf-8")
    }
    assert wanted <= {*GROUPS["a session of Spark"]}


def test_each_test_runs_once_and_one_process_runs_a_group(tmp_path: Path) -> None:
    for name in ("e2e/test_demo", "e2e/test_s3_demo", "edges/test_s3", "edges/test_local"):
        file = tmp_path / "tests" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCE)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-c", "/dev/null", "-p", "no:cacheprovider"]
    dealt = ["-p", "xdist", "-p", "tests.plugins.groups", "--numprocesses=2", "--dist=loadfile"]
    done = subprocess.run(
        [*command, *dealt, "--import-mode=importlib", f"--junitxml={report}", "tests"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    said = report.read_text()
    cases = [text.partition("</testcase>")[0] for text in said.split("<testcase ")[1:]]
    assert len(cases) == 8
    processes = {text.split('name="process" value="')[1].split('"')[0] for text in cases if "e2e" in text}
    assert len(processes) == 1
