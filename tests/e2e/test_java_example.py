"""examples/java: a producer in Java, with Lance's own library and Apache's own Kafka client, is killed and goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from harness import PartMissingError
from harness.child import ChildProcess
from harness.daemon import Daemon
from harness.java import BRIEFLY, INSTALL_JDK, jdk
from harness.kafka import KafkaBroker, RunningKafka

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "java"

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the example, built by Maven as a user builds it; Maven keeps what it downloads."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("examples/java is built with Maven, and there is no `mvn`: install Maven and a JDK 17")
    try:
        java = jdk("examples/java", install=INSTALL_JDK)
    except PartMissingError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("java") / "java"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("target"))
    command = [maven, "-q", "-B", "compile", f"-Dprotos={ROOT / 'protos'}"]
    briefly = os.environ | {"MAVEN_OPTS": " ".join(BRIEFLY)}
    done = subprocess.run(command, cwd=folder, env=briefly, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    target = folder / "target"
    classes = f"{target / 'classes'}:{(target / 'classpath').read_text()}"
    opens = "--add-opens=java.base/java.nio=ALL-UNNAMED"  # Arrow asks for it
    return [java, opens, *BRIEFLY, "-cp", classes, "example.Append"]


class Example:
    """Runs of the program for one table."""

    def __init__(self, program: list[str], daemon: Daemon, folder: Path, *, kafka: str, dataset: str) -> None:
        self.daemon = daemon
        self.journal = folder / "journal"
        self.uri = str(folder / "events.lance")
        self._folder = folder
        self.key = ""
        """The producer's key; empty = it signs nothing."""
        self._command = [*program, kafka, dataset, self.uri, str(self.journal)]

    def start(self, first_id: int, rows: int) -> ChildProcess:
        log = self._folder / f"run-{first_id}-{time.monotonic_ns()}.log"
        environment = os.environ | ({"PRODUCER_KEY": self.key} if self.key else {})
        return ChildProcess([*self._command, str(first_id), str(rows)], log=log, environment=environment)

    def run(self, first_id: int, rows: int, *, code: int = 0) -> str:
        """Run it to its end, which must have this exit code; returns what it printed."""
        child = self.start(first_id, rows)
        while child.running():
            time.sleep(0.05)
        child.kill()  # closes its pipe
        assert child.code == code, child.log_tail()
        return child.log.read_text()

    def ids(self) -> list[int]:
        found: list[int] = lance.dataset(self.uri).to_table()["id"].to_pylist()
        return sorted(found)


@pytest.fixture
def settings() -> dict[str, str]:
    """Those of the committer."""
    return {}


@pytest.fixture
def example(
    program: list[str], kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, settings: dict[str, str]
) -> Iterator[Example]:
    uri = str(tmp_path / "events.lance")
    lance.write_dataset(pa.table({"id": pa.array([0], pa.int64())}), uri)
    log = tmp_path / "daemon.log"
    with Daemon(name=dataset, uri=uri, kafka=kafka.bootstrap_servers, log=log, settings=settings) as daemon:
        daemon.wait_ready(text="active")
        yield Example(program, daemon, tmp_path, kafka=kafka.bootstrap_servers, dataset=dataset)


def staged(child: ChildProcess) -> str:
    """Wait until it has staged its rows; returns the uuid."""
    while (found := re.search(r"^staged (\S+) at offset", child.log.read_text(), re.MULTILINE)) is None:
        assert child.running(), child.log_tail()
        time.sleep(0.02)
    return found[1]


def test_rows_are_there_once_after_kills_of_the_producer_and_the_committer(example: Example) -> None:
    assert "COMMITTED in version 2" in example.run(1, 2)
    assert not example.journal.exists()

    example.daemon.kill()
    child = example.start(10, 3)
    uuid = staged(child)
    kept = example.journal.read_text()
    child.kill()
    example.daemon.start()
    example.daemon.wait_line("version.committed", version=3)
    said = example.run(99, 1)  # finds the outcome of the earlier run, and stages nothing else
    assert said.splitlines() == [f"an earlier run staged {uuid}", "COMMITTED in version 3"]
    assert not example.journal.exists()

    # As after a crash in which the program never learnt that Kafka had the record.
    example.journal.write_text(re.sub(r"outcomes-from=\d+", "outcomes-from=100", kept))
    said = example.run(99, 1)
    assert f"staged {uuid} at offset" in said
    assert "DUPLICATE in version 3" in said
    assert example.ids() == [0, 1, 2, 10, 11, 12]


class TestSigned:
    KEY = "the-key-of-the-example-" * 2

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, str]:
        file = tmp_path / "producers.toml"
        file.write_text(f'[java-example]\nkeys = ["{self.KEY}"]\noperations = ["append"]\n')
        return {"COMMIT__PRODUCERS_FILE": str(file)}

    def test_a_signed_record_is_committed_and_no_other(self, example: Example) -> None:
        assert "signature_missing" in example.run(1, 1, code=1)
        example.key = "another-key-" * 4
        assert "signature_invalid" in example.run(1, 1, code=1)
        example.key = self.KEY
        assert "COMMITTED" in example.run(1, 2)
        assert example.ids() == [0, 1, 2]
