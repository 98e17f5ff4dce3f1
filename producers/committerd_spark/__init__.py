"""Write Spark DataFrames and streams into a Lance table through committerd, each exactly once.

    from committerd_spark import LanceBatchWriter

    writer = LanceBatchWriter("s3://lake/events.lance", bootstrap_servers="broker:9092", app_id="events-from-kafka")
    df.writeStream.option("checkpointLocation", checkpoint).foreachBatch(writer).start()
    writer.write(other_df)

Or, with Spark 4, `df.writeStream.format("committerd")` and `df.write.format("committerd")` (`datasource.py`).

Executors write the files; the driver stages one transaction for each micro-batch. Both need this package with its
extra `spark`.
"""

from __future__ import annotations

from importlib.util import find_spec

from committerd_common.extras import missing

if _error := missing("pyspark", "pyroaring", of="committerd_spark", extra="spark"):
    raise _error

from committerd_spark.errors import (
    AppIdInUse,
    AppIdMissing,
    ConnectUnsupported,
    InvalidKeys,
    PackageMissing,
    SchemaMismatch,
    SecondWrite,
    SparkWriteError,
    TableChanged,
    TableMissing,
)
from committerd_spark.maintenance import MaintenanceResult, maintain
from committerd_spark.writer import LanceBatchWriter

if find_spec("pyspark.sql.datasource") is not None:  # Spark 4
    from committerd_spark.datasource import CommitterdDataSource

__all__ = [
    "AppIdInUse",
    "AppIdMissing",
    "CommitterdDataSource",
    "ConnectUnsupported",
    "InvalidKeys",
    "LanceBatchWriter",
    "MaintenanceResult",
    "PackageMissing",
    "SchemaMismatch",
    "SecondWrite",
    "SparkWriteError",
    "TableChanged",
    "TableMissing",
    "maintain",
]
