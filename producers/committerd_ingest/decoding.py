"""Makes rows of records, with the types of the table. A record makes one row, or it is a bad record with a reason.

No value changes in silence. A JSON value must be spelled as its column's type, as in `committerd append`; a number in a
floating-point column is rounded to its precision. What the client's casts refuse is refused
(`committerd_client.casting`). Values of Avro and Protobuf get the types of their own schema, which lose nothing, and
are cast to the table's.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from committerd_client import json_text
from committerd_client.casting import cast, nulls, take
from committerd_client.data import rows_of
from committerd_client.errors import StagingError
from committerd_ingest.misfits import misfit
from committerd_ingest.records import NO_TIMESTAMP, Record, Records
from committerd_ingest.wire_format import RowsOf, Schemas, UnusableSchema, read, split

Format: TypeAlias = Literal["json", "raw", "avro", "protobuf"]

_CHUNK_BYTES = 8 * 1024 * 1024
"""What is parsed at once."""
_TYPED_CHUNK_BYTES = 1024 * 1024
"""The same, of Avro and Protobuf: a list of small records takes 250 times as much memory while it is Python's."""
_REASON_CHARS_MAX = 1000
_MISFITS = (pa.ArrowException, StagingError, ValueError, OverflowError)
"""What values that do not fit raise."""
_NULL_BEHIND = re.compile(rb"\}[ \t\r\n]*null")
_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
_TYPES = {
    "key": pa.binary(),
    "headers": _HEADERS,
    "timestamp": pa.timestamp("ms", "UTC"),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}
"""The columns of a new table for what Kafka says of a record."""


class WrongColumns(ValueError):
    """The settings and the table do not fit each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The columns that get what Kafka says of a record; an empty name = none does."""

    key: str = ""
    headers: str = ""
    timestamp: str = ""
    topic: str = ""
    partition: str = ""
    offset: str = ""

    def named(self) -> dict[str, str]:
        """What each of them holds, by its name. Raises `WrongColumns` if two have one name."""
        kinds = ("key", "headers", "timestamp", "topic", "partition", "offset")
        chosen = [(getattr(self, kind), kind) for kind in kinds if getattr(self, kind)]
        if len(dict(chosen)) < len(chosen):
            raise WrongColumns(f"a column can hold only one of {', '.join(kinds)}: {', '.join(n for n, _ in chosen)}")
        return dict(chosen)

    def added_to(self, schema: pa.Schema) -> pa.Schema:
        """The schema of a new table that has these columns too."""
        new = [pa.field(name, _TYPES[kind]) for name, kind in self.named().items() if name not in schema.names]
        return pa.schema([*schema, *new], schema.metadata)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that makes no row."""

    record: Record
    reason: str
    stops: bool = False
    """Whether its partition stops here in any case: its schema can't be merged into the table's."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of the good records, in their order, and the bad records."""

    rows: pa.Table
    bad: Sequence[BadRecord]


