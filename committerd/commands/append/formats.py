"""Reads files of each format as batches of Arrow.

A text file has no types of its own: it has the types of the table. A value that is not spelled as its type is an
error, and a text stays as it stands there.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

from committerd.commands.append.nesting import require_readable
from committerd.commands.append.sources import Source, unreadable
from committerd.commands.append.spelling import Spelling
from committerd.errors import SourceError
from committerd_client import json_text

_BLOCK_BYTES = 8 * 1024 * 1024
"""What of a text file is parsed at once. A row of CSV must fit."""

_Batches = Iterator[tuple[pa.RecordBatch, float]]
"""Each with the share of the file that is read by then; 0 if that is not known."""


class SourceRows:
    """The rows of a file, which can be read any number of times. Has what the client needs of a dataset.

    `table`: the types of the columns; None if the table does not exist. `nulls`: texts that mean null in CSV, unless
    they are quoted.
    """

    def __init__(self, source: Source, table: pa.Schema | None, *, nulls: tuple[str, ...] = ()) -> None:
        """Raises `SourceError`."""
        self.source, self._table, self._nulls = source, table, nulls
        self.on_read: Callable[[float], None] = lambda _: None
        """Called while the rows are read, with the share of the file that is read."""
        self.schema: pa.Schema = self._guarded(self._schema)

    def scanner(self) -> SourceRows:
        """Itself: a scan reads all rows."""
        return self

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows. The reader raises `SourceError`."""

        def read() -> Iterator[pa.RecordBatch]:
            batches = self._guarded(self._batches)
            while (found := self._guarded(lambda: next(batches, None))) is not None:
                batch, share = found
                yield batch
                self.on_read(share)

        return pa.RecordBatchReader.from_batches(self.schema, read())

    def _guarded(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
            raise SourceError(unreadable(self.source, error)) from error

    def _schema(self) -> pa.Schema:
        match self.source.kind:
            case "parquet":
                return pyarrow.parquet.ParquetFile(self.source.open()).schema_arrow
            case "arrow":
                return _arrow(self.source)[0]
            case "lance":
                return self.source.dataset().schema
            case "csv":
                return _csv_schema(self.source, self._table, self._nulls)
            case _:
                return _json_schema(self.source, self._table)

    def _batches(self) -> _Batches:
        match self.source.kind:
            case "parquet":
                file = pyarrow.parquet.ParquetFile(self.source.open())
                return _shares(file.iter_batches(), file.metadata.num_rows)
            case "arrow":
                return _arrow(self.source)[1]
            case "lance":
                dataset = self.source.dataset()
                return _shares(iter(dataset.scanner().to_reader()), dataset.count_rows())
            case "csv":
                return _csv_rows(self.source, self.schema, self._nulls)
            case _:
                return _json_rows(self.source, self.schema)


def _arrow(source: Source) -> tuple[pa.Schema, _Batches]:
    opened = source.open()
    try:
        file = pyarrow.ipc.open_file(opened)
    except pa.ArrowInvalid:  # a stream has no footer
        opened.seek(0)
        stream = pyarrow.ipc.open_stream(opened)
        return stream.schema, _shares(iter(stream), 0)
    numbers = range(file.num_record_batches)
    return file.schema, ((file.get_batch(number), (number + 1) / len(numbers)) for number in numbers)


def _shares(batches: Iterator[Any], rows: int) -> _Batches:
    """`rows`: in all the batches; 0 = not known."""
    done = 0
    for batch in batches:
        done += batch.num_rows
        yield batch, min(done / rows, 1.0) if rows else 0.0


# CSV


def _csv_schema(source: Source, table: pa.Schema | None, nulls: tuple[str, ...]) -> pa.Schema:
    with _csv(source, {}, nulls) as reader:
        names = reader.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"column {twice!r} is there twice")
    if table is not None:
        return pa.schema([(name, _parsed_as(table, name, _CSV_TYPES)) for name in names])
    spelling = Spelling(names)
    with _csv(source, dict.fromkeys(names, pa.string()), nulls) as reader:
        for batch in reader:
            spelling.add(batch)
    return spelling.schema()


def _csv_rows(source: Source, schema: pa.Schema, nulls: tuple[str, ...]) -> _Batches:
    size = _size(source)
    numbers = [field.name for field in schema if pa.types.is_float64(field.type)]
    with _csv(source, dict(zip(schema.names, schema.types, strict=True)), nulls) as reader:
        read = 0
        for batch in reader:
            if any(pc.any(pc.is_inf(batch.column(name))).as_py() for name in numbers):
                _require_in_range(source, schema.names, numbers, nulls)
                numbers = []
            read += batch.nbytes
            yield batch, min(read / size, 1.0) if size else 0.0


def _require_in_range(source: Source, names: list[str], numbers: list[str], nulls: tuple[str, ...]) -> None:
    """Raise `ValueError` if a number in a column of `numbers` is out of range: pyarrow makes infinity of it."""
    texts = {name: pa.string() if name in numbers else pa.binary() for name in names}
    with _csv(source, texts, nulls) as reader:
        for batch in reader:
            for name in numbers:
                column = pc.utf8_trim_whitespace(batch.column(name))
                column = column.filter(pc.match_substring_regex(column, "^[-+.]?[0-9]"))
                huge = column.filter(pc.is_inf(column.cast(pa.float64())))
                if len(huge):
                    raise ValueError(f"column {name!r}: {huge[0]} is out of range")


