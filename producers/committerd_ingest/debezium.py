"""Debezium's envelopes: what a record of its topics does to a row.

Source: Debezium, Change event values, of its connectors for databases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from typing import Any, Literal, TypeAlias

Effect: TypeAlias = Literal["put", "take", "none"]

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_PUTS, _TAKES, _SAYS = ("c", "r", "u"), ("d",), ("m",)


def effect(names: Set[str], op: Any, *, has_row: bool) -> Effect:
    """What a record does to the row of its key. Raises `ValueError` if that can't be done.

    `names`: of the envelope's fields. `has_row`: whether there is a row in `after`. Heartbeats, messages of the
    database's log, and records on its transactions and its schema do nothing.
    """
    if "op" not in names:
        if names == {"ts_ms"} or "ddl" in names or {"status", "id"} <= names:
            return "none"
        raise ValueError(f"the value is no envelope of Debezium, which has op: it has {', '.join(names) or 'nothing'}")
    if op in _PUTS and not has_row:
        raise ValueError(f"the envelope's op is {op!r}, and it has no row in after")
    if op == "t":
        raise ValueError("the source has truncated its table, and no key names its rows: delete them with a client")
    if op not in (*_PUTS, *_TAKES, *_SAYS):
        raise ValueError(f"the envelope's op is {op!r}, which is none of {', '.join((*_PUTS, *_TAKES, *_SAYS, 't'))}")
    return "put" if op in _PUTS else "take" if op in _TAKES else "none"


def payload(text: str) -> str:
    """The payload of a JSON object that has `schema` and `payload`, as it stands there; otherwise the text itself.

    Raises `ValueError` if it is no JSON, or has one of them twice.
    """
    found = json.loads(text)
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        return _once(text)["payload"]
    return text


def members(text: str) -> dict[str, str]:
    """The members of a JSON object, each as the text that stands there, so that no number changes.

    Raises `ValueError` if it is no JSON object, or has a member twice.
    """
    if not isinstance(json.loads(text), dict):
        raise ValueError("the value is JSON, and no envelope of Debezium")
    return _once(text)


def _once(text: str) -> dict[str, str]:
    """The members of a text that is a JSON object. Raises `ValueError` if it has one twice: which of them counts?"""
    found: dict[str, str] = {}
    for name, value in _members(text):
        if name in found:
            raise ValueError(f"field {name!r} is there twice")
        found[name] = value
    return found


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Of a text that is a JSON object."""
    at = _after_space(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _after_space(text, _after_space(text, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
