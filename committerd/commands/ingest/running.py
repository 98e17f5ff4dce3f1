"""Runs a pipeline, or shows what it would do."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import click
import pyarrow as pa
from kafka import TopicPartition
from prometheus_client import CollectorRegistry, disable_created_metrics

from committerd.commands.ingest.first_rows import show_first_rows
from committerd.commands.ingest.parts import (
    chosen_topics,
    client_of,
    dead_letter_topic,
    open_admin,
    open_consumer,
    open_producer,
    pipeline_of,
    reader_of,
    reader_pipeline_of,
    registry_of,
    table_of,
)
from committerd.commands.lance_options import client_access
from committerd.commands.system import monotonic
from committerd.daemon import logs
from committerd.daemon.http import Health, serve
from committerd.errors import SettingsError
from committerd.settings.load import Settings
from committerd.telemetry import IngestMetrics, IngestTelemetry
from committerd_batch.target import SchemaMode
from committerd_ingest.decoding import Decoded, Decoder, Schemas, WrongColumns
from committerd_ingest.figures import Figures
from committerd_ingest.kafka_facts import BadRecords, Topics
from committerd_ingest.keyed import KeyedDecoder, decoder_of, ids_of
from committerd_ingest.partition import new_schema
from committerd_ingest.pipeline import Ingest
from committerd_ingest.records import Partition, Record
from committerd_ingest.registry import Registry, RegistryUnavailable
from committerd_ingest.settings import Pipeline
from committerd_ingest.source import Source
from committerd_ingest.splits import ReaderIngest
from committerd_ingest.table import Table
from committerd_ingest.wire_format import UnusableSchema

_log = logging.getLogger(__name__)

_SHOWN_MAX = 100
_DRY_RUN_SECONDS = 20.0


def run(configured: Settings, *, dry_run: bool) -> None:
    """Run the pipeline until SIGTERM, or show its first rows. Raises `SettingsError`, `QueueUnavailable`."""
    of_kafka = configured.ingest.source == "kafka"
    _ = pipeline_of(configured) if of_kafka else reader_pipeline_of(configured)  # raises before anything is opened
    if dry_run:
        asyncio.run(_show(configured) if of_kafka else show_first_rows(configured))
        return
    logs.configure(configured.log.level, configured.log.format)
    asyncio.run(_main(configured))


async def _main(configured: Settings) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as in `committerd run`
    registry = CollectorRegistry()
    figures = _Figures(IngestMetrics(registry).of(configured.dataset.queue))
    access, stopped = client_access(configured), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(configured, access))
        table = table_of(configured, access, client)
        if configured.ingest.source == "kafka":
            work: Ingest | ReaderIngest = _kafka_work(configured, table, figures)
        else:
            reader, pipeline = reader_of(configured, access), reader_pipeline_of(configured)
            work = ReaderIngest(pipeline, reader=reader, table=table, figures=figures)
        health = Health(live=work.live, ready=work.ready)
        address = await stack.enter_async_context(serve(configured.http, registry, health))
        _log.info("http.listening", extra={"url": address.url})
        await work.run(stopped, drain_seconds=configured.daemon.drain_seconds)


def _kafka_work(configured: Settings, table: Table, figures: Figures) -> Ingest:
    pipeline = pipeline_of(configured)
    return Ingest(
        pipeline,
        open_source=lambda tell: Source(
            partial(open_consumer, configured, group=True),
            topics=pipeline.topics,
            tell=tell,
        ),
        table=table,
        topics=Topics(partial(open_admin, configured)),
        registry=registry_of(configured),
        bad_records=BadRecords(
            partial(open_producer, configured), dead_letter_topic(configured), pipeline=pipeline.name
        ),
        figures=figures,
    )


class _Figures:
    """The pipeline's figures, for Prometheus."""

    def __init__(self, telemetry: IngestTelemetry) -> None:
        self._telemetry = telemetry

    def wrote(self, *, records: int, rows: int, bytes: int, bad: int) -> None:
        telemetry = self._telemetry
        telemetry.records.add(records)
        telemetry.rows.add(rows)
        telemetry.bytes.add(bytes)
        telemetry.bad_records.add(bad)
        telemetry.transactions.add()

    def took(self, step: str, seconds: float) -> None:
        self._telemetry.seconds.observe(seconds, step=step)

    def fresh(self, seconds: float) -> None:
        self._telemetry.freshness.observe(seconds)

    def began_again(self, reason: str) -> None:
        self._telemetry.begun_again.add(cause=reason)

    def state(self, *, partitions: int, stopped: int, waiting_bytes: int, lag: int, lag_seconds: float) -> None:
        telemetry = self._telemetry
        telemetry.partitions.set(partitions)
        telemetry.stopped.set(stopped)
        telemetry.waiting_bytes.set(waiting_bytes)
        telemetry.lag.set(lag)
        telemetry.lag_seconds.set(lag_seconds)


