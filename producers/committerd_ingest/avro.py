"""Avro's values as rows. fastavro reads them; the types are Arrow's own, so that no value changes on its way.

fastavro's own conversions of logical types round decimals and know no nanoseconds. So it gets the schema without them:
numbers of days, milliseconds and so on go into Arrow's types as they are, and a decimal is made here.
Source: Apache Avro 1.12, Specification.
"""

from __future__ import annotations

import decimal
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import fastavro.read
import pyarrow as pa

from committerd_ingest.wire_format import FIELDS_MAX, UnusableSchema

_DECIMAL, _ENTRIES = "committerd-decimal", "committerd-entries"
"""Our own logical types, which fastavro reads by the functions below."""
_RAW = "committerd-raw-"
"""Before the name of another logical type: fastavro does not know it, and so leaves the number as it is."""
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
"""A logical type that is not here is read as the type below it, as the specification says."""
_DEBEZIUM = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
}
"""The logical types for the names that Debezium gives to its times (`connect.name`)."""
_DIGITS_MAX = 76
"""Of Arrow's decimals."""
_EXACT = decimal.Context(prec=_DIGITS_MAX + 20, traps=[decimal.Inexact, decimal.InvalidOperation])


class AvroRows:
    """The values of one Avro schema."""

    def __init__(self, schema: str, references: Sequence[str] = ()) -> None:
        """`schema`: its JSON. `references`: those whose names it uses, each behind those that itself uses.

        Raises `UnusableSchema`.
        """
        named: dict[str, Any] = {}
        try:
            for text in references:
                fastavro.parse_schema(_readable(json.loads(text)), named)
            self._schema = fastavro.parse_schema(_readable(json.loads(schema)), named)
            kind = _Types(named).of(self._schema, "")
        except UnusableSchema:
            raise
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError) as error:
            raise UnusableSchema(f"it is no Avro schema: {type(error).__name__}: {error}") from error
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UnusableSchema(f"it is no Avro schema: {type(error).__name__}: {error}") from error
        if not pa.types.is_struct(kind):
            raise UnusableSchema(f"its values are {kind}, and only a record has fields for columns")
        self._type = kind
        self.columns = pa.schema(list(kind))

    def split(self, rest: bytes) -> tuple[AvroRows, bytes]:
        """All that stands behind the id is the record."""
        return self, rest

    def value(self, body: bytes) -> Any:
        """The record, as a dict."""
        stream = io.BytesIO(body)
        found = fastavro.schemaless_reader(stream, self._schema, None)
        if stream.tell() < len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the record")
        return found

    def rows(self, values: Sequence[Any]) -> pa.Table:
        """A row for each record."""
        made = pa.array(values, self._type)
        return pa.Table.from_arrays(made.flatten(), schema=self.columns)


class AvroPart:
    """One record inside the values of a schema, such as `after` in an envelope."""

    def __init__(self, whole: AvroRows, name: str) -> None:
        """Raises `UnusableSchema` if the values have no such record."""
        if name not in whole.columns.names or not pa.types.is_struct(whole.columns.field(name).type):
            raise UnusableSchema(f"its values have no record {name!r}")
        self._whole, self._name, self._type = whole, name, whole.columns.field(name).type
        self.columns = pa.schema(list(self._type))

    def split(self, rest: bytes) -> tuple[AvroPart, bytes]:
        """All that stands behind the id is the value."""
        return self, rest

    def value(self, body: bytes) -> Any:
        """The record inside, as a dict."""
        return self._whole.value(body)[self._name]

    def rows(self, values: Sequence[Any]) -> pa.Table:
        """A row for each record."""
        return pa.Table.from_arrays(pa.array(values, self._type).flatten(), schema=self.columns)


