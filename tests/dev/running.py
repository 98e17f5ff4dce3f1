"""`committerd dev` as a user runs it: a process of its own, its output, and all processes below it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from harness.marked import Mark

_COMMAND = (sys.executable, "-m", "committerd")
_ENDS_SECONDS = 60
_LOCK = "9464.lock"


def share_lock(cache: Path) -> None:
    """Let all tests of this machine share the lock of the usual port of metrics, which is in the cache."""
    lock = cache / "dev" / _LOCK
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        lock.symlink_to(Path(tempfile.gettempdir()) / f"committerd-tests-{_LOCK}")


class Dev:
    """One run with `--json`. As a context manager it is killed at the end, with all that it started."""

    def __init__(
        self,
        uri: str | Path,
        *options: str,
        cache: Path,
        environment: dict[str, str] | None = None,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        """`cache`: the folder in which Kafka's data is kept. `environment`: more variables. `command`: committerd's."""
        self._mark = Mark()
        share_lock(cache)
        bare = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("COMMITTERD_") and name not in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_HOME")
        }
        self.environment = {**bare, "COMMITTERD_CACHE": str(cache), **self._mark.environment, **(environment or {})}
        self._process = subprocess.Popen(
            [*command, "dev", str(uri), "--json", *options],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.printed: list[dict[str, Any]] = []

    def next(self, event: str) -> dict[str, Any]:
        """Read on until it prints this event."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self.printed.append(json.loads(text))
            if self.printed[-1]["event"] == event:
                return self.printed[-1]
        raise AssertionError(f"it ended before {event!r}: {self.printed} {self.errors()}")

    def ready(self) -> dict[str, Any]:
        """Wait until the committer is ready; returns the facts that were printed."""
        facts = self.next("started")
        self.next("ready")
        return facts

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself."""
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        assert self._process.stdout is not None
        self.printed += [json.loads(text) for text in self._process.stdout]
        return self._process.wait(60)

    def stop(self) -> int:
        """Press Ctrl-C."""
        self.signal(signal.SIGINT)
        return self.end()

    def errors(self) -> str:
        """What it printed on standard error, once it has ended."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def processes(self) -> list[psutil.Process]:
        """All processes that have inherited our mark, whoever started them."""
        return self._mark.processes()

    def commands(self) -> dict[psutil.Process, list[str]]:
        """The command lines of these processes; without those that have ended meanwhile."""
        return self._mark.commands()

    def left(self) -> list[list[str]]:
        """The command lines of processes that do not end."""
        deadline = time.monotonic() + _ENDS_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return list(self.commands().values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes():
            process.kill()
        self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
