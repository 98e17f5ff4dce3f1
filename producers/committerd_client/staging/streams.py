"""Streams rows to pylance and keeps the errors of their source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

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
            yield from map(readable, batches)
        except Exception as error:
            self._raised.append(error)
            raise


def readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows as pylance can read them.

    pylance 14.0.2 panics for a part of an array in which structs are right inside structs or lists of a fixed size.
    Such a column is copied.
    """
    import pyarrow as pa

    columns = batch.columns
    if not any(one.offset and _holds_structs(one.type) for one in columns):
        return batch
    rows = pa.array(range(batch.num_rows), pa.int64())
    copied = [one.take(rows) if one.offset and _holds_structs(one.type) else one for one in columns]
    return pa.RecordBatch.from_arrays(copied, schema=batch.schema)


def _holds_structs(kind: Any) -> bool:
    """Whether structs are right inside it, at any depth without lists of a variable size."""
    from pyarrow import types

    if types.is_struct(kind):
        inner = [field.type for field in kind]
    elif types.is_fixed_size_list(kind):
        inner = [kind.value_type]
    else:
        return False
    return any(types.is_struct(one) or _holds_structs(one) for one in inner)
