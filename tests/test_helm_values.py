"""The chart's values agree with the settings: names, types, defaults, bounds. Needs no helm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

import committerd
from committerd.lance.format.kind import Kind
from committerd.settings.load import Settings, all_settings
from scripts.generate.helm_readme import documented, undocumented

CHART = Path(__file__).resolve().parents[1] / "helm" / "committerd"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
GROUPS: dict[str, Any] = SCHEMA["$defs"]["settings"]["properties"]


def schema_of(variable: str) -> dict[str, Any]:
    """The schema of a setting, by its environment variable."""
    group, name = variable.removeprefix("COMMITTERD_").lower().split("__")
    found: dict[str, Any] = (
        SCHEMA["$defs"][f"dataset{name.capitalize()}"] if group == "dataset" else GROUPS[group]["properties"][name]
    )
    return found


@pytest.mark.parametrize("variable", [variable for variable, _ in all_settings()])
def test_every_setting_is_a_value_with_the_same_default_and_meaning(variable: str) -> None:
    field = dict(all_settings())[variable]
    schema = schema_of(variable)
    assert schema["description"] == field.description
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if default is None:
        assert "default" not in schema
    elif isinstance(default, frozenset | tuple):
        assert schema["default"] == sorted(default)
    else:
        assert schema["default"] == default
        assert type(schema["default"]) in (*type(default).__mro__, int)


def test_no_value_is_a_setting_that_does_not_exist() -> None:
    known = {variable for variable, _ in all_settings()}
    named = {f"COMMITTERD_{g}__{n}".upper() for g, group in GROUPS.items() for n in group["properties"]}
    named |= {f"COMMITTERD_DATASET__{n}" for n in ("NAME", "URI", "BRANCH", "ALIASES")}
    assert named == known
    assert set(GROUPS) == set(Settings.model_fields) - {"dataset"}


def test_a_secret_is_never_text_in_a_value() -> None:
    secrets = [variable for variable, field in all_settings() if SecretStr in getattr(field.annotation, "__args__", ())]
    assert "COMMITTERD_KAFKA__SASL_PLAIN_PASSWORD" in secrets
    assert "COMMITTERD_S3__SECRET_ACCESS_KEY" in secrets
    for variable in secrets:
        assert schema_of(variable).keys() == {"description", "$ref"}
        assert schema_of(variable)["$ref"] == "#/$defs/secretValue"


def test_types_and_bounds_are_those_of_the_settings() -> None:
    assert schema_of("COMMITTERD_COMMIT__GROUP_RECORDS_MAX")["type"] == "integer"
    assert schema_of("COMMITTERD_COMMIT__GROUP_RECORDS_MAX")["maximum"] == 10_000
    assert schema_of("COMMITTERD_DAEMON__DRAIN_SECONDS")["exclusiveMinimum"] == 0
    assert schema_of("COMMITTERD_COMMIT__ALLOWED_OPERATIONS")["items"]["enum"] == sorted(Kind)
    assert schema_of("COMMITTERD_LOG__LEVEL")["enum"] == ["debug", "info", "warning", "error"]
    version = schema_of("COMMITTERD_KAFKA__API_VERSION")
    assert version["type"] == "string"
    assert [bool(re.match(version["pattern"], text)) for text in ("3.9", "4.0.1", "3", "1.2.3.4")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_settings_that_the_chart_reads_have_the_defaults_of_the_settings() -> None:
    """The templates need a few of them: ports, and times that others must exceed."""
    fields = dict(all_settings())
    for group, members in VALUES["settings"].items():
        for name, value in members.items():
            field = fields[f"COMMITTERD_{group}__{name}".upper()]
            assert field.is_required() or value == field.default


def test_every_object_of_ours_refuses_unknown_keys_and_every_value_has_a_schema() -> None:
    def check(schema: dict[str, Any], values: Any, where: str) -> None:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        properties = schema.get("properties")
        if properties is None:
            return
        assert schema["additionalProperties"] is False, where
        assert isinstance(values, dict), where
        assert values.keys() <= properties.keys(), where
        for name, value in values.items():
            check(properties[name], value, f"{where}.{name}")

    check(SCHEMA, VALUES, "values")
    assert SCHEMA["properties"].keys() - VALUES.keys() == {"global"}
    for name, definition in SCHEMA["$defs"].items():
        if "properties" in definition:
            assert definition["additionalProperties"] is False, name
    for group in GROUPS.values():
        assert group["additionalProperties"] is False


def test_the_chart_installs_the_version_of_this_repository() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert about["appVersion"] == committerd.__version__
    assert about["annotations"]["artifacthub.io/license"] == "Apache-2.0"


def test_a_value_without_a_comment_stops_the_readme() -> None:
    text = "# Said.\na: 1\n\nb:\n  # Said.\n  c: 1\n  d: {}\n# Said.\ne:\n  f: 1\n"
    comments = documented(text)
    assert list(comments) == [("a",), ("b", "c"), ("e",)]
    assert undocumented(yaml.safe_load(text), comments) == ["b.d"]
