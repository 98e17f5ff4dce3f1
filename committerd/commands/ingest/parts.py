"""What `committerd ingest` and its subcommand connect: settings, Kafka and the table."""

from __future__ import annotations

import importlib
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from committerd.commands.append.sources import Folder
from committerd.commands.ingest.files import FolderReader
from committerd.commands.ingest.json_lines import Check
from committerd.commands.lance_options import ClientAccess, client_options
from committerd.errors import SettingsError, StoreUnavailable
from committerd.kafka.clients import open_client
from committerd.kafka.options import admin_options, producer_options, reader_options, topics_of
from committerd.settings.ingest import IngestSettings
from committerd.settings.load import Settings
from committerd_batch.target import Mode, SchemaMode
from committerd_client import CommitClient
from committerd_client.data import rows_of
from committerd_client.table_location import table_location
from committerd_common.branches import branch_queue
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.decoding import RecordColumns
from committerd_ingest.reading import Reader
from committerd_ingest.registry import Registry
from committerd_ingest.row_changes import RowChanges
from committerd_ingest.row_changes import table_of as table_of_rows
from committerd_ingest.settings import NewTable, Pipeline, ReaderPipeline
from committerd_ingest.table import Table

PRODUCER = "committerd-ingest"

_FETCHED_BYTES = 4 * 1024 * 1024
"""Of a partition, in one reply of a broker. kafka-python holds two replies, and each for a while twice."""

_REGISTRY_SETTINGS = tuple(one for one in IngestSettings.model_fields if one.startswith("registry_"))


@contextmanager
def reading_table(settings: Settings) -> Iterator[None]:
    """Raise `StoreUnavailable` in place of what pylance raises when it can't read the table."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"can't read the table {settings.dataset.place}: {error}") from error


def pipeline_name(settings: Settings) -> str:
    """The name of the pipeline. Raises `SettingsError` if it must be given."""
    name = settings.ingest.pipeline or settings.dataset.name.replace(".", "-")
    if len(name) > 40:
        raise SettingsError(f"ingest.pipeline: the dataset's name {name!r} is longer than 40 characters: set a name")
    return name


def group_name(settings: Settings) -> str:
    """The pipeline's name in Kafka. That of a branch differs from that of its table, where marks have one name: both
    read all records, and each has its own bad ones. Raises as `pipeline_name`."""
    return branch_queue(pipeline_name(settings), settings.dataset.branch)


def pipeline_of(settings: Settings, *, written: Sequence[str]) -> Pipeline:
    """The pipeline that the settings describe, without its routes.

    `written`: topics that it never reads, since the process or a table's committer writes to them. Raises
    `SettingsError`.
    """
    ingest = settings.ingest
    if bool(ingest.topics) == bool(ingest.topic_pattern):
        raise SettingsError("give either ingest.topics or ingest.topic_pattern (COMMITTERD_INGEST__TOPICS)")
    own = sorted({*ingest.topics} & {*written})
    if own:
        raise SettingsError(
            f"ingest.topics has {own[0]}, to which this pipeline or the table's committer writes: it would read "
            "what it writes, without end"
        )
    columns = RecordColumns(
        key=ingest.key_column,
        headers=ingest.headers_column,
        timestamp=ingest.timestamp_column,
        topic=ingest.topic_column,
        partition=ingest.partition_column,
        offset=ingest.offset_column,
    )
    try:
        columns.named()
    except ValueError as error:
        raise SettingsError(f"group ingest: {error}") from error
    return Pipeline(
        name=pipeline_name(settings),
        topics=ingest.topics,
        topic_pattern=_pattern(ingest.topic_pattern, written),
        topics_seconds=settings.kafka.metadata_max_age_ms / 1000,
        format=ingest.format,
        mode=Mode(ingest.mode),
        keys=tuple(ingest.keys),
        key_format=ingest.key_format or ingest.format,
        schema_mode=SchemaMode(ingest.schema_mode),
        new_table=_new_table(settings),
        columns=columns,
        value_column=ingest.value_column,
        mark_seconds=ingest.mark_seconds,
        start=ingest.start,
        on_error=ingest.on_error,
        flush=FlushLimits(rows=ingest.flush_rows, bytes=ingest.flush_bytes, seconds=ingest.flush_seconds),
        buffer_bytes_max=ingest.buffer_bytes_max,
        retry_seconds=ingest.retry_seconds,
    )


def reader_pipeline_of(settings: Settings) -> ReaderPipeline:
    """The pipeline of a source that is not Kafka. Raises `SettingsError`."""
    ingest = settings.ingest
    return ReaderPipeline(
        name=pipeline_name(settings),
        new_table=NewTable() if ingest.create_from == "rows" else _new_table(settings),
        mode=Mode(ingest.mode),
        keys=tuple(ingest.keys),
        on_error=ingest.on_error,
        flush=FlushLimits(rows=ingest.flush_rows, bytes=ingest.flush_bytes, seconds=ingest.flush_seconds),
        buffer_bytes_max=ingest.buffer_bytes_max,
        retry_seconds=ingest.retry_seconds,
    )


def reader_of(settings: Settings, access: ClientAccess) -> Reader:
    """The reader of a source that is not Kafka. Raises `SettingsError`, `SourceError`."""
    ingest = settings.ingest
    if ingest.source == "files":
        folder = Folder(ingest.folder, settings, access.storage_options)
        check = line_check(Mode(ingest.mode), keys=ingest.keys, bytes_max=ingest.buffer_bytes_max)
        stops = ingest.on_error == "stop"
        return FolderReader(folder, list_seconds=ingest.list_seconds, check_line=None if stops else check)
    module, _, function = ingest.source.partition(":")
    try:
        made: Reader = getattr(importlib.import_module(module), function)(**ingest.reader_options)
    except Exception as error:  # it is code of others
        raise SettingsError(
            f"ingest.source: {ingest.source} made no reader: {type(error).__name__}: {error}"
        ) from error
    return made


def line_check(mode: Mode, *, keys: Sequence[str], bytes_max: int) -> Check:
    """Says of rows whether a pipeline of this mode can use them."""

    def check(rows: pa.Table, columns: pa.Schema) -> None:
        if mode is Mode.APPEND:
            rows_of(rows).table(columns)
        else:
            RowChanges(table_of_rows(mode, columns), mode=mode, keys=keys, bytes_max=bytes_max)(rows.to_reader())

    return check


def _new_table(settings: Settings) -> NewTable | None:
    """What a table is created from. Raises `SettingsError` for a file that has no schema."""
    given = settings.ingest.create_from
    if given in ("", "registry"):
        return NewTable(subject=settings.ingest.registry_subject) if given else None
    try:
        return NewTable(schema=pa.ipc.read_schema(pa.BufferReader(Path(given).read_bytes())))
    except (OSError, pa.ArrowException) as error:
        raise SettingsError(f"ingest.create_from: {given} has no schema of Arrow: {error}") from error


def dead_letter_topic(settings: Settings) -> str:
    """The topic for bad records."""
    return settings.ingest.dead_letter_topic or f"{group_name(settings)}.bad"


def _pattern(pattern: str, written: Sequence[str]) -> str:
    """The pattern of the topics, which must match a whole name, and matches none of `written`; empty if it is."""
    return rf"^(?!(?:{'|'.join(map(re.escape, written))})\Z)(?:{pattern})\Z" if pattern else ""


def own_topics(settings: Settings) -> tuple[str, ...]:
    """The topics to which the pipeline itself or the table's committer writes."""
    queue = topics_of(settings.kafka, settings.dataset.queue)
    return queue.staged, queue.outcomes, queue.dead, queue.events, dead_letter_topic(settings)


