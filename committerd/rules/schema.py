"""Questions about a schema: a flat list of fields, parents before their children."""

from __future__ import annotations

import re
from collections.abc import Iterable

from committerd.errors import InvalidRequest
from committerd.format.messages import Field

_UNIT = "(s|ms|us|ns)"
_LOGICAL_TYPE = re.compile(
    "null|bool|u?int(8|16|32|64)|halffloat|float|double|(large_)?(string|binary)|blob|json|struct|map"
    rf"|(large_)?list(\.struct)?|date32:day|date64:ms|time32:(s|ms)|time64:(us|ns)|duration:{_UNIT}"
    rf"|timestamp:{_UNIT}:[^:]+|decimal:(128|256):\d+:-?\d+|fixed_size_binary:\d+|fixed_size_list:.+:\d+|dict:.+:.+:.+"
)
"""Lance: datatypes.rs, LogicalType to DataType."""


def require_readable(schema: Iterable[Field]) -> None:
    """Return when Lance can make sense of a schema: with any other it can't even open the table.

    Raises `InvalidRequest` with code `schema`.
    """
    above = {-1}
    for field in schema:
        fault = ""
        if field.id < 0:
            fault = "its id is negative"
        elif field.parent_id not in above:
            fault = f"its parent is field {field.parent_id}, which does not come before it"
        elif "\0" in field.name:
            fault = "its name has a zero byte"
        elif not _LOGICAL_TYPE.fullmatch(field.logical_type):
            fault = f"its logical type {field.logical_type!r} is none of Lance"
        if fault:
            raise InvalidRequest(f"the schema can't have field {field.id} ({field.name!r}): {fault}", code="schema")
        above.add(field.id)


def may_tighten_nullability(before: Iterable[Field], after: Iterable[Field]) -> bool:
    """Whether data written for `before` may break `after`: some field is no longer nullable, or new
    and required.

    Lance 14 has writers assert this (`preserves_nullability`); comparing the schemas needs no
    assertion. A required child of a new parent does no harm: where the parent is null or left out
    there is nothing to require.
    """
    nullable_before = {field.id: field.nullable for field in before}
    return any(
        not field.nullable
        and nullable_before.get(field.id, True)
        and (field.parent_id < 0 or field.parent_id in nullable_before)
        for field in after
    )