class Decoder:
    """Decodes the records of one partition for one schema of the table."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        format: Format,
        columns: RecordColumns,
        value_column: str,
        topic: str,
        partition: int,
        merge: bool = False,
        offset_too: str = "",
    ) -> None:
        """`value_column`: the column that gets the value of a `raw` record. `merge`: whether the table has got the
        `new_columns` of the records; what does not fit then stops the partition. `offset_too`: a column for the offset
        besides that of `columns`. Raises `WrongColumns`.
        """
        self.schema = schema
        self._format, self._topic, self._partition, self._merge = format, topic, partition, merge
        self._of_record = columns.named() | ({offset_too: "offset"} if offset_too else {})
        wanted = [*self._of_record, *([value_column] if format == "raw" else [])]
        for name in wanted:
            if name not in schema.names:
                near = difflib.get_close_matches(name, schema.names, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise WrongColumns(f"the table has no column {name!r}{hint}; it has {', '.join(schema.names)}")
        if len(set(wanted)) < len(wanted):
            raise WrongColumns(f"column {value_column!r} can't hold the value and something else")
        self._value_column = value_column
        self._parsed = pa.schema(
            [(one.name, json_text.parseable(one.type)) for one in schema if one.name not in self._of_record]
        )
        if format == "json":
            try:
                json_text.read(b"{}", self._parsed, lines=False)
            except (pa.ArrowException, NotImplementedError) as error:
                raise WrongColumns(f"the table has a column that can't be read from JSON: {error}") from error

    def decode(self, records: Sequence[Record], schemas: Schemas | None = None) -> Decoded:
        """The rows of these records, and the bad ones among them.

        `schemas`: those of all records of Avro and Protobuf (`schema_ids`).
        """
        bad: list[BadRecord] = []
        tables: list[pa.Table] = []
        for part in _chunks(Records.of(records), _CHUNK_BYTES if schemas is None else _TYPED_CHUNK_BYTES):
            tables += self._plain(part, bad) if schemas is None else self._typed(part, schemas, bad)
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        return Decoded(rows, sorted(bad, key=lambda one: one.record.offset))

    def new_columns(self, records: Sequence[Record], schemas: Schemas) -> pa.Schema | None:
        """The columns that these records' schemas have and the table has not; None if there are none.

        Of two schemas that have the same column, that of the earlier record decides.
        """
        kinds: dict[int, RowsOf] = {}
        for record in records:
            with contextlib.suppress(ValueError):  # a bad record
                number, rest = split(record.value)
                schema = schemas[number]
                if not isinstance(schema, UnusableSchema):
                    kind, _ = schema.split(rest)
                    kinds.setdefault(id(kind), kind)
        found: dict[str, pa.Field] = {}
        for kind in kinds.values():
            for field in kind.columns:
                if field.name not in self.schema.names:
                    found.setdefault(field.name, field)
        return pa.schema(found.values()) if found else None

    def _plain(self, records: Records, bad: list[BadRecord]) -> list[pa.Table]:
        """Rows of records of JSON, or of bytes."""
        if self._format == "raw":
            return [rows for _, rows in self._parts(records, lambda part: self._raw(records[part]), bad)]
        text = text_of_objects(records.values)
        if text is not None:
            try:
                return [self._table(records, self._json(text, len(records)))]
            except _MISFITS:
                pass  # each record is looked at below
        good: list[Record] = []
        for record in records:
            reason = no_object(record.value)
            if reason is None:
                good.append(record)
            else:
                bad.append(BadRecord(record, reason))
        values = [one.value or b"" for one in good]

        def made(part: slice) -> pa.Table:
            texts = values[part]
            return self._json(b"\n".join(texts), len(texts))

        return [rows for _, rows in self._parts(Records.of(good), made, bad)]

    def _typed(self, records: Records, schemas: Schemas, bad: list[BadRecord]) -> list[pa.Table]:
        """Rows of records that name their schemas."""
        kinds: dict[int, tuple[RowsOf, list[int], list[Any]]] = {}
        for place, value in enumerate(records.values):
            try:
                kind, made = read(value, schemas)
            except Exception as error:  # noqa: BLE001  # the libraries raise errors of any class for bytes that are none
                bad.append(BadRecord(records[place], described(error)))
                continue
            _, found, values = kinds.setdefault(id(kind), (kind, [], []))
            found.append(place)
            values.append(made)
        parts: list[tuple[Records, pa.Table]] = []
        for kind, found, values in kinds.values():
            theirs = records if len(found) == len(records) else records.at(found)
            reason = self._misfit(kind)
            if reason is not None:
                bad += [BadRecord(one, reason, self._merge) for one in theirs]
                continue
            parts += self._parts(theirs, _maker(kind, values), bad)
        return _in_order(parts)

    def _misfit(self, kind: RowsOf) -> str | None:
        """Why no value of this type fits the table; None if its columns do."""
        if not kind.columns.names:
            return "its schema has no fields, and a row is made of fields"
        for name in kind.columns.names:
            if name in self._of_record:
                return f"column {name!r} holds the record's {self._of_record[name]}, and the value has it too"
        try:
            given = kind.columns.empty_table()
            for name, of_record in self._of_record.items():
                given = given.append_column(name, self._column(of_record, Records()))
            rows_of(given).read(self.schema, fill=True)
            for field in kind.columns:
                cast(nulls(0, field.type), self.schema.field(field.name))
        except StagingError as error:
            return described(error)
        return None

    def _parts(
        self, records: Records, values: Callable[[slice], pa.Table], bad: list[BadRecord], begin: int = 0
    ) -> list[tuple[Records, pa.Table]]:
        """Records, and their rows; if they can't be made together, those of each half.

        `values` makes those of a part of all records, in which these begin at `begin`.
        """
        if not records:
            return []
        try:
            return [(records, self._table(records, values(slice(begin, begin + len(records)))))]
        except _MISFITS as error:
            if len(records) == 1:
                bad.append(BadRecord(records[0], self._reason(records[0], error)))
                return []
        middle = len(records) // 2
        return [
            *self._parts(records[:middle], values, bad, begin),
            *self._parts(records[middle:], values, bad, begin + middle),
        ]

    def _json(self, text: bytes, count: int) -> pa.Table:
        table = json_text.read(text, self._parsed, lines=False)
        if table.num_rows != count:
            raise ValueError(f"{count} records make {table.num_rows} rows")
        return table

    def _raw(self, records: Records) -> pa.Table:
        return pa.table({self._value_column: pa.array(records.values, pa.binary())})

    def _table(self, records: Records, values: pa.Table) -> pa.Table:
        """The rows of the table: the values, and what Kafka says of the records."""
        for name, kind in self._of_record.items():
            values = values.append_column(name, self._column(kind, records))
        schema, batches = rows_of(values).read(self.schema, fill=True)
        return pa.Table.from_batches(batches, schema)

    def _column(self, kind: str, records: Records) -> pa.Array:
        match kind:
            case "key":
                return pa.array(records.keys, pa.binary())
            case "headers":
                named = [[{"name": name, "value": value} for name, value in one] for one in records.headers]
                return pa.array(named, _HEADERS)
            case "timestamp":
                known = [None if one == NO_TIMESTAMP else one for one in records.timestamps_ms]
                return pa.array(known, pa.timestamp("ms", "UTC"))
            case "topic":
                return pa.repeat(self._topic, len(records))
            case "partition":
                return pa.repeat(pa.scalar(self._partition, pa.int32()), len(records))
            case _:
                return pa.array(records.offsets, pa.int64())

    def _reason(self, record: Record, error: Exception) -> str:
        if self._format in ("avro", "protobuf"):
            return described(error)
        text = str(error).removesuffix(" in row 0")
        if text.endswith("unexpected field") and record.value is not None:
            unknown = json_text.unknown_field(json.loads(record.value), pa.struct(list(self._parsed)))
            text = f"field {unknown!r} is not in the table"
        elif self._format == "json" and isinstance(error, pa.ArrowException) and record.value is not None:
            found = misfit(record.value, self._parsed, self.schema)
            text = text if found is None else f"{found}: {text}"
        return text[:_REASON_CHARS_MAX]


def schema_ids(values: Iterable[bytes | None]) -> set[int]:
    """The ids of the schemas that the values, or keys, name."""
    found = set[int]()
    for value in values:
        with contextlib.suppress(ValueError):
            found.add(split(value)[0])
    return found


def _maker(kind: RowsOf, values: Sequence[Any]) -> Callable[[slice], pa.Table]:
    return lambda part: kind.rows(values[part])


def described(error: Exception) -> str:
    """What is wrong with a record, in a sentence."""
    if isinstance(error, (StagingError, UnusableSchema)) or (type(error) is ValueError and str(error)):
        return str(error)[:_REASON_CHARS_MAX]
    return f"the value is not as its schema says: {type(error).__name__} {error}".rstrip()[:_REASON_CHARS_MAX]


def _in_order(parts: Sequence[tuple[Records, pa.Table]]) -> list[pa.Table]:
    """The rows in the order of the records' offsets."""
    if len(parts) < 2:
        return [rows for _, rows in parts]
    offsets = pa.concat_arrays([pa.array(records.offsets, pa.int64()) for records, _ in parts])
    rows = pa.concat_tables([rows for _, rows in parts])
    if pc.all(pc.greater_equal(offsets[1:], offsets[:-1])).as_py():
        return [rows]
    order = pc.sort_indices(offsets)
    columns = [take(column.combine_chunks(), order) for column in rows.columns]
    return [pa.Table.from_arrays(columns, schema=rows.schema)]


