"""The examples for dlt, Airflow and Dagster: each row is in the table once, though the program is killed on its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.spark.queue import Queue

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
_DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")


class Program:
    """An example, which writes one unit of work in each run."""

    command: Sequence[str] = ()
    """The placeholder {day} is the unit's."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT / "producers"), *filter(None, sys.path)]),
            "HOME": str(queue.folder),
            "COMMITTERD_SERVERS": queue.kafka,
            "DO_NOT_TRACK": "1",
        }

    def given(self, day: str) -> str:
        """Its standard input."""
        return ""

    def start(self, day: str) -> subprocess.Popen[str]:
        command = [sys.executable, *(word.format(day=day) for word in self.command)]
        log = (self.queue.folder / "example.log").open("a", encoding="utf-8")
        with log:
            running = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.queue.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        assert running.stdin is not None
        with running.stdin as pipe:
            pipe.write(self.given(day))
        return running

    def run(self, day: str) -> None:
        assert self.start(day).wait() == 0, self.said()

    def staged(self) -> int:
        """Number of records in the staged topic."""
        place = TopicPartition(f"{self.queue.name}.staged", 0)
        with closing(KafkaConsumer(bootstrap_servers=self.queue.kafka, enable_auto_commit=False)) as consumer:
            return int(consumer.end_offsets([place])[place])

    def said(self) -> str:
        return (self.queue.folder / "example.log").read_text(encoding="utf-8")

    def rows(self) -> list[tuple[str, int]]:
        """Day and number of each row, sorted."""
        return sorted((row["day"], row["number"]) for row in self.queue.rows())


class Dlt(Program):
    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self.command = [
            *(str(_ROOT / "examples" / "dlt_destination.py"), "--bootstrap-servers", queue.kafka),
            *("--folder", str(queue.folder), "--table", queue.name),
        ]
        self._lines = ""
        # Several files of one table in a load.
        self.environment |= {
            "NORMALIZE__DATA_WRITER__FILE_MAX_ITEMS": "2",
            "NORMALIZE__DATA_WRITER__BUFFER_MAX_ITEMS": "1",
            "RUNTIME__DLTHUB_TELEMETRY": "false",
        }

    def given(self, day: str) -> str:
        return self._lines or lines_of(rows_of(day))

    def load(self, rows: Sequence[dict[str, object]], *options: str) -> None:
        """Load these rows."""
        self._lines, command = lines_of(rows), self.command
        self.command = [*command, *options]
        self.run("")
        self.command = command


class Airflow(Program):
    command = ("-m", "airflow", "dags", "test", "events", "{day}")

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        dags = queue.folder / "dags"
        dags.mkdir()
        (dags / "events.py").symlink_to(_ROOT / "examples" / "airflow_append.py")
        self.environment |= {
            "AIRFLOW_HOME": str(queue.folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "EVENTS_URI": queue.uri,
        }
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        subprocess.run(migrate, env=self.environment, check=True, capture_output=True)


class Dagster(Program):
    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        assets = queue.folder / "assets.py"
        text = (_ROOT / "examples" / "dagster_assets.py").read_text(encoding="utf-8")
        assets.write_text(text.replace("orders", queue.name), encoding="utf-8")
        self.command = ("-m", "dagster", "asset", "materialize", "-f", str(assets))
        self.command += ("--select", queue.name, "--partition", "{day}")
        self.environment |= {"LANCE_FOLDER": str(queue.folder), "DAGSTER_DISABLE_TELEMETRY": "1"}


def lines_of(rows: Sequence[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_of(day: str) -> list[dict[str, object]]:
    return [{"day": day, "number": number} for number in range(3)]


@pytest.fixture(params=[Dlt, Airflow, Dagster])
def program(request: pytest.FixtureRequest, queue: Queue) -> Program:
    made: Program = request.param(queue)
    return made


@pytest.mark.timeout(1200)
def test_a_killed_program_repeats_its_unit_and_the_rows_are_there_once(program: Program, queue: Queue) -> None:
    program.run(_DAYS[0])
    queue.daemon.kill()
    before = program.staged()
    killed = program.start(_DAYS[1])
    while program.staged() == before:
        assert killed.poll() is None, program.said()
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    queue.daemon.start()
    program.run(_DAYS[1])
    program.run(_DAYS[2])
    assert program.rows() == [(row["day"], row["number"]) for day in _DAYS for row in rows_of(day)]


@pytest.mark.timeout(1200)
def test_dlt_merges_by_key_adds_columns_and_replaces(queue: Queue) -> None:
    program = Dlt(queue)
    merge = ("--mode", "merge", "--keys", "id")
    program.load([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}, {"id": 3, "name": "Cid"}], *merge)
    program.load([{"id": 3, "name": "Sid", "age": 7}, {"id": 3, "name": "Sid", "age": 7}, {"id": 4, "age": 8}], *merge)
    assert queue.rows() == [
        {"id": 1, "name": "Ann", "age": None},
        {"id": 2, "name": "Bob", "age": None},
        {"id": 3, "name": "Sid", "age": 7},
        {"id": 4, "name": None, "age": 8},
    ]
    program.load([{"id": 9, "name": "Ida"}], "--mode", "replace")
    assert queue.column("id") == [9]
