"""`make demo` shows what is in the table, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient

from harness.kafka import KafkaBroker, RunningKafka
from harness.marked import Mark
from harness.scene import until

DEMO = ("-m", "scripts.demo")
SMALL = ("--producers", "2", "--appends", "30", "--rows", "10", "--appends-only")
LONG = ("--producers", "2", "--appends", "20000", "--rows", "1", "--appends-only")
"""Not finished before it is interrupted."""

STARTING_KAFKA = "Starting Apache Kafka"
STARTING_COMMITTER = "Starting committerd"
STARTING_PRODUCERS = "Starting 2 producers"
COMMITTING = "answered,"
READING = "Reading the table"

TERMINAL_COLUMNS = 30
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class Demo:
    """One run, with its own temporary folder; knows every process that belongs to it."""

    def __init__(self, folder: Path, *, kafka: str | None, **environment: str) -> None:
        self.folder = folder
        self.output = ""
        self._mark = Mark()
        base = {key: text for key, text in os.environ.items() if key not in ("KAFKA_BOOTSTRAP_SERVERS", "COLUMNS")}
        self.environment = {**base, "TMPDIR": str(folder), **self._mark.environment, **environment}
        if kafka is not None:
            self.environment["KAFKA_BOOTSTRAP_SERVERS"] = kafka
        self._process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *DEMO, *options],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the demo itself; the processes that it has started go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def read_until(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"ended before it said {text!r}:\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; returns the exit code. Everything that was printed is in `output`."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout:
            self.output += self._process.stdout.read()
        return self._process.wait(60)

    def run(self, *options: str) -> int:
        self.start(*options)
        return self.end()

    def processes(self) -> list[psutil.Process]:
        """All processes that have inherited our mark, whoever started them."""
        return self._mark.processes()

    def commands(self) -> dict[psutil.Process, list[str]]:
        """The command lines of these processes; without those that have ended meanwhile."""
        return self._mark.commands()

    def process(self, word: str) -> psutil.Process:
        """The one program with this word in its command line; not its watcher."""
        (found,) = [
            process
            for process, words in self.commands().items()
            if word in words and not any("child.py" in one for one in words)
        ]
        return found

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        if self._process is not None:
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()

    def value(self, name: str) -> float:
        """The value of a line of the table at the end."""
        match = re.search(rf"^  {name} +([\d,.]+)(  |$)", self.output, re.MULTILINE)
        assert match, self.output
        return float(match[1].replace(",", ""))


@pytest.fixture
def demo(tmp_path: Path, kafka: KafkaBroker | RunningKafka) -> Iterator[Demo]:
    """A demo on the Kafka of the test run."""
    made = Demo(tmp_path, kafka=kafka.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def own_demo(tmp_path: Path, kafka: KafkaBroker | RunningKafka) -> Iterator[Demo]:
    """A demo that starts a Kafka itself."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("KAFKA_BOOTSTRAP_SERVERS is set: there may be no Java to start Kafka with")
    made = Demo(tmp_path, kafka=None)
    yield made
    made.close()


def assert_nothing_is_left(demo: Demo) -> None:
    # A process that is killed while it starts is reaped a moment later.
    deadline = time.monotonic() + 30
    while demo.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(demo.commands().values()) == []
    assert list(demo.folder.iterdir()) == []


def assert_no_demo_is_in(kafka: KafkaBroker | RunningKafka, *, besides: set[str]) -> None:
    """A broker may list a topic for a moment after it was deleted."""
    until(lambda: demos_in(kafka) <= besides)


def demos_in(kafka: KafkaBroker | RunningKafka) -> set[str]:
    """The topics and groups of demos."""
    admin: Any = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        groups = {group["group_id"] for group in admin.list_groups()}
        return {name for name in {*admin.list_topics(), *groups} if "demo-" in name}
    finally:
        admin.close()


