"""A stream of the demo: Spark writes each micro-batch of a stream as one transaction."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame

from committerd_client import ClientError
from committerd_spark import LanceBatchWriter
from harness.spark import small_session
from scripts.demo.member import Job, own_job, started_in_a_thread, storage_options, tell, tell_answered, tell_refused
from scripts.demo.rows import rows

_SCHEMA = "producer int, sequence long, value long"


def stream(job: Job) -> None:
    """Run the stream to its end."""
    go = started_in_a_thread()
    folder = Path(job.folder)
    folder.mkdir()
    spark = small_session("committerd-demo", folder, master="local[1]")
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
