"""Makes rows of records, with the types of the table. A record makes one row, or it is a bad record with a reason.

No value changes in silence. A JSON value must be spelled as its column's type, as in `committerd append`; a number in a
floating-point column is rounded to its precision. What the client's casts refuse is refused
(`committerd_client.casting`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from committerd_client import json_text
from committerd_client.data import rows_of
from committerd_client.errors import StagingError
from committerd_ingest.records import NO_TIMESTAMP, Record

Format: TypeAlias = Literal["json", "raw"]

_CHUNK_BYTES = 8 * 1024 * 1024
"""What is parsed at once."""
_REASON_CHARS_MAX = 1000
_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


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


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that makes no row."""

    record: Record
    reason: str


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
    ) -> None:
        """`value_column`: the column that gets the value of a `raw` record. Raises `WrongColumns`."""
        self.schema = schema
        self._format, self._topic, self._partition = format, topic, partition
        self._of_record = columns.named()
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

    def decode(self, records: Sequence[Record]) -> Decoded:
        """The rows of these records, and the bad ones among them."""
        bad: list[BadRecord] = []
        good: list[Record] = []
        for record in records:
            reason = _no_object(record.value) if self._format == "json" else None
            if reason is None:
                good.append(record)
            else:
                bad.append(BadRecord(record, reason))
        found = [self._rows(part, bad) for part in _chunks(good)]
        tables = [one for parts in found for one in parts]
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        return Decoded(rows, sorted(bad, key=lambda one: one.record.offset))

    def _rows(self, records: Sequence[Record], bad: list[BadRecord]) -> list[pa.Table]:
        """The rows; if they can't be made together, those of each half."""
        try:
            return [self._table(records)]
        except (pa.ArrowException, StagingError, ValueError) as error:
            if len(records) == 1:
                bad.append(BadRecord(records[0], self._reason(records[0], error)))
                return []
        middle = len(records) // 2
        return [*self._rows(records[:middle], bad), *self._rows(records[middle:], bad)]

    def _table(self, records: Sequence[Record]) -> pa.Table:
        if self._format == "json":
            table = json_text.read(b"\n".join(one.value or b"" for one in records), self._parsed, lines=False)
            if table.num_rows != len(records):
                raise ValueError(f"{len(records)} records make {table.num_rows} rows")
        else:
            values = pa.array([one.value for one in records], pa.binary())
            table = pa.table({self._value_column: values})
        for name, kind in self._of_record.items():
            table = table.append_column(name, self._column(kind, records))
        schema, batches = rows_of(table).read(self.schema, fill=True)
        return pa.Table.from_batches(batches, schema)

    def _column(self, kind: str, records: Sequence[Record]) -> pa.Array:
        match kind:
            case "key":
                return pa.array([one.key for one in records], pa.binary())
            case "headers":
                named = [[{"name": name, "value": value} for name, value in one.headers] for one in records]
                return pa.array(named, _HEADERS)
            case "timestamp":
                known = [None if one.timestamp_ms == NO_TIMESTAMP else one.timestamp_ms for one in records]
                return pa.array(known, pa.timestamp("ms", "UTC"))
            case "topic":
                return pa.array([self._topic] * len(records), pa.string())
            case "partition":
                return pa.array([self._partition] * len(records), pa.int32())
            case _:
                return pa.array([one.offset for one in records], pa.int64())

    def _reason(self, record: Record, error: Exception) -> str:
        text = str(error).removesuffix(" in row 0")
        if text.endswith("unexpected field") and record.value is not None:
            unknown = json_text.unknown_field(json.loads(record.value), pa.struct(list(self._parsed)))
            text = f"field {unknown!r} is not in the table"
        return text[:_REASON_CHARS_MAX]


def _chunks(records: Sequence[Record]) -> list[Sequence[Record]]:
    found: list[Sequence[Record]] = []
    begin, size = 0, 0
    for place, record in enumerate(records):
        size += len(record.value or b"")
        if size >= _CHUNK_BYTES:
            found.append(records[begin : place + 1])
            begin, size = place + 1, 0
    if begin < len(records):
        found.append(records[begin:])
    return found


def _no_object(value: bytes | None) -> str | None:
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