def test_it_shows_what_it_measured_keeps_the_table_on_demand_and_leaves_nothing_in_a_kafka_that_runs_on(
    demo: Demo, kafka: KafkaBroker | RunningKafka
) -> None:
    before = demos_in(kafka)
    assert demo.run(*SMALL, "--keep") == 0, demo.output
    again = 2  # the first append of each producer
    assert demo.value("staged") == 1 + 30 + again
    assert demo.value("committed") == 1 + 30
    assert demo.value("duplicates") == again
    assert demo.value("conflicts") == demo.value("other refusals") == 0
    assert 2 <= demo.value("versions") <= 1 + 30 + again
    assert 1 <= demo.value("per version") <= 30
    assert demo.value("throughput") > 0
    assert 0 < demo.value("latency p50") <= demo.value("latency p99")
    assert "300 rows in 30 fragments" in demo.output
    assert re.search(r"Metrics were at http://127\.0\.0\.1:\d+/metrics", demo.output)
    assert f"committerd_table_version {demo.value('versions'):g}\n" in demo.output
    assert "WARN" not in demo.output
    assert_no_demo_is_in(kafka, besides=before)
    match = re.search(r"Table and logs are kept in (.*)$", demo.output, re.MULTILINE)
    assert match
    rows = lance.dataset(f"{match[1]}/demo.lance").to_table().to_pylist()
    assert sorted((row["producer"], row["sequence"]) for row in rows) == [(p, s) for p in (1, 2) for s in range(150)]
    shutil.rmtree(match[1])
    assert_nothing_is_left(demo)


@pytest.mark.parametrize("seconds", [0, 0.3, 1.5])
def test_it_can_be_interrupted_while_kafka_starts(own_demo: Demo, seconds: float) -> None:
    own_demo.start(*LONG)
    own_demo.read_until(STARTING_KAFKA)
    time.sleep(seconds)
    own_demo.signal(signal.SIGINT)
    assert own_demo.end() == 130, own_demo.output
    assert_nothing_is_left(own_demo)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6])
def test_it_can_be_interrupted_while_it_is_loaded(demo: Demo, seconds: float) -> None:
    demo.start(*LONG)
    time.sleep(seconds)
    demo.signal(signal.SIGINT)
    assert demo.end() != 0, demo.output  # 130, or Python's own code if Python itself was still being loaded
    assert_nothing_is_left(demo)


SWALLOWS_AN_INTERRUPT = """
import signal, time
from scripts.demo.__main__ import Interrupted, Interrupts

class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

interrupts = Interrupts(repeat_seconds=0.1)
interrupts.listen()
try:
    Swallows()
    print("was not interrupted", flush=True)
    time.sleep(300)
except Interrupted:
    print("was interrupted")
"""


