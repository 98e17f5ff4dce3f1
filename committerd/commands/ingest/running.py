"""Runs pipelines, or shows what they would do."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import click
import pyarrow as pa
from kafka import TopicPartition
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry, disable_created_metrics

from committerd.commands.ingest.first_rows import show_first_rows
from committerd.commands.ingest.members import Member
from committerd.commands.ingest.parts import (
    Registries,
    client_of,
    dead_letter_topic,
    group_name,
    open_admin,
    open_consumer,
    open_producer,
    reader_of,
    reading_table,
    table_of,
)
from committerd.commands.lance_options import client_access
from committerd.commands.system import monotonic
from committerd.daemon import logs
from committerd.daemon.http import Health, serve
from committerd.daemon.tracing import traced_clients
from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.repairs import abandon
from committerd.memory import return_large_blocks, share_arenas
from committerd.settings.load import Settings
from committerd.telemetry import IngestMetrics, IngestTelemetry
from committerd_batch.target import SchemaMode
from committerd_ingest.decoding import BadRecord, Decoder, WrongColumns
from committerd_ingest.kafka_facts import BadRecords, Topics
from committerd_ingest.keyed import KeyedDecoder, decoder_of, ids_of
from committerd_ingest.partition import new_schema
from committerd_ingest.pipeline import Ingest
from committerd_ingest.records import Partition, Record, Records
from committerd_ingest.registry import Registry, RegistryUnavailable
from committerd_ingest.routing import Sorted, reads
from committerd_ingest.settings import Pipeline, ReaderPipeline
from committerd_ingest.source import Source
from committerd_ingest.splits import ReaderIngest
from committerd_ingest.table import Table
from committerd_ingest.wire_format import Schemas, UnusableSchema
from committerd_login.access import hidden, naming_acl

_log = logging.getLogger(__name__)

_SHOWN_MAX = 100
_DRY_RUN_SECONDS = 20.0
_ARENAS = 2
_THREADS_EACH = 16
"""Threads for each pipeline: more than a table holds whose store does not respond (`Table`, `Pipeline.writes_max`)."""


def run(members: Sequence[Member], *, dry_run: bool) -> None:
    """Run pipelines until SIGTERM, or show their first rows. Raises `SettingsError`, `QueueUnavailable`."""
    if dry_run:
        for one in members:
            if len(members) > 1:
                click.echo(f"Route {one.settings.dataset.queue}:")
            asyncio.run(_show(one))
        return
    logs.configure(members[0].settings.log.level, members[0].settings.log.format)
    with traced_clients(os.environ, "committerd-ingest"):
        asyncio.run(_main(members))


async def _main(members: Sequence[Member]) -> None:
    share_arenas(_ARENAS)
    return_large_blocks()
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps what is freed
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as in `committerd run`
    collected, shared = CollectorRegistry(), members[0].settings
    metrics, registries = IngestMetrics(collected), Registries()
    stopped = asyncio.Event()
    threads = ThreadPoolExecutor(_THREADS_EACH * len(members), thread_name_prefix="ingest")
    asyncio.get_running_loop().set_default_executor(threads)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    running = [
        _Running(one, metrics.of(one.settings.dataset.queue), registries, alone=len(members) == 1) for one in members
    ]
    health = Health(live=partial(_live, running), ready=partial(_ready, running))
    async with serve(shared.http, collected, health) as address:
        _log.info("http.listening", extra={"url": address.url})
        tasks = [asyncio.create_task(one.run(stopped)) for one in running]
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()


def _live(running: Sequence[_Running]) -> list[str]:
    return [one.said(stuck) for one in running if one.work is not None for stuck in one.work.live()]


def _ready(running: Sequence[_Running]) -> tuple[bool, str]:
    found = [(one, one.ready()) for one in running]
    return all(ready for _, (ready, _) in found), "; ".join(one.said(text) for one, (_, text) in found)


class _Running:
    """A pipeline that runs in this process."""

    def __init__(self, member: Member, telemetry: IngestTelemetry, registries: Registries, *, alone: bool) -> None:
        """`alone`: whether the process ends with the pipeline; otherwise one that can't begin tries it again."""
        self._member, self._figures, self._alone = member, _Figures(telemetry), alone
        self._registry = registries.of(member.settings)
        self.work: Ingest | ReaderIngest | None = None
        self._trouble = ""

    def said(self, text: str) -> str:
        """A sentence on the pipeline, which names it if there are others."""
        return text if self._alone else f"{self._member.settings.dataset.queue}: {text}"

    def ready(self) -> tuple[bool, str]:
        """Whether it does its work, and a sentence on it."""
        return self.work.ready() if self.work is not None else (False, self._trouble or "connects to Kafka")

    async def run(self, stopped: asyncio.Event) -> None:
        """Run it until `stopped`."""
        configured = self._member.settings
        with logs.lines_of(configured.dataset.queue):
            while not stopped.is_set():
                try:
                    await self._run(stopped)
                except Exception as error:
                    if self._alone:
                        raise
                    self._trouble = f"can't begin: {error}"
                    _log.error("ingest.route_failed", extra={"error": f"{type(error).__name__}: {error}"})
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stopped.wait(), configured.ingest.retry_seconds)
                finally:
                    self.work = None

    async def _run(self, stopped: asyncio.Event) -> None:
        configured, pipeline = self._member.settings, self._member.pipeline
        access = client_access(configured)
        async with client_of(configured, access) as client:
            table = table_of(configured, access, client)
            if isinstance(pipeline, ReaderPipeline):
                reader = reader_of(configured, access)
                self.work = ReaderIngest(
                    pipeline, reader=reader, table=table, bad_records=self._bad_records(), figures=self._figures
                )
            else:
                self.work = self._kafka_work(pipeline, table)
            await self.work.run(stopped, drain_seconds=configured.daemon.drain_seconds)

    def _kafka_work(self, pipeline: Pipeline, table: Table) -> Ingest:
        configured = self._member.settings
        return Ingest(
            pipeline,
            open_source=lambda tell: Source(
                partial(open_consumer, configured, group=True), topics=pipeline.topics, tell=tell
            ),
            table=table,
            topics=Topics(partial(open_admin, configured)),
            registry=self._registry,
            bad_records=self._bad_records(),
            figures=self._figures,
        )

    def _bad_records(self) -> BadRecords:
        configured = self._member.settings
        name = group_name(configured)
        return BadRecords(
            partial(open_producer, configured), dead_letter_topic(configured), pipeline=name, abandon=abandon
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

    def passed(self, records: int, *, unmatched: int) -> None:
        self._telemetry.passed.add(records)
        self._telemetry.unmatched.add(unmatched)

    def state(self, *, partitions: int, stopped: int, waiting_bytes: int, lag: int, lag_seconds: float) -> None:
        telemetry = self._telemetry
        telemetry.partitions.set(partitions)
        telemetry.stopped.set(stopped)
        telemetry.waiting_bytes.set(waiting_bytes)
        telemetry.lag.set(lag)
        telemetry.lag_seconds.set(lag_seconds)


async def _show(member: Member) -> None:
    """Decode the first records, and show what they make."""
    configured, pipeline = member.settings, member.pipeline
    if isinstance(pipeline, ReaderPipeline):
        await show_first_rows(configured)
        return
    access, registry, place = client_access(configured), Registries().of(configured), configured.dataset.place
    with reading_table(configured):
        said = await table_of(configured, access, client_of(configured, access)).says("")
    found = await asyncio.to_thread(_first_records, configured, pipeline) if said is None else {}
    schema = await _new_schema(pipeline, registry, place, found) if said is None else said.schema
    _decoder(pipeline, schema, Partition("", 0))  # raises, whether there are records or not
    found = found or await asyncio.to_thread(_first_records, configured, pipeline)
    _print_columns(f"The table {place} {'would have' if said is None else 'has'} these columns:", schema)
    count, bad, others = 0, 0, 0
    for partition, given in sorted(found.items()):
        read = Records.of(given)
        chosen = pipeline.filter_of(partition.topic)
        decoder = _decoder(pipeline, schema, partition)
        schemas = await _schemas(registry, pipeline, read if chosen is None else chosen.readable(read))
        mine = Sorted(read) if chosen is None else chosen.sort(read, schemas)
        records = mine.mine
        new = decoder.new_columns(records, schemas) if schemas and pipeline.schema_mode is SchemaMode.MERGE else None
        if new is not None:
            _print_columns("Its new columns:", new)
            schema = pa.schema([*schema, *new])
            decoder = _decoder(pipeline, schema, partition)
        decoded = decoder.decode(records, schemas)
        wrong = sorted((*decoded.bad, *mine.bad), key=lambda one: one.record.offset)
        _print(partition, decoded.rows, wrong)
        count, bad = count + decoded.rows.num_rows, bad + len(wrong)
        others += len(read) - decoded.rows.num_rows - len(wrong)
    passed = f" {others} are of other routes, or of none." if others else ""
    click.echo(f"{count + bad} records make {count} rows; {bad} are bad.{passed} Nothing was written.")


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


async def _schemas(registry: Registry | None, pipeline: Pipeline, records: Sequence[Record]) -> Schemas | None:
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


def _print(partition: Partition, rows: pa.Table, bad: Sequence[BadRecord]) -> None:
    for row in rows.to_pylist():
        click.echo(f"{partition}: {json.dumps(row, default=str, ensure_ascii=False)}")
    for one in bad:
        click.echo(f"{partition}, offset {one.record.offset} is bad: {one.reason}")


def _first_records(configured: Settings, pipeline: Pipeline) -> dict[Partition, list[Record]]:
    """Up to 100 records, the first of each partition.

    Raises `SettingsError` if there is no such topic, `QueueUnavailable`.
    """
    consumer = open_consumer(configured, group=False)
    try:
        topics = [one for one in sorted(consumer.topics()) if reads(one, pipeline.topics, pipeline.topic_pattern)]
        places = [TopicPartition(one, n) for one in topics for n in sorted(consumer.partitions_for_topic(one) or ())]
        if not places:
            wanted = ", ".join(pipeline.topics) or configured.ingest.topic_pattern
            raise SettingsError(f"ingest: {hidden('Read', wanted)}")
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        return _read(consumer, {place: end for place, end in ends.items() if consumer.position(place) < end})
    except KafkaError as error:
        raise QueueUnavailable(f"Kafka: {error}") from error
    finally:
        consumer.close(autocommit=False)


def _read(consumer: Any, ends: dict[TopicPartition, int]) -> dict[Partition, list[Record]]:
    found: dict[Partition, list[Record]] = {}
    share = max(_SHOWN_MAX // max(len(ends), 1), 1)
    until = monotonic() + _DRY_RUN_SECONDS
    while ends and monotonic() < until and sum(map(len, found.values())) < _SHOWN_MAX:
        with naming_acl("Read"):
            arrived = consumer.poll(timeout_ms=100)
        for place, polled in arrived.items():
            kept = found.setdefault(Partition(*place), [])
            kept += [Record(one.offset, one.timestamp, one.key, one.value, one.headers) for one in polled]
            del kept[share:]
            if len(kept) >= share or consumer.position(place) >= ends.get(place, 0):
                ends.pop(place, None)
    return found
