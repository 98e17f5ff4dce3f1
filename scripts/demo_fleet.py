"""The producers of the demo, seen from the process that starts them."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_producer import Job

from tests.parts.child import ChildProcess

_PROGRAM = Path(__file__).with_name("demo_producer.py")
_POLL_SECONDS = 0.05
_READY_SECONDS_MAX = 60.0


class DemoFailed(Exception):
    """The demo can't go on, or has found something wrong; the message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a producer learned of one submission."""

    kind: str
    """create, append, or again: an append that was committed, once more."""
    status: str
    uuid: str
    version: int
    """The table version that holds the transaction."""
    at: float
    """When, on the monotonic clock in seconds; it is the same in all processes of a machine."""
    seconds: float
    """Since it was submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A submission that ended in an error."""

    kind: str
    name: str
    """Of the client's error."""
    code: str
    message: str


class _Producer:
    """One process, and what it has told."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.name = f"producer-{job.number}"
        self.ready = False
        self.answers: list[Answer] = []
        self.refusals: list[Refusal] = []
        log = folder / f"{self.name}.log"
        self.child = ChildProcess([sys.executable, str(_PROGRAM), json.dumps(dataclasses.asdict(job))], log=log)
        self._log = log.open("rb")

    def listen(self) -> bool:
        """Take in what it has told since; False when it has ended and nothing is left."""
        ended = not self.child.running()  # first: what it tells at its end is not lost
        while line := self._log.readline():
            if not line.endswith(b"\n"):  # the rest is to come
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
            case "answered":
                self.answers.append(Answer(**told))
            case "refused":
                self.refusals.append(Refusal(**told))
            case unknown:
                raise AssertionError(f"{self.name} told of {unknown!r}")


class Fleet:
    """All producers. A process each, as in life: they share no interpreter, no connection and no knowledge."""

    def __init__(self, jobs: list[Job], folder: Path) -> None:
        self._producers: list[_Producer] = []
        self._jobs = jobs
        self._folder = folder

    def start(self) -> None:
        """Start all; they connect, the first makes the table, and all wait for `go`."""
        for job in self._jobs:
            self._producers.append(_Producer(job, self._folder))

    def wait_ready(self, look: Callable[[int], None]) -> None:
        """Until all wait for `go`. `look` is told how many do, and may raise."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while True:
            for producer in self._producers:
                if not producer.listen() and not producer.ready:
                    raise DemoFailed(f"{producer.name} has ended too early:\n{producer.child.log_tail()}")
            self.raise_refusals()
            ready = sum(producer.ready for producer in self._producers)
            look(ready)
            if ready == len(self._producers):
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"only {ready} of {len(self._producers)} producers were ready in time")
            time.sleep(_POLL_SECONDS)

    def go(self) -> None:
        """All begin to write."""
        for producer in self._producers:
            producer.child.signal(signal.SIGUSR1)

    def wait_done(self, look: Callable[[int], None]) -> None:
        """Until all have ended. `look` is told how many answers there are, and may raise."""
        while True:
            running = [producer.listen() for producer in self._producers]
            look(len(list(self.answers())) + len(list(self.refusals())))
            if not any(running):
                return
            time.sleep(_POLL_SECONDS)

    def answers(self) -> Iterator[Answer]:
        """All that came so far."""
        for producer in self._producers:
            yield from producer.answers

    def refusals(self) -> Iterator[Refusal]:
        """All that came so far."""
        for producer in self._producers:
            yield from producer.refusals

    def raise_refusals(self) -> None:
        """Raises `DemoFailed` when there is one."""
        for refusal in self.refusals():
            raise DemoFailed(f"{refusal.kind} was refused ({refusal.name}, {refusal.code}): {refusal.message}")

    def kill(self) -> None:
        """End all that still run."""
        for producer in self._producers:
            producer.child.signal(signal.SIGKILL)
        for producer in self._producers:
            producer.child.kill()
