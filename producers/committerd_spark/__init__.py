"""Write Spark DataFrames and streams into a Lance table through committerd, each exactly once.

    from committerd_spark import LanceBatchWriter

    writer = LanceBatchWriter("s3://lake/events.lance", bootstrap_servers="broker:9092", app_id="events-from-kafka")
    df.writeStream.option("checkpointLocation", checkpoint).foreachBatch(writer).start()
    writer.write(other_df)

Executors write the files; the driver stages one transaction for each micro-batch. Both need this package with its
extra `spark`.
"""

from __future__ import annotations

from committerd_spark.errors import (
    AppIdInUse,
    AppIdMissing,
    ConnectUnsupported,
    InvalidKeys,
    SchemaMismatch,
    SecondWrite,
    SparkWriteError,
    TableMissing,
)
from committerd_spark.writer import LanceBatchWriter

__all__ = [
    "AppIdInUse",
    "AppIdMissing",
    "ConnectUnsupported",
    "InvalidKeys",
    "LanceBatchWriter",
    "SchemaMismatch",
    "SecondWrite",
    "SparkWriteError",
    "TableMissing",
]
