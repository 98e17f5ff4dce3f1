"""committerd as a fork of a process that has loaded it: output, exit code and signals; it outlives nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.child import ChildProcess
from harness.preloaded import COMMAND, Preloaded
from tests.harness.test_child import ended

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of a parent's end")

_ROOT = Path(__file__).resolve().parents[2]
_PARENT = """
import sys, time
from pathlib import Path
from harness.preloaded import COMMAND, Preloaded

with Preloaded() as preloaded:
    preloaded([*COMMAND, "run"], log=Path(sys.argv[1]))
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    with Preloaded() as running:
        yield running


@pytest.fixture
def environment() -> dict[str, str]:
    """Settings with which a daemon waits for Kafka."""
    settings = {
        "DATASET__NAME": "t",
        "DATASET__URI": "/nowhere/t.lance",
        "KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "HTTP__PORT": "0",
    }
    return {**os.environ, **{f"COMMITTERD_{name}": value for name, value in settings.items()}}


def family(of: int) -> list[psutil.Process]:
    """Server, watcher and committerd."""
    found: list[psutil.Process] = psutil.Process(of).children(recursive=True)
    assert len(found) == 3
    return found


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [("--version", 0, "committerd, version"), ("--nonsense", 2, "Usage: python -m committerd ")],
)
def test_output_and_exit_code_are_those_of_the_command(
    preloaded: Preloaded, tmp_path: Path, word: str, code: int, said: str
) -> None:
    log = tmp_path / "log"
    assert preloaded([*COMMAND, word], log=log).wait(timeout=60) == code
    assert said in log.read_text()


def test_each_run_has_its_own_environment(
    preloaded: Preloaded, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one name", "two names"):
        wrong = environment | {"COMMITTERD_DATASET__NAME": name}
        assert preloaded([*COMMAND, "run"], log=tmp_path / name, environment=wrong).wait(timeout=60) == 2
        assert "dataset.name" in (tmp_path / name).read_text()
    assert preloaded([*COMMAND, "run"], log=tmp_path / "bare", environment={}).wait(timeout=60) == 2
    assert "is missing" in (tmp_path / "bare").read_text()
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    inheriting = preloaded([*COMMAND, "run"], log=tmp_path / "inheriting")
    wait_for(tmp_path / "inheriting", "Bootstrap")
    inheriting.kill()


def test_it_takes_signals_until_it_has_ended(preloaded: Preloaded, tmp_path: Path, environment: dict[str, str]) -> None:
    for number, way in enumerate(("kill", "freeze", "stop")):
        log = tmp_path / str(number)
        daemon = preloaded([*COMMAND, "run"], log=log, environment=environment)
        wait_for(log, "Bootstrap")
        assert daemon.running()
        assert daemon.code is None
        if way == "freeze":
            daemon.freeze()
        if way == "stop":
            daemon.stop(grace_seconds=60)
        else:
            daemon.kill()
        assert daemon.code == 128 + (signal.SIGTERM if way == "stop" else signal.SIGKILL)
        daemon.signal(signal.SIGTERM)  # to nobody
        daemon.kill()


def test_waiting_has_an_end(preloaded: Preloaded, tmp_path: Path, environment: dict[str, str]) -> None:
    daemon = preloaded([*COMMAND, "run"], log=tmp_path / "log", environment=environment)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(timeout=0.1)
    daemon.kill()


def test_a_program_of_the_tests_that_runs_committerd_is_a_fork_too(preloaded: Preloaded, tmp_path: Path) -> None:
    log, file = tmp_path / "log", tmp_path / "crashes"
    crashing = preloaded([*COMMAND[:2], "tests.e2e.crashing_committer", str(file), "--version"], log=log)
    assert type(crashing) is not ChildProcess
    assert crashing.wait(timeout=60) == 0
    assert "committerd, version" in log.read_text()


def test_another_program_is_started_as_any(preloaded: Preloaded, tmp_path: Path) -> None:
    child = preloaded([sys.executable, "-c", "print('up')"], log=tmp_path / "log")
    assert type(child) is ChildProcess
    assert child.wait(timeout=60) == 0
    assert child.log_tail() == "up"


@pytest.mark.parametrize("killed", ["parent", "server", "watcher"])
def test_ends_when_what_is_above_it_is_killed(killed: str, tmp_path: Path, environment: dict[str, str]) -> None:
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", _PARENT, str(log)], cwd=_ROOT, env=environment) as parent:
        try:
            wait_for(log, "Bootstrap")
            processes = family(parent.pid)
            server, watcher, _ = processes
            os.kill({"parent": parent.pid, "server": server.pid, "watcher": watcher.pid}[killed], signal.SIGKILL)
            assert ended(processes[1:])
        finally:
            parent.kill()


def wait_for(log: Path, text: str) -> None:
    """Wait until the log has this text."""
    for _ in range(6000):
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{log} has no {text!r}:\n{log.read_text()}")
