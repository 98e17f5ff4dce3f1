"""Checks of a schema, which is a flat list of fields, parents before their children."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import NAME_BYTES_MAX
from committerd.lance.format.bounds import FIELDS_MAX
from committerd.lance.format.wording import quoted
from committerd_common.messages import Field

NESTING_MAX = 60
"""The most levels of a schema; lists count too. Arrow's C interface fails beyond 63 levels (pylance 4.0.0, 14.0.2)."""
TYPE_CHARS_MAX = 256

_UNIT = "(s|ms|us|ns)"
_OFFSET = r"[+-]\d{2}:\d{2}"
"""A time zone as an offset from UTC. Lance 14 accepts it; 4.0.0 can't open a table that has one."""
_PLAIN = (
    "null|bool|u?int(8|16|32|64)|halffloat|float|double|(large_)?(string|binary)|blob|json|date32:day|date64:ms"
    rf"|time32:(s|ms)|time64:(us|ns)|duration:{_UNIT}|timestamp:{_UNIT}:([^:]+|{_OFFSET})"
)
_PLAIN_TYPE = re.compile(_PLAIN)
_LIST_TYPE = re.compile(r"map|(large_)?list(\.struct)?|fixed_size_list:struct:\d+")
_PARENT_TYPE = re.compile(r"struct|map|(large_)?list(\.struct)?|fixed_size_list:struct:(?P<size>[1-9]\d{0,9})")
_DICT_TYPE = re.compile(r"dict:(?P<value>[^:]+):u?int(8|16|32|64):[^:]*")
_DECIMAL_TYPE = re.compile(r"decimal:(?P<bits>128|256):(?P<precision>\d{1,2}):(?P<scale>-?\d{1,3})")
_BINARY_TYPE = re.compile(r"fixed_size_binary:(?P<size>\d{1,10})")
_ARRAY_TYPE = re.compile(r"fixed_size_list:(?P<element>.+):(?P<size>[1-9]\d{0,9})", re.DOTALL)
_BFLOAT16 = "lance.bfloat16"
_SIZE_MAX = 2**31 - 1
_SYSTEM_COLUMNS = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
"""Columns that scans add. Lance: lib.rs, is_system_column."""
_PRECISION_MAX = {"128": 38, "256": 76}


def require_readable(schema: Sequence[Field]) -> None:
    """Check that Lance can read a schema. With any other it can't even open the table.

    Raises `InvalidRequest` with code `schema`.
    """
    if len(schema) > FIELDS_MAX:
        raise InvalidRequest(
            f"the schema has {len(schema)} fields, nested ones included; at most {FIELDS_MAX} are allowed, since "
            "readers need minutes for tables of many more. Put columns into another table",
            code="schema",
        )
    seen = _Seen(children=Counter(field.parent_id for field in schema))
    for field in schema:
        fault = _fault(field, seen)
        if fault:
            raise InvalidRequest(
                f"the schema can't have field {field.id} ({quoted(field.name)}): {fault}",
                code="field_id_twice" if field.id in seen.fields else "schema",
            )
        seen.add(field)


@dataclass(slots=True)
class _Seen:
    """The state of the check before the schema's next field."""

    children: Mapping[int, int]
    """The number of children of each field in the whole schema, by id."""
    fields: dict[int, Field] = dataclass_field(default_factory=dict)
    """The fields before it, by id."""
    depths: dict[int, int] = dataclass_field(default_factory=lambda: {-1: 0})
    names: set[tuple[int, str]] = dataclass_field(default_factory=set)
    """Parent id and name of each field before it."""
    begun: set[int] = dataclass_field(default_factory=set)
    """The ids of the fields with a child before it."""

    def add(self, field: Field) -> None:
        self.fields[field.id] = field
        self.depths[field.id] = self.depths[field.parent_id] + 1
        self.names.add((field.parent_id, field.name))
        self.begun.add(field.parent_id)


def _fault(field: Field, seen: _Seen) -> str:
    """The fault of a field, as text; empty if it has none."""
    if field.id < 0:
        return "its id is negative"
    if field.id in seen.fields:
        return "another field has its id"
    if field.parent_id not in seen.depths:
        return f"its parent is field {field.parent_id}, which does not come before it"
    levels = _levels(field.logical_type)
    if not levels:
        return f"its logical type {quoted(field.logical_type)} is not a type of Lance"
    if seen.depths[field.parent_id] + levels > NESTING_MAX:
        return f"it is nested more than {NESTING_MAX} levels deep, and readers can't open such a table"
    return _wrong_name(field, seen) or _wrong_children(field, seen)


