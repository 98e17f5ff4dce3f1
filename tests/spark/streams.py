"""Streams of small JSON files, run until nothing is left to read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = "id long, v string"


class Files:
    """The source of a stream; a micro-batch is one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "incoming"
        self.folder.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.rows: list[dict[str, Any]] = []

    def add(self, ids: Iterable[int], v: str = "") -> None:
        """Add a file."""
        rows = [{"id": i, "v": f"{v}{i}"} for i in ids]
        self.rows += rows
        number = len(list(self.folder.iterdir()))
        path = self.folder / f"{number:05}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first

    def run(self, spark: SparkSession, function: Callable[[DataFrame, int], Any], *, name: str | None = None) -> None:
        """Run the stream from its checkpoint to its end; raises the error that ended it."""
        writer = self._writer(spark)
        if name is not None:
            writer = writer.queryName(name)
        _to_its_end(writer.foreachBatch(function).start())

    def run_into(self, spark: SparkSession, uri: str, options: Mapping[str, Any]) -> None:
        """The same, into the data source `committerd`."""
        _to_its_end(self._writer(spark).format("committerd").options(**options).start(uri))

    def forget_last_batch(self) -> None:
        """Let Spark replay the last micro-batch, as when its driver ends before it has noted the batch's end."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())
        for path in (self.checkpoint / "commits").glob(f"*{last}*"):
            path.unlink()

    def _writer(self, spark: SparkSession) -> DataStreamWriter:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return stream.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)


def fails_late(df: DataFrame, uri: str) -> DataFrame:
    """The same rows of two partitions; the second one fails once the first one has been written to the table's folder.

    The ids start at 0 in the first partition only.
    """
    folder = Path(uri, "data")
    before = len(list(folder.iterdir()))

    def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every = list(batches)
        if every[0].column("id")[0].as_py() > 0:
            until = time.monotonic() + 30
            while len(list(folder.iterdir())) == before and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(8)  # until Spark knows that the first task has ended, on a busy machine too
            raise RuntimeError("no luck")
        yield from every

    return df.mapInArrow(pass_on, df.schema)


def _to_its_end(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(400), "the stream has not ended"
    finally:
        query.stop()
