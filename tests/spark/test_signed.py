"""Jobs of Spark that sign their records: the key is a file on the driver, and the operator says what each may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from committerd_client import InvalidTransaction, UnsupportedTransaction
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.spark.queue import Queue
from tests.spark.streams import Files

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]

KEYS = {"owner": "the-key-of-the-owner-" * 2, "loader": "the-key-of-the-loader-" * 2}


@pytest.fixture
def signed_queue(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Queue]:
    """A queue that takes records of two producers, one of which may only append. Their keys are files."""
    file = tmp_path / "producers.toml"
    tables = [f"[{name}]\nkeys = [{json.dumps(key)}]\n" for name, key in KEYS.items()]
    file.write_text("".join(tables) + 'operations = ["append"]\n')
    for name, key in KEYS.items():
        (tmp_path / name).write_text(key)
    settings = {"COMMIT__PRODUCERS_FILE": str(file)}
    servers = kafka.bootstrap_servers
    with Queue(name=dataset, kafka=servers, folder=tmp_path, launch=launch, settings=settings) as made:
        yield made


def rows(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end).selectExpr("id", "cast(id as string) as v")


def test_jobs_and_streams_sign_and_do_what_they_may(spark: SparkSession, signed_queue: Queue, tmp_path: Path) -> None:
    queue, files = signed_queue, Files(tmp_path)
    owner: dict[str, Any] = {"producer": "owner", "producer_key_file": tmp_path / "owner"}
    loader: dict[str, Any] = {"producer": "loader", "producer_key_file": tmp_path / "loader"}
    queue.writer(**owner).write(rows(spark, 0, 5))  # makes the table
    queue.writer(**loader).write(rows(spark, 5, 10))
    files.add(range(10, 20))
    files.run(spark, queue.writer(**loader, app_id="stream"))
    job = rows(spark, 20, 22).write.format("committerd").mode("append")
    given = {"bootstrap_servers": queue.kafka, "timeout": "200", "producer": "loader"}
    job.options(**given).option("producerKeyFile", str(tmp_path / "loader")).save(queue.uri)
    assert queue.column("id") == list(range(22))
    with pytest.raises(UnsupportedTransaction, match="operation update is not allowed to producer 'loader'"):
        queue.writer(**loader, mode="delete", keys="id").write(rows(spark, 0, 1))
    with pytest.raises(InvalidTransaction, match="no header signature"):
        queue.writer().write(rows(spark, 0, 1))
    with pytest.raises(InvalidTransaction, match="no key of producer 'loader'"):
        queue.writer(producer="loader", producer_key_file=tmp_path / "owner").write(rows(spark, 0, 1))
    with pytest.raises(PySparkException, match="no header signature"):
        rows(spark, 0, 1).write.format("committerd").mode("append").options(**given).save(queue.uri)
    queue.writer(**owner, mode="delete", keys="id").write(rows(spark, 0, 20))
    assert queue.column("id") == [20, 21]
