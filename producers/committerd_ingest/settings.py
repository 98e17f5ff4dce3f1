"""What a pipeline is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from committerd_batch.target import Mode, SchemaMode
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.decoding import Format, RecordColumns
from committerd_ingest.marks import Start
from committerd_ingest.routing import Filter

OnError: TypeAlias = Literal["stop", "dead-letter", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """What a table is created from."""

    schema: pa.Schema | None = None
    """Its schema; None = the newest one of the registry."""
    subject: str = ""
    """The subject of that; empty = `TOPIC-value`, which is the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline: from topics into one table."""

    name: str
    """Letters, digits, _ and -."""
    topics: Sequence[str]
    """The topics to read; empty where a pattern chooses them."""
    topic_pattern: str
    """A regular expression that matches the names of the topics to read; empty if they are named."""
    topics_seconds: float
    """The time between two looks for topics that match the pattern."""
    route: str = ""
    """The name of the dataset, as `committerd ingest move` needs it where there are several routes."""
    filter_of: Callable[[str], Filter | None] = lambda _: None
    """Which records it takes from a topic; None = all."""
    mark_seconds: float = 60.0
    """After which the mark passes records that the pipeline does not take, where it takes none."""
    format: Format
    mode: Mode = Mode.APPEND
    """append, upsert, delete or cdc."""
    keys: tuple[str, ...] = ()
    """The columns by which upserts and deletes find rows."""
    key_format: Format = "json"
    """The format of Kafka's keys, for them; `avro` and `protobuf` only as `format`."""
    schema_mode: SchemaMode = SchemaMode.STRICT
    """What happens if a record's schema has other columns than the table."""
    new_table: NewTable | None = None
    """What a table is created from that does not exist; None = it is not created."""
    columns: RecordColumns
    value_column: str
    start: Start
    on_error: OnError
    flush: FlushLimits
    buffer_bytes_max: int
    """The bytes of records that may wait in all partitions together, about."""
    writes_max: int = 4
    """Transactions that are decoded, written and committed at once."""
    retry_seconds: float
    """After which a partition that was stopped looks whether it may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPipeline:
    """A pipeline: from a reader into one table."""

    name: str
    """Letters, digits, _ and -."""
    new_table: NewTable | None = None
    """What a table is created from that does not exist: its schema, or, without one, the first rows; None = it is not
    created."""
    mode: Mode = Mode.APPEND
    """append, upsert, delete or cdc."""
    keys: tuple[str, ...] = ()
    """The columns by which upserts and deletes find rows."""
    on_error: OnError
    flush: FlushLimits
    buffer_bytes_max: int
    """The bytes of the rows of a transaction that upserts or deletes: they are in memory together."""
    retry_seconds: float
    """After which a split that was stopped looks whether it may go on, and between two looks for new splits."""