class _Types:
    """Arrow's types for those of a schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        """`named`: the definitions of all names, as fastavro has parsed them."""
        self._named = named
        self._around: list[str] = []
        self._fields = 0

    def of(self, schema: Any, path: str) -> pa.DataType:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema]
            if schema in self._around:
                raise UnusableSchema(f"{path} is a {schema} inside a {schema}: a column has no type without end")
            return self.of(self._named[schema], path)
        kind, logical = schema["type"], schema.get("logicalType", "").removeprefix(_RAW)
        if isinstance(kind, list | dict):
            return self.of(kind, path)
        if logical == _DECIMAL:
            digits, scale = schema["precision"], schema.get("scale", 0)
            return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
        match kind:
            case "record" | "error":
                self._fields += len(schema["fields"])
                if self._fields > FIELDS_MAX:
                    raise UnusableSchema(f"a value has more than {FIELDS_MAX} fields")
                self._around.append(schema["name"])
                fields = [(one["name"], self.of(one["type"], _below(path, one["name"]))) for one in schema["fields"]]
                self._around.pop()
                return pa.struct(fields)
            case "array":
                return pa.list_(self._item(schema["items"], f"{path}[]"))
            case "map":
                return pa.map_(pa.string(), self._item(schema["values"], f"{path}.value"))
            case "enum":
                return pa.string()
            case "fixed":
                return pa.binary(schema["size"])
            case _:
                return _LOGICAL.get((kind, logical)) or self.of(kind, path)

    def _item(self, schema: Any, path: str) -> pa.DataType:
        kind = self.of(schema, path)
        if _may_take_no_bytes(kind):
            raise UnusableSchema(f"{path} is {kind}, of which a few bytes may hold billions")
        return kind

    def _union(self, branches: list[Any], path: str) -> pa.DataType:
        kinds = [one for one in branches if one != "null" and not (isinstance(one, dict) and one["type"] == "null")]
        if len(kinds) > 1:
            names = [one if isinstance(one, str) else one.get("name", one["type"]) for one in branches]
            raise UnusableSchema(f"{path or 'the value'} is one of {', '.join(map(str, names))}: a column has one type")
        return self.of(kinds[0], path) if kinds else pa.null()


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _may_take_no_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_may_take_no_bytes(field.type) for field in kind)
    return bool(pa.types.is_null(kind)) or (bool(pa.types.is_fixed_size_binary(kind)) and kind.byte_width == 0)


def _readable(schema: Any) -> Any:
    """The schema with only those logical types by which fastavro is to read."""
    if isinstance(schema, list):
        return [_readable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for part in ("type", "items", "values"):
        if part in made:
            made[part] = _readable(made[part])
    if isinstance(made.get("fields"), list):
        made["fields"] = [
            {**one, "type": _readable(one["type"])} if isinstance(one, dict) and "type" in one else one
            for one in made["fields"]
        ]
    kind, logical = made.get("type"), made.pop("logicalType", None) or _DEBEZIUM.get(str(made.get("connect.name")))
    if kind == "map":
        made["logicalType"] = _ENTRIES
    elif kind in ("bytes", "fixed") and logical == "decimal" and _is_decimal(made):
        made["logicalType"] = _DECIMAL
    elif isinstance(kind, str) and (kind, logical) in _LOGICAL:
        made["logicalType"] = f"{_RAW}{logical}"
    return made


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    """Whether precision and scale are valid and Arrow has such a decimal; otherwise the bytes stay bytes."""
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("size") == 0:  # its values take no bytes
        return False
    return isinstance(digits, int) and isinstance(scale, int) and 0 < digits <= _DIGITS_MAX and 0 <= scale <= digits


def _decimal(data: bytes, schema: Any, _: Any = None) -> decimal.Decimal:
    unscaled = decimal.Decimal(int.from_bytes(data, "big", signed=True))
    return _EXACT.scaleb(_EXACT.plus(unscaled), -schema.get("scale", 0))


def _entries(data: dict[str, Any], *_: Any) -> list[tuple[str, Any]]:
    return list(data.items())


fastavro.read.LOGICAL_READERS |= {
    f"bytes-{_DECIMAL}": _decimal,
    f"fixed-{_DECIMAL}": _decimal,
    f"map-{_ENTRIES}": _entries,
}
