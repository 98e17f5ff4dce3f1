"""`docs/reference/json-api.md`, from the OpenAPI document of the status page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scripts.generate import ROOT

_DOCUMENT = "committerd/page/resources/openapi.json"
FILE, SOURCE = "docs/reference/json-api.md", _DOCUMENT

_INTRODUCTION = f"""# JSON API

What a member of committerd answers beside its [status page](../status-page.md), on the port of the metrics. It answers
reading alone, times are Unix milliseconds, and `http.token_file` guards it. The OpenAPI document is `{_DOCUMENT}`.

This page is generated from that document (`make docs`).
"""


def text() -> str:
    """Return the page: a section for each path, and one for each schema."""
    document = json.loads((ROOT / _DOCUMENT).read_text(encoding="utf-8"))
    lines = [_INTRODUCTION]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += [f"## {method.upper()} {path}", "", f"{operation['summary']}.", ""]
            lines += _table("parameter", [(one["name"], one["description"]) for one in operation.get("parameters", [])])
            answers = [(code, _answer(one)) for code, one in operation["responses"].items()]
            lines += _table("status", answers)
    for name, schema in document["components"]["schemas"].items():
        lines += [f"## {name}", ""]
        if "description" in schema:
            lines += [schema["description"], ""]
        required = set(schema.get("required", ()))
        rows = [(key, _meaning(one, key in required)) for key, one in schema.get("properties", {}).items()]
        lines += _table("member", rows)
    return "\n".join(lines).rstrip() + "\n"


def _answer(response: dict[str, Any]) -> str:
    schemas = [one["schema"]["$ref"] for one in response.get("content", {}).values() if "$ref" in one["schema"]]
    return " ".join([response["description"], *(f"{_link(reference)}." for reference in schemas)])


def _link(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


def _meaning(schema: dict[str, Any], required: bool) -> str:
    parts = [_kind(schema), schema.get("description", "").rstrip(".")]
    said = ": ".join(filter(None, parts))
    return said if required else f"{said}; may be missing"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _link(schema["$ref"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_kind(one) for one in schema[key])
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    return str(kind)


def _table(first: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from (f"| {first} | meaning |", "|---|---|")
        yield from (f"| `{name}` | {' '.join(meaning.split()).replace('|', chr(92) + '|')} |" for name, meaning in rows)
        yield ""
