"""A driver whose executors are other processes: a batch, a stream and an upsert into a table in S3.

The tasks bring all that executors know of the table: they run in folders of their own, and their environment does not
contain the store. Prints, as JSON, the folder and such variables of each task. Arguments: bootstrap servers, dataset,
table URI, storage options as JSON, a folder for checkpoint and scratch files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from committerd_spark import LanceBatchWriter
from harness.java import BRIEFLY
from harness.spark import small_session

_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(BRIEFLY),
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
_TASK_SECONDS = 0.5
"""Long enough that both executors run tasks."""
_ROWS = 200


def main() -> None:
    servers, dataset, uri, options, scratch = sys.argv[1:]
    folder = Path(scratch)
    spark = small_session("cluster", folder, master="local-cluster[2,1,512]", settings=_SETTINGS)

    def told(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(_TASK_SECONDS)
        names = [name for name in os.environ if name.startswith(("AWS_", "COMMITTERD_"))]
        yield pa.RecordBatch.from_pylist([{"folder": os.getcwd(), "names": " ".join(names)}])

    seen = spark.range(8, numPartitions=4).mapInArrow(told, "folder string, names string").collect()
    common: dict[str, Any] = {
        "bootstrap_servers": servers, "dataset": dataset, "storage_options": json.loads(options), "timeout": 120.0
    }  # fmt: skip
    with LanceBatchWriter(uri, **common) as writer:
        writer.write(spark.range(0, _ROWS, numPartitions=4).selectExpr("id", "'batch' v"))
        stream: Any = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
        query = (
            stream.selectExpr(f"value + {_ROWS} id", "'stream' v")
            .writeStream.option("checkpointLocation", str(folder / "checkpoint"))
            .queryName("numbers")
            .foreachBatch(writer)
            .start()
        )
        while (query.lastProgress or {"batchId": -1})["batchId"] < 2:
            if query.awaitTermination(0.2):
                break
        query.stop()
    with LanceBatchWriter(uri, mode="upsert", keys=["id"], app_id="changes", **common) as upserts:
        upserts.write(spark.range(_ROWS - 10, _ROWS, numPartitions=4).selectExpr("id", "'upsert' v"))
    print(json.dumps([row.asDict() for row in seen]))
    spark.stop()


if __name__ == "__main__":
    main()
