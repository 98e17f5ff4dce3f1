"""Writers at steady rates, maintenance and a reader beside each other, each as a process; nothing is killed.

Shows over an hour whether fragments, versions and bytes stay where they should be, and whether anything takes more time
the longer it goes on.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.child import ChildProcess
from harness.lance_table import LanceTable
from harness.scene import Scene, until
from tests.acceptance.maintenance_soak.expected import Expected
from tests.acceptance.maintenance_soak.figures import Figures, Sample, Targets, table_of
from tests.acceptance.maintenance_soak.load import Writer, beside, sampler
from tests.acceptance.maintenance_soak.reader import Read
from tests.acceptance.maintenance_soak.soak import end, maintainer_of
from tests.acceptance.maintenance_soak.spent import Spent
from tests.acceptance.maintenance_soak.table import columns_of, wrong_rows
from tests.acceptance.maintenance_soak.writers import EXPECTED, Load, Written

_SAMPLE_SECONDS = 5.0
_MINUTE = 60.0
_SETTLED_SECONDS = 600.0
"""From then on fragments, versions and bytes are held against their targets, or from a sixth of a shorter run on."""
_TIMES_MAX = 2.0
"""The highest ratio of each to its target that is allowed."""
_RATE_MIN = 0.8
"""What writers must get of the rates that they ask for."""
_END_SECONDS = 300.0
_COMMAND_SECONDS = 1800.0
"""What one command may take at the end, when the table is large."""
_INTERVAL_SECONDS = 0.3
"""Time between two looks of maintenance: maintain.interval_seconds."""
_VERSION_SECONDS = 0.1
"""Shortest time between two versions: commit.interval_seconds_min."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a run does."""

    seconds: float
    appends: float
    upserts: float
    deletes: float
    seed: int
    hour_seconds: float = 60.0
    """How long an hour of maintain.keep_hours and maintain.reclaim_hours lasts."""


def steady_targets(wish: Wish) -> Targets:
    """The targets of such a run; the one of fragments is the default of maintain.fragments_max."""
    return Targets(fragments=1_000, hour_seconds=wish.hour_seconds, keep_versions=20, cleanup_seconds=15.0)


@dataclass(slots=True)
class _Run:
    """A run until now."""

    writing: ChildProcess
    reading: ChildProcess
    figures: Figures
    targets: Targets
    spent: Spent = field(default_factory=Spent)
    written: Written = field(default_factory=Written)
    """As of the last minute; so is the next one."""
    read: Read = field(default_factory=Read)
    begun: Mapping[str, float] = field(default_factory=dict)
    """Processor time when it began."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Processor time as of the last minute."""
    minutes: int = 0

    def minute(self) -> list[str]:
        """What happened in the last minute, for people."""
        written, read, seconds = self._written(), self._read(), self.spent.look()
        passed = max(written.seconds - self.written.seconds, 1e-9)
        rates = {name: (getattr(written, name) - getattr(self.written, name)) / passed for name in _RATES}
        changes = written.upserts + written.deletes - self.written.upserts - self.written.deletes
        attempts = (written.attempts - self.written.attempts) / max(changes, 1)
        self.minutes += 1
        lines = [
            f"minute {self.minutes}: {', '.join(f'{rate:.1f} {name}/s' for name, rate in rates.items())}; "
            f"{attempts:.2f} attempts; seconds to the outcome: half {written.waited_p50:.2f}, 99 % "
            f"{written.waited_p99:.2f}, most {written.waited_max:.2f}",
            f"    {read.reads - self.read.reads} reads, {read.old - self.read.old} of older versions, "
            f"{read.queries - self.read.queries} queries, {read.whole - self.read.whole} of all rows "
            f"({read.whole_seconds_max:.1f} s at most); {len(self.figures.problems)} problems",
        ]
        if self.figures.samples:
            last = self.figures.samples[-1]
            lines.append(f"    {_beside_targets(self.figures.samples, last, self.targets)}")
        took = {name: one - self.seconds.get(name, 0.0) for name, one in seconds.items()}
        lines.append(f"    processor time: {_listed(took)}; memory: {_memory(self.spent)}")
        self.written, self.read, self.seconds = written, read, seconds
        return lines

    def _written(self) -> Written:
        return _last(self.writing.log, Written, self.figures)

    def _read(self) -> Read:
        return _last(self.reading.log, Read, self.figures)


