"""The programs of docs/reading.md do what the page says, with the readers of its table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from committerd_client import SyncCommitClient
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import QUICK
from tests.packaging.environments import CLIENT, ROOT, Environment, make_environment, project

PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STALE = """
import sys
from datetime import timedelta
import lancedb

def opened(interval):
    return lancedb.connect(sys.argv[1], read_consistency_interval=interval).open_table(sys.argv[2])

tables = [opened(None), opened(timedelta(seconds=0)), opened(timedelta(hours=1))]
print(*(one.count_rows() for one in tables), flush=True)
input()
print(*(one.count_rows() for one in tables))
tables[0].checkout_latest()
print(tables[0].count_rows())
"""
"""What the page says of lancedb's default."""

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


@pytest.fixture
def readers(client_wheel: Path, environment_folder: Path) -> Environment:
    about = project(CLIENT)
    return make_environment(
        environment_folder,
        Path(sys.executable),
        wheels=[client_wheel],
        requirements=[*about["dependencies"], *about["optional-dependencies"]["lance"], "duckdb", "lancedb", "polars"],
        resolution="highest",
    )


def test_the_page_is_true(
    kafka: KafkaBroker | RunningKafka, dataset: str, readers: Environment, tmp_path: Path
) -> None:
    uri = str(tmp_path / f"{dataset}.lance")
    with (
        Daemon(name=dataset, uri=uri, kafka=kafka.bootstrap_servers, settings=QUICK, log=tmp_path / "committerd.log"),
        SyncCommitClient(kafka.bootstrap_servers, dataset_uri=uri) as client,
    ):
        client.append([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}], create=True)
        said = []
        for program in PROGRAMS:
            for printed, real in (
                ("localhost:9092", kafka.bootstrap_servers),
                ("/tmp/events.lance", uri),
                ('connect("/tmp"', f'connect("{tmp_path}"'),
                ('open_table("events")', f'open_table("{dataset}")'),
            ):
                program = program.replace(printed, real)
            done = readers.run("-c", program)
            assert done.returncode == 0, done.stderr
            said.append(done.stdout.splitlines())
        assert said == [
            ["2 rows at version 1", "[{'id': 2, 'name': 'Bob'}]"],
            ["2 rows at version 1"],
            ["[(1, 2)]", "[{'name': 'Bob'}]"],
            ["2 rows, and 1 by the index alone", "2 by the index alone"],
            ["3 rows in the report"],
        ]
        with readers.started("-c", STALE, tmp_path, dataset) as stale:
            assert stale.stdout is not None
            assert stale.stdout.readline() == "3 3 3\n"
            client.append([{"id": 50, "name": "Eve"}])
            assert stale.communicate("\n", timeout=60)[0] == "3 4 3\n4\n"
