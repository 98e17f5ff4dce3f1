"""Release 0.1 beside this one: members and clients of either take turns on one table, under load, there and back.

`committerd-0.1.0.tar.xz` has the packages of release 0.1 (`git archive 936424c`), which run with today's libraries.
"""

from __future__ import annotations

import json
import signal
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeAlias

import lance
import pyarrow as pa
import pytest

from committerd_common.messages import Status
from harness.child import ChildProcess, without_waits
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import QUICK, STAYS, until
from harness.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.timeout(1800)]

Version: TypeAlias = Literal["0.1", "0.2"]
Upserts: TypeAlias = Literal["taken", "refused", "none"]
BOTH: Sequence[Version] = ("0.1", "0.2")
ARCHIVE = Path(__file__).with_name("committerd-0.1.0.tar.xz")
WORK = Path(__file__).with_name("work.py")
PHASES: Sequence[Sequence[Version]] = (
    ("0.1", "0.1"),
    ("0.1", "0.2"),  # a rolling update
    ("0.2", "0.2"),
    ("0.1",),  # and back
)
"""The members of each phase. Those of a phase start before those of the phase before it stop."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with release 0.1."""
    folder = tmp_path_factory.mktemp("committerd-0.1")
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python before 3.11.4
        archive.extractall(folder)
    return folder


class Versions:
    """A dataset, and the processes of both versions that work on it."""

    def __init__(self, servers: str, name: str, folder: Path, release: Path, stack: ExitStack) -> None:
        self.servers, self.name, self.folder = servers, name, folder
        self.uri = str(folder / "table.lance")
        self._release, self._stack = release, stack
        self.topics = stack.enter_context(Topics(servers, name))
        self._count = 0

    def _launch(
        self, version: Version, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> ChildProcess:
        path = {"PYTHONPATH": f"{self._release}:{self._release / 'producers'}"} if version == "0.1" else {}
        # Not in the folder of this test run, whose packages would come first.
        return ChildProcess(command, log=log, folder=self.folder, environment={**environment, **path})

    def member(self, version: Version) -> Daemon:
        """Start a committer."""
        self._count += 1

        def launch(command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> ChildProcess:
            return self._launch(version, command, environment or {}, log)

        made = Daemon(
            name=self.name,
            uri=self.uri,
            kafka=self.servers,
            settings=QUICK | STAYS,
            log=self.folder / f"committer-{self._count}-{version}.log",
            launch=launch,
        )
        self._stack.enter_context(made)
        made.wait_ready()
        assert made.wait_line("daemon.start")["version"].startswith(version)
        return made

    def work(self, version: Version, first: int, upserts: Upserts, again: str) -> Work:
        """Start a producer, as `work.py` says."""
        self._count += 1
        name = f"work-{self._count}"
        log = self.folder / f"{name}-{version}.log"
        command = [sys.executable, str(WORK), self.servers, self.name, self.uri, name, str(first), upserts, again]
        process = self._launch(version, command, {}, log)
        self._stack.callback(process.kill)
        return Work(process, log)

    def command(self, version: Version, *words: str) -> str:
        """Run a command of committerd; returns its output. It must succeed."""
        self._count += 1
        log = self.folder / f"command-{self._count}.log"
        settings = {"DATASET__NAME": self.name, "DATASET__URI": self.uri, "KAFKA__BOOTSTRAP_SERVERS": self.servers}
        environment = {f"COMMITTERD_{key}": value for key, value in (settings | STAYS).items()}
        process = self._launch(version, [sys.executable, "-m", "committerd", *words], environment, log)
        self._stack.callback(process.kill)
        code = process.wait(timeout=240)
        assert code == 0, f"{words}: exit code {code}\n{log.read_text()}"
        return without_waits(log.read_text())


class Work:
    """A producer that runs."""

    def __init__(self, process: ChildProcess, log: Path) -> None:
        self._process, self._log = process, log

    def done(self) -> list[dict[str, Any]]:
        """What was acknowledged until now."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines if line.startswith('{"id"')]

    def wait(self, count: int) -> None:
        """Wait until so many more ids are acknowledged."""
        wanted = len(self.done()) + count
        until(lambda: len(self.done()) >= wanted or not self._process.running(), seconds=240)
        assert self._process.running(), self._log.read_text()

    def end(self) -> list[dict[str, Any]]:
        """Let it finish; returns all that was acknowledged."""
        self._process.signal(signal.SIGTERM)
        assert self._process.wait(timeout=240) == 0, self._log.read_text()
        return self.done()


@pytest.fixture
def versions(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, release: Path) -> Iterator[Versions]:
    with ExitStack() as stack:
        made = Versions(kafka.bootstrap_servers, dataset, tmp_path, release, stack)
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        lance.write_dataset(pa.table({"id": [-1], "v": [0]}, schema=schema), made.uri)
        yield made


def test_members_and_clients_of_both_versions_take_turns(versions: Versions) -> None:
    members: list[Daemon] = []
    acknowledged: list[dict[str, Any]] = []
    last: dict[Version, str] = dict.fromkeys(BOTH, "")
    for number, phase in enumerate(PHASES):
        started = [versions.member(version) for version in phase]
        running = {*phase, *(PHASES[number - 1] if number else ())}
        staged = versions.topics.stage(b"no transaction")
        assert versions.topics.wait_answers(staged)[0].status is Status.INVALID
        works = dict[Version, Work]()
        for place, version in enumerate(BOTH):
            # 0.1 knows no committerd.key-hash; while members of both run, either may be the one that commits.
            upserts: Upserts = "taken"
            if version == "0.2" and "0.1" in running:
                upserts = "none" if "0.2" in running else "refused"
            works[version] = versions.work(version, 100_000 * (2 * number + place), upserts, last[BOTH[1 - place]])
        for work in works.values():
            work.wait(3)
        for member in members:  # of the phase before: those of this phase take over, under load
            member.stop()
            assert member.code == 0
            for work in works.values():
                work.wait(2)
        for version, work in works.items():
            done = work.end()
            acknowledged += done
            last[version] = done[-1]["unit"]
        members = started
    rows = lance.dataset(versions.uri).to_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [-1, *sorted(one["id"] for one in acknowledged)]
    newest = max((one for one in acknowledged if "upsert" in one), key=lambda one: int(one["upsert"]))
    assert [row["v"] for row in rows if row["id"] == -1] == [newest["id"]]
    for version in BOTH:
        versions.command(version, "audit")
        letters = json.loads(versions.command(version, "dead", "list", "--json"))["letters"]
        undecodable = {one["staged_at"] for one in letters if one["reason"] == "record_undecodable"}
        assert len(undecodable) == len(PHASES), letters
