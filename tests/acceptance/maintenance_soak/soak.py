"""One run on one table: writers at steady rates, maintenance and a reader beside each other, each as a process.

Shows over an hour whether fragments, versions and bytes stay where they should be, and whether anything takes more time
the longer it goes on; or, with `Plan.kills`, whether anything is lost or left however often processes are killed.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from harness.child import ChildProcess
from harness.daemon import Daemon
from harness.scene import Scene, until
from tests.acceptance.maintenance_soak import checks, table
from tests.acceptance.maintenance_soak.expected import EXPECTED, Expected
from tests.acceptance.maintenance_soak.figures import Sample, Targets, beside_targets, files_of, table_of
from tests.acceptance.maintenance_soak.kills import Clients, Killer, Names
from tests.acceptance.maintenance_soak.reader import ReadCounts
from tests.acceptance.maintenance_soak.usage import Usage
from tests.acceptance.maintenance_soak.writers import Load, WriteCounts

_MINUTE = 60.0
_LOOK_SECONDS = 5.0
_SETTLED_SECONDS = 600.0
"""From then on fragments, versions and bytes are held against their targets, or from a sixth of a shorter run on."""
_END_SECONDS = 300.0
_COMMAND_SECONDS = 1800.0
"""What one command may take at the end, when the table is large."""
_RECLAIM_HOURS = 2.0
_RATES = ("appends", "upserts", "deletes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    seconds: float
    appends: float
    """A second; so are the next two."""
    upserts: float
    deletes: float
    seed: int
    hour_seconds: float = 60.0
    """How long an hour of maintain.keep_hours and maintain.reclaim_hours lasts."""
    fragments: int = 1_000
    """maintain.fragments_max"""
    unindexed_rows: int = 20_000
    """maintain.unindexed_rows_max"""
    version_seconds: float = 0.1
    """commit.interval_seconds_min"""
    maintained: bool = True
    kills: bool = False
    """Whether committer, maintenance and a client are killed now and then, and versions get tags and branches."""
    times_max: float = 2.0
    """The highest ratio of fragments, versions and bytes to their targets that is allowed."""
    rate_min: float = 0.8
    """What writers must get of the rates that they ask for."""

    @property
    def settled(self) -> float:
        """The second from which the table is held against its targets."""
        return min(_SETTLED_SECONDS, self.seconds / 6)

    def targets(self) -> Targets:
        """What maintenance aims for."""
        return Targets(
            fragments=self.fragments,
            hour_seconds=self.hour_seconds,
            keep_versions=20,
            cleanup_seconds=self.hour_seconds / 4,
        )


class Soak:
    """A run: `start`, then `write` once or several times, then `end`; or `run` for all of it."""

    def __init__(self, scene: Scene, kafka: str, plan: Plan, tell: Callable[[str], None]) -> None:
        """`tell` gets lines for people."""
        self._scene, self._kafka, self._plan, self._tell = scene, kafka, plan, tell
        self._targets = plan.targets()
        self._committer = scene.daemon(COMMIT__INTERVAL_SECONDS_MIN=str(plan.version_seconds))
        self._maintainer = self._make_maintainer()
        self._clients = Clients(scene, kafka)
        self._names = Names(scene)
        self._killer = Killer(
            random.Random(plan.seed),
            {
                "maintenance": (self._maintainer.kill, self._maintainer.start),
                "committer": (self._committer.kill, self._committer.start),
                "client": (self._clients.kill, self._clients.start),
            },
        )
        self._started = 0.0
        self._usage = Usage()
        self._before: Mapping[str, float] = {}
        """Processor time when writing began."""
        self._minute: tuple[WriteCounts, ReadCounts, Mapping[str, float]] = (WriteCounts(), ReadCounts(), self._before)
        """As of the last minute told; processor time is the third."""
        self.written, self.read = WriteCounts(), ReadCounts()
        """Of the last call of `write`."""
        self.samples: list[Sample] = []
        self.problems: list[str] = []

    @property
    def kills(self) -> Mapping[str, int]:
        """The number of kills, by what was killed."""
        return self._killer.kills

    def run(self) -> list[str]:
        """Write, read and maintain for the whole time, then check; returns the problems."""
        self.start()
        self.write(self._plan.seconds)
        for line in self.summary():
            self._tell(line)
        return self.end()

    def start(self) -> None:
        """Create the table and its indices."""
        table.create(self._scene.table.uri).save(self._scene.folder / EXPECTED)
        self._committer.wait_ready(text="active")
        table.index(self._scene)

    def write(self, seconds: float) -> None:
        """Write and read for this time, with maintenance and kills beside it if they are planned."""
        plan, folder = self._plan, self._scene.folder
        rates = {name: getattr(plan, name) for name in _RATES}
        load = Load(
            kafka=self._kafka,
            dataset=self._scene.name,
            uri=self._scene.table.uri,
            folder=str(folder),
            seconds=seconds,
            keep_seconds=plan.hour_seconds,
            seed=plan.seed,
            **rates,
        )
        self._started = self._started or time.monotonic()
        if plan.maintained:
            self._maintainer.start()
        if plan.kills:
            self._clients.start()
        writing = _child(folder, "writers", json.dumps(asdict(load)))
        reading = _child(folder, "reader", load.uri, str(plan.hour_seconds), str(plan.seed))
        self._before = self._usage.look()
        self._minute = (WriteCounts(), ReadCounts(), self._before)
        try:
            with self._sampled():
                self._watch(writing, reading, time.monotonic() + seconds)
            reading.stop(grace_seconds=60)
        finally:
            writing.kill()
            reading.kill()
            if plan.kills:
                self._clients.kill()
                self._maintainer.kill()
            else:
                self._maintainer.stop(grace_seconds=_END_SECONDS)
        self._look(writing, reading)

    def _watch(self, writing: ChildProcess, reading: ChildProcess, end: float) -> None:
        """Kill, name versions, and tell of each minute until the writers end."""
        minutes, tell_at, look_at = 0, time.monotonic() + _MINUTE, 0.0
        while writing.running():
            now = time.monotonic()
            if now > end + _END_SECONDS:
                self.problems.append("the writers do not end")
                return
            if self._plan.kills and now < end:
                self._killer.turn()
                self._names.turn(self._plan.seconds / 4)
            if now >= look_at:
                look_at = now + _LOOK_SECONDS
                self._usage.look()  # so that the time of a process that ends is known
            if now >= tell_at:
                tell_at, minutes = tell_at + _MINUTE, minutes + 1
                self._look(writing, reading)
                for line in self._of_minute(minutes):
                    self._tell(line)
            time.sleep(0.1)
        if writing.code:
            self.problems.append(f"the writers ended with code {writing.code}:\n{writing.log_tail()}")

    def _look(self, writing: ChildProcess, reading: ChildProcess) -> None:
        self.written, self.read = self._last(writing.log, WriteCounts), self._last(reading.log, ReadCounts)

    def _last(self, log: Path, kind: type[_Said]) -> _Said:
        """The last line of a process; the problems of all its lines are noted, each once."""
        found = kind()
        for line in log.read_text(encoding="utf-8").splitlines():
            if line[:1] == "{":
                found = kind(**json.loads(line))
                self.problems += [one for one in found.problems if one not in self.problems]
        return found

    def _of_minute(self, number: int) -> list[str]:
        """What happened since the last minute, for people."""
        written, read, seconds = self.written, self.read, self._usage.look()
        written_before, read_before, seconds_before = self._minute
        passed = max(written.seconds - written_before.seconds, 1e-9)
        rates = {name: (getattr(written, name) - getattr(written_before, name)) / passed for name in _RATES}
        changes = written.upserts + written.deletes - written_before.upserts - written_before.deletes
        attempts = (written.attempts - written_before.attempts) / max(changes, 1)
        took = {name: one - seconds_before.get(name, 0.0) for name, one in seconds.items()}
        memory = sorted(self._usage.memory.items(), key=lambda one: -one[1])
        self._minute = written, read, seconds
        return [
            f"minute {number}: {', '.join(f'{rate:.1f} {name}/s' for name, rate in rates.items())}; "
            f"{attempts:.2f} attempts; seconds to the outcome: half {written.waited_p50:.2f}, 99 % "
            f"{written.waited_p99:.2f}, most {written.waited_max:.2f}",
            f"    {read.reads - read_before.reads} reads, {read.old - read_before.old} of older versions, "
            f"{read.queries - read_before.queries} queries, {read.whole - read_before.whole} of all rows "
            f"({read.whole_seconds_max:.1f} s at most); {len(self.problems)} problems",
            f"    processor time: {_listed(took)}; memory: "
            + ", ".join(f"{name} {size >> 20} MiB" for name, size in memory),
            *(f"    {beside_targets(self.samples, one, self._targets)}" for one in self.samples[-1:]),
        ]

    def summary(self) -> list[str]:
        """What was done in the last call of `write`, for people."""
        written, read = self.written, self.read
        worst = self._targets.worst(self.samples, after=self._plan.settled)
        said = ", ".join(f"{what} {times:.2f} (in second {second:.0f})" for what, (times, second) in worst.items())
        rates = ", ".join(f"{getattr(written, name) / max(written.seconds, 1e-9):.1f} {name}/s" for name in _RATES)
        took = {name: one - self._before.get(name, 0.0) for name, one in self._usage.look().items()}
        return [
            f"\n{written.appends} appends, {written.upserts} upserts, {written.deletes} deletes in "
            f"{written.seconds:.0f} s ({rates}); upserts and deletes took {written.attempts} executions, one at most "
            f"{written.attempts_max}; {written.refused} were refused for good, {written.too_late} took longer than "
            "versions are kept",
            f"{read.reads} reads of {read.rows} rows, {read.old} of older versions (the oldest was "
            f"{read.old_seconds_max:.1f} s old, an hour has {self._plan.hour_seconds:.0f} s; {read.late} more ended "
            f"too late), {read.queries} queries through an index and as a scan, {read.whole} reads of all rows "
            f"({read.whole_seconds_max:.1f} s at most)",
            f"kills: {', '.join(f'{count} of {what}' for what, count in sorted(self.kills.items())) or 'none'}",
            f"processor time: {_listed(took)}",
            *table_of(self.samples, self._targets),
            f"at most, in times of its target, after {self._plan.settled:.0f} s: {said}",
        ]

    def end(self) -> list[str]:
        """Check everything, before and after two runs of maintenance when all is old enough; the problems."""
        scene, hour = self._scene, self._plan.hour_seconds
        self._committer.wait_ready(text="active")
        until(lambda: self._committer.metric("committerd_queue_lag_records") == 0, seconds=300)
        self._tell("the rows are checked, and again with every version and both pylances after two runs of maintenance")
        expected = Expected.load(scene.folder / EXPECTED)
        problems = [*self.problems, *([] if self._plan.kills else self._missed())]
        problems += checks.check_rows(scene, expected, self._clients)
        time.sleep(hour * _RECLAIM_HOURS)
        self._command("maintain", "--once")
        time.sleep(hour)
        self._command("maintain", "--once")
        self._command("audit")
        problems += checks.check_rows(scene, expected, self._clients)
        problems += checks.check_references(scene, self._names)
        left = checks.needless(scene)
        problems += [f"{len(left)} files that nobody needs are left: {left[:5]}"] if left else []
        problems += [f"the report {one} is not finished" for one in checks.unfinished_reports(scene)]
        return problems + checks.dry_run(self._command)

    def _missed(self) -> list[str]:
        """The requirements of steady rates that are not met."""
        written, read, plan = self.written, self.read, self._plan
        problems = [
            f"writers made {done / max(written.seconds, 1e-9):.1f} {name} a second of {wanted:g}"
            for name in _RATES
            if (done := getattr(written, name)) < plan.rate_min * (wanted := getattr(plan, name)) * plan.seconds
        ]
        problems += [
            f"there were {times:.2f} times as many {what} as the target says, in second {second:.0f}"
            for what, (times, second) in self._targets.worst(self.samples, after=plan.settled).items()
            if times > plan.times_max or not second
        ]
        if not (read.reads and read.old and read.whole and read.queries):
            problems.append(f"the reader has not read: {read}")
        return problems

    def _make_maintainer(self) -> Daemon:
        return Daemon(
            name=self._scene.name,
            uri=self._scene.table.uri,
            kafka=self._kafka,
            settings={
                "MAINTAIN__INTERVAL_SECONDS": "0.3",
                "MAINTAIN__CLEANUP_SECONDS": str(self._targets.cleanup_seconds),
                "MAINTAIN__FRAGMENTS_MAX": str(self._targets.fragments),
                "MAINTAIN__UNINDEXED_ROWS_MAX": str(self._plan.unindexed_rows),
                "MAINTAIN__KEEP_HOURS": "1",
                "MAINTAIN__KEEP_VERSIONS": str(self._targets.keep_versions),
                "MAINTAIN__RECLAIM_HOURS": str(_RECLAIM_HOURS),
                # The log has a line for each file that is deleted: gigabytes in an hour.
                "LOG__LEVEL": "info" if self._plan.kills else "warning",
            },
            log=self._scene.folder / "maintain.log",
            command=self._short_hours(),
        )

    def _short_hours(self) -> tuple[str, ...]:
        return sys.executable, "-m", "harness.short_hours", str(self._plan.hour_seconds)

    def _command(self, word: str, *options: str) -> str:
        """Run `committerd` with maintenance's settings; returns its output."""
        program = self._short_hours() if word == "maintain" else (sys.executable, "-m", "committerd", word)
        done = subprocess.run(
            [*program, *options],
            env=self._maintainer.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{word} {options}: {done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def _sampled(self) -> Iterator[None]:
        """Take a sample of the table now and then, in a thread."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(min(5.0, self._plan.hour_seconds / 12)):
                try:
                    self.samples.append(self._sample())
                except Exception as error:  # noqa: BLE001  # whatever a reader meets is what is looked for
                    self.problems.append(f"the sampler failed: {error}")

        thread = threading.Thread(target=run, name="the sampler")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _sample(self) -> Sample:
        folder = Path(self._scene.table.uri)
        files = files_of(folder, new_seconds=self._targets.window_seconds)
        opened = self._scene.table.open()
        fragments = opened.get_fragments()
        live = sum(file.file_size_bytes or 0 for one in fragments for file in one.data_files())
        for index in opened.describe_indices():
            for segment in index.segments:
                live += files_of(folder / "_indices" / str(segment.uuid), new_seconds=0).bytes
        return Sample(
            second=time.monotonic() - self._started,
            version=opened.version,
            fragments=len(fragments),
            versions=files.manifests,
            bytes=files.bytes,
            live_bytes=live,
            new_bytes=files.new_bytes,
        )


_Said = TypeVar("_Said", WriteCounts, ReadCounts)


def _child(folder: Path, name: str, *words: str) -> ChildProcess:
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    return ChildProcess([sys.executable, "-m", f"tests.acceptance.maintenance_soak.{name}", *words], log=log)


def _listed(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {one:.1f} s" for name, one in sorted(seconds.items(), key=lambda one: -one[1]))
