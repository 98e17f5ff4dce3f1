"""What an operator may set: values only, in groups, each with its unit in its name and a description.

They are read from a TOML file (`--config`, or `COMMITTERD_CONFIG`) and from the environment, which wins:
`COMMITTERD_KAFKA__BOOTSTRAP_SERVERS` is `bootstrap_servers` in group `kafka`. An unknown name is an error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from committerd.errors import SettingsError
from committerd.rules.allowed import DEFAULT_OPERATIONS
from committerd.rules.kind import Kind
from committerd.settings_dynamodb import DynamoDBSettings
from committerd.settings_kafka import KafkaSettings, comma_separated
from committerd.settings_s3 import S3Settings

ENV_PREFIX = "COMMITTERD_"
CONFIG_VARIABLE = "COMMITTERD_CONFIG"
MIB = 1024 * 1024

Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(comma_separated)]
"""Several values, separated by commas in the environment."""


_S = TypeVar("_S", bound=BaseSettings)


_CONTAINER_BEFORE_AT = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes of Azure, where a container and no user stands before the @."""


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def _checked_uri(uri: str) -> str:
    """Raises `ValueError`, which does not repeat what may be a password."""
    if not uri.strip():
        raise ValueError("the URI is empty")
    if uri != uri.strip():
        raise ValueError("a URI must not begin or end with a space")
    scheme, _, rest = uri.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    if user and (":" in user or scheme not in _CONTAINER_BEFORE_AT):
        raise ValueError(
            "a URI must not contain a user or password (before the @): set s3.access_key_id and s3.secret_access_key, "
            "or use the usual chain of AWS credentials"
        )
    return uri


class DatasetSettings(_Group):
    """Which table this committer serves."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="Name of the dataset in topics and metrics: the staged topic is {kafka.topic_prefix}{name}.staged.",
    )
    uri: str = Field(
        min_length=1,
        description="URI of the table: a path, a file:// URI, s3://bucket/path or "
        "s3+ddb://bucket/path?ddbTableName=TABLE. The table need not exist yet; a staged create makes it.",
    )
    aliases: Listed = Field(
        default=(),
        description="Other URIs that producers may use for this table in the header `dataset`; any other URI is "
        "INVALID.",
    )

    @field_validator("uri")
    @classmethod
    def _uri(cls, value: str) -> str:
        return _checked_uri(value)

    @field_validator("aliases")
    @classmethod
    def _aliases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked_uri(one) for one in value)


class CommitSettings(_Group):
    """How transactions become versions."""

    coalesce_appends: bool = Field(
        default=True,
        description="Commit a run of waiting Appends as one version. false: one version for each, and far fewer "
        "commits a second.",
    )
    group_records_max: int = Field(default=1000, ge=1, le=10_000, description="Most transactions in one version.")
    group_bytes_max: int = Field(
        default=16 * MIB,
        ge=1,
        description="Most bytes of staged transactions in one version (a single transaction always fits).",
    )
    group_fragments_max: int = Field(
        default=10_000,
        ge=1,
        description="Most new fragments in one version (a single transaction always fits).",
    )
    interval_seconds_min: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Shortest time between two versions; 0 = as fast as the store takes them.",
    )
    refusal_interval_seconds: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Shortest time between two versions that only record refusals; under load, refusals ride along "
        "with commits.",
    )
    hold_seconds_max: float = Field(
        default=2.0,
        ge=0,
        le=60,
        description="Longest hold: after the committer has refused a re-execution, it commits nothing else until the "
        "next try arrives, or this time is over. Holds take at most a quarter of the time, and a producer may learn "
        "of a refusal late because of them, by up to about 8 times this. 0 = no holds.",
    )
    verify_files: Literal["always", "stale", "never"] = Field(
        default="always",
        description="Which records' files to check before the commit: do they exist, and with the size that the record "
        "says? Otherwise no reader could open the table. always: those of each record, while it waits. stale: only "
        "of records older than 5 days (Lance's cleanup deletes unreferenced files after 7). never: none.",
    )
    transaction_files_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Most data files and index files that one transaction may bring; with more it is INVALID. "
        "Applies when commit.verify_files checks the files.",
    )
    named_bytes_max: int = Field(
        default=64 * MIB,
        ge=1024,
        description="Most bytes of deletion files that one transaction may bring; with more it is INVALID. "
        "Applies when commit.verify_files checks the files.",
    )
    allowed_operations: Annotated[frozenset[Kind], NoDecode, BeforeValidator(comma_separated)] = Field(
        default=DEFAULT_OPERATIONS,
        description="Operations to commit, named as in the Transaction message; any other one is UNSUPPORTED.",
    )
    allowed_bases: Listed = Field(
        default=(),
        description="URI prefixes outside the table that a transaction may name (Clone, UpdateBases, initial "
        "bases). committerd uses its own credentials there, so the default is none.",
    )
    transaction_bytes_max: int = Field(
        default=64 * MIB,
        ge=1024,
        description="Most bytes of one staged transaction, inline or by claim check; with more it is INVALID.",
    )
    record_seconds_max: float = Field(
        default=20.0,
        gt=0,
        le=3600,
        description="Most processor time for each step of the work on one record (check, rebase, build). A record that "
        "needs more is INVALID. Small Appends and the like are exempt: they take a few milliseconds.",
    )
    record_memory_factor: int = Field(
        default=20,
        ge=1,
        description="Most memory for each step of the work on one record, as a multiple of the record's bytes. A "
        "record that needs more is INVALID.",
    )
    record_memory_bytes_min: int = Field(
        default=192 * MIB,
        ge=16 * MIB,
        description="Memory that each step of the work on one record may always take, however small the record is.",
    )
    app_marks_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Most application ids that the table remembers; with more, those unused for the longest time are "
        "dropped.",
    )
    republish_max: int = Field(
        default=10_000,
        ge=0,
        description="Most outcomes to publish again at a start when the consumer group has no offset.",
    )

    @field_validator("allowed_bases")
    @classmethod
    def _bases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked_uri(one) for one in value)


class MemorySettings(_Group):
    """What committerd keeps in memory of the table's history. The defaults fit 512 MiB, however long the history."""

    ledger_bytes: int = Field(
        default=128 * MIB,
        ge=MIB,
        description="Memory for the uuids of the readable history: 8 bytes for each record, so the default is enough "
        "for 14 million records. When it is full, committerd drops the oldest versions, and a record without app-id "
        "whose read version is older than the rest is UNDECIDED.",
    )
    footprint_bytes: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="Memory for the footprints of committed versions (what each touched), to find conflicts. "
        "committerd reads the others from the store again when a record needs them.",
    )


