"""Jobs of Ray and Daft: each row is in the table once, whatever is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import daft
import lance
import pyarrow as pa
import pytest
import ray

import committerd_daft
import committerd_ray
from committerd_batch.errors import SchemaMismatch
from committerd_client import CommitResult
from tests.distributed.write_job import ROWS
from tests.spark.queue import Queue

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["ray", "daft"])
def write(request: pytest.FixtureRequest, queue: Queue) -> Any:
    """Writes an Arrow table with an engine, in several tasks."""
    options: dict[str, Any] = {"bootstrap_servers": queue.kafka, "timeout": 120.0}

    def with_ray(rows: pa.Table, **more: Any) -> CommitResult | None:
        ds = ray.data.from_arrow(rows).repartition(4)
        return committerd_ray.write(ds, queue.uri, **options, **more)

    def with_daft(rows: pa.Table, **more: Any) -> CommitResult | None:
        return committerd_daft.write(daft.from_arrow(rows).into_partitions(4), queue.uri, **options, **more)

    if request.param == "ray":
        request.getfixturevalue("cluster")
    return with_ray if request.param == "ray" else with_daft


def rows(start: int, stop: int, v: str = "") -> pa.Table:
    return pa.table({"id": range(start, stop), "v": [f"{v}{i}" for i in range(start, stop)]})


def test_modes_and_the_idempotence_key(write: Any, queue: Queue) -> None:
    first = write(rows(0, 100), app_id="daily", app_version=1)
    assert (first.version, first.duplicate) == (1, False)
    again = write(rows(0, 100), app_id="daily", app_version=1)
    assert (again.version, again.duplicate) == (1, True)
    write(rows(100, 200), app_id="daily", app_version=2)
    assert queue.column("id") == list(range(200))
    write(rows(150, 250, "new "), mode="upsert", keys="id")
    write(rows(0, 100).select(["id"]), mode="delete", keys="id")
    assert [row["v"] for row in queue.rows()] == [
        *(str(i) for i in range(100, 150)),
        *(f"new {i}" for i in range(150, 250)),
    ]
    with pytest.raises(SchemaMismatch, match="column 'more' is not in the table"):
        write(rows(0, 1).append_column("more", pa.array([1])))
    write(rows(0, 1).append_column("more", pa.array([1])), mode="overwrite", schema_mode="merge")
    assert queue.rows() == [{"id": 0, "v": "0", "more": 1}]


def test_vectors_of_numpy_go_into_a_table_of_vectors(queue: Queue, cluster: None) -> None:
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), 4))])
    lance.write_dataset(schema.empty_table(), queue.uri)
    ds = ray.data.range_tensor(10, shape=(4,)).map_batches(
        lambda batch: {"id": batch["data"][:, 0], "vector": batch["data"].astype("float32")}
    )
    committerd_ray.write(ds, queue.uri, bootstrap_servers=queue.kafka)
    assert [row["vector"] for row in queue.rows()] == [[float(i)] * 4 for i in range(10)]


@pytest.mark.parametrize("engine", ["ray", "daft"])
@pytest.mark.timeout(1200)
def test_drivers_and_workers_are_killed_until_the_job_ends(engine: str, queue: Queue, tmp_path: Path) -> None:
    rng = random.Random(7)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "producers"), *sys.path])}
    command = [sys.executable, "-m", "tests.distributed.write_job", engine, queue.uri, queue.kafka, str(tmp_path)]
    kills = 0
    while True:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == b"started\n"
            # The first ones die anywhere on their way, the last one may end.
            until = time.monotonic() + (rng.uniform(1, 12) if kills < 4 else 300)
            while job.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            if job.poll() is not None:
                break
            assert kills < 4, "the job has not ended"
            os.killpg(job.pid, 9)
            kills += 1
    assert job.returncode == 0
    table = queue.table().to_table(columns=["id"])
    assert sorted(table["id"].to_pylist()) == list(range(ROWS))
    assert queue.versions() == 1
    assert engine == "daft" or (tmp_path / "worker-was-killed").exists()
