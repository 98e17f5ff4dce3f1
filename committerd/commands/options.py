"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from committerd.errors import SettingsError
from committerd.settings.dataset import DatasetSettings
from committerd.settings.load import CONFIG_VARIABLE, Settings, all_settings, load_settings
from committerd_common.branches import checked_branch
from committerd_common.uris import canonical_uri, names_same_table, queue_name

F = TypeVar("F", bound=Callable[..., Any])

_BRANCH = "committerd.branch"
"""The key of the branch in the context of a command."""


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


def branch_option(command: F) -> F:
    """Add `--branch`, for `settings` and `asked_branch`."""
    return click.option(
        "--branch",
        expose_value=False,
        is_eager=True,
        callback=_use_branch,
        help="A branch of the table, instead of that of the settings (dataset.branch); main is the main branch.",
    )(command)


def table_argument(command: F) -> F:
    """Add the argument URI and `--name`: a table other than that of the settings, for `settings`."""
    named = click.option(
        "--name",
        help="Name of the dataset at URI. By default the name in the settings if their table is at URI, else the last "
        "part of URI without .lance.",
    )(command)
    return click.argument("uri", required=False)(named)


def settings(uri: str | None = None, name: str | None = None) -> Settings:
    """The settings from the file and the environment. Raises `SettingsError`.

    `uri` and `name`: the table, instead of that of the settings.
    """
    branch = asked_branch()
    if uri is None:
        if name is not None:
            raise click.UsageError("--name belongs to URI: give the URI of the table too")
        return load_settings() if branch is None else load_settings(dataset={"branch": branch})
    place = canonical_uri(uri)
    given = uri if "://" in place else os.path.abspath(place)
    known = _in_settings(given)
    return load_settings(
        dataset={
            "uri": given,
            "name": name or (known.name if known is not None else queue_name(given)),
            "branch": branch if branch is not None else known.branch if known is not None else "",
        }
    )


def asked_branch() -> str | None:
    """The branch that the command line names, as it is given; None without `--branch`."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_BRANCH)


def named_branch() -> str:
    """The branch that the command line names, for a command without settings of the dataset; empty = the main branch.

    Raises `SettingsError` for a name that is not allowed.
    """
    try:
        return checked_branch(asked_branch() or "")
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _in_settings(uri: str) -> DatasetSettings | None:
    """The dataset of the settings, if it is at this URI."""
    try:
        dataset = load_settings().dataset
    except SettingsError:
        return None
    return dataset if names_same_table(uri, served=dataset.uri, aliases=dataset.aliases) else None


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


def _use_branch(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_BRANCH] = value


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
