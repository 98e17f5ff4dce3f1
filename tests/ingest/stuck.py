"""A reader that responds for one of its splits alone, and that breaks its other promises too."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from committerd_ingest.reading import Part


class Stuck:
    """Its split `good` has a row."""

    name = "stuck"

    def splits(self) -> Sequence[str]:
        return ["good", "stuck"]

    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        if split == "stuck":
            yield Part(rows=pa.table({"id": [2]}))  # without a token: more is asked for while the rows are written
            time.sleep(10_000)
        elif after is None:
            yield Part(rows=pa.table({"id": [1]}), token="1")
        while True:
            yield None
            time.sleep(0.1)

    def waiting(self, split: str) -> int:
        raise SystemExit("no number")

    def close(self) -> None:
        time.sleep(10_000)
