"""A run: everything is killed at random moments while everybody works, and then all is checked."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.child import ChildProcess
from harness.daemon import Daemon
from harness.scene import Scene, until
from tests.acceptance.maintenance_soak import checks
from tests.acceptance.maintenance_soak.client import BATCH, batches
from tests.acceptance.maintenance_soak.figures import Figures, Targets
from tests.acceptance.maintenance_soak.load import Reader, Writer, beside, sampler

_RECLAIM_HOURS = 2.0
_COMMAND_SECONDS = 180.0
"""What one command may take at the end."""
_KILL_SECONDS = (0.5, 3.0)
"""Shortest and longest time between two kills."""
_CLIENT_IDS = 1_000_000
"""The clients' first ids; each process of a client has as many for itself."""


def targets_of(hour_seconds: float) -> Targets:
    """The targets. `hour_seconds`: how long an hour of maintain.keep_hours and maintain.reclaim_hours lasts.

    Writers fill this target of fragments in about 3 s. At 340 commits a second they fill the default, 1,000, as fast.
    """
    return Targets(fragments=300, hour_seconds=hour_seconds, keep_versions=20, cleanup_seconds=5.0)


@dataclass(slots=True)
class Clients:
    """A client in a process of its own, which is killed and started again with other ids."""

    scene: Scene
    kafka: str
    started: int = 0
    running: ChildProcess | None = None

    def start(self) -> None:
        """Start one."""
        words = [self.kafka, self.scene.name, self.scene.table.uri, str(self._first(self.started))]
        command = [
            sys.executable,
            "-m",
            "tests.acceptance.maintenance_soak.client",
            *words,
            str(self._notes(self.started)),
        ]
        self.running = ChildProcess(command, log=self.scene.folder / "clients.log")
        self.started += 1

    def kill(self) -> None:
        """Kill it."""
        if self.running is not None:
            self.running.kill()

    def values(self) -> tuple[dict[int, int], set[int]]:
        """The rows that were committed, and the ids of those of which it is not known."""
        values: dict[int, int] = {}
        unknown: set[int] = set()
        for number in range(self.started):
            committed, maybe = batches(self._notes(number))
            values |= {first + row: 0 for first in committed for row in range(BATCH)}
            unknown |= {first + row for first in maybe for row in range(BATCH)}
        return values, unknown

    def _first(self, number: int) -> int:
        return _CLIENT_IDS * (number + 1)

    def _notes(self, number: int) -> Path:
        return self.scene.folder / f"client-{number}.txt"


@dataclass(slots=True)
class Killer:
    """Kills one of the processes now and then, and starts it again."""

    rng: random.Random
    found: Figures
    victims: Mapping[str, tuple[Callable[[], object], Callable[[], object]]]
    """By name: how to kill it, and how to start it."""
    next_at: float = field(default=0.0)

    def turn(self) -> None:
        """Kill one of them if it is time."""
        if time.monotonic() < self.next_at:
            return
        if self.next_at:
            least = min(self.found.kills.get(name, 0) for name in self.victims)
            name = self.rng.choice(sorted(name for name in self.victims if self.found.kills.get(name, 0) == least))
            kill, start = self.victims[name]
            kill()
            start()
            self.found.kills[name] = self.found.kills.get(name, 0) + 1
        self.next_at = time.monotonic() + self.rng.uniform(*_KILL_SECONDS)


def maintainer_of(scene: Scene, kafka: str, targets: Targets, **others: str) -> Daemon:
    """`committerd maintain` with short hours for this dataset; not started. `others`: settings as in `Scene.daemon`."""
    settings = {
        "MAINTAIN__INTERVAL_SECONDS": "0.2",
        "MAINTAIN__CLEANUP_SECONDS": str(targets.cleanup_seconds),
        "MAINTAIN__FRAGMENTS_MAX": str(targets.fragments),
        "MAINTAIN__UNINDEXED_ROWS_MAX": "500",
        "MAINTAIN__KEEP_HOURS": "1",
        "MAINTAIN__KEEP_VERSIONS": str(targets.keep_versions),
        "MAINTAIN__RECLAIM_HOURS": str(_RECLAIM_HOURS),
        **others,
    }
    return Daemon(
        name=scene.name,
        uri=scene.table.uri,
        kafka=kafka,
        settings=settings,
        log=scene.folder / "maintain.log",
        command=short_hours(targets),
    )


def short_hours(targets: Targets) -> tuple[str, ...]:
    """The start of a command line: `committerd maintain` with hours of this length."""
    return sys.executable, "-m", "harness.short_hours", str(targets.hour_seconds)


