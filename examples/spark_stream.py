"""Stream JSON files, or Spark's rate source, into a Lance table through its queue. Each row arrives once.

    python examples/spark_stream.py --bootstrap-servers 127.0.0.1:9092 --uri /data/events.lance --app-id clicks \\
        --checkpoint /data/checkpoints/clicks --json /data/incoming --schema "id long, name string"

Without --json, rows come from Spark's rate source, with columns timestamp and value. Stop it, even with `kill -9`, and
start it again: it goes on where it stopped, and no micro-batch is written twice. `spark-submit` runs it on a cluster
without changes.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession

from committerd_spark import LanceBatchWriter


def source(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """The rows to write."""
    if arguments.json is None:
        return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.rows).load()
    reader = spark.readStream.schema(arguments.schema).option("maxFilesPerTrigger", arguments.files)
    return reader.json(arguments.json)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="Kafka; default %(default)s")
    parser.add_argument("--uri", required=True, help="where the table is, as in the committer's settings")
    parser.add_argument("--app-id", required=True, help="by which this stream is known after a restart")
    parser.add_argument("--checkpoint", required=True, help="folder in which Spark keeps how far it has come")
    parser.add_argument("--mode", default="append", choices=["append", "overwrite", "upsert", "delete"])
    parser.add_argument("--keys", nargs="*", default=[], help="columns by which upsert and delete find rows")
    parser.add_argument("--json", help="folder with files of JSON lines")
    parser.add_argument("--schema", default="id long, name string", help="of the files, as in SQL; default %(default)s")
    parser.add_argument("--files", type=int, default=10, help="files in a micro-batch at most; default %(default)s")
    parser.add_argument("--rows", type=int, default=100, help="rows in a micro-batch of the rate source")
    parser.add_argument("--available-now", action="store_true", help="write what is there, and end")
    arguments = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors run the Python that has this package
    spark = SparkSession.builder.appName(arguments.app_id).getOrCreate()
    writer = LanceBatchWriter(
        arguments.uri,
        bootstrap_servers=arguments.bootstrap_servers,
        mode=arguments.mode,
        keys=arguments.keys,
        app_id=arguments.app_id,
    )
    stream = source(spark, arguments).writeStream.option("checkpointLocation", arguments.checkpoint)
    if arguments.available_now:
        stream = stream.trigger(availableNow=True)
    query = stream.foreachBatch(writer).start()
    print("running", flush=True)
    query.awaitTermination()
    print("all rows are in the table", flush=True)


if __name__ == "__main__":
    main()
