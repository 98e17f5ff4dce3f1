"""The operator's settings: plain values in groups, each with its unit in its name and a description.

They come from a TOML file (`--config`, or `COMMITTERD_CONFIG`) and from the environment, which wins:
`COMMITTERD_KAFKA__BOOTSTRAP_SERVERS` is `bootstrap_servers` in group `kafka`. An unknown name is an error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from committerd.errors import SettingsError
from committerd.settings.clouds import AzureSettings, GcsSettings
from committerd.settings.commit import CommitSettings
from committerd.settings.daemon import DaemonSettings
from committerd.settings.dataset import DatasetSettings
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.http import HttpSettings
from committerd.settings.kafka import KafkaSettings
from committerd.settings.log import LogSettings
from committerd.settings.maintain import MaintainSettings
from committerd.settings.memory import MemorySettings
from committerd.settings.s3 import S3Settings
from committerd.settings.store import StoreSettings

ENV_PREFIX = "COMMITTERD_"
CONFIG_VARIABLE = "COMMITTERD_CONFIG"


_S = TypeVar("_S", bound=BaseSettings)


class _Sources(BaseSettings):
    """Groups that are read from the environment and the file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _groups_are_tables(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("is a group: set its members, for example COMMITTERD_KAFKA__BOOTSTRAP_SERVERS")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = os.environ.get(CONFIG_VARIABLE)
        file = (TomlConfigSettingsSource(settings_cls, toml_file=path),) if path else ()
        return (init_settings, env_settings, *file)


class StorageSettings(_Sources):
    """The groups that are needed to open a table, for commands that need neither dataset nor Kafka."""

    model_config = SettingsConfigDict(extra="ignore")

    store: StoreSettings = StoreSettings()
    s3: S3Settings = S3Settings()
    dynamodb: DynamoDBSettings = DynamoDBSettings()
    azure: AzureSettings = AzureSettings()
    gcs: GcsSettings = GcsSettings()


class Settings(_Sources):
    """All groups."""

    dataset: DatasetSettings
    kafka: KafkaSettings
    commit: CommitSettings = CommitSettings()
    memory: MemorySettings = MemorySettings()
    store: StoreSettings = StoreSettings()
    s3: S3Settings = S3Settings()
    dynamodb: DynamoDBSettings = DynamoDBSettings()
    azure: AzureSettings = AzureSettings()
    gcs: GcsSettings = GcsSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    daemon: DaemonSettings = DaemonSettings()
    maintain: MaintainSettings = MaintainSettings()


def load_settings(**given: Mapping[str, Any]) -> Settings:
    """The settings from the file and the environment.

    `given`: groups that override both. Raises `SettingsError`, which names each wrong setting and its spelling.
    """
    return _load(Settings, given)


def load_storage_settings() -> StorageSettings:
    """The settings that are needed to open a table; ignores the other groups. Raises as `load_settings` does."""
    return _load(StorageSettings, {})


def _load(kind: type[_S], given: Mapping[str, Mapping[str, Any]]) -> _S:
    path = os.environ.get(CONFIG_VARIABLE)
    if path and not Path(path).is_file():
        raise SettingsError(f"there is no settings file {path!r} (--config or {CONFIG_VARIABLE})")
    unknown = list(_unknown_variables(os.environ))
    if unknown:
        raise SettingsError("\n".join(unknown))
    try:
        return kind(**given)  # type: ignore[arg-type]  # pydantic validates the groups
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error))) from error
    except ValueError as error:  # an invalid TOML file
        raise SettingsError(f"settings file {path!r}: {error}") from error


def all_settings() -> Iterator[tuple[str, FieldInfo]]:
    """(environment variable, field) of every setting, in the order of declaration."""
    for group in Settings.model_fields:
        for name, member in _group(group).model_fields.items():
            yield f"{ENV_PREFIX}{group}__{name}".upper(), member


def _group(name: str) -> type[BaseModel]:
    model = Settings.model_fields[name].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like settings but are not; pydantic-settings would ignore them silently.

    It ignores other names with our prefix, because Kubernetes sets COMMITTERD_SERVICE_HOST and the like.
    """
    known = [name for name, _ in all_settings()]
    groups = tuple(f"{ENV_PREFIX}{group}_".upper() for group in Settings.model_fields)
    for name in environment:
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper in known:
            continue
        if "__" in upper or upper.startswith(groups):
            near = difflib.get_close_matches(upper, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else "; `committerd run --help` lists all"
            yield f"{name}: no such setting{hint}"


def _explain(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        variable = ENV_PREFIX + "__".join(str(part) for part in problem["loc"][:2]).upper()
        if problem["type"] == "missing" and place in Settings.model_fields:  # of a group: name what it needs
            for name, member in _group(place).model_fields.items():
                if member.is_required():
                    yield f"{place}.{name} ({variable}__{name.upper()}): is missing"
            continue
        what = "is missing" if problem["type"] == "missing" else problem["msg"]
        if problem["type"] == "extra_forbidden":
            what = "no such setting; `committerd run --help` lists all"
        yield f"{place} ({variable}): {what}"