def _wrong_name(field: Field, seen: _Seen) -> str:
    # Lance 4.0.0 and 14.0.2 open a table with names of the last three kinds, but can't plan a query on it.
    if "\0" in field.name:
        return "its name has a zero byte"
    if len(field.name.encode()) > NAME_BYTES_MAX:
        return f"its name has more than {NAME_BYTES_MAX} bytes"
    if (field.parent_id, field.name) in seen.names:
        return "another field beside it has its name"
    if field.parent_id < 0 and not field.name:
        return "its name is empty"
    if field.parent_id < 0 and field.name in _SYSTEM_COLUMNS:
        return "its name is that of a column which scans add, so readers can't open such a table"
    if field.parent_id < 0 and "." in field.name:
        return "its name has a dot, which separates the names of nested fields"
    return ""


def _wrong_children(field: Field, seen: _Seen) -> str:
    """The fault of the children of a list or map. Lance takes the first child unchecked (field.rs, data_type)."""
    logical_type, children = field.logical_type, seen.children.get(field.id, 0)
    if _LIST_TYPE.fullmatch(logical_type) and children != 1:
        return f"a {logical_type} has one child, the type of its elements; this one has {children}"
    parent = seen.fields.get(field.parent_id)
    if parent is None:
        return ""
    if parent.logical_type == "map" and (logical_type != "struct" or children != 2):
        return "the child of a map is a struct of two fields, key and value"
    above = seen.fields.get(parent.parent_id)
    is_first = parent.id not in seen.begun
    if above is not None and above.logical_type == "map" and is_first and field.nullable:
        return "the key of a map can't be null"
    return ""


def _levels(logical_type: str) -> int:
    """The levels of a type: 1, or more for a list whose type includes that of its elements; 0 = not a type.

    Lance: datatypes.rs, LogicalType to DataType; field.rs, data_type.
    """
    if len(logical_type) > TYPE_CHARS_MAX:
        return 0
    parent = _PARENT_TYPE.fullmatch(logical_type)
    if parent:
        return 1 if int(parent["size"] or 0) <= _SIZE_MAX else 0
    levels = 1
    while array := _ARRAY_TYPE.fullmatch(logical_type):
        if int(array["size"]) > _SIZE_MAX:
            return 0
        logical_type = array["element"]
        levels += 1
    return levels if (logical_type == _BFLOAT16 and levels > 1) or _is_leaf(logical_type) else 0


def _is_leaf(logical_type: str) -> bool:
    if decimal := _DECIMAL_TYPE.fullmatch(logical_type):
        fits = 1 <= int(decimal["precision"]) <= _PRECISION_MAX[decimal["bits"]]
        return fits and -128 <= int(decimal["scale"]) <= 127
    if binary := _BINARY_TYPE.fullmatch(logical_type):
        return int(binary["size"]) <= _SIZE_MAX
    if dictionary := _DICT_TYPE.fullmatch(logical_type):
        logical_type = dictionary["value"]
    return bool(_PLAIN_TYPE.fullmatch(logical_type))


def may_tighten_nullability(before: Iterable[Field], after: Iterable[Field]) -> bool:
    """Whether data written for schema `before` may break schema `after`: a field is no longer nullable, or new and
    required.

    In Lance 14 writers assert the opposite (`preserves_nullability`); a comparison of the schemas needs no assertion. A
    required child of a new parent is harmless: if the parent is null or missing, its child is not required.
    """
    nullable_before = {field.id: field.nullable for field in before}
    return any(
        not field.nullable
        and nullable_before.get(field.id, True)
        and (field.parent_id < 0 or field.parent_id in nullable_before)
        for field in after
    )


def with_relatives(fields: Iterable[int], schema: Iterable[Field]) -> frozenset[int]:
    """These fields of the schema, the fields that they lie in, and the fields in them; ids of other fields stay.

    All of them change if the data of one changes: a list changes with its elements, and a struct with its fields.
    """
    known = list(schema)
    below = set(fields)
    above = with_parents(below, known)
    for field in known:  # parents come before their children
        if field.parent_id in below:
            below.add(field.id)
    return frozenset(below | above)


def with_parents(fields: Iterable[int], schema: Iterable[Field]) -> frozenset[int]:
    """These fields of the schema, and the fields that they lie in; ids of other fields stay."""
    parents = {field.id: field.parent_id for field in schema}
    found = set(fields)
    for one in tuple(found):
        while (one := parents.get(one, -1)) >= 0 and one not in found:
            found.add(one)
    return frozenset(found)
