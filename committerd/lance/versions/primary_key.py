"""The primary key that a schema declares. Lance does not enforce it; merges use it to detect concurrent inserts of one
key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from committerd.lance.format.wording import quoted
from committerd_common.messages import Field

PRIMARY_KEY = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION = "lance-schema:unenforced-primary-key:position"
KEY_ENTRIES = frozenset({PRIMARY_KEY, PRIMARY_KEY_POSITION})

_TRUE = frozenset({"1", "true", "on", "yes", "y"})
_POSITION_MAX = 2**32 - 1
_LISTS = ("list", "large_list", "map")


def key_fields(fields: Iterable[Field]) -> list[int]:
    """The ids of the primary key's fields."""
    return [one.id for one in fields if one.unenforced_primary_key or declared_position(one) is not None]


def declared_position(field: Field) -> int | None:
    """The field's position in the primary key, from its metadata; 0 = in order of the fields, None = not in the key.

    Lance 14: field.rs, try_from an Arrow field.
    """
    number = position(field, PRIMARY_KEY_POSITION)
    if number is not None:
        return number
    declared = field.metadata.get(PRIMARY_KEY, b"").decode("utf-8", "replace")
    return 0 if declared.lower() in _TRUE else None


def position(field: Field, key: str) -> int | None:
    """The number of 32 bits that this entry of the field's metadata has; None = there is none.

    Rust's parse::<u32>, which Lance uses, takes a plus sign too.
    """
    digits = field.metadata.get(key, b"").decode("utf-8", "replace").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits.lstrip("0")[:20] or "0")
    return number if number <= _POSITION_MAX else None


def key_fault(fields: Sequence[Field]) -> str:
    """The reason why readers can't use the primary key; empty if they can, or if there is none.

    Lance 14: schema.rs, verify_primary_key. It can't read a table with such a key at all; 4.0.0 doesn't check it.
    """
    by_id = {one.id: one for one in fields}
    parents = {one.parent_id for one in fields}
    for number in key_fields(fields):
        name = quoted(by_id[number].name)
        if number in parents:
            return f"field {number} ({name}) of the primary key has fields of its own"
        above: Field | None = by_id[number]
        seen: set[int] = set()
        while above is not None and above.id not in seen:
            seen.add(above.id)
            if above.nullable:
                return f"field {above.id} ({quoted(above.name)}) of the primary key may be null"
            if above.logical_type.partition(".")[0] in _LISTS:
                return f"field {number} ({name}) of the primary key lies in a {above.logical_type}"
            above = by_id.get(above.parent_id)
    return ""
