"""Run the tests: without arguments all but the longest, and check that every branch of the pure packages is taken.

Arguments are pytest's. `COMMITTERD_NO_SKIPS=1` makes a skipped test a failure. `COMMITTERD_PYLANCE_4` is the Python
that has pylance 4.0.0.

The tests of the pure packages come first, in two processes, and take every branch within a minute. If one fails, or a
branch is not taken, nothing else runs. All other files are divided among some processes (pytest-xdist), because most of
these tests wait for brokers, stores and child processes most of the time. A failed test makes the run fail, unless
`tests/second_tries.toml` names it: then it runs once more, alone.
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
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path

import coverage
import psutil

from harness import PartMissingError
from harness.kafka import kafka_broker
from scripts import bootstrap

ROOT = Path(__file__).resolve().parent.parent
GATED = ["committerd/lance", "committerd/queue", "committerd/audit", "producers/committerd_common"]

MEASURED = (["tests/lance"], ["tests/common", "tests/queue", "tests/audit"])
"""The folders that together take every branch of the packages in `GATED`, a process each."""
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
"""The folders with which the other tests begin, so that no long file is left for the end."""
WORKERS = 4
"""Processes for all other tests: two for each core of a small machine, because they wait some of the time. With three,
every test waits so long for the processor that a few exceed their time limits.

Each starts a store when its first test needs one; they share a broker.
"""
BELOW_THE_BROKER = ["nice", "-n", "5"]
"""Runs the tests, and all that they start, behind the broker that they share. On a busy machine it would otherwise get
no processor for seconds, and requests of tests in which nothing is to fail would time out.
"""
DEALT = ["-p", "tests.plugins.groups", "--dist=loadfile", "--no-loadscope-reorder"]
"""How xdist deals the tests: a group of files at a time, in the order of the arguments."""
SHORTER = ["-m", "not long"]
"""Leaves the longest tests to `make test-long`."""
DEPLOYING = ["tests/deploy"]
"""Needs Go and Debian packages, and runs in `make test-deploy` only: two processes share it."""

FAILURES = "failures"
"""A file's name."""
DISK_BYTES = 4_000_000_000
"""The disk space that tables and the logs of brokers and stores take meanwhile, with some reserve: MinIO and Kafka stop
before a disk is full.
"""
_MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""
SECOND_TRIES = ROOT / "tests" / "second_tries.toml"
"""The tests that may be tried a second time, each with the cause of its failure."""
SECOND_TRIES_MAX = 2
"""If more tests fail, none is tried a second time."""

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
        """`folder`: where taken branches and failed tests are noted."""
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
            [*BELOW_THE_BROKER, *command(self._arguments, self._folder), "-p", "tests.plugins.note_failures"],
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


def command(arguments: Arguments, folder: Path) -> list[str]:
    """The command of one run of pytest; `folder`: where taken branches are noted."""
    measured = arguments[:1] == ["--measured"]
    data = ["--parallel-mode", f"--data-file={folder / '.coverage'}"]
    tool = ["coverage", "run", *data, f"--source={','.join(GATED)}", "-m"]
    skips = ["-p", "tests.plugins.no_skips"] if os.environ.get("COMMITTERD_NO_SKIPS") else []
    return [sys.executable, "-m", *(tool if measured else []), "pytest", *skips, *arguments[measured:]]


def others() -> list[str]:
    """The files and folders of all other tests, so that nothing is forgotten."""
    elsewhere = {*chain(*MEASURED), *DEPLOYING, *LONGEST}
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
            os.environ["COMMITTERD_TEST_KAFKA"] = stack.enter_context(kafka_broker()).bootstrap_servers
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
    """Run the tests of the pure packages, check the branches, and run the others. The last line has pytest's counts."""
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
    with tempfile.TemporaryDirectory(prefix="committerd-tests-") as folder:
        made = Path(folder)
        lanes = [Lane(["--measured", *folders], made) for folders in MEASURED]
        _run(lanes)
        good = not any(lane.failed for lane in lanes) and _every_branch_is_taken(made)
        passed_then: list[str] = []
        if good:
            lane = Lane([f"--numprocesses={WORKERS}", *DEALT, *SHORTER, *others()], made)
            with shared_broker():
                _run([lane])
            lanes.append(lane)
            if lane.failed:
                skips_fail = lane.counts["skipped"] and os.environ.get("COMMITTERD_NO_SKIPS")
                passed_then = [] if lane.broken or skips_fail else _tried_again(made)
                good = bool(passed_then)
        else:
            print("The tests of the pure packages come first: nothing else was run.")
    counts = sum((lane.counts for lane in lanes), Counter[str]())
    failed = 0 if passed_then else counts["failed"] + counts["error"]
    print(f"The tests took {time.monotonic() - started:.0f} s:")
    print(
        f"{counts['passed'] + len(passed_then)} passed, {failed} failed, {counts['skipped']} skipped, "
        f"{len(passed_then)} at a second try",
        flush=True,
    )
    return 0 if good else 1


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


def may_be_tried_again(failed: Collection[str], named: Collection[str]) -> bool:
    """Whether these failed tests are tried once more: they are at most two, and each is named in the list."""
    return 0 < len(failed) <= SECOND_TRIES_MAX and set(failed) <= set(named)


def named_tests() -> dict[str, str]:
    """The tests that may be tried a second time: the cause by name."""
    return {name: entry["cause"] for name, entry in tomllib.loads(SECOND_TRIES.read_text(encoding="utf-8")).items()}


def _tried_again(folder: Path) -> list[str]:
    """Run the failed tests once more, alone, if they may be; return them if all of them pass now."""
    noted, causes = folder / FAILURES, named_tests()
    failed = sorted(set(noted.read_text(encoding="utf-8").splitlines())) if noted.exists() else []
    if not may_be_tried_again(failed, causes):
        return []
    for test in failed:
        print(f"A second try, alone: {test}, because {causes[test]}", flush=True)
    lane = Lane(failed, folder)
    _run([lane])
    return [] if lane.failed else failed


def _every_branch_is_taken(folder: Path) -> bool:
    measured = coverage.Coverage(data_file=folder / ".coverage")
    measured.combine([str(folder)])
    percent = measured.report(include=[f"{path}/*" for path in GATED], show_missing=True, skip_covered=True)
    if percent < 100:
        print("Branches of the pure packages are not taken by any test; see the last column.")
    return percent >= 100


def main(chosen: list[str]) -> int:
    os.chdir(ROOT)
    os.environ.setdefault("COMMITTERD_PYLANCE_4", str(bootstrap.old_pylance()))
    # The tests start hundreds of Python processes, and each would compile every module that it imports again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if chosen == DEPLOYING:
        chosen = ["--numprocesses=2", *DEALT, *DEPLOYING]
    if chosen:
        os.execv(sys.executable, command(chosen, Path()))
    return run_everything()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