def _chunks(records: Records, most: int) -> list[Records]:
    found: list[Records] = []
    begin, size = 0, 0
    for place, value in enumerate(records.values):
        size += len(value or b"")
        if size >= most:
            found.append(records[begin : place + 1])
            begin, size = place + 1, 0
    if begin < len(records):
        found.append(records[begin:])
    return found


def text_of_objects(values: Sequence[bytes | None]) -> bytes | None:
    """The values on lines of their own, if each is certainly one object where pyarrow finds as many rows in the text.

    None if it is not certain: then each value is asked (`no_object`).

    Each begins with `{` and ends with `}`. Were the end of one inside an array or an object, a `}` and a `{` would
    follow each other there, and inside a text a line would end: JSON has neither, and pyarrow refuses both. So each
    value is one or more objects, and with as many rows as values it is one. pyarrow does not look for what is no
    UTF-8, and ends the process for a `null` between two objects; `}` and `null` may also follow each other in a text.
    """
    known = [one for one in values if one is not None and one[:1] == b"{" and one[-1:] == b"}"]
    if len(known) < len(values):
        return None
    text = b"\n".join(known)
    if b"null" in text and _NULL_BEHIND.search(text):
        return None
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return text


def no_object(value: bytes | None) -> str | None:
    """Why a value is not one JSON object; None if it is. pyarrow alone would take two objects for two rows.

    pyarrow 24 ends the process for a `null` where an object should be.
    """
    if value is None:
        return "the record has no value (a tombstone), and mode append deletes nothing"
    try:
        found = json.loads(value.decode())
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8: {error.reason} at byte {error.start}"
    except ValueError as error:
        return f"the value is not JSON: {error}"[:_REASON_CHARS_MAX]
    except RecursionError:
        return "the value is JSON that is nested too deep"
    return None if isinstance(found, dict) else f"the value is a JSON {_NAMES[type(found)]}, and an object is needed"


_NAMES = {
    list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"
}  # fmt: skip
