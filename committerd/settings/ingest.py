"""Group `ingest`: which topics `committerd ingest` brings into the table, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from committerd.settings.dataset import checked_uri
from committerd.settings.datasets import in_words
from committerd.settings.group import MIB, Listed, SettingsGroup
from committerd.settings.requests import EndpointUrl

_ONLY_OF_KAFKA = frozenset(
    (
        "topics", "topic_pattern", "format", "key_format", "registry_url", "schema_mode", "key_column",
        "headers_column", "timestamp_column", "topic_column", "partition_column", "offset_column", "start",
        "routes", "route_header", "route_column", "route_values",
    )
)  # fmt: skip
_OF_ALL_ROUTES = ("source", "routes", "route_header", "route_column", "unmatched")
"""Settings that a route has from the group, and not of its own."""


class IngestSettings(SettingsGroup):
    """From Kafka's topics into the table. Only `committerd ingest` uses these settings."""

    pipeline: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_-]{0,40}$",
        description="Name of the pipeline, with letters, digits, _ and -. The table's marks and the consumer group "
        "({kafka.group_prefix}ingest.{pipeline}, for a branch {pipeline}.tree.{branch}) have it; under another name "
        "everything is read again. Default: the "
        "dataset's name, with - for each dot, if that has at most 40 characters.",
    )
    source: str = Field(
        default="kafka",
        pattern=r"^(kafka|files|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        description="Where rows come from: kafka; files, those of folder; or MODULE:FUNCTION, a function that gets "
        "reader_options as keywords and returns a reader (docs/readers.md). Settings of topics and formats are for "
        "kafka alone.",
    )
    folder: str = Field(
        default="",
        description="With source files: the folder whose files are read, each once, and those that are added later: a "
        "path, or the URI of a folder in S3, Azure Blob Storage or Google Cloud Storage; or a single file.",
    )
    list_seconds: float = Field(
        default=5.0,
        gt=0,
        le=86_400,
        description="With source files: time between two listings of folder. A local file is read when it was not "
        "changed for so long.",
    )
    reader_options: dict[str, Any] = Field(
        default={}, description="With source MODULE:FUNCTION: its keywords, as a JSON object."
    )
    topics: Listed = Field(default=(), description="The topics, separated by commas.")
    topic_pattern: str = Field(
        default="",
        description="Instead of topics: a regular expression of Python that must match a whole name. Topics that are "
        "made later are read too. The topics of the table's queue and dead_letter_topic never match.",
    )
    routes: Mapping[str, Mapping[str, Any]] = Field(
        default={},
        description="Several tables from one stream: for each, under the name of its dataset (datasets.NAME), the "
        "settings of this group that it has of its own, such as topics, route_values, mode or keys. Each route is a "
        "pipeline, named {pipeline}-{dataset}, or as its dataset if pipeline is not set.",
    )
    route_header: str = Field(
        default="",
        description="With routes: the header of a record that says which of them take it (route_values). If a record "
        "has several of that name, the last counts.",
    )
    route_column: str = Field(
        default="",
        description="Instead of route_header: the field of the value, which is a column of the tables; with json or "
        "avro, and mode append.",
    )
    route_values: Listed = Field(
        default=(),
        description="In a route: the values of route_header or route_column whose records it takes, separated by "
        "commas. Default: it takes all records of its topics.",
    )
    unmatched: Literal["error", "skip"] = Field(
        default="error",
        description="What a record is that no route takes: error, a bad record (on_error) of the first route that "
        "reads its topic; or skip, counted and passed over.",
    )
    mark_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Time after which a table's mark passes records of other routes, where none of its own come. After "
        "a restart at most these are read again; each move of a mark is a version of the table.",
    )
    format: Literal["json", "raw", "avro", "protobuf"] = Field(
        default="json",
        description="What the value of a record is: json, one object with a field for each column; avro or protobuf, "
        "as the serializers of a schema registry write it; or raw, bytes that go into value_column as they are.",
    )
    mode: Literal["append", "upsert", "delete", "cdc"] = Field(
        default="append",
        description="What a record does: append adds a row; upsert puts its row in the place of the one with the same "
        "keys, and without a value (a tombstone) takes that one out; delete takes out the row with its key; "
        "cdc does what the envelope of Debezium says.",
    )
    keys: Listed = Field(
        default=(), description="The key columns, for upsert, delete and cdc, separated by commas: they find a row."
    )
    key_format: Literal["json", "avro", "protobuf", "raw"] | None = Field(
        default=None,
        description="The format of Kafka's keys, for tombstones and for delete: an object with a field for each key "
        "column; with one key column, json is the value alone too, and raw its bytes. Default: that of the value.",
    )
    registry_url: EndpointUrl = Field(
        default=None, description="URL of the schema registry, for avro and protobuf, such as https://registry:8081."
    )
    registry_username: str | None = Field(default=None, min_length=1, description="User at the schema registry.")
    registry_password: SecretStr | None = Field(default=None, description="Password of registry_username.")
    registry_cafile: str | None = Field(
        default=None,
        description="PEM file of the authorities that signed the registry's certificate; unset: the system's.",
    )
    registry_certfile: str | None = Field(
        default=None, description="PEM file of the client's certificate for the registry, for mutual TLS."
    )
    registry_keyfile: str | None = Field(default=None, description="PEM file of the private key of registry_certfile.")
    registry_timeout_seconds: float = Field(
        default=10.0, gt=0, le=300, description="Time for which a request to the schema registry waits for its answer."
    )
    registry_subject: str = Field(
        default="", description="Subject whose newest schema a new table gets (create_from). Default: {topic}-value."
    )
    schema_mode: Literal["strict", "merge"] = Field(
        default="strict",
        description="Whether a field that the table does not have makes its record bad (strict), or, with avro and "
        "protobuf, becomes a new nullable column (merge).",
    )
    create_from: str = Field(
        default="",
        description="What a table that does not exist is created from: registry, the newest schema of "
        "registry_subject; rows, the first rows of another source than kafka; or the path of a file with a schema of "
        "Arrow (pyarrow: schema.serialize()). Default: it is not created.",
    )
    value_column: str = Field(default="value", description="The column that gets the value of a raw record.")
    key_column: str = Field(default="", description="The column that gets the record's key; empty: none does.")
    headers_column: str = Field(
        default="",
        description="The column that gets the record's headers, a list of structs of name (text) and value (binary).",
    )
    timestamp_column: str = Field(default="", description="The column that gets the record's timestamp.")
    topic_column: str = Field(default="", description="The column that gets the name of the record's topic.")
    partition_column: str = Field(default="", description="The column that gets the number of its partition.")
    offset_column: str = Field(default="", description="The column that gets its offset.")
    start: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where a partition begins that the pipeline has never read. Afterwards the table's mark says it.",
    )
    on_error: Literal["stop", "dead-letter", "skip"] = Field(
        default="stop",
        description="What happens at a record that makes no row: stop its partition, publish it to dead_letter_topic "
        "and go on, or log and count it and go on.",
    )
    dead_letter_topic: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,249}$",
        description="The topic for bad records, which must exist. Default: {pipeline}.bad; for a branch "
        "{pipeline}.tree.{branch}.bad.",
    )
    flush_rows: int = Field(
        default=1_000_000, ge=1, le=10_000_000, description="Maximum records of one transaction of a partition."
    )
    flush_bytes: int = Field(
        default=32 * MIB,
        ge=1024,
        description="A partition's records are written when they take about this much memory.",
    )
    flush_seconds: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="Time for which a record waits for others of its partition, at most. While Kafka holds more "
        "records of the partition than are waiting, flush_seconds counts from the latest arrival: a "
        "backlog makes large files.",
    )
    buffer_bytes_max: int = Field(
        default=64 * MIB,
        ge=1024,
        description="Memory for the records of all partitions that wait or are being written. Beyond it no more are "
        "fetched until some are written. What kafka-python has fetched ahead (4 MiB of a partition, or "
        "kafka.max_record_bytes if that is more, and kafka.fetch_max_bytes in all) is not counted. With another source "
        "than kafka: the largest transaction that changes rows by their keys, whose rows are in memory together.",
    )
    retry_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time after which a partition that was stopped looks whether it may go on.",
    )
    commit_timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Time for which a transaction waits for its outcome. Then the partition begins again at the mark.",
    )

    @field_validator("folder")
    @classmethod
    def _folder(cls, value: str) -> str:
        return value and checked_uri(value)

    @field_validator("topic_pattern")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            re.compile(f"(?:{value})")  # it becomes a part of another one, so it can't begin with flags for all of it
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _of_source(self) -> Self:
        if (self.source == "files") != bool(self.folder):
            raise ValueError("source files needs folder, and only this source needs it")
        if self.reader_options and self.source in ("kafka", "files"):
            raise ValueError("reader_options are for a source MODULE:FUNCTION")
        if self.source == "kafka":
            if self.create_from == "rows":
                raise ValueError("create_from rows is for another source than kafka")
            return self
        only = _ONLY_OF_KAFKA & self.model_fields_set
        wrong = sorted(name for name in only if getattr(self, name) != type(self).model_fields[name].default)
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: only for source kafka, and source is {self.source}")
        if self.create_from == "rows" and self.mode not in ("append", "upsert"):
            raise ValueError(f"create_from rows needs mode append or upsert: with {self.mode}, rows are no table's")
        return self

    @model_validator(mode="after")
    def _registry(self) -> Self:
        if self.routes:
            return self  # each of them is checked
        if (self.format in ("avro", "protobuf")) != (self.registry_url is not None):
            raise ValueError("format avro or protobuf needs registry_url, and only these need it")
        if (self.mode == "append") != (not self.keys):
            raise ValueError("mode upsert, delete or cdc needs keys, and only these need them")
        if self.mode == "upsert" and self.format == "raw":
            raise ValueError("mode upsert needs a format with fields: json, avro or protobuf")
        if self.mode == "cdc" and self.format not in ("json", "avro"):
            raise ValueError("mode cdc needs format json or avro, in which Debezium writes")
        if self.key_format in ("avro", "protobuf") and self.key_format != self.format:
            raise ValueError("key_format avro or protobuf needs the same format for values")
        if self.registry_url is None and (self.schema_mode == "merge" or self.create_from == "registry"):
            raise ValueError(
                "schema_mode merge and create_from registry need format avro or protobuf: the type of a column is not "
                "seen in a value of JSON"
            )
        if self.registry_subject and self.create_from != "registry":
            raise ValueError("registry_subject has an effect only with create_from registry")
        if (self.registry_username is None) != (self.registry_password is None):
            raise ValueError("registry_username and registry_password belong together: set both or none")
        if (self.registry_certfile is None) != (self.registry_keyfile is None):
            raise ValueError("registry_certfile and registry_keyfile belong together: set both or none")
        return self

    @model_validator(mode="after")
    def _routes(self) -> Self:
        if self.route_header and self.route_column:
            raise ValueError("route_header and route_column exclude each other: set the one that says where records go")
        by = self.route_header or self.route_column
        if not self.routes:
            if by or self.route_values:
                raise ValueError("route_header, route_column and route_values need routes: name a table for each route")
            return self
        if self.route_values:
            raise ValueError("route_values belongs in a route, as ingest.routes.NAME.route_values")
        found = {name: self.route(name) for name in self.routes}
        if by and not any(one.route_values for one in found.values()):
            raise ValueError("route_header and route_column need a route with route_values: each takes all records now")
        pipelines: dict[str, str] = {}
        for name, one in found.items():
            other = pipelines.setdefault(one.pipeline, name)
            if other != name:
                raise ValueError(
                    f"routes.{name} and routes.{other} are pipelines of one name: set routes.{name}.pipeline"
                )
            if one.route_values and not by:
                raise ValueError(f"routes.{name}.route_values needs route_header or route_column, in group ingest")
            if self.route_column and one.format != self.format:
                raise ValueError(f"routes.{name}.format: with route_column, all routes have the same")
            if self.route_column and one.format not in ("json", "avro"):
                raise ValueError(f"route_column needs format json or avro, and not {one.format}: take route_header")
            if self.route_column and one.mode != "append":
                raise ValueError(
                    f"routes.{name}.mode {one.mode}: with route_column it is append, since a record that takes a row "
                    "out has no such field: take route_header, or topics"
                )
        return self

    def route(self, name: str) -> IngestSettings:
        """The group as a route has it. Raises `ValueError`, which names what is wrong."""
        given = dict(self.routes[name])
        of_all = [one for one in _OF_ALL_ROUTES if one in given]
        if of_all:
            raise ValueError(f"routes.{name}.{of_all[0]}: it is the same for all routes: set ingest.{of_all[0]}")
        base = {one: getattr(self, one) for one in type(self).model_fields if one not in _OF_ALL_ROUTES}
        if not given.get("pipeline"):
            own = name.replace(".", "-")  # of a branch too, whose dataset has the name of its table
            given["pipeline"] = f"{self.pipeline}-{own}" if self.pipeline else own
            if len(given["pipeline"]) > 40:
                raise ValueError(f"routes.{name}: {given['pipeline']!r} has more than 40 characters: set its pipeline")
        base["buffer_bytes_max"] = max(self.buffer_bytes_max // len(self.routes), 1024)
        if "topics" in given or "topic_pattern" in given:
            base |= {"topics": (), "topic_pattern": ""}
        try:
            return _RouteSettings.model_validate(base | given)
        except ValidationError as error:
            raise ValueError("; ".join(f"routes.{name}{text}" for text in in_words(error))) from error


class _RouteSettings(IngestSettings):
    """The settings of a route, which is a pipeline without routes."""

    @model_validator(mode="after")
    def _routes(self) -> Self:
        return self