def _csv(source: Source, types: Mapping[str, pa.DataType], nulls: tuple[str, ...]) -> Any:
    """A reader of batches. A field without quotes that is empty, or one of `nulls`, is null."""
    return pyarrow.csv.open_csv(
        source.text(),
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),  # names the row of an error
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=["", *nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


_CSV_TYPES = (
    pa.types.is_integer, pa.types.is_float64, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_date,
    pa.types.is_time, pa.types.is_timestamp, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary, pa.types.is_string, pa.types.is_large_string,
)  # fmt: skip
"""What pyarrow converts a field of CSV to as it is needed here."""


def _parsed_as(table: pa.Schema, name: str, known: tuple[Callable[[pa.DataType], bool], ...]) -> pa.DataType:
    """The type with which to parse a column of a text file; the client casts the values to the table's type."""
    if table.get_field_index(name) < 0:
        return pa.string()  # the client says that the table does not have it
    kind = table.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if any(test(kind) for test in known):
        return kind
    return pa.float64() if pa.types.is_floating(kind) else pa.string()


# JSON lines


def _json_schema(source: Source, table: pa.Schema | None) -> pa.Schema:
    """The columns that any line has."""
    found = pa.schema([])
    for chunk, first in lines_of(source):
        found = pa.unify_schemas([found, _inferred(chunk, first)], promote_options="permissive")
    return _with_types_of(table, found)


def _with_types_of(table: pa.Schema | None, found: pa.Schema) -> pa.Schema:
    # Of other columns the client says that the table does not have them, unless the rows are envelopes.
    kinds = {} if table is None else {one.name: json_text.parseable(one.type) for one in table}
    return pa.schema([(one.name, kinds.get(one.name, _as_text(one.type))) for one in found])


def rows_of_lines(chunk: bytes, first: int, table: pa.Schema) -> pa.Table:
    """The rows of these lines, whose first has the number `first`. Raises `ValueError` if one is bad."""
    return _parsed(chunk, first, _with_types_of(table, _inferred(chunk, first)))


def _json_rows(source: Source, schema: pa.Schema) -> _Batches:
    size, read = _size(source), 0
    for chunk, first in lines_of(source):
        read += len(chunk)
        for batch in _parsed(chunk, first, schema).to_batches():
            yield batch, min(read / size, 1.0) if size else 0.0


def lines_of(source: Source) -> Iterator[tuple[bytes, int]]:
    """Whole lines, with the number of the first."""
    first, rest = 1, b""
    with source.text() as stream:
        while chunk := stream.read(_BLOCK_BYTES):
            rest += chunk
            end = rest.rfind(b"\n") + 1
            lines, rest = rest[:end], rest[end:]
            if lines.strip():
                yield lines, first
            first += lines.count(b"\n")
    if rest.strip():
        yield rest, first


def _inferred(chunk: bytes, first: int) -> pa.Schema:
    """The schema of these lines. All lines come here before they are parsed with a schema."""
    require_readable(chunk, first)
    return _parsed(chunk, first, None).schema


def _parsed(chunk: bytes, first: int, schema: pa.Schema | None) -> pa.Table:
    try:
        chunk.decode()
    except UnicodeDecodeError as error:
        before = chunk.count(b"\n", 0, error.start)
        raise ValueError(f"line {first + before}: it is not UTF-8") from error
    try:
        return _read(chunk, schema)
    except pa.ArrowException as error:
        raise ValueError(_explained(str(error), chunk, first, schema)) from error


def _read(chunk: bytes, schema: pa.Schema | None) -> pa.Table:
    if schema is not None:
        return json_text.read(chunk, schema)
    return pyarrow.json.read_json(
        io.BytesIO(chunk), read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
    )


def _explained(error: str, chunk: bytes, first: int, schema: pa.Schema | None) -> str:
    """The error, with the number of the line or the name of the field that it is about."""
    if error.endswith("unexpected field") and schema is not None:
        fields = pa.struct(list(schema))
        for number, line in enumerate(chunk.splitlines(), first):
            unknown = json_text.unknown_field(json.loads(line), fields) if line.strip() else None
            if unknown is not None:
                return f"line {number}: field {unknown!r} is not in the table"
    row = re.search(r" in row (\d+)$", error)
    if row is None:
        failing = _failing(error, chunk, first, schema)
        return error if failing is None else f"line {failing}: {error}"
    numbers = [number for number, line in enumerate(chunk.splitlines(), first) if line.strip()]
    return f"line {numbers[min(int(row[1]), len(numbers) - 1)]}: {error[: row.start()]}"


def _failing(error: str, chunk: bytes, first: int, schema: pa.Schema | None) -> int | None:
    """The number of the first line that has this error; None if no single line has it."""

    def fails(part: list[bytes]) -> str | None:
        try:
            _read(b"".join(part), schema)
        except pa.ArrowException as failed:
            return str(failed)
        return None

    lines = chunk.splitlines(keepends=True)
    low, high = 0, len(lines)  # the lines below `low` are right
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(lines[low:middle]) else (middle, high)
    return first + low if fails(lines[low:high]) == error else None


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type for a new table: what looks like a time stays the text that it is in JSON."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _size(source: Source) -> int:
    """Bytes of the file; 0 if it is compressed, since its rows take more."""
    return 0 if source.compression else source.files.get_file_info(source.place).size or 0
