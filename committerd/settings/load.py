"""The operator's settings: plain values in groups, each with its unit in its name and a description.

They come from a TOML file (`--config`, or `COMMITTERD_CONFIG`) and from the environment, which wins:
`COMMITTERD_KAFKA__BOOTSTRAP_SERVERS` is `bootstrap_servers` in group `kafka`. An unknown name is an error.

The settings name one dataset (group `dataset`), or many (`datasets.NAME`, in the file alone).
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
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
from committerd.settings.datasets import DatasetEntry, WrongEntry, in_words, problem_in_words, same_twice
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.http import HttpSettings
from committerd.settings.ingest import IngestSettings
from committerd.settings.kafka import KafkaSettings
from committerd.settings.log import LogSettings
from committerd.settings.maintain import MaintainSettings
from committerd.settings.memory import MemorySettings
from committerd.settings.s3 import S3Settings
from committerd.settings.store import StoreSettings

ENV_PREFIX = "COMMITTERD_"
CONFIG_VARIABLE = "COMMITTERD_CONFIG"
_NAMES_MAX = 20
"""Limit of names in a message."""


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


class SharedSettings(BaseModel):
    """All groups, as the process has them, and all of its datasets unless they have settings of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    dataset: DatasetSettings | None = None
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
    ingest: IngestSettings = IngestSettings()


class Settings(SharedSettings):
    """All groups, as one dataset has them."""

    dataset: DatasetSettings


class _Given(SharedSettings, _Sources):  # type: ignore[misc]  # pydantic merges their configurations
    """What file and environment say."""

    datasets: dict[str, DatasetEntry] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _has_a_dataset(cls, data: Any) -> Any:
        """Let the group `dataset` be named as missing where there is no dataset at all."""
        if not isinstance(data, Mapping) or data.keys() & {"dataset", "datasets"}:
            return data
        daemon = data.get("daemon")
        if isinstance(daemon, Mapping) and daemon.get("datasets_file"):
            return data
        return {**data, "dataset": {}}

    def groups(self) -> dict[str, Any]:
        """The groups that all datasets share, by name."""
        return {name: getattr(self, name) for name in SharedSettings.model_fields}

    def file(self) -> DatasetsFile | None:
        """The file that names other datasets."""
        path = self.daemon.datasets_file
        return None if path is None else DatasetsFile(path=Path(path), shared=self.groups(), others=self.datasets)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetsFile:
    """The file `daemon.datasets_file`, and what its datasets share."""

    path: Path
    shared: Mapping[str, Any]
    others: Mapping[str, DatasetEntry]
    """The datasets that the settings name themselves."""

    def read(self) -> bytes:
        """The content. Raises `SettingsError` if it can't be read."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise SettingsError(f"daemon.datasets_file {str(self.path)!r}: {error.strerror or error}") from error

    def settings_in(self, content: bytes) -> Mapping[str, Settings]:
        """The datasets of this content and of the settings, by queue. Raises `SettingsError`, which names the file."""
        try:
            return dataset_settings(self.shared, {**self.others, **self._entries(content)})
        except (SettingsError, ValueError) as error:
            lines = "\n".join(_explain(error)) if isinstance(error, ValidationError) else str(error)
            raise SettingsError(f"daemon.datasets_file {str(self.path)!r}: {lines}") from error

    def _entries(self, content: bytes) -> Mapping[str, DatasetEntry]:
        text = content.decode()
        whole = json.loads(text) if self.path.suffix == ".json" else tomllib.loads(text)
        found = _FileOfDatasets.model_validate(whole).datasets
        twice = sorted(found.keys() & self.others.keys())
        if twice:
            raise SettingsError(f"the settings name datasets.{twice[0]} too: take one of them away")
        return found


class _FileOfDatasets(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    datasets: dict[str, DatasetEntry]
    """Not optional, so that a file that is half written is an error, and takes no dataset away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDatasets:
    """The datasets that a process commits to."""

    shared: SharedSettings
    datasets: Mapping[str, Settings]
    """By the name of the queue; of the file, as it was when the settings were loaded."""
    file: DatasetsFile | None = None
    """The file that may name other datasets later."""
    content: bytes = b""
    """What the file held."""

    @property
    def name(self) -> str:
        """What the process is called in Kafka: by its group, or by the queue of its only dataset."""
        return self.shared.kafka.group or next(iter(self.datasets))

    @property
    def is_one(self) -> bool:
        """Whether the process serves one dataset, that of the group `dataset`, and ends when that can't be served."""
        return self.shared.dataset is not None


