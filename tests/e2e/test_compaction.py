"""A compaction through the queue: it is committed despite appends, and despite a delete of its rows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd_client import CommitClient, staging
from committerd_client.compacting import compact
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_the_example_compacts_while_writers_append(kafka: KafkaBroker | RunningKafka, scene: Scene) -> None:
    scene.started()
    uri = scene.table.uri
    command = [sys.executable, str(ROOT / "examples" / "compaction.py"), "--uri", uri, "--dataset", scene.name]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--writers", "4", "--batches", "15"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'producers'}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"version \d+: \d+ fragments became \d+, in \d attempts", done.stdout), done.stdout
    table = lance.dataset(uri)
    expected = [{"writer": writer, "number": number} for writer in range(4) for number in range(15)]
    assert table.to_table().sort_by([("writer", "ascending"), ("number", "ascending")]).to_pylist() == expected
    assert len(table.get_fragments()) < 30
    assert f"60 rows in {len(table.get_fragments())} fragments" in done.stdout


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
async def test_a_compaction_passes_a_delete_of_its_rows_and_covers_its_indices(
    kafka: KafkaBroker | RunningKafka, scene: Scene, stable: bool
) -> None:
    uri = scene.table.uri
    lance.write_dataset(pa.table({"id": range(200)}), uri, max_rows_per_file=20, enable_stable_row_ids=stable)
    scene.started()
    async with CommitClient(kafka.bootstrap_servers, dataset=scene.name, dataset_uri=uri, timeout=120) as client:
        await client.commit(staging.create_index(lance.dataset(uri), "id", "BTREE"))
        done = await compact(client, hit(uri, "id = 7"), target_rows_per_fragment=100)
        assert await compact(client, lambda: lance.dataset(uri), target_rows_per_fragment=100) is None
    assert done is not None
    assert done.attempts == 1
    assert done.fragments_removed == 10
    assert done.fragments_added <= 2
    assert (done.reindexed, done.stale) == ((), ())  # the Rewrite has carried it along
    table = lance.dataset(uri)
    assert table.count_rows() == 199
    assert len(table.get_fragments()) == done.fragments_added
    (index,) = table.describe_indices()
    assert index.num_rows_indexed == 199


def hit(uri: str, predicate: str) -> Callable[[], lance.LanceDataset]:
    """Open the table; the first time, rows are deleted right afterwards."""
    opened: list[int] = []

    def open_table() -> lance.LanceDataset:
        table = lance.dataset(uri)
        if not opened:
            lance.dataset(uri).delete(predicate)
        opened.append(table.version)
        return table

    return open_table
