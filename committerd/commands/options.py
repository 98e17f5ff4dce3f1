"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from committerd.errors import SettingsError
from committerd.settings.dataset import DatasetSettings
from committerd.settings.datasets import in_words
from committerd.settings.load import (
    CONFIG_VARIABLE,
    ServedDatasets,
    Settings,
    all_settings,
    load_served,
    load_settings,
    of_one,
    only_dataset,
)
from committerd_common.branches import checked_branch
from committerd_common.uris import canonical_uri, names_same_table, queue_name

F = TypeVar("F", bound=Callable[..., Any])

_BRANCH = "committerd.branch"
_DATASET = "committerd.dataset"
"""Keys of what the command line names, in the context of a command."""


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


def require_reason(reason: str) -> None:
    """Raises `SettingsError` if `--apply` comes without one."""
    if not reason:
        raise SettingsError("--apply needs --reason: the version keeps it, for whoever asks later")


def dataset_option(command: F) -> F:
    """Add `--dataset`, for `settings` and `asked_dataset`."""
    return click.option(
        "--dataset",
        expose_value=False,
        is_eager=True,
        callback=_use_dataset,
        metavar="NAME",
        help="Which dataset of the settings, where they name many.",
    )(command)


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

    `uri` and `name`: the table, instead of that of the settings. A dataset of the settings that is at `uri` keeps the
    settings of its own.
    """
    branch = asked_branch()
    if uri is None:
        if name is not None:
            raise click.UsageError("--name belongs to URI: give the URI of the table too")
        return _with_branch(only_dataset(load_served(), asked_dataset()), branch)
    if asked_dataset() is not None:
        raise click.UsageError("--dataset and URI exclude each other: each names the table")
    place = canonical_uri(uri)
    given = uri if "://" in place else os.path.abspath(place)
    datasets = _named_datasets()
    known = next(
        (one for one in datasets if names_same_table(given, served=one.dataset.uri, aliases=one.dataset.aliases)), None
    )
    own = known.dataset if known is not None else None
    dataset = {
        "uri": given,
        "name": name or (own.name if own is not None else queue_name(given)),
        "branch": branch if branch is not None else own.branch if own is not None else "",
    }
    if known is None or own is None:
        found = load_settings(dataset=dataset)
        # The group that the settings name is that of their datasets. This table has committers of its own.
        return found.model_copy(update={"kafka": found.kafka.model_copy(update={"group": None})}) if datasets else found
    return _checked(known, dataset | {"aliases": own.aliases})


def served() -> ServedDatasets:
    """All datasets of the settings; the one that the command line names, if it names one. Raises `SettingsError`."""
    found, name, branch = load_served(), asked_dataset(), asked_branch()
    if name is None and branch is None:
        return found
    return of_one(_with_branch(only_dataset(found, name), branch))


def _with_branch(configured: Settings, branch: str | None) -> Settings:
    if branch is None:
        return configured
    return _checked(configured, configured.dataset.model_dump() | {"branch": branch})


def _checked(configured: Settings, dataset: Mapping[str, Any]) -> Settings:
    try:
        return configured.model_copy(update={"dataset": DatasetSettings.model_validate(dataset)})
    except ValidationError as error:
        raise SettingsError("\n".join(f"dataset{text}" for text in in_words(error))) from error


def asked_dataset() -> str | None:
    """The dataset that the command line names; None without `--dataset`."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_DATASET)


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


def _named_datasets() -> Sequence[Settings]:
    """The datasets of the settings; none if the settings name none."""
    try:
        return list(load_served().datasets.values())
    except SettingsError:
        return ()


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


def _use_dataset(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:  # a command within another keeps what that was given
        context.meta[_DATASET] = value


def _use_branch(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
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
