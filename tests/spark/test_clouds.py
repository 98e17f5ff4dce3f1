"""Spark writes into tables on Azure Blob Storage and Google Cloud Storage, which only the storage options reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from committerd_spark import LanceBatchWriter
from harness.azure import AzureEndpoint
from harness.gcs import GcsEndpoint
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace, cloud_place
from harness.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]


@pytest.fixture(params=[pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)])
def place(request: pytest.FixtureRequest) -> StorePlace:
    cloud: AzureEndpoint | GcsEndpoint = request.getfixturevalue(request.param)
    return cloud_place(cloud)


@pytest.fixture
def scene(place: StorePlace, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path) -> Iterator[Scene]:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place) as made:
        made.daemon()
        yield made


def test_jobs_a_stream_and_upserts(
    spark: SparkSession, scene: Scene, place: StorePlace, kafka: KafkaBroker | RunningKafka, tmp_path: Path
) -> None:
    queue: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "dataset": scene.name, "timeout": 200.0}
    options = queue | {f"storage.{name}": value for name, value in place.storage_options.items()}
    job = spark.range(0, 10, 1, 2).selectExpr("id", "'job' v")
    job.write.format("committerd").mode("append").options(**options).save(place.uri)

    folder = tmp_path / "incoming"
    spark.range(10, 20).write.json(str(folder))
    stream = spark.readStream.schema("id long").json(str(folder)).selectExpr("id", "'stream' v")
    with LanceBatchWriter(place.uri, app_id="s", storage_options=dict(place.storage_options), **queue) as writer:
        started = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(writer)
        started.trigger(availableNow=True).start().awaitTermination()

    upserts = spark.range(8, 12).selectExpr("id", "'upsert' v")
    chosen = options | {"mode": "upsert", "keys": "id"}
    upserts.write.format("committerd").mode("append").options(**chosen).save(place.uri)

    rows = scene.table.open().to_table().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == list(range(20))
    assert [row["v"] for row in rows] == ["job"] * 8 + ["upsert"] * 4 + ["stream"] * 8
