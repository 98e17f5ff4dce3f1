"""Writes an archive of the classes that Spark loads: `python -m harness.spark_classes`, unless it is there.

With it a start of Spark takes less than half of the processor time. Without it, Spark loads the classes from the jars.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from harness.java import BRIEFLY
from harness.spark import class_archive, small_session


def write() -> None:
    """Write the archive, unless it is there. Safe to call from several processes at once.

    It runs a session, whose JVM writes the archive when it ends. A Java that can't do that leaves none.
    """
    target = class_archive()
    if target.is_file():
        return
    with tempfile.TemporaryDirectory(prefix=".spark-classes-", dir=target.parent) as name:
        folder = Path(name)
        made = folder / target.name
        java = " ".join([*BRIEFLY, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable"])
        session = small_session("classes", folder, master="local[2]", settings={"spark.driver.extraJavaOptions": java})
        _use(session, folder)
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM's sign to end
        gateway.proc.wait()
        if made.is_file():
            made.rename(target)


def _use(session: SparkSession, folder: Path) -> None:
    """Load the classes that most sessions load: of files, expressions, Python functions, streams."""
    source, checkpoint = str(folder / "source"), str(folder / "checkpoint")
    session.range(100).selectExpr("id", "cast(id as string) text").write.json(source)
    frame = session.read.json(source)
    counted = frame.where("id > 10").groupBy("text").count()
    counted.mapInArrow(lambda batches: batches, counted.schema).collect()

    def read(batch: DataFrame, _: int) -> None:
        batch.orderBy("id").collect()

    stream = session.readStream.schema(frame.schema).json(source).writeStream.option("checkpointLocation", checkpoint)
    stream.trigger(availableNow=True).foreachBatch(read).start().awaitTermination()


if __name__ == "__main__":
    write()
