"""Streams whose drivers, committer and broker are killed, beside async clients: the table must equal the input.

Each Spark application is `examples/spark_stream.py` as a process of its own, restarted whenever it ended. Rows have two
columns, `writer` (who wrote the row) and `number` (counted from 0), so a lost or doubled row is noticed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import lance
import psutil
import pyarrow as pa

from committerd_client import ClientError, CommitClient, RetryableConflict, staging
from committerd_client.errors import NotCommitted
from committerd_client.reexecution import TransactionLike
from committerd_common.messages import Status
from harness.child import ChildProcess
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.scene import QUICK
from harness.spark import CONFIG
from harness.topics import Topics

_ROOT = Path(__file__).resolve().parents[3]
_EXAMPLE = _ROOT / "examples" / "spark_stream.py"
_SCHEMA = pa.schema([("writer", pa.int64()), ("number", pa.int64())])
_ROWS_IN_FILE = 20
_CLIENT_WRITER = 1000
"""`writer` of the first client; that of an application is its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of a run. A micro-batch is one file."""

    batches: int
    """Micro-batches of the first application, whose driver is killed."""
    beside: int
    """Micro-batches of the second application; 0 = there is none."""
    clients: int
    driver_kills: int
    daemon_kills: int
    kafka_kills: int
    seed: int
    minutes_max: float


@dataclass(slots=True)
class Report:
    """What happened, and the problems found."""

    seconds: float = 0.0
    rows: int = 0
    versions: int = 0
    appended_by_clients: int = 0
    driver_starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcomes of all records, by status; an outcome that was published twice counts once."""
    wrong: list[str] = field(default_factory=list)


