"""A child process of the tests, which never outlives its parent (`committerd.dev.child`), and a list of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from committerd.dev import child

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
