"""What happens beside a run in which processes are killed: the kills, clients to be killed, and names of versions."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.child import ChildProcess
from harness.scene import Scene
from tests.acceptance.maintenance_soak.client import BATCH, batches

_KILL_SECONDS = (0.5, 3.0)
"""Shortest and longest time between two kills."""
_CLIENT_IDS = 1 << 22
"""The clients' first id."""
_IDS_EACH = 1 << 14


@dataclass(slots=True)
class Killer:
    """Kills one of the processes now and then, and starts it again."""

    rng: random.Random
    victims: Mapping[str, tuple[Callable[[], object], Callable[[], object]]]
    """By name: how to kill it, and how to start it."""
    kills: Counter[str] = field(default_factory=Counter)
    next_at: float = 0.0

    def turn(self) -> None:
        """Kill one of them if it is time."""
        if time.monotonic() < self.next_at:
            return
        if self.next_at:
            least = min(self.kills[name] for name in self.victims)
            name = self.rng.choice(sorted(name for name in self.victims if self.kills[name] == least))
            kill, start = self.victims[name]
            kill()
            start()
            self.kills[name] += 1
        self.next_at = time.monotonic() + self.rng.uniform(*_KILL_SECONDS)


@dataclass(slots=True)
class Clients:
    """A client in a process of its own, which is killed and started again with other ids."""

    scene: Scene
    kafka: str
    started: int = 0
    running: ChildProcess | None = None

    def start(self) -> None:
        """Start one."""
        first = _CLIENT_IDS + self.started * _IDS_EACH
        notes = self.scene.folder / f"client-{self.started}.txt"
        command = [sys.executable, "-m", "tests.acceptance.maintenance_soak.client", self.kafka, self.scene.name]
        command += [self.scene.table.uri, str(first), str(first + _IDS_EACH), str(notes)]
        self.running = ChildProcess(command, log=self.scene.folder / "clients.log")
        self.started += 1

    def kill(self) -> None:
        """Kill it."""
        if self.running is not None:
            self.running.kill()

    def ids(self) -> tuple[set[int], set[int]]:
        """The ids of the rows that were committed, and of those of which it is not known. Their values are 0."""
        known, unknown = set[int](), set[int]()
        for number in range(self.started):
            committed, maybe = batches(self.scene.folder / f"client-{number}.txt")
            known |= {first + row for first in committed for row in range(BATCH)}
            unknown |= {first + row for first in maybe for row in range(BATCH)}
        return known, unknown


@dataclass(slots=True)
class Names:
    """Tags and branches of versions, which must be readable at the end."""

    scene: Scene
    tags: dict[str, int] = field(default_factory=dict)
    """The number of rows that each had when it was made."""
    branches: dict[str, int] = field(default_factory=dict)
    next_at: float = 0.0

    def turn(self, every: float) -> None:
        """Give the latest version a tag and a branch if `every` seconds have passed; the first time after half."""
        now = time.monotonic()
        if not self.next_at:
            self.next_at = now + every / 2
        if now < self.next_at:
            return
        self.next_at = now + every
        table = self.scene.table.open()
        tag, branch = f"tag-{len(self.tags)}", f"branch-{len(self.branches)}"
        rows = table.count_rows()
        table.tags.create(tag, table.version)
        self.tags[tag] = rows
        table.create_branch(branch, table.version)
        self.branches[branch] = rows