class Application:
    """A stream of files, and its driver."""

    def __init__(self, number: int, batches: int, *, folder: Path, uri: str, servers: str) -> None:
        self.number, self.batches = number, batches
        self.starts = 0
        self.log = folder / f"spark-{number}.log"
        self._checkpoint = folder / f"checkpoint-{number}"
        incoming = folder / f"incoming-{number}"
        incoming.mkdir()
        for batch in range(batches):
            rows = range(batch * _ROWS_IN_FILE, (batch + 1) * _ROWS_IN_FILE)
            lines = "".join(json.dumps({"writer": number, "number": row}) + "\n" for row in rows)
            (incoming / f"{batch:05}.json").write_text(lines)
        self._command = [
            sys.executable, str(_EXAMPLE), "--bootstrap-servers", servers, "--uri", uri,
            "--app-id", f"stream-{number}", "--checkpoint", str(self._checkpoint), "--json", str(incoming),
            "--schema", "writer long, number long", "--files", "1", "--available-now",
        ]  # fmt: skip
        options = " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in CONFIG.items())
        local = f"--conf spark.local.dir={folder / 'local'}"
        self._environment = os.environ | {
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] {options} {local} pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{_ROOT}:{_ROOT / 'producers'}",
        }
        self._process: ChildProcess | None = None

    @property
    def committed(self) -> int:
        """Micro-batches that Spark has finished; it keeps the marks of the last hundred."""
        marks = (int(path.name) for path in (self._checkpoint / "commits").glob("*") if path.name.isdigit())
        return max(marks, default=-1) + 1

    def keep_running(self) -> bool:
        """Start the driver if it ended too early; returns False when the stream has ended."""
        if self._process is not None and self._process.running():
            return True
        if self._process is not None and self._process.code == 0:
            return False
        self.starts += 1
        self._process = ChildProcess(self._command, log=self.log, environment=self._environment)
        return True

    def kill(self) -> bool:
        """Send SIGKILL to the driver, its Java and its Python workers; returns False if it had ended."""
        mine = [process for process in psutil.Process().children(recursive=True) if self._is_driver(process)]
        family = [each for process in mine for each in (process, *process.children(recursive=True))]
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=30)
        if self._process is not None:
            self._process.kill()
        return self._process is not None and self._process.code != 0

    def _is_driver(self, process: psutil.Process) -> bool:
        try:
            # Not to the watcher above it, which is our own child and for `ChildProcess` to wait for.
            return process.ppid() != os.getpid() and str(self._checkpoint) in process.cmdline()
        except psutil.Error:
            return False


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self._plan, self._folder, self._tell = plan, folder, tell
        self._rng = random.Random(plan.seed)
        self._uri = str(folder / "chaos.lance")
        self._report = Report()
        self._until = time.monotonic() + plan.minutes_max * 60

    def run(self) -> Report:
        """Run everything. Raises `AssertionError` if the streams have not ended in time."""
        began = time.monotonic()
        with KafkaBroker() as kafka:
            settings = QUICK | {"KAFKA__SESSION_TIMEOUT_MS": "6000"}
            daemon = Daemon(
                name="chaos",
                uri=self._uri,
                kafka=kafka.bootstrap_servers,
                settings=settings,
                log=self._folder / "committerd.log",
            )
            with daemon:
                daemon.wait_line("http.listening")
                asyncio.run(self._race(kafka, daemon))
                with Topics(kafka.bootstrap_servers, "chaos") as topics:
                    last = {outcome.offset: outcome for outcome in topics.read_outcomes()}
                for outcome in last.values():
                    self._report.outcomes[f"{Status.Name(outcome.status)} {outcome.reason}".strip()] += 1
        self._report.seconds = time.monotonic() - began
        return self._report

    async def _race(self, kafka: KafkaBroker, daemon: Daemon) -> None:
        sizes = [self._plan.batches, self._plan.beside] if self._plan.beside else [self._plan.batches]
        servers = kafka.bootstrap_servers
        applications = [
            Application(number, batches, folder=self._folder, uri=self._uri, servers=servers)
            for number, batches in enumerate(sizes)
        ]
        ended = asyncio.Event()
        clients = [
            asyncio.create_task(self._append(servers, _CLIENT_WRITER + number, ended))
            for number in range(self._plan.clients)
        ]
        try:
            await self._streams(applications, kafka, daemon)
            ended.set()
            appended = await asyncio.wait_for(asyncio.gather(*clients), self._seconds_left())
        finally:
            for application in applications:
                application.kill()
            for client in clients:
                client.cancel()
        self._report.driver_starts = sum(application.starts for application in applications)
        self._report.appended_by_clients = sum(appended)
        expected = {application.number: application.batches * _ROWS_IN_FILE for application in applications}
        self._compare(expected | {_CLIENT_WRITER + number: count for number, count in enumerate(appended)})

    async def _streams(self, applications: list[Application], kafka: KafkaBroker, daemon: Daemon) -> None:
        """Wait until all streams have ended; performs every kill on the way, spread over the first stream's batches."""
        plan, first = self._plan, applications[0]
        due = [
            *self._due(plan.driver_kills, lambda: self._kill_driver(first)),
            *self._due(plan.daemon_kills, lambda: self._kill_daemon(daemon)),
            *self._due(plan.kafka_kills, lambda: self._kill_kafka(kafka)),
        ]
        due.sort(key=lambda each: each[0])
        while True:
            running = [application.keep_running() for application in applications]
            if due and first.committed >= due[0][0]:
                _, strike = due.pop(0)
                await asyncio.sleep(self._rng.uniform(0, 0.5))  # anywhere in the current batch
                await asyncio.to_thread(strike)
                self._tell(f"{first.committed} of {first.batches} batches: {dict(self._report.kills)}")
            if not any(running) and not due:
                break
            assert self._seconds_left() > 0, f"not at the end in time: {self._tails(applications)}"
            await asyncio.sleep(0.05)

    def _due(self, count: int, strike: Callable[[], None]) -> list[tuple[int, Callable[[], None]]]:
        """The batch of the first stream after which the next kill is due."""
        last = self._plan.batches - 1
        return [((2 * number + 1) * last // (2 * count), strike) for number in range(count)]

    def _kill_driver(self, application: Application) -> None:
        if application.kill():
            self._report.kills["driver"] += 1

    def _kill_daemon(self, daemon: Daemon) -> None:
        daemon.kill()
        daemon.start()
        self._report.kills["committerd"] += 1

    def _kill_kafka(self, kafka: KafkaBroker) -> None:
        kafka.kill()
        time.sleep(self._rng.uniform(0, 2))
        kafka.start()
        self._report.kills["kafka"] += 1

    async def _append(self, servers: str, writer: int, ended: asyncio.Event) -> int:
        """Append rows, a few at a time, until the streams have ended; return their number."""
        rng, count = random.Random(writer), 0
        client = CommitClient(servers, dataset="chaos", dataset_uri=self._uri, producer=f"client-{writer}", timeout=20)
        async with client:
            await self._exists(client, writer)
            while not ended.is_set() or count == 0:
                numbers = range(count, count + rng.randint(1, 3))
                rows = pa.table([[writer] * len(numbers), list(numbers)], schema=_SCHEMA)
                fragments = await asyncio.to_thread(lance.fragment.write_fragments, rows, self._uri, mode="append")
                await self._commit(client, staging.append(fragments))
                count += len(numbers)
                await asyncio.sleep(rng.uniform(2, 8))
        return count

    async def _exists(self, client: CommitClient, writer: int) -> None:
        """Make the table; ten clients and the streams race for it."""
        try:
            await self._commit(client, staging.create([], _SCHEMA))
            self._tell(f"client {writer} made the table")
        except RetryableConflict as conflict:
            if conflict.code != "table_exists":
                raise

    async def _commit(self, client: CommitClient, transaction: TransactionLike) -> None:
        """Submit the same transaction until it has an outcome."""
        while True:
            try:
                await client.commit(transaction)
            except NotCommitted:
                raise
            except ClientError:
                assert self._seconds_left() > 0
                await asyncio.sleep(0.2)
            else:
                return

    def _compare(self, expected: dict[int, int]) -> None:
        dataset = lance.dataset(self._uri)
        table = dataset.to_table()
        found = Counter(zip(table["writer"].to_pylist(), table["number"].to_pylist(), strict=True))
        wanted = {(writer, number) for writer, count in expected.items() for number in range(count)}
        self._report.rows, self._report.versions = table.num_rows, dataset.version
        for what, rows in {
            "lost": wanted - found.keys(),
            "invented": found.keys() - wanted,
            "doubled": {row for row, count in found.items() if count > 1},
        }.items():
            if rows:
                self._report.wrong.append(f"{len(rows)} rows {what}, such as {sorted(rows)[:5]}")

    def _seconds_left(self) -> float:
        return self._until - time.monotonic()

    def _tails(self, applications: list[Application]) -> str:
        return "\n".join(each.log.read_text(errors="replace")[-3000:] for each in applications if each.log.exists())
