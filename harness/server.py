"""Runs a server as a child process on a free port of 127.0.0.1, with its files in a temporary folder."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from committerd.dev.parts import free_port
from harness.child import ChildProcess
from harness.restartable import Restartable

_START_ATTEMPTS = 3
_READY_SECONDS_MAX = 240.0


class Server(Restartable):
    """A server that responds to HTTP on one port, which it keeps when it is started again."""

    def __init__(self) -> None:
        super().__init__()
        self._port: int | None = None

    @abstractmethod
    def command(self, port: int) -> Sequence[str | Path]:
        """The command line. Raises `PartMissingError` if the program is missing."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server at `url` is up, and is this one."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables for the program, in addition to those of this process."""
        return {}

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`; stays the same over `kill` and `start`."""
        assert self._port is not None, "not started"
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        assert self._process is None, "runs already"
        again, tail = self._port, ""
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._port = again or free_port()
            command = [str(word) for word in self.command(self._port)]
            self._process = ChildProcess(
                command, log=self.log, folder=self.folder, environment={**os.environ, **self.environment()}
            )
            if self._ready():
                return self
            tail = self._process.log_tail()
            self.kill()
            time.sleep(0.2 * attempt)  # another program may have taken the port
        raise RuntimeError(f"{self.name} did not start; the end of {self.log}:\n{tail}")

    def _ready(self) -> bool:
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while self._process is not None and self._process.running() and time.monotonic() < deadline:
            # Another program on this port may have responded; then this one ends soon.
            if self.answers() and self._process.running():
                return True
            time.sleep(0.05)
        return False
