"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from committerd.settings.load import CONFIG_VARIABLE, Settings, all_settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """Add `--config FILE`; the loader of the settings gets the file before anything reads them."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False),
        expose_value=False,
        is_eager=True,
        callback=_use_config,
        help=f"TOML file with settings, one table for each group; the environment wins. Also {CONFIG_VARIABLE}.",
    )(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def settings() -> Settings:
    """The settings from the file and the environment. Raises `SettingsError`."""
    return load_settings()


def settings_help() -> str:
    """Every setting: its environment variable, default and meaning."""
    lines = []
    for variable, field in all_settings():
        default = (
            "required" if field.is_required() else f"default {_plain(field.get_default(call_default_factory=True))}"
        )
        lines.append(f"\b\n{variable} ({default})\n" + _wrapped(field.description or ""))
    return "\n\n".join(lines)


def _use_config(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ[CONFIG_VARIABLE] = value


def _plain(value: object) -> str:
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(str(v) for v in value))
    return str(value)


def _wrapped(text: str) -> str:
    return click.wrap_text(text, width=88, initial_indent="    ", subsequent_indent="    ")
