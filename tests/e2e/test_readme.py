"""The README's first commit, line by line as it is printed there, against a real Kafka."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _block(text: str, language: str = "") -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_what_is_installed_has_all_that_the_programs_import() -> None:
    line = r"^pip install \. '\./producers\[(\w+)\]'$"
    (installed,) = re.findall(line, _block(_section("First commit")), re.MULTILINE)
    client = tomllib.loads((ROOT / "producers" / "pyproject.toml").read_text(encoding="utf-8"))
    extras = client["project"]["optional-dependencies"]
    assert any(one.startswith("pylance") for one in extras[installed])


@pytest.mark.kafka
@pytest.mark.pylance
def test_the_first_commit_works_as_it_is_printed(
    kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "events.lance")

    def here(text: str) -> str:
        for printed, meant in (
            ("localhost:9092", kafka.bootstrap_servers),
            ("/tmp/events.lance", uri),
            ('dataset="events"', f'dataset="{dataset}"'),
            ("__NAME=events", f"__NAME={dataset}"),
        ):
            text = text.replace(printed, meant)
        return text

    lines = _block(_section("First commit")).splitlines()
    assert lines[-1] == "committerd run"
    exported = dict(re.findall(r"^export COMMITTERD_(\w+)=(.*)$", here("\n".join(lines)), re.MULTILINE))
    settings = {"DATASET__NAME", "DATASET__URI", "KAFKA__BOOTSTRAP_SERVERS"}
    assert exported.keys() == settings, "the daemon gets what the README exports, and a port of its own"
    printed = []
    with Daemon(
        name=exported["DATASET__NAME"],
        uri=exported["DATASET__URI"],
        kafka=exported["KAFKA__BOOTSTRAP_SERVERS"],
        log=tmp_path / "daemon.log",
    ):
        first, second = (_block(_section(title), "python") for title in ("First commit", "Commit through it"))
        # As it is pasted into the interactive interpreter, before the committer has made its topics, and once more.
        for program in (first, first, second):
            done = subprocess.run(
                [sys.executable, "-i" if program == first else "-"],
                input=here(program),
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert "Traceback" not in done.stderr, done.stderr
            assert done.returncode == 0
            printed.append(done.stdout.splitlines())
    assert "version 2" in printed[0]
    assert "table_exists" in printed[1]
    assert "id: [[1,2,3],[1,2,3]]" in printed[1]
    assert [re.sub(r"\d+", "N", line) for line in printed[2]] == ["version N"]
