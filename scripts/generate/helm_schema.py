"""`helm/committerd/values.schema.json`, with the settings of `committerd.settings.load`.

The other parts of the schema are written by hand. Generated are its `$defs` `settings` (every group and setting),
`datasetName`, `datasetUri` and `datasetAliases`. Values are those of YAML: lists are lists, and a secret is a reference
to a Secret.
"""

from __future__ import annotations

import json
from typing import Any

from committerd.settings.load import Settings
from scripts.generate import ROOT

FILE, SOURCE = "helm/committerd/values.schema.json", "committerd/settings/load.py"
SECRET = {"$ref": "#/$defs/secretValue"}


def generated() -> dict[str, Any]:
    """The `$defs` that come from the settings."""
    whole = Settings.model_json_schema()
    groups: dict[str, Any] = {}
    for name, entry in whole["properties"].items():
        model = whole["$defs"][_reference(entry)]
        members = {member: _value(schema, whole["$defs"]) for member, schema in model["properties"].items()}
        groups[name] = {"type": "object", "additionalProperties": False, "properties": members}
        if "description" in model:
            groups[name]["description"] = model["description"]
    dataset = groups.pop("dataset")["properties"]
    return {
        "settings": {"type": "object", "additionalProperties": False, "properties": groups},
        **{f"dataset{name.capitalize()}": schema for name, schema in dataset.items()},
    }


def _reference(entry: dict[str, Any]) -> str:
    return str(entry["$ref"]).rpartition("/")[2]


def _value(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one setting, as a value of the chart."""
    found = {name: value for name, value in schema.items() if name != "title"}
    if "anyOf" in found:  # with null, which means the same as leaving it out
        alternatives = [one for one in found.pop("anyOf") if one != {"type": "null"}]
        assert len(alternatives) == 1, schema
        found = {**alternatives[0], **found}
    if "$ref" in found:  # one of several words
        words = definitions[_reference(found)]
        del found["$ref"]
        found = {"type": "string", "enum": sorted(words["enum"]), **found}
    if found.get("default", 0) is None:
        del found["default"]
    if found.pop("writeOnly", False):
        return {"description": found["description"], **SECRET}
    if found.get("type") == "array":
        return _listed(found, definitions)
    if found.get("type") == "string" and "default" not in found and "enum" not in found:
        return _perhaps_from_secret(found)
    return found


def _listed(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    items = schema["items"]
    if items == {"type": "integer"}:  # a version: YAML would read 3.10 as 3.1
        least, most = schema.pop("minItems") - 1, schema.pop("maxItems") - 1
        del schema["items"]
        return {**schema, "type": "string", "pattern": rf"^\d+(\.\d+){{{least},{most}}}$"}
    if "$ref" in items:
        items = {"type": "string", "enum": sorted(definitions[_reference(items)]["enum"])}
        if "default" in schema:
            schema["default"] = sorted(schema["default"])
    # No minItems: an empty list stands for one that is given elsewhere.
    return {**{name: value for name, value in schema.items() if name != "minItems"}, "items": items}


def _perhaps_from_secret(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a text without a default, such as a user's name: in the clear, or in a Secret."""
    limits = {name: value for name, value in schema.items() if name != "description"}
    return {"description": schema["description"], "anyOf": [limits, SECRET]}


def text() -> str:
    """Return the schema with its generated part up to date."""
    schema = json.loads((ROOT / FILE).read_text(encoding="utf-8"))
    schema["$defs"].update(generated())
    return json.dumps(schema, indent=2) + "\n"
