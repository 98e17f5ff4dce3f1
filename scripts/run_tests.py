"""Run the tests: without arguments all of them, and check that every branch of the pure packages is taken.

Arguments are pytest's, and run in one process. `COMMITTERD_NO_SKIPS=1` makes a skipped test a failure.
`COMMITTERD_PYLANCE_4` is the Python that has pylance 4.0.0.

There are two lanes. One runs the tests that count branches. The other divides its files among some processes
(pytest-xdist), because most of its tests wait for brokers, stores and child processes most of the time. If a few tests
fail, they run once more, alone: those that pass then were starved by the others. They are named at the end all the
same, and should be made sturdier.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import psutil

from harness import PartMissingError
from harness.kafka import KafkaBroker
from scripts import bootstrap

ROOT = Path(__file__).resolve().parent.parent
GATED = ["committerd/lance", "committerd/queue", "committerd/audit", "producers/committerd_common"]

MEASURED = ["tests/common", "tests/lance", "tests/queue", "tests/audit"]
"""The folders that together take every branch of the packages in `GATED`."""
LONGEST = [
    "tests/e2e",
    "tests/acceptance",
    "tests/spark",
    "tests/packaging",
    "tests/oracle",
    "tests/dev",
    "tests/rowlevel",
    "tests/conformance",
    "tests/simulation",
    "tests/producers",
]
"""The folders with which the second lane begins, so that no long file is left for the end."""
WORKERS = 6
"""Processes for all other tests: three for each core of a small machine, because they wait much of the time.

Each starts a store when its first test needs one; they share a broker.
"""
DEALT = ["-p", "tests.plugins.groups", "--dist=loadfile", "--no-loadscope-reorder"]
"""How xdist deals the tests: a group of files at a time, in the order of the arguments."""
DEPLOYING = ["tests/deploy"]
"""Needs Go and Debian packages, and runs in `make test-deploy` only."""

DATA, FAILURES = "coverage", "failures"
"""File names."""
DISK_BYTES = 4_000_000_000
"""The disk space that tables and the logs of brokers and stores take meanwhile, with some reserve: MinIO and Kafka stop
before a disk is full.
"""
_MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""
AGAIN_MAX = 5
"""More failures than these are no accident."""

_CLOSING = re.compile(r"=+ (?:.*\d+ (?:passed|failed|error|skipped|deselected).*|no tests ran) in [\d.]+s.* =+")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")

Arguments = Sequence[str]
"""The arguments of one run of pytest; `--measured` in front counts branches."""


class Lane(threading.Thread):
    """One run of pytest. Prints its output, whole lines at a time.

    The part after the list of tests (failures, the summary) is held back until the run has ended, so that lanes don't
    mix there.
    """

    printing = threading.Lock()

    def __init__(self, arguments: Arguments, folder: Path) -> None:
        """`folder`: where taken branches and failed tests are recorded."""
        super().__init__()
        self._arguments = arguments
        self._folder = folder
        self._running: subprocess.Popen[str] | None = None
        self.failed = False
        self.broken = False
        """Something other than a test went wrong."""
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        held: list[str] = []
        with subprocess.Popen(
            [*command(self._arguments, self._folder / DATA), "-p", "tests.plugins.note_failures"],
            env={**os.environ, "COMMITTERD_FAILURES": str(self._folder / FAILURES)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as self._running:
            assert self._running.stdout is not None
            for line in self._running.stdout:
                if held or (line.startswith("==") and "test session starts" not in line):
                    held.append(line)
                else:
                    self._print(line)
        self.failed |= self._running.returncode != 0
        self.broken |= self._running.returncode not in (0, 1)
        self._count(held)
        self._print("".join(held))

    def stop(self) -> None:
        """Ask the run to end, as Ctrl-C would."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                self._running.send_signal(signal.SIGINT)

    def _print(self, text: str) -> None:
        with self.printing:
            print(text, end="", flush=True)

    def _count(self, lines: Sequence[str]) -> None:
        for line in lines:
            if _CLOSING.match(line):
                for number, what in _COUNT.findall(line):
                    self.counts[what.removesuffix("s") if what.startswith("error") else what] += int(number)


def command(arguments: Arguments, data_file: Path) -> list[str]:
    measured = arguments[:1] == ["--measured"]
    tool = ["coverage", "run", f"--data-file={data_file}", f"--source={','.join(GATED)}", "-m"]
    skips = ["-p", "tests.plugins.no_skips"] if os.environ.get("COMMITTERD_NO_SKIPS") else []
    return [sys.executable, "-m", *(tool if measured else []), "pytest", *skips, *arguments[measured:]]


def others() -> list[str]:
    """The arguments of the second lane: all that no other lane runs, so that nothing is forgotten."""
    elsewhere = {*MEASURED, *DEPLOYING, *LONGEST}
    folders = {path.parent.as_posix() for path in Path("tests").glob("*/test_*.py")}
    return [
        *LONGEST,
        *sorted(folders - elsewhere),
        *sorted(path.as_posix() for path in Path("tests").glob("test_*.py")),
    ]


