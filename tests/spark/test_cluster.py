"""A Spark whose executors are separate processes, and a table that can be reached only with its storage options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from harness.kafka import KafkaBroker, RunningKafka
from harness.places import s3_place
from harness.s3 import S3Endpoint
from harness.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.s3, pytest.mark.pylance, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]


def spark_home(folder: Path) -> Path:
    """PySpark's files under another name: the workers of a local cluster write into their home."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.long
@pytest.mark.usefixtures("spark_java")
def test_executors_write_with_what_their_tasks_bring(
    kafka: KafkaBroker | RunningKafka, s3: S3Endpoint, dataset: str, tmp_path: Path
) -> None:
    place, servers = s3_place(s3), kafka.bootstrap_servers
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "COMMITTERD_"))}
    environment |= {
        "PYTHONPATH": f"{_ROOT}:{_ROOT / 'producers'}",
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
    }
    arguments = [servers, dataset, place.uri, json.dumps(place.storage_options), str(tmp_path)]
    with Scene(kafka=servers, name=dataset, folder=tmp_path, place=place) as scene:
        scene.daemon()
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
    rows = scene.table.open().to_table()
    brought = Counter(rows["v"].to_pylist())
    assert (brought["batch"], brought["upsert"]) == (190, 10)
    assert brought["stream"] >= 150
    assert brought["stream"] % 50 == 0
    assert sorted(rows["id"].to_pylist()) == list(range(200 + brought["stream"])), "each row once"
