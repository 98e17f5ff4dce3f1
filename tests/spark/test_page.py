"""The programs on the page about Spark, with folders and a Kafka of the test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from committerd_spark import LanceBatchWriter
from tests.spark.queue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
STREAM, CHANGES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_stream_and_the_job_write_their_rows(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    for place, row in (("incoming", 1), ("earlier", 2)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rows.json").write_text(f'{{"id": {row}}}\n')
    query = queue.run(STREAM)["query"]
    query.processAllAvailable()
    query.stop()
    assert sorted(queue.column("id")) == [1, 2]


def test_the_writer_of_changes_applies_them(spark: SparkSession, queue: Queue) -> None:
    writer = queue.run(CHANGES)["writer"]
    assert isinstance(writer, LanceBatchWriter)
