"""A child process of the tests, which never outlives its parent (`committerd.dev.child`), and a list of all."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from committerd.dev import child

_STOPS_SECONDS = 30
_POLL_SECONDS = 0.005

_OF_A_BUSY_MACHINE = re.compile(
    r"""
    ^(?: committerd:\ .*\ has\ not\ answered\ for\ \d+\ s(?:;\ still\ waiting)?
       | committerd\ has\ read\ \d+\ of\ \d+\ versions\ of\ the\ table's\ history
       | [a-z ]+:\ \d+\ of\ about\ \d+
    )\n
    """,
    re.MULTILINE | re.VERBOSE,
)
"""A line that a command prints only if it takes long."""

started: list[ChildProcess] = []
"""The child processes of the current test, and earlier ones that still run; see `tests.plugins.child_logs`."""


class ChildProcess(child.ChildProcess):
    """A running program; its output is appended to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, log=log, folder=folder, environment=environment)
        started.append(self)

    @property
    def pid(self) -> int:
        """The program's process id; waits until it has one."""
        watcher = psutil.Process(self._watcher.pid)
        while not (children := watcher.children()):
            assert self.running(), f"it has ended with {self.code}; the end of its log:\n{self.log_tail()}"
            time.sleep(_POLL_SECONDS)
        return int(children[0].pid)

    def freeze(self) -> None:
        """Send SIGSTOP, and wait until no thread of the program runs any more: on a busy machine that takes a while."""
        pid = self.pid
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOPS_SECONDS
        while not _is_stopped(pid):
            assert time.monotonic() < deadline, f"process {pid} has not stopped for {_STOPS_SECONDS} s"
            time.sleep(_POLL_SECONDS)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self.signal(signal.SIGCONT)

    def wait(self, *, timeout: float) -> int:
        """Wait for its end; returns the exit code. Raises `subprocess.TimeoutExpired`."""
        self._wait(timeout=timeout)
        assert self.code is not None
        return self.code


class Launch(Protocol):
    """Starts a program: `ChildProcess` itself, or a `harness.preloaded.Preloaded`."""

    def __call__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start it with this environment; its output is appended to `log`."""


def through(launch: Launch, module: str, *words: str) -> Launch:
    """Starts a command of committerd through a module of the tests: `python -m MODULE WORDS...`, then its own words."""

    def launched(command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> ChildProcess:
        python, _, _, *own = command
        return launch([python, "-m", module, *words, *own], log=log, environment=environment)

    return launched


def _is_stopped(pid: int) -> bool:
    """Whether each thread of this process is stopped; see proc_pid_stat(5)."""
    try:
        states = [
            task.joinpath("stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    return set(states) == {"T"}


def without_waits(printed: str) -> str:
    """What a command has printed, but for the lines of a long wait and of progress: a busy machine adds them."""
    return _OF_A_BUSY_MACHINE.sub("", printed)
