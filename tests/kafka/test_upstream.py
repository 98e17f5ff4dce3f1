"""The faults of kafka-python for which committerd has repairs, shown with the library alone and a real broker.

Each page of docs/upstream is a report for the library's maintainers, with a program and what it prints. If a newer
kafka-python prints anything else, the fault is mended or has changed: remove the repair, or rewrite it and the report.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import kafka as library
import pytest

from harness.kafka import KafkaBroker, RunningKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
_REPORTS = sorted((_ROOT / "docs" / "upstream").glob("*.md"))
_DECISION = (_ROOT / "docs" / "decisions" / "kafka-python.md").read_text(encoding="utf-8")
_SECTIONS = ["What happens", "Program", "What is expected", "Suggested change"]
_AT_ONCE = 4
"""Most of the programs wait most of the time."""
_TRIES = 3
"""Some have short timeouts, which a busy Kafka exceeds. A fault that is mended shows in none of the tries."""


def _block(report: Path, language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", report.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def printed(kafka: KafkaBroker | RunningKafka) -> Iterator[dict[Path, Future[str]]]:
    """What each program prints; all of them run from now on."""
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}

    def run(report: Path) -> str:
        said = ""
        for _ in range(_TRIES):
            try:
                done = subprocess.run(
                    [sys.executable, "-"],
                    input=_block(report, "python"),
                    capture_output=True,
                    text=True,
                    check=False,
                    env=environment,
                    timeout=120,
                )
            except subprocess.TimeoutExpired:
                said = "it did not end"
                continue
            said = done.stdout + (done.stderr if done.returncode else "")
            if said == _block(report, "text"):
                break
        return said

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        yield {report: threads.submit(run, report) for report in _REPORTS}


@pytest.mark.parametrize("report", _REPORTS, ids=lambda report: report.stem)
def test_the_fault_is_still_there(report: Path, printed: dict[Path, Future[str]]) -> None:
    now = printed[report].result()
    assert now == _block(report, "text"), (
        f"kafka-python {library.__version__} does not do any more what docs/upstream/{report.name} says: remove or "
        "rewrite its repair, which docs/decisions/kafka-python.md names"
    )


@pytest.mark.parametrize("report", _REPORTS, ids=lambda report: report.stem)
def test_a_report_is_whole_and_named_on_the_decision_page(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == _SECTIONS
    assert text.splitlines()[2].startswith(f"kafka-python {library.__version__}, ")
    assert f"(../upstream/{report.name})" in _DECISION
    assert f"kafka-python {library.__version__}" in _DECISION
