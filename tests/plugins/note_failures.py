"""Records which tests failed, one per line, for the program that runs pytest.

Not loaded by default: `pytest -p tests.plugins.note_failures`, with a file's path in `COMMITTERD_FAILURES`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class NoteFailures:
    """Appends to a file; a test that fails in two of its phases is in it twice."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist, whose controller gets every report
    config.pluginmanager.register(NoteFailures(Path(os.environ["COMMITTERD_FAILURES"])))
