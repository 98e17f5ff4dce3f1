"""Files whose rows `committerd append` reads, as batches of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from committerd.errors import SettingsError

FORMATS = ("parquet", "arrow", "csv", "lance")
_SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".csv": "csv",
    ".lance": "lance",
}  # fmt: skip


def format_of(path: str) -> str:
    """The format that the name of the file says. Raises `SettingsError`."""
    found = _SUFFIXES.get(Path(path.rstrip("/")).suffix.lower())
    if found is None:
        raise SettingsError(f"{path}: the name does not say the format: give --format ({', '.join(FORMATS)})")
    return found


class SourceFile:
    """A file, or a Lance table; its rows can be read any number of times. Has what the client needs of a dataset."""

    def __init__(self, path: str, kind: str) -> None:
        self.path, self._kind = path, kind
        self.on_read: Callable[[float], None] = lambda _: None
        """Called while the rows are read, with the share of the file that is read."""
        self.schema: pa.Schema = self._opened()[0]

    def scanner(self) -> SourceFile:
        """Itself: a scan reads all rows."""
        return self

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows."""
        schema, batches = self._opened()

        def read() -> Iterator[pa.RecordBatch]:
            for batch, share in batches:
                yield batch
                self.on_read(share)

        return pa.RecordBatchReader.from_batches(schema, read())

    def _opened(self) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, float]]]:
        """(schema, batches with the share of the rows that they end). Raises `SettingsError`."""
        opener = {"parquet": _parquet, "arrow": _arrow, "csv": _csv, "lance": _lance}[self._kind]
        try:
            return opener(self.path)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise SettingsError(f"{self.path} can't be read as {self._kind}: {str(error).splitlines()[0]}") from error


_Opened = tuple[pa.Schema, Iterator[tuple[Any, float]]]


def _parquet(path: str) -> _Opened:
    file = pyarrow.parquet.ParquetFile(path)
    return file.schema_arrow, _shares(file.iter_batches(), file.metadata.num_rows)


def _arrow(path: str) -> _Opened:
    try:
        file = pyarrow.ipc.open_file(path)
    except pa.ArrowInvalid:  # a stream has no footer
        stream = pyarrow.ipc.open_stream(path)
        return stream.schema, _shares(iter(stream), 0)
    numbers = range(file.num_record_batches)
    return file.schema, ((file.get_batch(number), (number + 1) / len(numbers)) for number in numbers)


def _csv(path: str) -> _Opened:
    reader = pyarrow.csv.open_csv(path)
    return reader.schema, _shares(iter(reader), 0)


def _lance(path: str) -> _Opened:
    import lance  # imported here because it takes a third of a second

    dataset = lance.dataset(path)
    return dataset.schema, _shares(iter(dataset.scanner().to_reader()), dataset.count_rows())


def _shares(batches: Iterator[Any], rows: int) -> Iterator[tuple[Any, float]]:
    """The batches, each with the share of the rows up to its end; 0 if their number is not known (`rows` is 0)."""
    done = 0
    for batch in batches:
        done += batch.num_rows
        yield batch, min(done / rows, 1.0) if rows else 0.0
