"""Brings records of the topic for bad records into the table, each once, when what was wrong is mended."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import click
import pyarrow as pa
from kafka import TopicPartition
from kafka.errors import KafkaError

from committerd.commands.ingest.members import Member
from committerd.commands.ingest.parts import (
    Registries,
    client_of,
    dead_letter_topic,
    group_name,
    open_admin,
    open_consumer,
    table_of,
)
from committerd.commands.lance_options import client_access
from committerd.commands.printing import echo_counts, plain
from committerd.commands.system import monotonic
from committerd.errors import CommitterError, QueueUnavailable, SettingsError, StoreUnavailable, Unavailable
from committerd.settings.load import Settings
from committerd_batch.target import Mode, SchemaMode
from committerd_client.casting import nulls
from committerd_client.errors import RetryableConflict
from committerd_client.headers import App
from committerd_client.kafka_repairs import partitions_of
from committerd_common.request import MARK_MOVED
from committerd_ingest.dead_letters import Letter, Origin, letter_of
from committerd_ingest.decoding import WrongColumns
from committerd_ingest.kafka_facts import Topics
from committerd_ingest.keyed import decoder_of, ids_of
from committerd_ingest.marks import app_id_of
from committerd_ingest.partition import ASKED_MAX, reached
from committerd_ingest.records import Partition, Record, Records
from committerd_ingest.registry import Registry, RegistryUnavailable
from committerd_ingest.replays import Known, Offsets, Replays, TooScattered, known, replay_app_id
from committerd_ingest.settings import Pipeline, ReaderPipeline
from committerd_ingest.table import Table
from committerd_login.access import naming_acl

_LETTERS_MAX = 1_000_000
"""Records of the topic whose origins are kept in memory, about 100 bytes each."""
_SHOWN_MAX = 20
_LISTED_MAX = 1000
_ASKED_AT_ONCE = 1000
_SILENT_SECONDS = 60.0

_ELSEWHERE = "another replay of this pipeline's bad records runs: when it has ended, run this again"
_COUNTED = {
    "replayed": "make rows",
    "bad": "are bad still",
    "not_chosen": "are not chosen by --reason and --topic",
    "not_passed": "lie before their pipeline, which has not passed them: it reads them itself",
    "in_table": "are in the table already, as its columns for partition and offset say",
    "in_doubt": "are in doubt: a replay was killed, and the table has forgotten whether it had added them",
    "replayed_before": "were replayed before",
    "others": "are of another pipeline, or no bad records",
}
"""What becomes of the records; copies of one record count once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which records are replayed; an empty part = all."""

    reasons: Sequence[str]
    """Parts of the reason, of which one must be there."""
    topics: Sequence[str]


class Place(NamedTuple):
    """Where a record of the topic for bad records is."""

    partition: int
    offset: int


@dataclass(slots=True)
class _Report:
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    bad: list[tuple[Place, Letter, str]] = field(default_factory=list)
    """The first of those that are bad still, each with its reason now."""
    doubt: Offsets = field(default_factory=Offsets)


def replay(member: Member, chosen: Chosen, *, as_json: bool, apply: bool) -> int:
    """Run the command; returns the exit code. Raises `SettingsError`, `Unavailable`, and the errors of the client."""
    configured, pipeline = member.settings, member.pipeline
    if isinstance(pipeline, ReaderPipeline):
        raise SettingsError(f"ingest.source is {configured.ingest.source}: only records of topics are replayed")
    if pipeline.mode is not Mode.APPEND:
        raise SettingsError(
            f"ingest.mode is {pipeline.mode.value}: a bad record that is replayed would undo later changes of its key. "
            "Send the key's present state to its own topic instead; the pipeline takes it in its turn"
        )
    try:
        report = asyncio.run(_replay(configured, pipeline, chosen, apply=apply))
    except KafkaError as error:
        raise QueueUnavailable(f"Kafka: {error}") from error
    except (TooScattered, WrongColumns) as error:
        raise SettingsError(str(error)) from error
    except RegistryUnavailable as error:  # an OSError too
        raise Unavailable(str(error)) from error
    except (OSError, ValueError) as error:  # of pylance
        raise StoreUnavailable(f"can't read the table {configured.dataset.place}: {error}") from error
    _print(dead_letter_topic(configured), report, as_json=as_json, applied=apply)
    return 1 if report.counts["bad"] else 0


async def _replay(configured: Settings, pipeline: Pipeline, chosen: Chosen, *, apply: bool) -> _Report:
    access, topic = client_access(configured), dead_letter_topic(configured)
    topics = Topics(partial(open_admin, configured))
    client = client_of(configured, access)
    table = table_of(configured, access, client)
    consumer: Any = None
    try:
        cluster_id, topic_id = await topics.identity(topic)
        if not topic_id:
            raise SettingsError(f"Kafka has no topic {topic}, the topic for bad records: set ingest.dead_letter_topic")
        consumer = await asyncio.to_thread(open_consumer, configured, group=False)
        run = _Run(
            pipeline,
            _Letters(consumer, topic),
            table,
            registry=Registries().of(configured),
            owner=group_name(configured),
            cluster_id=cluster_id,
            app_id=replay_app_id(pipeline.name, cluster_id, topic, topic_id),
            chosen=chosen,
            apply=apply,
        )
        if not apply:
            return await run.work()
        async with client:
            return await run.work()
    finally:
        topics.close()
        if consumer is not None:
            await asyncio.to_thread(consumer.close, autocommit=False)


class _Letters:
    """The records of the topic for bad records, as they are when the command begins. Raises KafkaError."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self._consumer = consumer
        partitions = partitions_of(consumer, topic, deadline=monotonic() + _SILENT_SECONDS)
        self._places = [TopicPartition(topic, one) for one in sorted(partitions)]
        consumer.assign(self._places)
        begins, ends = consumer.beginning_offsets(self._places), consumer.end_offsets(self._places)
        self.starts = {place.partition: int(begin) for place, begin in begins.items()}
        self._ends = {place: int(end) for place, end in ends.items()}

    def read(self) -> Iterator[tuple[Place, Letter | None]]:
        """Each record, in the order of its partition; None = it is no bad record. Raises KafkaError."""
        waits = {place for place in self._places if self.starts[place.partition] < self._ends[place]}
        for place in self._places:
            self._consumer.seek(place, self.starts[place.partition])
            (self._consumer.resume if place in waits else self._consumer.pause)(place)
        heard = monotonic()
        while waits:
            with naming_acl("Read"):
                polled = self._consumer.poll(timeout_ms=200)
            if polled:
                heard = monotonic()
            elif monotonic() - heard > _SILENT_SECONDS:
                raise QueueUnavailable(f"Kafka: no record of {min(waits)} for {_SILENT_SECONDS:g} s")
            for place, found in polled.items():
                for one in found:
                    if one.offset < self._ends[place]:
                        yield Place(place.partition, one.offset), letter_of(one.key, one.value, one.headers)
            for place in list(waits):
                if self._consumer.position(place) >= self._ends[place]:
                    waits.remove(place)
                    self._consumer.pause(place)


