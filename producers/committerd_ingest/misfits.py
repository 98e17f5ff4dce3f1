"""Which field of a JSON object is the one that does not fit: pyarrow names the type and the text, and no field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from committerd_client import json_text
from committerd_ingest.debezium import members

_TEXT_CHARS_MAX = 100


def misfit(value: bytes, parsed: pa.Schema, table: pa.Schema) -> str | None:
    """The field, its text and the type of its column, in a sentence; None if no field is bad by itself.

    `value`: a JSON object whose fields are all in `parsed`, which are the table's columns as they are parsed.
    """
    try:
        texts = members(value.decode())
    except ValueError:
        return None
    names = list(texts)
    while len(names) > 1:
        half = names[: len(names) // 2]
        names = names[len(half) :] if _fit(half, texts, parsed) else half
    if not names or _fit(names, texts, parsed):
        return None
    (name,) = names
    text = texts[name]
    shown = text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}..."
    return f"field {name!r} is {shown}, which does not fit {table.field(name).type}"


def _fit(names: Sequence[str], texts: Mapping[str, str], parsed: pa.Schema) -> bool:
    text = ",".join(f"{json.dumps(name)}:{texts[name]}" for name in names)
    try:
        json_text.read(b"{%s}" % text.encode(), pa.schema([parsed.field(name) for name in names]), lines=False)
    except pa.ArrowException:
        return False
    return True
