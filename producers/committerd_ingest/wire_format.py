"""What a schema registry's serializers write: a zero byte, the id of the value's schema in 4 bytes, and the value.

Source: Confluent Schema Registry, Wire format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

_HEAD_BYTES = 5

FIELDS_MAX = 10_000
"""Fields of a value, counted wherever a type stands: a few types that hold each other twice have billions."""


class UnusableSchema(ValueError):
    """No value that was written with this schema makes a row; the text says why."""


class RowsOf(Protocol):
    """How the values of one type, of one schema, become rows."""

    columns: pa.Schema
    """The columns, nullable, with types that hold each value as it is."""

    def value(self, body: bytes) -> Any:
        """The value in the format's own form. A bad one raises whatever the format's library raises."""
        ...

    def rows(self, values: Sequence[Any]) -> pa.Table:
        """A row for each of these values. Raises pyarrow's errors, `ValueError`, `OverflowError`."""
        ...


class Schema(Protocol):
    """A schema of the registry."""

    def split(self, rest: bytes) -> tuple[RowsOf, bytes]:
        """What stands behind the schema's id: the type of the value, and its bytes.

        Raises `ValueError` if it names no type of the schema, `UnusableSchema` if that type makes no rows.
        """
        ...


Schemas: TypeAlias = "Mapping[int, Schema | UnusableSchema]"
"""Schemas of the registry by their ids; of one that no record can be read with, why."""


def read(value: bytes | None, schemas: Schemas) -> tuple[RowsOf, Any]:
    """The type of a value, and the value in the format's own form. `schemas`: those of all values.

    Raises errors of any class if it is bad.
    """
    number, rest = split(value)
    schema = schemas[number]
    if isinstance(schema, UnusableSchema):
        raise schema
    kind, body = schema.split(rest)
    return kind, kind.value(body)


def split(value: bytes | None) -> tuple[int, bytes]:
    """The id of the schema, and what stands behind it. Raises `ValueError` if the value has another head."""
    if value is None:
        raise ValueError("the record has no value (a tombstone), and mode append deletes nothing")
    if len(value) < _HEAD_BYTES or value[0] != 0:
        raise ValueError(
            f"the value begins with {value[:_HEAD_BYTES].hex(' ') or 'nothing'}, and the serializer of a schema "
            "registry writes a byte 00 and 4 bytes with the id of the schema"
        )
    return int.from_bytes(value[1:_HEAD_BYTES], "big"), value[_HEAD_BYTES:]