def load_served(**given: Mapping[str, Any]) -> ServedDatasets:
    """The settings of all datasets, from the file and the environment.

    `given`: groups that override both; with the group `dataset`, other datasets do not count. Raises `SettingsError`,
    which names each wrong setting and its spelling.
    """
    found = _load(_Given, given)
    groups = found.groups()
    if found.dataset is not None:
        if (found.datasets or found.file() is not None) and "dataset" not in given:
            other = "datasets" if found.datasets else "daemon.datasets_file"
            raise SettingsError(
                f"dataset and {other} exclude each other: name one table in the group dataset, or all of them there"
            )
        return of_one(Settings(**groups))
    file = found.file()
    if not found.datasets and file is None:
        raise SettingsError("datasets is empty: name at least one table, as [datasets.NAME] with uri")
    if found.kafka.group is None:
        raise SettingsError(
            "kafka.group (COMMITTERD_KAFKA__GROUP): is missing: processes for many datasets share them out in one group"
        )
    shared = SharedSettings(**groups)
    if file is None:
        return ServedDatasets(shared=shared, datasets=dataset_settings(groups, found.datasets))
    content = file.read()
    return ServedDatasets(shared=shared, datasets=file.settings_in(content), file=file, content=content)


def load_datasets_file() -> tuple[SharedSettings, DatasetsFile]:
    """What all datasets share, and the file that names them, which need not exist. Raises `SettingsError`."""
    found = _load(_Given, {"datasets": {}})  # beside those of the file: none needs to be named yet
    file = found.file()
    if file is None:
        raise SettingsError(
            "daemon.datasets_file (COMMITTERD_DAEMON__DATASETS_FILE): is missing: the file that names the datasets"
        )
    return SharedSettings(**found.groups()), file


def of_one(settings: Settings) -> ServedDatasets:
    """The datasets of a process that serves only this one."""
    return ServedDatasets(shared=settings, datasets={settings.dataset.queue: settings})


def dataset_settings(shared: Mapping[str, Any], entries: Mapping[str, DatasetEntry]) -> Mapping[str, Settings]:
    """The settings of many datasets, by the names of their queues.

    `shared`: the groups that all have. Raises `SettingsError`, which names what is wrong.
    """
    found, wrong = dict[str, Settings](), list[str]()
    for key, entry in entries.items():
        try:
            found[key] = Settings(**{**shared, **entry.own_groups(shared), "dataset": entry.dataset(key)})
        except WrongEntry as error:
            wrong += [f"datasets.{key}.{sentence}" for sentence in error.sentences]
        except ValidationError as error:
            wrong += [f"datasets.{key}{text}" for text in in_words(error)]
    wrong += same_twice({key: one.dataset for key, one in found.items()})
    if wrong:
        raise SettingsError("\n".join(wrong))
    return {one.dataset.queue: one for one in found.values()}


def load_settings(**given: Mapping[str, Any]) -> Settings:
    """The settings of the only dataset, as `load_served`. Raises `SettingsError` if there are many."""
    return only_dataset(load_served(**given))


def only_dataset(served: ServedDatasets, name: str | None = None) -> Settings:
    """The dataset of this name, or the only one. Raises `SettingsError` if there is none, or if there are many."""
    if name is None and len(served.datasets) == 1:
        return next(iter(served.datasets.values()))
    if name is not None and name in served.datasets:
        return served.datasets[name]
    if not served.datasets:
        raise SettingsError("the settings name no dataset: name a table as [datasets.NAME] with uri")
    names = ", ".join(sorted(served.datasets)[:_NAMES_MAX])
    more = f" and {len(served.datasets) - _NAMES_MAX} more" if len(served.datasets) > _NAMES_MAX else ""
    if name is None:
        count = len(served.datasets)
        raise SettingsError(f"the settings name {count} datasets, choose one with --dataset NAME: {names}{more}")
    raise SettingsError(f"the settings name no dataset {name!r}; they name {names}{more}")


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
    model = Settings.model_fields[name].annotation  # of a dataset: its type is not optional there
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
        if upper.startswith(f"{ENV_PREFIX}DATASETS_"):
            yield f"{name}: datasets are named in the settings file ({CONFIG_VARIABLE}), not in the environment"
        elif "__" in upper or upper.startswith(groups):
            near = difflib.get_close_matches(upper, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else "; `committerd run --help` lists all"
            yield f"{name}: no such setting{hint}"


def _explain(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        if problem["loc"][0] == "datasets":
            yield problem_in_words(problem).removeprefix(".")
            continue
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
