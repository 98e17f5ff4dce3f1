"""The tables of `helm/committerd/README.md`.

Tables stand between the markers `<!-- NAME -->` and `<!-- end of NAME -->`: `values` (from the comments in
values.yaml), `dataset`, `group` and `settings` (from values.schema.json, which comes from committerd's settings). The
text around them is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from scripts.generate import ROOT

CHART = ROOT / "helm" / "committerd"
FILE, SOURCE = "helm/committerd/README.md", "the settings and values.yaml"
_KEY = re.compile(r"^( *)([A-Za-z_]\w*):(?: |$)")


def documented(text: str) -> dict[tuple[str, ...], str]:
    """The keys of values.yaml that have a comment right above them, with its text."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip().removeprefix("#").strip())
            continue
        key = _KEY.match(line)
        if key:
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment:
                found[tuple(path)] = " ".join(comment)
        comment = []
    return found


def undocumented(values: dict[str, Any], comments: dict[tuple[str, ...], str]) -> list[str]:
    """The keys without a comment, unless they are below a key that has one, or all keys below them have one."""

    def below(tree: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        for name, value in tree.items():
            here = (*path, name)
            if here in comments and here != ("settings",):
                continue
            if isinstance(value, dict) and value:
                yield from below(value, here)
            elif here not in comments:
                yield ".".join(here)

    return list(below(values, ()))


def _values_table() -> str:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values, comments = yaml.safe_load(text), documented(text)
    missing = undocumented(values, comments)
    if missing:
        raise SystemExit(f"values.yaml: no comment above {', '.join(missing)}")
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for path, meaning in comments.items():
        default = values
        for name in path:
            default = default[name]
        shown = "see below" if path == ("settings",) else f"`{json.dumps(default)}`"
        rows.append(f"| `{'.'.join(path)}` | {shown} | {_cell(meaning)} |")
    return "\n".join(rows)


def _keys_table(definitions: dict[str, Any], of: str) -> str:
    rows = ["| key | meaning |", "|---|---|"]
    for name, schema in definitions[of]["properties"].items():
        described = schema if "description" in schema else definitions[schema["$ref"].rpartition("/")[2]]
        rows.append(f"| `{name}` | {_cell(described['description'])} |")
    return "\n".join(rows)


def _settings_table(definitions: dict[str, Any]) -> str:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for group, members in definitions["settings"]["properties"].items():
        for name, schema in members["properties"].items():
            default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
            if schema.get("$ref") == "#/$defs/secretValue":
                default = "only `secretKeyRef`"
            rows.append(f"| `settings.{group}.{name}` | {default} | {_cell(schema['description'])} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def text() -> str:
    """Return the page with its tables up to date."""
    page = (CHART / "README.md").read_text(encoding="utf-8")
    definitions = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["$defs"]
    tables = {
        "values": _values_table(),
        "dataset": _keys_table(definitions, "dataset"),
        "group": _keys_table(definitions, "group"),
        "settings": _settings_table(definitions),
    }
    for name, table in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, found, rest = page.partition(start)
        _, ended, tail = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{FILE}: the markers {start} and {end} are gone")
        page = f"{head}{start}\n{table}\n{end}{tail}"
    return page
