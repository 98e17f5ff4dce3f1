"""A reader that responds for two of its splits alone, one with a bad row, and that breaks its other promises too."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from committerd_ingest.reading import BadRow, Part


class Stuck:
    """Its split `good` has a row, and `bad` has one before the bad row."""

    name = "stuck"

    def splits(self) -> Sequence[str]:
        return ["good", "stuck", "bad"]

    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        if split == "stuck":
            yield Part(rows=pa.table({"id": [2]}))  # without a token: more is asked for while the rows are written
            time.sleep(10_000)
        elif split == "bad":
            if after is None:
                yield Part(rows=pa.table({"id": [3]}), token="1")
            yield Part(rows=pa.table({"id": [4]}), bad_rows=[BadRow(7, b"5.", "it is half a number")], token="2")
        elif after is None:
            yield Part(rows=pa.table({"id": [1]}), token="1")
        while True:
            yield None
            time.sleep(0.1)

    def waiting(self, split: str) -> int:
        raise SystemExit("no number")

    def close(self) -> None:
        time.sleep(10_000)