class Batch:
    """Records that are decoded together."""

    def __init__(self, pipeline: Pipeline, registry: Registry | None) -> None:
        """`registry`: None = the records name no schemas."""
        self._pipeline, self._registry = pipeline, registry
        self.letters: list[tuple[Place, Letter]] = []
        self._size, self._asked = 0, set[int]()

    def add(self, place: Place, letter: Letter) -> bool:
        """Whether it is full: of rows, of bytes, or of schemas that the registry must be asked for."""
        self.letters.append((place, letter))
        self._size += Records.of([letter.record]).size
        if self._registry is not None:
            self._asked |= self._registry.lacks(ids_of(self._pipeline, [letter.record]))
        limits = self._pipeline.flush
        return len(self.letters) >= limits.rows or self._size >= limits.bytes or len(self._asked) >= ASKED_MAX


class _Run:
    """One run of the command."""

    def __init__(
        self,
        pipeline: Pipeline,
        letters: _Letters,
        table: Table,
        *,
        registry: Registry | None,
        owner: str,
        cluster_id: str,
        app_id: str,
        chosen: Chosen,
        apply: bool,
    ) -> None:
        """`owner`: the name that the pipeline's records have."""
        self._pipeline, self._letters, self._table, self._registry = pipeline, letters, table, registry
        self._cluster_id, self._app_id, self._chosen, self._apply = cluster_id, app_id, chosen, apply
        self._owner, self._by = owner, uuid.uuid4().hex
        self._report = _Report()
        self._seen: dict[Origin, set[int]] = {}
        """Offsets of records, in their own topics, that were replayed or looked at."""
        self._taken: dict[Origin, set[int]] = {}
        """Those among them whose rows are in the table by a replay."""
        self._doubted: dict[Origin, set[int]] = {}
        """Those among them of which nobody knows."""
        self._copies: list[tuple[Place, Origin, int]] = []
        """Further copies of records, with their offsets in their own topics. They are settled as soon as their rows are
        in the table."""
        self._kept = 0
        self._marks: dict[Origin, tuple[int, str]] = {}

    async def work(self) -> _Report:
        schema, state = await self._says()
        begun = state
        self._report.doubt = state.doubt
        # Which records are in the table by a replay is known when all copies have been read.
        async for place, letter in self._each():
            if letter is not None and self._is_own(letter):
                if place in begun.settled:
                    self._report.counts["replayed_before"] += self._add(self._taken, letter)
                elif place in begun.doubt:
                    self._report.counts["in_doubt"] += self._add(self._doubted, letter)
        batch = Batch(self._pipeline, self._registry)
        async for place, letter in self._each():
            if letter is None or not self._is_own(letter):
                self._report.counts["others"] += 1
            elif place in begun.settled or place in begun.doubt:
                continue
            elif _has(self._taken, letter) or not self._add(self._seen, letter):
                self._copies.append((place, letter.origin, letter.record.offset))
                self._keep_one()
            elif not _has(self._doubted, letter):
                fate = await self._fate(letter)
                if fate:
                    self._report.counts[fate] += 1
                    continue
                if batch.add(place, letter):
                    schema, state = await self._take(schema, state, batch.letters)
                    batch = Batch(self._pipeline, self._registry)
        schema, state = await self._take(schema, state, batch.letters)
        if self._apply and (self._settled_copies() or state.left_a_plan):
            await self._note(state, Offsets())
        return self._report

    def _settled_copies(self) -> list[Place]:
        return [place for place, origin, offset in self._copies if offset in self._taken.get(origin, ())]

    async def _each(self) -> AsyncIterator[tuple[Place, Letter | None]]:
        """All records, read beside the event loop, a thousand at a time."""
        found = self._letters.read()
        while part := await asyncio.to_thread(_some, found):
            for one in part:
                yield one

    def _is_own(self, letter: Letter) -> bool:
        return letter.pipeline in ("", self._owner)

    def _add(self, known: dict[Origin, set[int]], letter: Letter) -> bool:
        """Whether it was not there."""
        offsets = known.setdefault(letter.origin, set())
        if letter.record.offset in offsets:
            return False
        offsets.add(letter.record.offset)
        self._keep_one()
        return True

    def _keep_one(self) -> None:
        self._kept += 1
        if self._kept > _LETTERS_MAX:
            raise SettingsError(
                f"the topic has more than {_LETTERS_MAX} bad records: let Kafka delete the oldest (retention.ms, or "
                "kafka-delete-records.sh)"
            )

    async def _fate(self, letter: Letter) -> str:
        """What becomes of the record without a look at its value; empty = it is decoded."""
        reasons, topics = self._chosen.reasons, self._chosen.topics
        if (topics and letter.origin.partition.topic not in topics) or (
            reasons and not any(one in letter.reason for one in reasons)
        ):
            return "not_chosen"
        mark, topic_id = await self._mark(letter.origin)
        if letter.origin.topic_id in ("", topic_id) and letter.record.offset >= mark:
            return "not_passed"
        return ""

    async def _mark(self, origin: Origin) -> tuple[int, str]:
        """The offset behind the last record of the partition that the pipeline has passed, and of which topic."""
        if origin not in self._marks:
            said = await self._table.says(app_id_of(self._pipeline.name, self._cluster_id, origin.partition))
            if said is None:
                raise SettingsError("there is no table any more")
            run = said.mark.run if said.mark is not None else said.note.topic_id if said.note is not None else ""
            self._marks[origin] = reached(said), run
        return self._marks[origin]

    async def _says(self) -> tuple[pa.Schema, Known]:
        said = await self._table.says_of_replays(self._app_id)
        if said is None:
            raise SettingsError("there is no table: a replay adds rows to the table that the pipeline has filled")
        return said.schema, known(said.mark, said.note)

    async def _take(
        self, schema: pa.Schema, state: Known, batch: Sequence[tuple[Place, Letter]]
    ) -> tuple[pa.Schema, Known]:
        """Decode records, and add the rows. Returns what holds then."""
        groups: dict[Origin, list[tuple[Place, Letter]]] = {}
        for one in batch:
            groups.setdefault(one[1].origin, []).append(one)
        tables: list[pa.Table] = []
        good: list[tuple[Place, Letter]] = []
        for origin, found in groups.items():
            there = await self._in_table(origin, [letter.record.offset for _, letter in found])
            self._report.counts["in_table"] += len(there)
            by_offset = {one[1].record.offset: one for one in found if one[1].record.offset not in there}
            records = [letter.record for _, (_, letter) in sorted(by_offset.items())]
            schema, rows, bad = await self._decoded(schema, origin.partition, records)
            tables.append(rows)
            for offset, reason in bad.items():
                place, letter = by_offset.pop(offset)
                self._report.counts["bad"] += 1
                if len(self._report.bad) < _LISTED_MAX:
                    self._report.bad.append((place, letter, reason))
            good += by_offset.values()
        self._report.counts["replayed"] += len(good)
        if good and self._apply:
            state = await self._add_rows(schema, state, Offsets.of(place for place, _ in good), tables)
        for _, letter in good:
            self._taken.setdefault(letter.origin, set()).add(letter.record.offset)
        return schema, state

    async def _add_rows(self, schema: pa.Schema, state: Known, plan: Offsets, tables: Sequence[pa.Table]) -> Known:
        """Commit the plan, and then the rows."""
        state = await self._note(state, plan)
        unit = App(self._app_id, state.unit + 1, "", state.after)
        rows = pa.concat_tables([_widened(one, schema) for one in tables])
        with _alone():
            there = await self._table.append(rows, unit)
        if there:
            await self._certain(unit.version, state.unit)
        return Known(
            unit=unit.version,
            after=unit.version,
            settled=state.settled | plan,
            doubt=state.doubt,
            left_a_plan=True,
        )

    async def _decoded(
        self, schema: pa.Schema, partition: Partition, records: Sequence[Record]
    ) -> tuple[pa.Schema, pa.Table, Mapping[int, str]]:
        """The schema of the table, which may have got columns; the rows; and why the others are bad, by offset."""
        schemas = None if self._registry is None else await self._registry.schemas(ids_of(self._pipeline, records))
        chosen, given = self._pipeline.filter_of(partition.topic), records
        if chosen is not None:
            records = (await asyncio.to_thread(chosen.sort, Records.of(records), schemas)).mine
        decoder = decoder_of(self._pipeline, schema, partition)
        if schemas is not None and self._pipeline.schema_mode is SchemaMode.MERGE:
            new = await asyncio.to_thread(decoder.new_columns, records, schemas)
            if new is not None:
                schema = pa.schema([*schema, *new], schema.metadata)
                if self._apply:
                    await self._table.add_columns(new)
                    schema, _ = await self._says()
                decoder = decoder_of(self._pipeline, schema, partition)
        made = await asyncio.to_thread(decoder.decode, records, schemas)
        mine = {one.offset for one in records}
        others = {one.offset: "it is of another route, or of none" for one in given if one.offset not in mine}
        return schema, made.rows, others | {one.record.offset: one.reason for one in made.bad}

    async def _in_table(self, origin: Origin, offsets: Sequence[int]) -> set[int]:
        """Those of these records whose rows the table has, if its columns say it.

        If the topic was made anew since, its new record at an offset has a row of the same place, so there must be two.
        """
        columns, found = self._pipeline.columns, Counter[int]()
        one_topic = len(self._pipeline.topics) == 1
        if not (columns.offset and columns.partition and (columns.topic or one_topic)):
            return set()
        where = f"`{columns.partition}` = {origin.partition.number}"
        if columns.topic:
            where += f" AND `{columns.topic}` = '{origin.partition.topic}'"
        for begin in range(0, len(offsets), _ASKED_AT_ONCE):
            wanted = ", ".join(map(str, offsets[begin : begin + _ASKED_AT_ONCE]))
            found.update(await self._table.values(columns.offset, f"{where} AND `{columns.offset}` IN ({wanted})"))
        mark, topic_id = await self._mark(origin)
        behind = 0 if origin.topic_id in ("", topic_id) else mark
        return {offset for offset, rows in found.items() if rows > (offset < behind)}

    async def _note(self, state: Known, plan: Offsets) -> Known:
        """Commit what is settled, and a plan."""
        copies = Offsets.of(self._settled_copies())
        settled, doubt = (one.from_on(self._letters.starts) for one in (state.settled | copies, state.doubt))
        unit = state.unit + 1
        note = Replays(unit=unit, by=self._by, settled=settled, plan=plan, doubt=doubt)
        with _alone():
            there = await self._table.write_note(self._app_id, note, App(self._app_id, unit, "", state.after))
        if there:
            await self._certain(unit, unit)
        return Known(unit=unit, after=unit, settled=settled, doubt=doubt, left_a_plan=bool(plan))

    async def _certain(self, unit: int, noted: int) -> None:
        """Raise unless the unit that is said to be in the table already is that of this run."""
        said = await self._table.says_of_replays(self._app_id)
        mark = None if said is None else said.mark
        if said is None or mark is None or (said.note.by, said.note.unit, mark.version) != (self._by, noted, unit):
            raise CommitterError(_ELSEWHERE, code=MARK_MOVED)


