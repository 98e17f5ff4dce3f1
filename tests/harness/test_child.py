"""Child processes end with their parent, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.child import ChildProcess

_ROOT = Path(__file__).resolve().parents[2]
_SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
_PARENT = """
import sys, time
from pathlib import Path
from harness.child import ChildProcess

ChildProcess(sys.argv[2:], log=Path(sys.argv[1]))
while Path(sys.argv[1]).read_text() != "up\\n":
    time.sleep(0.01)
print("up", flush=True)
time.sleep(60)
"""


def ended(processes: list[psutil.Process]) -> bool:
    """Whether all have ended within some seconds; a process that nobody has waited for counts as ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("killed", ["parent", "watcher"])
def test_ends_when_what_is_above_it_is_killed(killed: str, tmp_path: Path) -> None:
    if killed == "watcher" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells a program that its parent ended")
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "log"), *_SLEEPER],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "up\n"
            family = psutil.Process(parent.pid).children(recursive=True)
            watcher, program = family
            os.kill(parent.pid if killed == "parent" else watcher.pid, signal.SIGKILL)
            assert ended([watcher, program])
        finally:
            parent.kill()


def test_stops_a_program_that_does_not_want_to(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = ChildProcess([sys.executable, "-c", deaf], log=tmp_path / "log")
    wait_for_output(child)
    began = time.monotonic()
    child.stop(grace_seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 30
    assert not child.running()


def test_stops_a_program_that_is_frozen(tmp_path: Path) -> None:
    child = ChildProcess(_SLEEPER, log=tmp_path / "log")
    wait_for_output(child)
    child.freeze()
    child.kill()
    assert not child.running()
    child.signal(signal.SIGTERM)  # to nobody


def test_a_frozen_program_does_nothing_until_it_is_thawed(tmp_path: Path) -> None:
    counts = "while True: print(flush=True)"
    child = ChildProcess([sys.executable, "-c", counts], log=tmp_path / "log")
    wait_for_size(child, 100)
    for _ in range(20):
        child.freeze()
        size = child.log.stat().st_size
        time.sleep(0.002)
        assert child.log.stat().st_size == size
        child.thaw()
        wait_for_size(child, size + 1)
    child.kill()


def test_keeps_what_the_program_printed(tmp_path: Path) -> None:
    child = ChildProcess([sys.executable, "-c", "print('one'); print('two'); exit(3)"], log=tmp_path / "log")
    deadline = time.monotonic() + 60
    while child.running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.running()
    assert child.log_tail(1) == "two"
    child.stop()


def wait_for_size(child: ChildProcess, size: int) -> None:
    deadline = time.monotonic() + 60
    while child.log.stat().st_size < size:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_for_output(child: ChildProcess) -> None:
    deadline = time.monotonic() + 60
    while child.log_tail() != "up":
        assert time.monotonic() < deadline
        time.sleep(0.01)