_RATES = ("appends", "upserts", "deletes")


def steady(scene: Scene, kafka: str, wish: Wish, *, tell: Callable[[str], None]) -> list[str]:
    """Write, read and maintain as `wish` says, then check; returns the problems. `tell` gets lines for people."""
    figures, targets = Figures(), steady_targets(wish)
    committer = scene.daemon(COMMIT__INTERVAL_SECONDS_MIN=str(_VERSION_SECONDS))
    first = Writer(scene, random.Random(wish.seed), figures, targets.hour_seconds)
    first.create()
    committer.wait_ready(text="active")
    first.index()
    maintainer = maintainer_of(
        scene,
        kafka,
        targets,
        MAINTAIN__INTERVAL_SECONDS=str(_INTERVAL_SECONDS),
        MAINTAIN__UNINDEXED_ROWS_MAX="20000",
        LOG__LEVEL="warning",  # the log has a line for each file that is deleted: gigabytes in an hour
    )
    load = Load(
        kafka=kafka,
        dataset=scene.name,
        uri=scene.table.uri,
        folder=str(scene.folder),
        seconds=wish.seconds,
        appends=wish.appends,
        upserts=wish.upserts,
        deletes=wish.deletes,
        rows=len(first.values),
        seed=wish.seed,
    )
    maintainer.start()
    start = time.monotonic()
    run = _Run(
        writing=_child(scene.folder, "writers", json.dumps(asdict(load))),
        reading=_child(scene.folder, "reader", scene.table.uri, str(wish.hour_seconds), str(wish.seed)),
        figures=figures,
        targets=targets,
    )
    run.begun = run.seconds = run.spent.look()
    try:
        with beside(sampler(scene, figures, targets, start), figures, every=_SAMPLE_SECONDS, what="the sampler"):
            _watch(run, wish.seconds, start, tell)
        run.reading.stop(grace_seconds=60)
    finally:
        run.writing.kill()
        run.reading.kill()
        maintainer.stop(grace_seconds=_END_SECONDS)
    for line in run.minute()[1:]:
        tell(line)
    for line in _summary(run, wish):
        tell(line)
    until(lambda: committer.metric("committerd_queue_lag_records") == 0, seconds=60)
    tell("the rows are checked, and again with every version and both pylances after two runs of maintenance")
    checked = partial(_check_contents, scene.table, Expected.load(scene.folder / EXPECTED))
    ended = end(scene, maintainer, targets, checked, tagged={}, branches={}, timeout=_COMMAND_SECONDS)
    return figures.problems + _met(run, wish) + ended


def _child(folder: Path, name: str, *words: str) -> ChildProcess:
    command = [sys.executable, "-m", f"tests.acceptance.maintenance_soak.{name}", *words]
    return ChildProcess(command, log=folder / f"{name}.log")


def _watch(run: _Run, seconds: float, start: float, tell: Callable[[str], None]) -> None:
    """Tell of each minute until the writers end."""
    tell_at = start + _MINUTE
    while run.writing.running():
        if time.monotonic() > start + seconds + _END_SECONDS:
            run.figures.problems.append("the writers do not end")
            return
        if time.monotonic() >= tell_at:
            tell_at += _MINUTE
            for line in run.minute():
                tell(line)
        time.sleep(0.5)
    if run.writing.code:
        run.figures.problems.append(f"the writers ended with code {run.writing.code}:\n{run.writing.log_tail()}")


_Said = TypeVar("_Said", Written, Read)