class StoreSettings(_Group):
    """How objects are written."""

    durable: bool = Field(
        default=True,
        description="Local files: sync file and folder before a commit counts as done. With false, commits survive a "
        "crash of the process, but not of the machine.",
    )
    recheck_seconds: float = Field(
        default=10.0,
        gt=0,
        le=60,
        description="How long ago the committer may have last looked for the latest version when it puts a new one, "
        "and how often an idle committer looks for foreign versions.",
    )
    probe: bool = Field(
        default=True,
        description="At start: test that the store lets only one of several writers create an object, and refuse to "
        "run on a store that doesn't. false = trust the store, for example because `committerd probe` has tested it.",
    )


class HttpSettings(_Group):
    """Where /metrics, /livez and /readyz are served; read-only."""

    host: str = Field(default="0.0.0.0", description="Address to listen on.")
    port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="Port to listen on; 0 = a free port, which the log names.",
    )


class LogSettings(_Group):
    """What goes to standard output."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest severity to log.")
    format: Literal["json", "text"] = Field(
        default="json", description="json: one object on each line; text: for a terminal."
    )
    transactions: Literal["refused", "all"] = Field(
        default="refused",
        description="refused: a line for each transaction that was not committed; all: a line for each transaction.",
    )


class DaemonSettings(_Group):
    """The process."""

    drain_seconds: float = Field(
        default=20.0,
        gt=0,
        description="After SIGTERM: time to finish the commit in flight and publish its outcomes. Keep it below "
        "Kubernetes' terminationGracePeriodSeconds.",
    )
    refused_retry_seconds: float = Field(
        default=10.0,
        gt=0,
        description="After a refusal to run: time until the committer looks at table and topic again.",
    )


class _Sources(BaseSettings):
    """Groups that come from the environment and the file."""

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
    """What opening a table takes: for commands that need neither dataset nor Kafka."""

    model_config = SettingsConfigDict(extra="ignore")

    store: StoreSettings = StoreSettings()
    s3: S3Settings = S3Settings()
    dynamodb: DynamoDBSettings = DynamoDBSettings()


class Settings(_Sources):
    """All groups."""

    dataset: DatasetSettings
    kafka: KafkaSettings
    commit: CommitSettings = CommitSettings()
    memory: MemorySettings = MemorySettings()
    store: StoreSettings = StoreSettings()
    s3: S3Settings = S3Settings()
    dynamodb: DynamoDBSettings = DynamoDBSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    daemon: DaemonSettings = DaemonSettings()


def load_settings(**given: Mapping[str, Any]) -> Settings:
    """The settings of file and environment. Raises `SettingsError`, which names each wrong one and how it is spelt."""
    return _load(Settings, given)


def load_storage_settings() -> StorageSettings:
    """Those that opening a table takes. Raises as `load_settings`, and ignores the other groups."""
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
    except ValueError as error:  # a TOML file that does not parse
        raise SettingsError(f"settings file {path!r}: {error}") from error


def all_settings() -> Iterator[tuple[str, FieldInfo]]:
    """(environment variable, field) of every setting, in their order."""
    for group, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        for name, member in model.model_fields.items():
            yield f"{ENV_PREFIX}{group}__{name}".upper(), member


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like ours and are not: pydantic-settings would ignore them silently.

    Other names with our prefix are left alone: Kubernetes makes COMMITTERD_SERVICE_HOST and the like.
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
        what = "is missing" if problem["type"] == "missing" else problem["msg"]
        if problem["type"] == "extra_forbidden":
            what = "no such setting; `committerd run --help` lists all"
        yield f"{place} ({variable}): {what}"