def soak(scene: Scene, kafka: str, *, seconds: float, rng: random.Random, hour_seconds: float = 8.0) -> Figures:
    """Write, read and kill for this time, then check."""
    found, targets = Figures(), targets_of(hour_seconds)
    committer = scene.daemon()
    writer = Writer(scene, rng, found, targets.hour_seconds)
    writer.create()
    committer.wait_ready(text="active")
    writer.index()
    maintainer, clients = maintainer_of(scene, kafka, targets), Clients(scene, kafka)
    tagged: dict[str, int] = {}
    branches: dict[str, int] = {}
    start = time.monotonic()
    victims = {
        "maintenance": (maintainer.kill, maintainer.start),
        "committer": (committer.kill, committer.start),
        "client": (clients.kill, clients.start),
    }
    killer = Killer(rng, found, victims)
    maintainer.start()
    clients.start()
    name_at = start + seconds / 8
    reader = Reader(scene, found, targets, rng.randrange(1 << 30))
    try:
        with (
            beside(reader.read, found, every=0.05, what="a reader"),
            beside(sampler(scene, found, targets, start), found, every=1.0, what="the sampler"),
        ):
            while time.monotonic() < start + seconds:
                writer.write()
                killer.turn()
                if time.monotonic() > name_at:
                    _name_a_version(scene, tagged, branches)
                    name_at += seconds / 4
            found.seconds = time.monotonic() - start
    finally:
        clients.kill()
        maintainer.kill()
    values, unknown = clients.values()
    found.client_commits = len(values) // BATCH
    committer.wait_ready(text="active")
    until(lambda: committer.metric("committerd_queue_lag_records") == 0, seconds=60)
    checked = partial(checks.check_contents, scene, writer.values | values, unknown)
    found.problems += end(
        scene, maintainer, targets, checked, tagged=tagged, branches=branches, timeout=_COMMAND_SECONDS
    )
    return found


def beside_and_without(
    scenes: tuple[Scene, Scene], kafka: str, *, seconds: float, rng: random.Random, targets: Targets
) -> list[Figures]:
    """Write to two tables, one with maintenance beside it and one without; the figures of both.

    The table without gets the first quarter of the time and the last one, so that both meet the same machine.
    """
    figures, writers = [Figures(), Figures()], []
    for scene, found in zip(scenes, figures, strict=True):
        committer = scene.daemon()
        writer = Writer(scene, rng, found, targets.hour_seconds)
        writer.create()
        committer.wait_ready(text="active")
        writer.index()
        writers.append(writer)
    with_it, without = range(2)
    maintainer = maintainer_of(scenes[with_it], kafka, targets)
    start = time.monotonic()
    try:
        for number, share in ((without, 0.25), (with_it, 0.5), (without, 0.25)):
            scene, found, writer = scenes[number], figures[number], writers[number]
            if number == with_it:
                maintainer.start()
                start = time.monotonic()
            reader = Reader(scene, found, targets, rng.randrange(1 << 30))
            began = time.monotonic()
            with (
                beside(reader.read, found, every=0.05, what="a reader"),
                beside(sampler(scene, found, targets, start), found, every=1.0, what="the sampler"),
            ):
                while time.monotonic() < began + share * seconds:
                    writer.write()
                found.seconds += time.monotonic() - began
            maintainer.stop()
    finally:
        maintainer.kill()
    return figures


def _name_a_version(scene: Scene, tagged: dict[str, int], branches: dict[str, int]) -> None:
    """A tag and a branch of the latest version, which must be readable at the end."""
    table = scene.table.open()
    tag, branch = f"tag-{len(tagged)}", f"branch-{len(branches)}"
    rows = table.count_rows()
    table.tags.create(tag, table.version)
    tagged[tag] = rows
    table.create_branch(branch, table.version)
    branches[branch] = rows


def end(
    scene: Scene,
    maintainer: Daemon,
    targets: Targets,
    checked: Callable[[], list[str]],
    *,
    tagged: dict[str, int],
    branches: dict[str, int],
    timeout: float,
) -> list[str]:
    """Check everything, before and after two runs of maintenance when all is old enough; the problems.

    `checked` checks the rows. `timeout`: seconds for one command.
    """

    def command(word: str, *options: str) -> str:
        program = short_hours(targets) if word == "maintain" else (sys.executable, "-m", "committerd", word)
        done = subprocess.run(
            [*program, *options],
            env=maintainer.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{word} {options}: {done.stdout}\n{done.stderr}"
        return done.stdout

    problems = checked()
    time.sleep(targets.hour_seconds * _RECLAIM_HOURS)
    command("maintain", "--once")
    time.sleep(targets.hour_seconds)
    command("maintain", "--once")
    command("audit")
    problems += checked()
    problems += checks.check_places(scene, tagged, branches)
    left = checks.needless(scene)
    problems += [f"{len(left)} files that nobody needs are left: {left[:5]}"] if left else []
    problems += [f"the report {one} is not finished" for one in checks.unfinished_reports(scene)]
    return problems + checks.dry_run(command)
