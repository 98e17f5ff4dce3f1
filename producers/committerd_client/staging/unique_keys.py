"""Refuses rows that a merge may not insert: those with a null in the key, and two rows with the same key.

If the table does not have the key of two rows, pylance inserts both. A row with a null in its key equals no other row:
pylance inserts it each time, or loses it if a scalar index covers the key. So a merge that may insert takes no such
rows, whether the table has their keys or not.

Keys are equal as in pylance's join: floats are compared by their bits.

The keys of rows in memory are compared all at once. Those of a reader are compared in parts of a million rows. If there
are several parts, each is kept in a file, sorted by the hashes of its keys, and at the end the parts are compared, one
range of hashes after the other. So memory does not grow with the number of rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from committerd_client.staging.errors import StagingError
from committerd_client.staging.keys import hashes_of, key_values

if TYPE_CHECKING:
    import pyarrow as pa

_PART_ROWS, _PART_BYTES = 1_000_000, 64 * 1024 * 1024
"""A part of a reader's keys has at least so many rows or bytes."""
_HASHES = 1 << 64
_BITS = {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64"}
"""By the bits of a value, the type that compares values by their bits."""
_SHOWN = 200
"""Number of characters of a key that an error shows."""


def require_unique(source: pa.Table | pa.RecordBatch, fields: Sequence[pa.Field]) -> None:
    """Raise `StagingError` (`null_keys`, `duplicate_keys`) if a key has a null, or two rows have the same key.

    `fields`: the key columns as in the table. Raises `StagingError` (`key_type`) for keys that can't be compared.
    """
    import pyarrow as pa

    batches = [source] if isinstance(source, pa.RecordBatch) else source.to_batches()
    _require_different([_keys(batch, fields) for batch in batches])


def requiring_unique(batches: Iterable[pa.RecordBatch], fields: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
    """The same batches. Raises as `require_unique` does, at the end of the batches at the latest."""
    with ExitStack() as files:
        folder: str | None = None
        paths: list[str] = []
        part: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            keys = _copied(_keys(batch, fields))
            part.append(keys)
            rows, size = rows + keys.num_rows, size + keys.nbytes
            if rows >= _PART_ROWS or size >= _PART_BYTES:
                _require_different(part)
                folder = folder or files.enter_context(TemporaryDirectory(prefix="committerd-keys-"))
                paths.append(_kept(part, os.path.join(folder, str(len(paths)))))
                part, rows, size = [], 0, 0
            yield batch
        _require_different(part)
        if folder is not None:
            if rows:
                paths.append(_kept(part, os.path.join(folder, str(len(paths)))))
            _compare(paths)


def _keys(batch: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """The key columns. Raises `StagingError` for nulls."""
    import pyarrow as pa

    columns = [key_values(batch, field) for field in fields]
    for field, column in zip(fields, columns, strict=True):
        if column.null_count:
            raise StagingError(
                f"key column {field.name!r} is null in {column.null_count} of {batch.num_rows} rows: a null equals no "
                "key, so a merge would insert such a row each time. Leave these rows out, or add them with append",
                code="null_keys",
            )
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def _copied(keys: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of their own: columns of a batch may share one buffer with those that are not keys."""
    import numpy as np
    import pyarrow as pa

    return keys.take(pa.array(np.arange(keys.num_rows)))


def _require_different(parts: Sequence[pa.RecordBatch]) -> None:
    """Raise `StagingError` if two rows of the parts are equal."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if sum(one.num_rows for one in parts) < 2:
        return
    keys = pa.Table.from_batches(parts)
    names = keys.schema.names
    if len(names) == 1 and _are_different(keys.column(0)):  # many times as fast as grouping
        return
    counted = keys.group_by(names).aggregate([([], "count_all")])
    again = counted.filter(pc.greater(counted["count_all"], 1))
    if again.num_rows:
        raise StagingError(f"{told_of_twins(again.select(names))}: keep one row for each key", code="duplicate_keys")


def _are_different(values: pa.ChunkedArray) -> bool:
    """Whether no two values, none of them null, are equal. False too for types that pyarrow can only group."""
    import numpy as np
    import pyarrow as pa

    kind = values.type
    bits = _BITS.get(kind.bit_width) if pa.types.is_primitive(kind) else None
    if bits is not None:  # a million are sorted in 10 ms; `unique` takes five times as long or more
        ordered = np.concatenate([chunk.view(bits).to_numpy() for chunk in values.chunks])
        ordered.sort()
        return bool((ordered[1:] != ordered[:-1]).all())
    with suppress(pa.ArrowException):
        return len(values.unique()) == len(values)
    return False


def told_of_twins(keys: pa.Table, *, of: str = "") -> str:
    """What to say of these keys, each of which is in more than one row `of` something."""
    example = str(keys.slice(0, 1).to_pylist()[0])
    count = "1 key is" if keys.num_rows == 1 else f"{keys.num_rows:,} keys are"
    return f"{count} in more than one row{of}, such as {example[:_SHOWN]}{'...' if len(example) > _SHOWN else ''}"


def _kept(part: Sequence[pa.RecordBatch], path: str) -> str:
    """The path of a new file with these keys, sorted by their hashes; the last column has the hashes."""
    import numpy as np
    import pyarrow as pa

    hashes = np.concatenate([hashes_of(batch.columns) for batch in part])
    keys = pa.Table.from_batches(part).append_column("", pa.array(hashes))
    ordered = keys.take(pa.array(np.argsort(hashes))).combine_chunks()
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, ordered.schema) as writer:
        writer.write_table(ordered)
    return path


def _compare(paths: Sequence[str]) -> None:
    """Raise `StagingError` if a key is in two of these files."""
    import numpy as np
    import pyarrow as pa

    with ExitStack() as maps:
        parts: list[tuple[pa.RecordBatch, np.ndarray]] = []
        for path in paths:
            (batch,) = pa.ipc.open_stream(maps.enter_context(pa.memory_map(path))).read_all().to_batches()
            parts.append((batch.select(batch.schema.names[:-1]), batch.columns[-1].to_numpy()))
        bounds = [np.uint64(number * _HASHES // len(parts)) for number in range(1, len(parts))]
        ends = [[0, *np.searchsorted(hashes, bounds).tolist(), len(hashes)] for _, hashes in parts]
        for number in range(len(parts)):
            _require_different(
                [
                    keys.slice(places[number], places[number + 1] - places[number])
                    for (keys, _), places in zip(parts, ends, strict=True)
                ]
            )
