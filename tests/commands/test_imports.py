"""A command's memory is mostly what it imports: each command imports only what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.long_history import write
from committerd.queue.port import TopicIdentity

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = TopicIdentity(cluster_id="c", topic="events.staged", topic_id="AAAAAAAAAAAAAAAAAAAAAA")

STORES_ELSEWHERE = {"aiobotocore", "botocore", "committerd.stores.s3", "committerd.stores.dynamodb"}
WRITERS = {"numpy", "pyarrow", "lance", "committerd_client"}
SERVING = {"aiohttp", "prometheus_client", "committerd.telemetry"}
COMMITTING = {"committerd.committer", "committerd.daemon", "committerd.kafka.consumer", "committerd.table.writing"}

_TOLD_AT_EXIT = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
"""
_COMMAND = _TOLD_AT_EXIT + "from committerd.__main__ import main; main()"
_DAEMON = _TOLD_AT_EXIT + "import committerd.commands.run"


def imported(code: str, *words: str, **environment: str) -> set[str]:
    """The modules that a process has loaded at its end."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    modules = set(ended.stderr.splitlines()[-1].split())
    assert {"sys", "committerd"} <= modules, ended.stderr
    return modules


@pytest.mark.parametrize("words", [["status", "--json"], ["audit"]], ids=lambda words: words[0])
def test_a_command_that_looks_at_a_local_table_imports_nothing_that_serves_or_commits(
    tmp_path: Path, words: Sequence[str]
) -> None:
    write(tmp_path / "t", versions=3, members=2, fragments=3, identity=IDENTITY)
    modules = imported(
        _COMMAND,
        *words,
        COMMITTERD_DATASET__NAME="events",
        COMMITTERD_DATASET__URI=str(tmp_path / "t"),
        COMMITTERD_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1",
        COMMITTERD_KAFKA__REQUEST_TIMEOUT_MS="1000",
    )
    assert f"committerd.commands.{words[0]}" in modules
    assert modules & (STORES_ELSEWHERE | WRITERS | SERVING | COMMITTING) == set()


def test_a_pause_of_a_local_table_imports_no_client_of_kafka_and_nothing_that_commits_records(tmp_path: Path) -> None:
    write(tmp_path / "t", versions=3, members=2, fragments=3, identity=IDENTITY)
    modules = imported(
        _COMMAND, "pause", str(tmp_path / "t"), "--reason", "a test", COMMITTERD_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1"
    )
    assert (tmp_path / "t" / "_versions" / f"{2**64 - 1 - 4}.manifest").exists()  # it has paused
    unused = {"aiohttp", "kafka", "committerd.committer.committer"}
    assert modules & (STORES_ELSEWHERE | WRITERS | unused) == set()


def test_the_command_maintain_imports_neither_a_server_nor_pylance_at_its_start() -> None:
    modules = imported(f"{_TOLD_AT_EXIT}import committerd.commands.maintain")
    assert modules >= {"committerd_client", "committerd.maintenance.cleaning"}
    assert modules & {"aiohttp", "lance", "pyarrow", "committerd.committer.committer"} == set()


def test_the_modules_of_stores_elsewhere_have_these_names() -> None:
    """Otherwise the other tests could not fail."""
    assert imported(f"{_TOLD_AT_EXIT}import committerd.stores.s3, committerd.stores.dynamodb") >= STORES_ELSEWHERE


def test_the_daemon_imports_neither_stores_elsewhere_nor_what_writes_data() -> None:
    modules = imported(_DAEMON)
    assert modules >= COMMITTING
    assert modules & (STORES_ELSEWHERE | WRITERS | {"aiohttp"}) == set()


def test_the_version_is_told_without_any_command() -> None:
    modules = imported(_COMMAND, "--version")
    assert {name for name in modules if name.startswith("committerd.")} == {
        "committerd.__main__",
        "committerd.errors",
        "committerd.waiting",
    }