@contextlib.contextmanager
def shared_broker() -> Iterator[None]:
    """One Kafka for all processes. If there can be none, each process reports that itself."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(PartMissingError):
            os.environ["COMMITTERD_TEST_KAFKA"] = stack.enter_context(KafkaBroker()).bootstrap_servers
            stack.callback(os.environ.pop, "COMMITTERD_TEST_KAFKA")
        yield


@contextlib.contextmanager
def files_in_memory() -> Iterator[None]:
    """Temporary files of the tests in memory, where there is room: a disk takes several times as long to create a file.

    A folder that the caller names in TMPDIR is used instead. The logs of failed tests stay on disk.
    """
    room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > DISK_BYTES
    with contextlib.ExitStack() as stack:
        if "TMPDIR" not in os.environ and room and psutil.virtual_memory().available > 3 * DISK_BYTES:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="committerd-tests-", dir=_MEMORY, ignore_cleanup_errors=True)
            )
            if _stores_attributes(folder):
                os.environ.setdefault("COMMITTERD_KEPT_LOGS", str(Path(tempfile.gettempdir(), "committerd-kept-logs")))
                os.environ["TMPDIR"] = tempfile.tempdir = folder
                stack.callback(setattr, tempfile, "tempdir", None)
                stack.callback(os.environ.pop, "TMPDIR")
        yield


def _stores_attributes(folder: str) -> bool:
    """Whether files in this folder can have attributes, which S3 servers need; in memory since Linux 6.6."""
    try:
        os.setxattr(folder, "user.committerd", b"")
    except OSError:
        return False
    return True


def run_everything() -> int:
    """Run both lanes, then check the branches. The last line has pytest's counts."""
    with files_in_memory():
        return _run_everything()


def _run_everything() -> int:
    started = time.monotonic()
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < DISK_BYTES:
        print(
            f"{tempfile.gettempdir()} has {free / 1e9:.1f} GB of free disk, the tests need {DISK_BYTES / 1e9:.0f}: "
            "make room, or name another folder in TMPDIR",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="committerd-coverage-") as folder:
        made = Path(folder)
        lanes = [
            Lane(["--measured", *MEASURED], made),
            Lane([f"--numprocesses={WORKERS}", *DEALT, *others()], made),
        ]
        with shared_broker():
            _run(lanes)
        counts = sum((lane.counts for lane in lanes), Counter[str]())
        good, starved, again = not any(lane.failed for lane in lanes), list[str](), 0
        skips_fail = counts["skipped"] and os.environ.get("COMMITTERD_NO_SKIPS")
        if not good and not skips_fail and not any(lane.broken for lane in lanes):
            again, starved = _alone(made)
            good = again > 0 and len(starved) == again
        complete = good and _every_branch_is_taken(made / DATA)
    failed = 0 if good else counts["failed"] + counts["error"]
    counts["passed"] += len(starved)
    for test in starved:
        print(f"Failed beside the others, and passed alone: {test}")
    if again:
        print(f"{again} tests were tried a second time, alone; {len(starved)} of them passed then.")
    print(f"All tests, in {time.monotonic() - started:.0f} s:")
    print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped", flush=True)
    return 0 if complete else 1


def _run(lanes: Sequence[Lane]) -> None:
    """Run all lanes at the same time."""
    for lane in lanes:
        lane.start()
    try:
        for lane in lanes:
            lane.join()
    except BaseException:
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.join()
        raise


def _alone(folder: Path) -> tuple[int, list[str]]:
    """Run the failed tests once more, if they are few; return their number, and those that pass now."""
    noted = folder / FAILURES
    failed = sorted(set(noted.read_text(encoding="utf-8").splitlines())) if noted.exists() else []
    if not 0 < len(failed) <= AGAIN_MAX:
        return 0, []
    print(f"Once more, alone: {', '.join(failed)}", flush=True)
    noted.unlink()
    lane = Lane(failed, folder)
    _run([lane])
    still = set(noted.read_text(encoding="utf-8").splitlines()) if noted.exists() else set[str]()
    passed = [test for test in failed if test not in still]
    return len(failed), passed if still or not lane.failed else []


def _every_branch_is_taken(data_file: Path) -> bool:
    measured = coverage.Coverage(data_file=data_file)
    measured.load()
    percent = measured.report(include=[f"{path}/*" for path in GATED], show_missing=True, skip_covered=True)
    if percent < 100:
        print("Branches of the rules or the format are not taken by any test; see the last column.")
    return percent >= 100


def main(chosen: list[str]) -> int:
    os.chdir(ROOT)
    os.environ.setdefault("COMMITTERD_PYLANCE_4", str(bootstrap.old_pylance()))
    # The tests start hundreds of Python processes, and each would compile every module that it imports again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if chosen:
        os.execv(sys.executable, command(chosen, Path()))
    return run_everything()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