@contextmanager
def _alone() -> Iterator[None]:
    """Say what a moved mark means here."""
    try:
        yield
    except RetryableConflict as error:
        if error.code != MARK_MOVED:
            raise
        raise CommitterError(_ELSEWHERE, code=MARK_MOVED) from error


def _has(known: Mapping[Origin, set[int]], letter: Letter) -> bool:
    return letter.record.offset in known.get(letter.origin, ())


def _some(found: Iterator[Any]) -> list[Any]:
    return list(islice(found, 1000))


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns that the table has got since they were made."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows[one.name] if one.name in rows.column_names else pa.chunked_array([nulls(rows.num_rows, one.type)])
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _print(topic: str, report: _Report, *, as_json: bool, applied: bool) -> None:
    if as_json:
        bad = [
            {
                "topic": letter.origin.partition.topic,
                "partition": letter.origin.partition.number,
                "offset": letter.record.offset,
                "bad_partition": place.partition,
                "bad_offset": place.offset,
                "reason": reason,
            }
            for place, letter, reason in report.bad
        ]
        click.echo(json.dumps({"topic": topic, "written": applied, **report.counts, "bad_records": bad}, indent=2))
        return
    shown = {text: report.counts[name] for name, text in _COUNTED.items() if report.counts[name]}
    click.echo(f"Of the records of {topic}:" if shown else f"{topic} has no records.")
    echo_counts(shown)
    for place, letter, reason in report.bad[:_SHOWN_MAX]:
        click.echo(
            f"{letter.origin.partition}, offset {letter.record.offset} (here {place.partition}, {place.offset}) is bad "
            f"still: {plain(reason)}"
        )
    if report.counts["bad"] > _SHOWN_MAX:
        click.echo(f"The first {_SHOWN_MAX} of {report.counts['bad']}; --json names up to {_LISTED_MAX}.")
    if report.doubt:
        click.echo(f"In doubt, by their offsets in {topic}: {report.doubt}. Look whether the table has them.")
    if applied:
        click.echo(f"The table has {report.counts['replayed']} rows more.")
    elif report.counts["replayed"]:
        click.echo("Nothing was written. Add --apply to add these rows.")
