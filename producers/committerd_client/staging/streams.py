"""Streams rows to pylance and keeps the errors of their source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Stream:
    """Batches for pylance. An error of their source reaches the caller, not an `OSError` with its text."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        import pyarrow as pa

        self._raised: list[Exception] = []
        self.reader = pa.RecordBatchReader.from_batches(schema, self._passed(batches))

    @contextlib.contextmanager
    def being_read(self) -> Iterator[pa.RecordBatchReader]:
        """Yields the reader; wrap the pylance call that reads it in this block."""
        try:
            yield self.reader
        except Exception as error:
            if self._raised:
                raise self._raised[0] from error
            raise

    def _passed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self._raised.append(error)
            raise
