"""A stream of the demo: Spark writes each micro-batch of a stream as one transaction."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

from demo_member import Job, own_job, started_in_a_thread, storage_options, tell, tell_answered, tell_refused
from demo_rows import rows
from pyspark.sql import DataFrame, SparkSession

from committerd_client import ClientError
from committerd_spark import LanceBatchWriter

_SCHEMA = "producer int, sequence long, value long"
_CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # it does not run long
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(folder: Path) -> SparkSession:
    """A Spark in this process and a JVM of its own; both end together."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder  # a class property, which mypy takes for a function
    builder = builder.master("local[1]").appName("committerd-demo")
    for key, value in {**_CONFIG, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder)}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # PySpark starts Java from between fork and exec, where pylance warns of every fork.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        return builder.getOrCreate()


def stream(job: Job) -> None:
    """Everything."""
    go = started_in_a_thread()
    folder = Path(job.folder)
    folder.mkdir()
    spark = session(folder)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    tell("child", pid=gateway.proc.pid)
    source = folder / "source"
    source.mkdir()
    for number in range(job.count):
        data = rows(job.number, range(number * job.rows, (number + 1) * job.rows))
        lines = spark.createDataFrame(data).coalesce(1).write
        lines.mode("append").json(str(source))
    writer = LanceBatchWriter(
        job.uri,
        bootstrap_servers=job.bootstrap_servers,
        dataset=job.dataset,
        app_id="demo-stream",
        storage_options=storage_options(),
    )

    def write(df: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        try:
            result = writer(df, batch_id)
        except ClientError as error:
            tell_refused("micro-batch", error)
            raise
        assert result is not None, "no micro-batch is empty"
        tell_answered("micro-batch", result, began)

    files = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    query = files.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    tell("ready")
    go.wait()
    query.foreachBatch(write).start().awaitTermination()
    writer.close()
    spark.stop()


if __name__ == "__main__":
    stream(own_job())