def _last(log: Path, kind: type[_Said], figures: Figures) -> _Said:
    """The last line of a process; the problems of all its lines go to the figures, each once."""
    found = kind()
    for line in log.read_text(encoding="utf-8").splitlines():
        if line[:1] == "{":
            found = kind(**json.loads(line))
            figures.problems += [one for one in found.problems if one not in figures.problems]
    return found


def _listed(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {one:.1f} s" for name, one in sorted(seconds.items(), key=lambda one: -one[1]))


def _memory(spent: Spent) -> str:
    return ", ".join(f"{name} {size >> 20} MiB" for name, size in sorted(spent.memory.items(), key=lambda one: -one[1]))


def _beside_targets(samples: list[Sample], one: Sample, targets: Targets) -> str:
    return (
        f"{one.fragments} fragments ({targets.fragments}), {one.versions} versions "
        f"({targets.versions(samples, one)}), {one.bytes / 2**20:.1f} MiB ({targets.bytes(samples, one) / 2**20:.1f})"
    )


def _settled(wish: Wish) -> float:
    return min(_SETTLED_SECONDS, wish.seconds / 6)


def _summary(run: _Run, wish: Wish) -> list[str]:
    written, read, samples = run.written, run.read, run.figures.samples
    worst = run.targets.worst(samples, after=_settled(wish))
    said = ", ".join(f"{what} {times:.2f} (in second {second:.0f})" for what, (times, second) in worst.items())
    rates = ", ".join(f"{getattr(written, name) / max(written.seconds, 1e-9):.1f} {name}/s" for name in _RATES)
    return [
        f"\n{written.appends} appends, {written.upserts} upserts, {written.deletes} deletes in {written.seconds:.0f} s "
        f"({rates}); upserts and deletes took {written.attempts} executions, one at most {written.attempts_max}; "
        f"{written.refused} were refused for good",
        f"{read.reads} reads of {read.rows} rows, {read.old} of older versions (the oldest was "
        f"{read.old_seconds_max:.1f} s old, an hour has {wish.hour_seconds:.0f} s; {read.late} more ended too late), "
        f"{read.queries} queries through an index and as a scan, {read.whole} reads of all rows "
        f"({read.whole_seconds_max:.1f} s at most)",
        f"processor time: {_listed({name: one - run.begun.get(name, 0.0) for name, one in run.seconds.items()})}",
        *table_of(samples, run.targets),
        f"at most, in times of its target, after {_settled(wish):.0f} s: {said}",
    ]


def _met(run: _Run, wish: Wish) -> list[str]:
    """The requirements that are not met."""
    written, read = run.written, run.read
    problems = [
        f"writers made {done / max(written.seconds, 1e-9):.1f} {name} a second of {wanted:g}"
        for name in _RATES
        if (done := getattr(written, name)) < _RATE_MIN * (wanted := getattr(wish, name)) * wish.seconds
    ]
    worst = run.targets.worst(run.figures.samples, after=_settled(wish))
    problems += [
        f"there were {times:.2f} times as many {what} as the target says, in second {second:.0f}"
        for what, (times, second) in worst.items()
        if times > _TIMES_MAX or not second
    ]
    if not (read.reads and read.old and read.whole and read.queries):
        problems.append(f"the reader has not read: {read}")
    return problems


def _check_contents(place: LanceTable, expected: Expected) -> list[str]:
    """All rows, and some through the index."""
    table = place.open()
    found = table.to_table()
    ids, values, _ = columns_of(found)
    problems = expected.differences(ids, values)
    if wrong := wrong_rows(found):
        problems.append(f"the vectors of {len(wrong)} rows are not those of their values: {wrong[:10]}")
    wanted, _ = expected.rows()
    some = wanted[:: max(len(wanted) // 100, 1)].tolist()
    missed = [one for one in some if table.count_rows(f"id = {one}") != 1]
    return problems + [f"a query through the index does not find row {one}" for one in missed]
