"""Runs a server as a child process on a free port of 127.0.0.1, with its files in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from harness.child import ChildProcess

_START_ATTEMPTS = 3
_READY_SECONDS_MAX = 60.0


def free_port() -> int:
    """A TCP port on which no program listens at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Server(ABC):
    """A server that can be stopped and started again on the same port and files. A failed start shows its log's end."""

    name: str
    """Its name in folders, logs and errors."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"committerd-{self.name}-"))
        self._process: ChildProcess | None = None
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

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    def start(self) -> Self:
        """Start, or start again, and wait until it responds."""
        assert self._process is None, "runs already"
        again, tail = self._port, ""
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._port = again or free_port()
            log = self.folder / f"{self.name}.log"
            command = [str(word) for word in self.command(self._port)]
            self._process = ChildProcess(
                command, log=log, folder=self.folder, environment={**os.environ, **self.environment()}
            )
            if self._ready():
                return self
            tail = self._process.log_tail()
            self.kill()
            time.sleep(0.2 * attempt)  # another program may have taken the port
        raise RuntimeError(f"{self.name} did not start; the end of {self.folder / f'{self.name}.log'}:\n{tail}")

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after ten seconds."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL; the files stay on disk as after a crash."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open, and the server does not respond until `thaw`."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of its output."""
        log = (self.folder / f"{self.name}.log").read_text(errors="replace")
        return "\n".join(log.splitlines()[-lines:])

    def close(self) -> None:
        """Stop, and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> bool:
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while self._process is not None and self._process.running() and time.monotonic() < deadline:
            # Another program on this port may have responded; then this one ends soon.
            if self.answers() and self._process.running():
                return True
            time.sleep(0.05)
        return False
