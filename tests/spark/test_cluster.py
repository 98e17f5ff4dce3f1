"""A Spark whose executors are processes of their own, and a table that only its storage options lead to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lance
import pyspark
import pytest

from tests.e2e.scene import QUICK
from tests.parts import PartMissingError
from tests.parts.daemon import Daemon
from tests.parts.java import INSTALL, java
from tests.parts.kafka import KafkaBroker, RunningKafka
from tests.parts.places import s3_place
from tests.parts.s3 import S3Endpoint

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.s3, pytest.mark.pylance, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]


def spark_home(folder: Path) -> Path:
    """PySpark's files under another name: the workers of a local cluster write into their home."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


def test_executors_write_with_what_their_tasks_bring(
    kafka: KafkaBroker | RunningKafka, s3: S3Endpoint, dataset: str, tmp_path: Path
) -> None:
    try:
        java("Spark", install=INSTALL)
    except PartMissingError as error:
        pytest.skip(str(error))
    place, servers = s3_place(s3), kafka.bootstrap_servers
    daemon = Daemon(
        name=dataset,
        uri=place.uri,
        kafka=servers,
        settings={**QUICK, **place.settings},
        log=tmp_path / "committerd.log",
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "COMMITTERD_"))}
    environment |= {
        "PYTHONPATH": f"{_ROOT}:{_ROOT / 'producers'}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
    }
    arguments = [servers, dataset, place.uri, json.dumps(place.storage_options), str(tmp_path)]
    with daemon:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster_job", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    workers = json.loads(done.stdout.splitlines()[-1])
    assert {worker["names"] for worker in workers} == {""}
    folders = {worker["folder"] for worker in workers}
    assert len(folders) == 2, "both executors have worked"
    assert not folders & {str(tmp_path), str(_ROOT)}
    rows = lance.dataset(place.uri, storage_options=dict(place.storage_options)).to_table()
    brought = Counter(rows["v"].to_pylist())
    assert (brought["batch"], brought["upsert"]) == (190, 10)
    assert brought["stream"] >= 150
    assert brought["stream"] % 50 == 0
    assert sorted(rows["id"].to_pylist()) == list(range(200 + brought["stream"])), "each row once"