def test_an_interrupt_that_a_library_swallows_is_raised_again() -> None:
    command = [sys.executable, "-c", SWALLOWS_AN_INTERRUPT]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert ended.stdout.split("\n") == ["was not interrupted", "was interrupted", ""], ended.stderr


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (STARTING_COMMITTER, signal.SIGINT),
        pytest.param(STARTING_PRODUCERS, signal.SIGINT, marks=pytest.mark.long),
        (COMMITTING, signal.SIGTERM),
        pytest.param(COMMITTING, signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_it_can_be_interrupted_at_work(
    demo: Demo, kafka: KafkaBroker | RunningKafka, moment: str, number: signal.Signals
) -> None:
    before = demos_in(kafka)
    demo.start(*LONG)
    demo.read_until(moment)
    demo.signal(number)
    assert demo.end() == 128 + number, demo.output
    assert "Traceback" not in demo.output
    assert f"Ended by {number.name}" in demo.output
    assert_no_demo_is_in(kafka, besides=before)
    assert_nothing_is_left(demo)


@pytest.mark.long
def test_it_can_be_interrupted_while_it_reads_the_table(demo: Demo) -> None:
    demo.start(*SMALL)
    demo.read_until(READING)
    demo.signal(signal.SIGINT)
    assert demo.end() in (130, 0), demo.output  # or it was too late
    assert_nothing_is_left(demo)


@pytest.mark.parametrize("moment", [STARTING_KAFKA, pytest.param(COMMITTING, marks=pytest.mark.long)])
def test_more_interrupts_than_one_change_nothing(own_demo: Demo, moment: str) -> None:
    own_demo.start(*LONG)
    own_demo.read_until(moment)
    for _ in range(20):
        own_demo.signal(signal.SIGINT)
        time.sleep(0.02)
    assert own_demo.end() == 130, own_demo.output
    assert "Traceback" not in own_demo.output
    assert_nothing_is_left(own_demo)


@pytest.mark.long
def test_no_process_outlives_it_when_it_is_killed(own_demo: Demo) -> None:
    own_demo.start(*LONG)
    own_demo.read_until(COMMITTING)
    assert len(own_demo.processes()) >= 5  # itself, Kafka, committerd, two producers
    own_demo.signal(signal.SIGKILL)
    assert own_demo.end() == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while own_demo.processes():
        assert time.monotonic() < deadline, list(own_demo.commands().values())
        time.sleep(0.1)


def test_it_fails_when_the_committer_ends_too_early(demo: Demo) -> None:
    demo.start(*LONG)
    demo.read_until(COMMITTING)
    demo.process("committerd").kill()
    assert demo.end() == 1, demo.output
    assert "Failed: committerd has ended" in demo.output
    assert_nothing_is_left(demo)


@pytest.mark.long
def test_it_fails_when_a_producer_ends_too_early(demo: Demo) -> None:
    demo.start(*LONG)
    demo.read_until(COMMITTING)
    producer = next(one for one, words in demo.commands().items() if words[1:3] == ["-m", "scripts.demo.writers"])
    producer.kill()
    assert demo.end() == 1, demo.output
    assert "Failed: producer-" in demo.output
    assert_nothing_is_left(demo)


@pytest.mark.long
def test_it_fails_and_says_so_when_the_rows_are_not_those_that_were_staged(demo: Demo) -> None:
    demo.start("--producers", "2", "--appends", "600", "--rows", "1", "--appends-only")
    demo.read_until(COMMITTING)
    with demo.paused():  # it must not read the table before these changes, however long they take
        (uri,) = demo.folder.glob("committerd-demo-*/demo.lance")
        lost = "producer = 2 and sequence = 0"
        while lance.dataset(uri).count_rows(lost) == 0:
            time.sleep(0.05)
        schema = lance.dataset(uri).schema
        foreign = pa.table({"producer": [1, 99], "sequence": [1, 0], "value": [32, 0]}, schema=schema)
        lance.write_dataset(foreign, uri, mode="append")
        lance.dataset(uri).delete(lost)
    assert demo.end() == 1, demo.output
    said = "but: 1 missing, 1 there more than once, 1 not written by any producer"
    assert f"FAILED Every row is in the table exactly once, {said}" in demo.output
    assert "Failed: 1 of 4 checks failed" in demo.output
    assert_nothing_is_left(demo)


def test_it_needs_no_java_on_the_machine_and_starts_a_kafka_that_ends_with_it(tmp_path: Path) -> None:
    demo = Demo(tmp_path, kafka=None, PATH="/nowhere", JAVA_HOME="")
    assert demo.run(*SMALL) == 0, demo.output
    assert_nothing_is_left(demo)


def test_when_no_kafka_answers_it_says_so(tmp_path: Path) -> None:
    demo = Demo(tmp_path, kafka="127.0.0.1:1")
    assert demo.run(*SMALL) == 1
    assert "Failed: no Kafka responds at KAFKA_BOOTSTRAP_SERVERS=127.0.0.1:1" in demo.output
    assert "Traceback" not in demo.output
    assert_nothing_is_left(demo)


def test_options_that_can_not_be_are_refused(tmp_path: Path) -> None:
    demo = Demo(tmp_path, kafka=None)
    assert demo.run("--appends", "3", "--producers", "4") == 2
    assert "--appends 3 leaves some of the 4 producers without work" in demo.output
    demo = Demo(tmp_path, kafka=None)
    assert demo.run("--help") == 0
    assert all(option in demo.output for option in ("--appends", "--producers", "--rows", "--appends-only", "--keep"))


def test_on_a_terminal_progress_is_one_line_and_control_c_ends_it(
    tmp_path: Path, kafka: KafkaBroker | RunningKafka
) -> None:
    demo = Demo(tmp_path, kafka=kafka.bootstrap_servers)
    code, shown = interrupted_on_a_terminal(demo, *LONG)
    assert code == 130, shown
    (progress,) = [line for line in shown.split("\n") if "answered," in line]
    parts = progress.split("\r\x1b[K")
    assert len(parts) > 3
    assert max(len(part.removesuffix("^C")) for part in parts) < TERMINAL_COLUMNS
    assert "Ended by SIGINT" in shown
    assert "Traceback" not in shown
    assert_nothing_is_left(demo)


def interrupted_on_a_terminal(demo: Demo, *options: str) -> tuple[int, str]:
    """Exit code and screen of a run in which Control-C is pressed after some progress."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, TERMINAL_COLUMNS, 0, 0))
    command = [sys.executable, "-c", TAKE_TERMINAL, *DEMO, *options]
    with subprocess.Popen(
        command, env=demo.environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        os.close(slave)
        shown, pressed = b"", False
        with open(master, "r+b", buffering=0) as terminal:
            while True:
                try:
                    shown += terminal.read(1000)
                except OSError:  # no process has it open any more
                    break
                if not pressed and shown.count(b"answered,") > 3:
                    pressed = bool(terminal.write(b"\x03"))
        return process.wait(60), shown.decode().replace("\r\n", "\n")
