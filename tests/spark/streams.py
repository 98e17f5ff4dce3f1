"""Streams of small JSON files, run until nothing is left to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

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
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        writer = stream.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        if name is not None:
            writer = writer.queryName(name)
        query = writer.foreachBatch(function).start()
        try:
            assert query.awaitTermination(400), "the stream has not ended"
        finally:
            query.stop()
