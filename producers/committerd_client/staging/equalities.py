"""Reads which values a predicate asks of a column, if it is of the simplest kind: `id = 7`, `name IN ('a', 'b')`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_LITERAL = r"(?:-?[0-9]+|'(?:[^'\\]|'')*')"
_EQUALITY = re.compile(
    rf"\s*(?:`(?P<quoted>[^`]+)`|(?P<bare>[a-z_][a-z0-9_]*))\s*"
    rf"(?:=\s*(?P<one>{_LITERAL})|(?i:IN)\s*\(\s*(?P<several>{_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\))\s*"
)
_NO_NAMES = ("null", "true", "false", "current_", "localtime", "user", "session_user")
"""What begins so is something else in SQL if it is not quoted."""


def asked_values(predicate: str, schema: pa.Schema) -> dict[str, pa.Array]:
    """The values by column if the predicate is `column = literal` or `column IN (literal, ...)`; otherwise empty.

    The predicate can be true only for rows whose column has one of the values. Integers are for integer columns and
    strings for string columns; of anything else SQL converts one to the other.
    """
    import pyarrow as pa

    found = _EQUALITY.fullmatch(predicate)
    if found is None:
        return {}
    name = found["quoted"] or found["bare"]
    if (found["bare"] or "").startswith(_NO_NAMES) or schema.names.count(name) != 1:
        return {}
    kind = schema.field(name).type
    literals = re.findall(_LITERAL, found["one"] or found["several"])
    strings = [one[1:-1].replace("''", "'") for one in literals if one.startswith("'")]
    try:
        if not strings and pa.types.is_integer(kind):
            return {name: pa.array(map(int, literals), kind)}
        if len(strings) == len(literals) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return {name: pa.array(strings, kind)}
    except (OverflowError, pa.ArrowException):  # no such integer in the column
        pass
    return {}
