"""The programs on the page about Spark, with folders and a Kafka of the test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from committerd_spark import LanceBatchWriter
from tests.spark.queue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
STREAM, CHANGES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(program: str, queue: Queue, folder: Path) -> dict[str, Any]:
    """Run a program with addresses that exist; returns its names."""
    table = re.sub(r"s3://lake/\w+\.lance", queue.uri, program)
    placed = table.replace("s3://lake", str(folder)).replace("/checkpoints", str(folder / "checkpoints"))
    names: dict[str, Any] = {}
    exec(placed.replace("broker1:9092", queue.kafka), names)
    return names


def test_the_stream_and_the_job_write_their_rows(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    for place, row in (("incoming", 1), ("earlier", 2)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rows.json").write_text(f'{{"id": {row}}}\n')
    query = run(STREAM, queue, tmp_path)["query"]
    query.processAllAvailable()
    query.stop()
    assert sorted(queue.column("id")) == [1, 2]


def test_the_writer_of_changes_applies_them(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    writer = run(CHANGES, queue, tmp_path)["writer"]
    assert isinstance(writer, LanceBatchWriter)
