"""`docs/reference/settings.md`, from the settings."""

from __future__ import annotations

import json
from typing import Any

from committerd.settings.load import ENV_PREFIX, Settings

FILE, SOURCE = "docs/reference/settings.md", "committerd/settings"

_INTRODUCTION = """# Settings

Settings are in groups. A setting comes from the TOML file that `--config` names, where a group is a table, or from
the environment, which wins: `COMMITTERD_KAFKA__BOOTSTRAP_SERVERS` is `bootstrap_servers` in the group `kafka`. An
unknown name is an error. Commas separate the values of a list in the environment; in TOML it is a list. A process for
many tables has [`datasets`](../fleet.md) in place of the group `dataset`. The chart takes the same names below
[`settings`](../../helm/committerd/README.md).

```toml
# committerd.toml
[dataset]
name = "events"
uri = "/data/events.lance"

[kafka]
bootstrap_servers = ["localhost:9092"]
```

This page is generated from `committerd/settings` (`make docs`).
"""


def text() -> str:
    """Return the page: a table for each group."""
    whole = Settings.model_json_schema()
    parts = [_INTRODUCTION]
    for group, entry in whole["properties"].items():
        model = whole["$defs"][_reference(entry)]
        parts.append(f"\n## {group}\n")
        if "description" in model:
            parts.append(" ".join(model["description"].split()) + "\n")
        parts.append(f"In the environment: `{ENV_PREFIX}{group.upper()}__NAME`.\n")
        parts.append("| name | takes | default | meaning |\n|---|---|---|---|")
        for name, schema in model["properties"].items():
            default = _default(schema, required=name in model.get("required", ()))
            meaning = _cell(schema.get("description", ""))
            parts.append(f"| `{name}` | {_cell(_takes(schema, whole['$defs']))} | {default} | {meaning} |")
    return "\n".join(parts) + "\n"


def _reference(entry: dict[str, Any]) -> str:
    return str(entry["$ref"]).rpartition("/")[2]


def _takes(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_takes(one, definitions) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return _takes(definitions[_reference(schema)], definitions)
    if schema.get("writeOnly"):
        return "secret text"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in sorted(schema["enum"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_takes(schema['items'], definitions)}"
    bounds = [
        words.format(schema[key])
        for key, words in (
            ("minimum", "at least {}"), ("exclusiveMinimum", "more than {}"),
            ("maximum", "at most {}"), ("exclusiveMaximum", "less than {}"),
        )
        if key in schema
    ]  # fmt: skip
    names = {
        "integer": "integer",
        "number": "number",
        "boolean": "`true`, `false`",
        "string": "text",
        "object": "JSON object",
    }
    return ", ".join([names.get(str(kind), "text"), *bounds])


def _default(schema: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    default = schema.get("default")
    if default is None or default in ("", []):
        return "none"
    return f"`{json.dumps(sorted(default) if isinstance(default, list) else default)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
