"""A failed test shows the end of its child processes' output (brokers, stores, committers), and keeps all of it.

The report has a section for each log. The logs are copied to a folder of the test's name below `COMMITTERD_KEPT_LOGS`,
or below `committerd-kept-logs` in the folder for temporary files, because a log is usually deleted with the test's
folder.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import child

_LINES = 40
_COPIED_BYTES_MAX = 50_000_000


def _folder() -> Path:
    named = os.environ.get("COMMITTERD_KEPT_LOGS")
    return Path(named) if named else Path(tempfile.gettempdir(), "committerd-kept-logs")


def _keep(logs: list[Path], test: str) -> Path:
    """Copy the logs; returns the folder."""
    kept = _folder() / re.sub(r"[^A-Za-z0-9._-]+", "-", test)[-150:]
    kept.mkdir(parents=True, exist_ok=True)
    for log in logs:
        if log.stat().st_size <= _COPIED_BYTES_MAX:
            shutil.copyfile(log, kept / f"{log.parent.name}-{log.name}")
    return kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the logs to the report of a failed test, or of its fixtures."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's result
    if report.failed:
        logs = [log for log in dict.fromkeys(process.log for process in child.started) if log.exists()]
        if logs:
            report.sections.append(("Logs of child processes", f"all of them are in {_keep(logs, item.nodeid)}"))
        for log in logs:
            lines = log.read_text(errors="replace").splitlines()[-_LINES:]
            report.sections.append((f"The end of {log}", "\n".join(lines)))
    if report.when == "teardown":
        child.started[:] = [process for process in child.started if process.running()]
