"""The writers of the demo, as the process that starts them sees them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.child import ChildProcess
from scripts.demo.writers import STORAGE_OPTIONS, Job

_POLL_SECONDS = 0.05
_READY_SECONDS_MAX = 180.0
_GONE_SECONDS_MAX = 10.0


class DemoFailed(Exception):
    """The demo can't go on, or has found an error; the message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one submission, as its writer reported it."""

    kind: str
    """create, append, again (a committed append that is sent once more), upsert, delete, micro-batch or compaction."""
    status: str
    """COMMITTED, DUPLICATE, or the name of the client's error."""
    code: str = ""
    message: str = ""
    """Of an error."""
    uuid: str = ""
    version: int = 0
    """The table version that holds the transaction."""
    at: float = 0.0
    """When the outcome arrived, in seconds of the monotonic clock, which all processes of a machine share."""
    seconds: float = 0.0
    """Seconds since it was submitted."""
    attempts: int = 1
    """The number of executions."""
    remark: str = ""

    @property
    def refused(self) -> bool:
        """Whether it is an error."""
        return self.status not in ("COMMITTED", "DUPLICATE")

    @property
    def is_append(self) -> bool:
        """Whether this is an outcome of an Append; a micro-batch is one too."""
        return self.kind in ("append", "again", "micro-batch") and not self.refused


class _Writer:
    """One process, and its reports."""

    def __init__(self, job: Job, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = job.name
        self.ready = False
        self.children: list[int] = []
        """Child processes of the writer, which end with it."""
        self.outcomes: list[Outcome] = []
        log = folder / f"{self.name}.log"
        command = [sys.executable, "-m", "scripts.demo.writers", json.dumps(dataclasses.asdict(job))]
        self.child = ChildProcess(command, log=log, environment=environment)
        self._log = log.open("rb")

    def listen(self) -> bool:
        """Read new reports; returns False once the process has ended and nothing is left to read."""
        ended = not self.child.running()  # checked first, so that nothing written at its end is lost
        while line := self._log.readline():
            if not line.endswith(b"\n"):  # the rest of the line is still to come
                self._log.seek(-len(line), 1)
                break
            if line.startswith(b"{"):
                self._take(json.loads(line))
        if ended and self.child.code != 0:
            raise DemoFailed(f"{self.name} ended with code {self.child.code}:\n{self.child.log_tail()}")
        return not ended

    def _take(self, told: dict[str, Any]) -> None:
        match told.pop("event"):
            case "ready":
                self.ready = True
            case "child":
                self.children.append(told["pid"])
            case "outcome":
                self.outcomes.append(Outcome(**told))
            case unknown:
                raise AssertionError(f"{self.name} told of {unknown!r}")


class Fleet:
    """All writers, a process each as in production: they share no interpreter, connection or state."""

    def __init__(self, jobs: list[Job], folder: Path, storage_options: Mapping[str, str]) -> None:
        self._writers: list[_Writer] = []
        self._jobs = jobs
        self._folder = folder
        # Not among the arguments: anybody who lists processes would read the secret key.
        self._environment = {**os.environ, STORAGE_OPTIONS: json.dumps(dict(storage_options))}

    def start(self) -> None:
        """Start all writers; they connect, the first one makes the table, and all wait for `go`."""
        for job in self._jobs:
            self._writers.append(_Writer(job, self._folder, self._environment))

    def wait_ready(self, look: Callable[[int], None]) -> None:
        """Wait until all writers wait for `go`. `look` is called with their number, and may raise."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while True:
            for writer in self._writers:
                if not writer.listen() and not writer.ready:
                    raise DemoFailed(f"{writer.name} has ended too early:\n{writer.child.log_tail()}")
            for one in self.outcomes():
                if one.refused:
                    raise DemoFailed(f"{one.kind} was refused ({one.status}, {one.code}): {one.message}")
            ready = sum(writer.ready for writer in self._writers)
            look(ready)
            if ready == len(self._writers):
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"only {ready} of {len(self._writers)} writers were ready in time")
            time.sleep(_POLL_SECONDS)

    def go(self) -> None:
        """Let all writers begin."""
        for writer in self._writers:
            writer.child.signal(signal.SIGUSR1)

    def wait_done(self, look: Callable[[int], None]) -> None:
        """Wait until all writers have ended. `look` is called with the number of outcomes, and may raise."""
        while True:
            running = [writer.listen() for writer in self._writers]
            look(len(self.outcomes()))
            if not any(running):
                return
            time.sleep(_POLL_SECONDS)

    def outcomes(self) -> list[Outcome]:
        """All outcomes so far."""
        return [outcome for writer in self._writers for outcome in writer.outcomes]

    def kill(self) -> None:
        """Kill all writers that still run."""
        for writer in self._writers:
            writer.child.signal(signal.SIGKILL)
        for writer in self._writers:
            writer.child.kill()
        # Spark's JVM ends a moment after its standard input does.
        deadline = time.monotonic() + _GONE_SECONDS_MAX
        while any(_exists(pid) for writer in self._writers for pid in writer.children):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
