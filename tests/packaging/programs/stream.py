"""Streams two files into a table with the Spark writer, and restarts the stream; prints the rows as one line of JSON.

    python stream.py BOOTSTRAP_SERVERS DATASET URI FOLDER

FOLDER is empty at first. The second run of the stream finds nothing new to write.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import lance
import pyspark
from pyspark.sql import SparkSession

from committerd_spark import LanceBatchWriter

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


def session(folder: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("stream")
    folders = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    for key, value in {**SETTINGS, **folders}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    kafka, dataset, uri, folder = *sys.argv[1:4], Path(sys.argv[4])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    incoming = folder / "incoming"
    incoming.mkdir(parents=True)
    for number in range(2):
        rows = [{"id": 10 * number + row, "name": f"row {row}"} for row in range(3)]
        (incoming / f"{number}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    spark = session(folder)
    writer = LanceBatchWriter(uri, bootstrap_servers=kafka, dataset=dataset, app_id=f"stream-{folder.name}")
    for _ in range(2):
        source = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json(str(incoming))
        query = source.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        query.trigger(availableNow=True).foreachBatch(writer).start().awaitTermination()
    spark.stop()
    ids = sorted(lance.dataset(uri).to_table(columns=["id"]).column("id").to_pylist())
    print(json.dumps({"pyspark": pyspark.__version__, "ids": ids}))


if __name__ == "__main__":
    main()