def open_consumer(settings: Settings, *, group: bool) -> Any:
    """A consumer, with `group` one that joins the pipeline's group. Raises `QueueUnavailable`, `SettingsError`."""
    queue = settings.dataset.queue
    options: Mapping[str, Any] = reader_options(settings.kafka, queue) | {
        "client_id": f"committerd-ingest-{pipeline_name(settings)}",
        "group_id": f"{settings.kafka.group_prefix}ingest.{group_name(settings)}" if group else None,
        "session_timeout_ms": settings.kafka.session_timeout_ms,
        "heartbeat_interval_ms": settings.kafka.heartbeat_interval_ms,
        "max_poll_interval_ms": settings.kafka.max_poll_interval_ms,
        "max_partition_fetch_bytes": max(_FETCHED_BYTES, settings.kafka.max_record_bytes),
        "partition_assignment_strategy": [RoundRobinPartitionAssignor],
    }
    return open_client(KafkaConsumer, options).client


def open_admin(settings: Settings) -> Any:
    """An admin client. Raises as `open_consumer`."""
    return open_client(KafkaAdminClient, admin_options(settings.kafka, settings.dataset.queue)).client


def open_producer(settings: Settings) -> Any:
    """A producer of bad records. Raises as `open_consumer`."""
    most = settings.kafka.max_record_bytes
    options = producer_options(settings.kafka, "ingest", settings.dataset.queue, record_bytes_max=most)
    return open_client(KafkaProducer, options).client


def _registry(settings: Settings) -> Registry | None:
    """The schema registry; None if the format needs none. Raises `SettingsError` for files that can't be read."""
    ingest = settings.ingest
    if ingest.registry_url is None or ingest.format not in ("avro", "protobuf"):
        return None
    password = ingest.registry_password
    login = None if password is None else (ingest.registry_username or "", password.get_secret_value())
    try:
        tls = ssl.create_default_context(cafile=ingest.registry_cafile)
        if ingest.registry_certfile is not None:
            tls.load_cert_chain(ingest.registry_certfile, ingest.registry_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"ingest.registry_cafile, registry_certfile or registry_keyfile: {error}") from error
    return Registry(
        ingest.registry_url, format=ingest.format, login=login, tls=tls, timeout=ingest.registry_timeout_seconds
    )


class Registries:
    """The schema registries of a process: pipelines with the same settings share what is read."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Registry | None] = {}

    def of(self, settings: Settings) -> Registry | None:
        """The registry of a pipeline; None if its format needs none. Raises `SettingsError`."""
        ingest = settings.ingest
        key = tuple(getattr(ingest, one) for one in ("format", *_REGISTRY_SETTINGS))
        if key not in self._made:
            self._made[key] = _registry(settings)
        return self._made[key]


def client_of(settings: Settings, access: ClientAccess) -> CommitClient:
    """The client with which the pipeline commits; it signs its records where the settings have its key."""
    return CommitClient(
        settings.kafka.bootstrap_servers,
        client_id=f"committerd-ingest-{pipeline_name(settings)}",
        **client_options(settings, access, producer=PRODUCER),
    )


def table_of(settings: Settings, access: ClientAccess, client: CommitClient) -> Table:
    """The pipeline's table."""
    place = table_location(settings.dataset.place, access.storage_options, branch=settings.dataset.branch)
    return Table(place, client, timeout=settings.ingest.commit_timeout_seconds)
