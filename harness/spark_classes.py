"""Writes an archive of the classes that Spark loads, unless there is one: `python -m harness.spark_classes`.

With it a start of Spark takes less than half of the processor time. Without it, Spark loads the classes from the jars.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from harness.java import BRIEFLY
from harness.spark import class_archive, quoted, small_session

_WRITING_SECONDS = 120.0


def write(*, say: Callable[[str], None] = lambda _: None) -> None:
    """Write the archive, unless it is there, or the Java of Spark writes none. Archives of other jars are deleted.

    Runs a session, whose JVM writes the archive when it ends; `say` is called before that. Safe to call from several
    processes at once. Raises `PartMissingError` if there is no Java, PySpark's errors, `TimeoutExpired` if the JVM does
    not end, and `RuntimeError` if it wrote nothing.
    """
    target = class_archive()
    if target is None or target.is_file():
        return
    say("An archive of Spark's classes, for quick starts (180 MB; about 20 s, once)")
    with tempfile.TemporaryDirectory(prefix=".spark-classes-", dir=target.parent) as name:
        folder = Path(name)
        made = folder / target.name
        java = " ".join([*BRIEFLY, quoted(f"-XX:ArchiveClassesAtExit={made}"), "-Xlog:disable"])
        session = small_session("classes", folder, master="local[2]", settings={"spark.driver.extraJavaOptions": java})
        gateway = SparkContext._gateway
        assert gateway is not None
        try:
            _use(session, folder)
        finally:
            session.stop()
            code = _ended(gateway)
        if code != 0 or not made.is_file():
            raise RuntimeError(f"the JVM wrote no archive of its classes, and ended with exit code {code}")
        made.rename(target)
    for other in set(target.parent.glob("spark-classes-*.jsa")) - {target}:
        other.unlink(missing_ok=True)


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


def _ended(gateway: Any) -> int:
    """End the JVM, and forget it, so that this process can start another one; returns its exit code."""
    SparkContext._gateway = SparkContext._jvm = None
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()  # the JVM's sign to end
    try:
        return process.wait(_WRITING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


if __name__ == "__main__":
    write()
