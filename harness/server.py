"""A server of our own on a free port of 127.0.0.1, with its files in a temporary folder."""

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
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Server(ABC):
    """Starts, stops, and starts again on the same port and files. A failed start shows the end of its log."""

    name: str
    """For folder, log and errors."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"committerd-{self.name}-"))
        self._process: ChildProcess | None = None
        self._port: int | None = None

    @abstractmethod
    def command(self, port: int) -> Sequence[str | Path]:
        """What to run; raises `PartMissingError` where that is not to be had."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server at `url` is up, and is this one."""

    def environment(self) -> Mapping[str, str]:
        """Variables that the program gets besides the process' own."""
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
        """Start, or start again, and wait until it answers."""
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
        """SIGTERM, after ten seconds SIGKILL."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """SIGKILL: what a crash leaves stays on disk."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until `thaw`."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that it printed."""
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
            # An answer may be of another program that has the port: then this one ends soon.
            if self.answers() and self._process.running():
                return True
            time.sleep(0.05)
        return False