async def _show(configured: Settings) -> None:
    """Decode the first records of the topics, and show what they make."""
    pipeline, access = pipeline_of(configured), client_access(configured)
    registry, place = registry_of(configured), configured.dataset.place
    said = await table_of(configured, access, client_of(configured, access)).says("")
    found = await asyncio.to_thread(_first_records, configured) if said is None else {}
    schema = await _new_schema(pipeline, registry, place, found) if said is None else said.schema
    _decoder(pipeline, schema, Partition("", 0))  # raises, whether there are records or not
    found = found or await asyncio.to_thread(_first_records, configured)
    _print_columns(f"The table {place} {'would have' if said is None else 'has'} these columns:", schema)
    count, bad = 0, 0
    for partition, records in sorted(found.items()):
        decoder, schemas = _decoder(pipeline, schema, partition), await _schemas(registry, pipeline, records)
        new = decoder.new_columns(records, schemas) if schemas and pipeline.schema_mode is SchemaMode.MERGE else None
        if new is not None:
            _print_columns("Its new columns:", new)
            schema = pa.schema([*schema, *new])
            decoder = _decoder(pipeline, schema, partition)
        decoded = decoder.decode(records, schemas)
        _print(partition, decoded)
        count, bad = count + decoded.rows.num_rows, bad + len(decoded.bad)
    click.echo(f"{count + bad} records make {count} rows; {bad} are bad. Nothing was written.")


async def _new_schema(
    pipeline: Pipeline, registry: Registry | None, place: str, found: Mapping[Partition, object]
) -> pa.Schema:
    """The schema of the table that would be created."""
    if pipeline.new_table is None:
        raise SettingsError(f"there is no table at {place}: create it first, or set ingest.create_from")
    topic = min(found).topic if found else next(iter(pipeline.topics), "")
    try:
        return await new_schema(pipeline.new_table, pipeline, registry, topic)
    except (RegistryUnavailable, UnusableSchema) as error:
        raise SettingsError(f"ingest.create_from: {error}") from error


async def _schemas(registry: Registry | None, pipeline: Pipeline, records: list[Record]) -> Schemas | None:
    try:
        return None if registry is None else await registry.schemas(ids_of(pipeline, records))
    except RegistryUnavailable as error:
        raise SettingsError(str(error)) from error


def _decoder(pipeline: Pipeline, schema: pa.Schema, partition: Partition) -> Decoder | KeyedDecoder:
    try:
        return decoder_of(pipeline, schema, partition)
    except WrongColumns as error:
        raise SettingsError(f"group ingest: {error}") from error


def _print_columns(title: str, schema: pa.Schema) -> None:
    click.echo(title)
    for field in schema:
        click.echo(f"  {field.name}: {field.type}{'' if field.nullable else ' not null'}")


def _print(partition: Partition, decoded: Decoded) -> None:
    for row in decoded.rows.to_pylist():
        click.echo(f"{partition}: {json.dumps(row, default=str, ensure_ascii=False)}")
    for one in decoded.bad:
        click.echo(f"{partition}, offset {one.record.offset} is bad: {one.reason}")


def _first_records(configured: Settings) -> dict[Partition, list[Record]]:
    """Up to 100 records, the first of each partition. Raises `SettingsError` if there is no such topic."""
    consumer = open_consumer(configured, group=False)
    try:
        topics = chosen_topics(configured, sorted(consumer.topics()))
        places = [TopicPartition(one, n) for one in topics for n in sorted(consumer.partitions_for_topic(one) or ())]
        if not places:
            wanted = ", ".join(configured.ingest.topics) or configured.ingest.topic_pattern
            raise SettingsError(f"ingest: Kafka has no topic {wanted}")
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        return _read(consumer, {place: end for place, end in ends.items() if consumer.position(place) < end})
    finally:
        consumer.close(autocommit=False)


def _read(consumer: Any, ends: dict[TopicPartition, int]) -> dict[Partition, list[Record]]:
    found: dict[Partition, list[Record]] = {}
    share = max(_SHOWN_MAX // max(len(ends), 1), 1)
    until = monotonic() + _DRY_RUN_SECONDS
    while ends and monotonic() < until and sum(map(len, found.values())) < _SHOWN_MAX:
        for place, polled in consumer.poll(timeout_ms=100).items():
            kept = found.setdefault(Partition(*place), [])
            kept += [Record(one.offset, one.timestamp, one.key, one.value, one.headers) for one in polled]
            del kept[share:]
            if len(kept) >= share or consumer.position(place) >= ends.get(place, 0):
                ends.pop(place, None)
    return found
