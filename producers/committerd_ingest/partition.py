"""One partition on its way into the table.

It begins where the table's mark is, collects records, and commits them, one transaction after the other. Whatever goes
wrong, it begins again at the mark: what was staged before is committed once or refused, since each transaction names
the mark that it follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pyarrow as pa
from kafka.errors import KafkaError, MessageSizeTooLargeError

from committerd_batch.target import Mode, SchemaMode
from committerd_client.app_marks import AppMark
from committerd_client.errors import InvalidTransaction, RetryableConflict, StagingError, UnsupportedTransaction
from committerd_client.headers import App
from committerd_client.tracing import past_span, work_span
from committerd_common.errors import CommitterError
from committerd_common.request import MARK_MOVED
from committerd_ingest.buffering import Buffer
from committerd_ingest.dead_letters import Origin
from committerd_ingest.decoding import BadRecord, Decoded, Decoder, WrongColumns
from committerd_ingest.figures import Figures
from committerd_ingest.kafka_facts import BadRecords, Topics
from committerd_ingest.keyed import KeyedDecoder, decoder_of, ids_of, row_schema
from committerd_ingest.marks import NOTE_RENEWED_MS, Begin, Enter, Log, Note, Stop, app_id_of, where_to_begin
from committerd_ingest.records import NO_TIMESTAMP, Partition, Record, Records
from committerd_ingest.registry import Registry, RegistryUnavailable
from committerd_ingest.routing import Sorted
from committerd_ingest.settings import NewTable, Pipeline
from committerd_ingest.source import Source
from committerd_ingest.table import Said, Table, Written, now_ms
from committerd_ingest.turn import Turn
from committerd_ingest.wire_format import Schemas, UnusableSchema

if TYPE_CHECKING:
    import lance

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_AGAIN_SECONDS = 0.5
_FAILED_SECONDS = 2.0
_FAILURES_MAX = 3
"""Errors without a commit between them, with which a partition counts as stopped."""
_NOTE_LOOK_SECONDS = 3600.0
ASKED_MAX = 100
"""Schemas that the registry is asked for, for one transaction."""
_LOOKED_AT_ONCE = ASKED_MAX // 2
"""Records whose ids are compared with that at once; a record names at most two."""
_STOPPED_SECONDS_MAX = 3600.0
"""How long a partition stays stopped without an attempt, where each costs something."""
_OF_RECORDS = ("bad_record", "failed", "refused", "registry_unavailable", "schema_differs", "unreadable")
"""Reasons that lie in the records which come next: they are gone when these are in the table, or when none waits."""
_EXPECTED = (CommitterError, KafkaError, OSError, ValueError)
"""What Kafka, the store and the committer do; the log has no traceback of it."""


class Stopped(Exception):
    """The partition can't go on before somebody acts."""

    def __init__(self, reason: str, text: str, *, costly: bool = False) -> None:
        """`costly`: an attempt to go on stages a transaction, publishes records or decodes: it is made ever more rarely
        while the table says the same."""
        super().__init__(text)
        self.reason, self.costly = reason, costly


class _BeginAgain(Exception):
    """What the process believes of the partition is not so any more."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Records that were decoded and written for a version that may not be the latest. None of them is bad."""

    decoded: Decoded
    written: Written
    schema: pa.Schema
    """Of that version."""


class PartitionWork:
    """The work on one partition while it is assigned to this process."""

    def __init__(
        self,
        partition: Partition,
        pipeline: Pipeline,
        *,
        source: Source,
        table: Table,
        topics: Topics,
        bad_records: BadRecords,
        figures: Figures,
        writing: asyncio.Semaphore,
        freed: Callable[[], None] = lambda: None,
        registry: Registry | None = None,
    ) -> None:
        """`freed`: called when records have given up their memory. `registry`: None = records of the pipeline's format
        name no schemas."""
        self.partition = partition
        self._pipeline, self._source, self._table, self._topics = pipeline, source, table, topics
        self._registry, self._bad_records, self._figures, self._turn = registry, bad_records, figures, Turn(writing)
        self._filter = pipeline.filter_of(partition.topic)
        self.buffer = Buffer(pipeline.flush)
        self._taken_bytes, self._freed = 0, freed
        self.stopped = False
        """Whether it waits before it looks again, and nothing is fetched."""
        self.trouble: Stopped | None = None
        """Why it was stopped; also during an attempt to go on."""
        self.mark = 0
        """The offset behind the last record that is in the table."""
        self.reached = 0
        """The same, or behind the last record that was looked at, where all since are those of other routes."""
        self.end = 0
        """The offset behind the last record that Kafka had when it was asked."""
        self.hurry = False
        """Whether records are written without waiting for more: the memory is used up, or the process ends."""
        self.busy = False
        """Whether a transaction is on its way."""
        self._passing_since = 0.0
        """When records of other routes were first passed over since the mark moved (monotonic seconds)."""
        self._seek = 0
        self._changed = asyncio.Event()
        self._behind = 0
        """The offset behind the last record that has arrived."""
        self._broken = ""
        """Why the partition has to begin again."""
        self._retired = False
        self._asks = False
        """Whether it waits for schemas of the registry."""
        self._unreadable = ""
        """What is wrong with the records behind those that have arrived."""
        self._not_allowed = False
        """Whether it is that the user may not read them."""
        self._app_id = self._topic_id = ""
        self._noted_at = 0.0
        self._said: tuple[pa.Schema, AppMark | None] | None = None
        """The schema and the mark that the table had last."""
        self._attempts = 0
        """Costly attempts to go on since the last commit."""
        self._failures = 0
        """Errors of any other kind since the last commit."""
        self._written_ms: int | None = None
        """Timestamp of the first record of the transaction that is on its way."""
        self._stopped_ms: int | None = None
        """Timestamp of the record at which the partition was stopped; if that is unknown, when it was stopped."""

    @property
    def bytes(self) -> int:
        """About the memory of the records that wait, and of those that are being written."""
        return self.buffer.bytes + self._taken_bytes

    def oldest_ms(self) -> int | None:
        """Timestamp of the oldest record that waits; None if none does, or if it has none."""
        if self.trouble is not None:
            found = self._stopped_ms if self.end > self.reached else None
        elif self._written_ms is not None:
            found = self._written_ms
        else:
            found = self.buffer.records.timestamps_ms[0] if self.buffer.records else None
        return None if found == NO_TIMESTAMP else found

    def arrived(self, seek: int, records: Records, more: int) -> None:
        """Take records. Dropped are those that were fetched before the latest seek, and all behind a gap.

        `more`: as of `Arrived`.
        """
        if seek != self._seek or self._broken:
            return
        if records.offsets[0] < self._behind:
            self._broken = f"offset {records.offsets[0]} came after {self._behind - 1}"
        else:
            self.buffer.add(records, time.monotonic(), more)
            self._behind = records.offsets[-1] + 1
        self._changed.set()

    def sought(self, seek: int) -> None:
        """From now on, records of this seek arrive."""
        self._seek = seek

    @property
    def fetches(self) -> bool:
        """Whether records that come from now on are taken."""
        return self._seek != 0 and not self.stopped

    def give_back(self, size: int) -> None:
        """Keep the first of the records that wait, about so many bytes, if the registry is asked for their schemas.

        The others are read again when it has answered: records that can be written have more use for the memory.
        """
        if self._asks and self.buffer.bytes > size:
            self.buffer.keep(size)
            self._behind = self.buffer.records.offsets[-1] + 1
            self._seek, self._unreadable = 0, ""
            self._source.pause([self.partition])

    def unreadable(self, why: str, *, not_allowed: bool = False) -> None:
        """Nothing more arrives: Kafka does not have the next offset, or, with `why`, its records can't be read.

        `not_allowed`: because the user may not read them.
        """
        if why:
            self._unreadable, self._not_allowed = why, not_allowed
        else:
            self._broken = "offset_out_of_range"
        self.press()

    def press(self) -> None:
        """Write what waits, now."""
        self.hurry = True
        self._changed.set()

    def retire(self) -> None:
        """Ask nothing more of the source: the partition is assigned to other work, or to none.

        The task of `run` is cancelled too, but what it waits for may lose the cancellation.
        """
        self._retired = True

    async def run(self) -> None:
        """Work until cancelled."""
        while not self._retired:
            try:
                await self._begin()
                while not self._retired:
                    await self._next()
            except Stopped as error:
                await self._stop(error)
            except _BeginAgain as error:
                self._forget()
                self._figures.began_again("mark_moved")
                _log.info("ingest.begins_again", extra={"partition": str(self.partition), "why": str(error)})
                await asyncio.sleep(_AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001  # whatever it is: nobody else would work on the partition
                self._failures += 1
                moved = isinstance(error, RetryableConflict) and error.code == MARK_MOVED
                self._figures.began_again("mark_moved" if moved else "failed")
                foreseen, said = isinstance(error, _EXPECTED), f"{type(error).__name__}: {error}"
                extra = {"partition": str(self.partition), "error": said}
                _log.warning("ingest.failed", extra=extra, exc_info=not foreseen)
                if self._failures >= _FAILURES_MAX:
                    text = f"it failed {self._failures} times without a commit between them: {said}"
                    await self._stop(Stopped("failed", text, costly=not foreseen))
                else:
                    self._forget()
                    await asyncio.sleep(_AGAIN_SECONDS if moved else _FAILED_SECONDS)

    async def _stop(self, error: Stopped) -> None:
        """Stay stopped for a while."""
        if self._stopped_ms is None:
            self._stopped_ms = now_ms() if (oldest := self.oldest_ms()) is None else oldest
        self._forget()
        self.stopped, self.trouble = True, error
        await self._stay(error)
        self.stopped = False

    def _forget(self) -> None:
        """Drop what waits. It is read again."""
        self._seek, self._broken, self._unreadable = 0, "", ""
        self.buffer.clear()
        self._written_ms = None
        if not self._retired:
            self._source.pause([self.partition])

    async def _stay(self, error: Stopped) -> None:
        """Stay stopped until it is time to look whether the partition may go on."""
        pause = self._pipeline.retry_seconds
        if error.costly:
            pause = max(pause, min(pause * 2 ** min(self._attempts, 20), _STOPPED_SECONDS_MAX))
            self._attempts += 1
        extra = {"partition": str(self.partition), "reason": error.reason, "error": str(error)}
        _log.error("ingest.partition_stopped", extra=extra | {"next_attempt_seconds": pause})
        until = time.monotonic() + pause
        while True:
            await asyncio.sleep(min(self._pipeline.retry_seconds, max(until - time.monotonic(), 0)))
            if time.monotonic() >= until:
                return
            if await self._differs():
                self.trouble = None
                return

    async def _differs(self) -> bool:
        """Whether table or topic say something else than when the partition was stopped. Notes its end, for the lag."""
        then = self._said
        try:
            _, self.end = await self._topics.bounds(self.partition)
            _, topic_id = await self._topics.identity(self.partition.topic)
            said = await self._table.says(self._app_id)
        except Exception as error:  # noqa: BLE001  # whatever it is: the next look says it
            _log.info("ingest.look_failed", extra={"partition": str(self.partition), "error": str(error)})
            return False
        if said is None or then is None or topic_id != self._topic_id:
            return True
        return (said.schema, said.mark) != then

    # Where it begins

    async def _begin(self) -> None:
        partition = self.partition
        cluster_id, self._topic_id = await self._topics.identity(partition.topic)
        if not self._topic_id:
            raise Stopped("topic_missing", f"Kafka has no topic {partition.topic} any more")
        self._app_id = app_id_of(self._pipeline.name, cluster_id, partition)
        found = await self._found()
        while isinstance(found, Enter):
            await self._note(found.offset, unit=self._unit(found.offset, None if found.offset == 0 else 0))
            found = await self._found()
        if isinstance(found, Stop):
            raise Stopped(found.reason, f"{found.text}. {self._way_out()}")
        if found.renew:
            await self._note(found.offset)
        self._noted_at = time.monotonic()
        self._decoder((await self._says()).schema)
        self._behind = found.offset
        if self.trouble is not None and (found.offset >= self.end or self.trouble.reason not in _OF_RECORDS):
            self.trouble = self._stopped_ms = None
        if found.offset >= self.end:
            self._failures = 0
        self._tell_group(found.offset)
        if not self._retired:
            await self._source.seek(partition, found.offset, by=self)

    def _tell_group(self, offset: int) -> None:
        """Show the group's tools where the partition is."""
        if not self._retired:
            self._source.note(self.partition, offset)

    async def _found(self) -> Begin | Enter | Stop:
        if self._pipeline.new_table is not None and await self._table.says(self._app_id) is None:
            await self._create(self._pipeline.new_table)
        said = await self._says()
        log = Log(self._topic_id, *await self._topics.bounds(self.partition))
        self.mark = self.reached = reached(said)
        self.end = log.end
        return where_to_begin(said.mark, said.note, log, start=self._pipeline.start, now_ms=now_ms())

    async def _create(self, new: NewTable) -> None:
        try:
            schema = await new_schema(new, self._pipeline, self._registry, self.partition.topic)
            await self._settled(self._table.create(schema))
        except RegistryUnavailable as error:
            raise Stopped("registry_unavailable", str(error)) from error
        except (StagingError, UnusableSchema) as error:
            raise Stopped("table_missing", f"there is no table, and it can't be created: {error}") from error
        _log.info("ingest.table_created", extra={"partition": str(self.partition), "columns": schema.names})

    async def _says(self) -> Said[Note | None]:
        said = await self._table.says(self._app_id)
        if said is None:
            raise Stopped(
                "table_missing",
                "there is no table: create it, with client.create(schema) for example, or set ingest.create_from",
            )
        self._said = said.schema, said.mark
        return said

    def _way_out(self) -> str:
        return f"Find out what the table has, and then say where to go on: {self._move_command('OFFSET')}"

    def _move_command(self, offset: object) -> str:
        topic, number = self.partition
        route = f" --dataset {self._pipeline.route}" if self._pipeline.route else ""
        return f"committerd ingest move {topic} {number}{route} --offset {offset} --apply --reason TEXT"

    def _unit(self, version: int, after: int | None) -> App:
        return App(self._app_id, version, self._topic_id, after)

    async def _note(self, offset: int, unit: App | None = None) -> bool:
        note = Note(topic_id=self._topic_id, offset=offset, at_ms=now_ms())
        return await self._settled(self._table.write_note(self._app_id, note, unit))

    async def _settled(self, commit: Awaitable[_T]) -> _T:
        """The result of a commit. Raises `Stopped` if the committer will never take it."""
        try:
            return await commit
        except (InvalidTransaction, UnsupportedTransaction) as error:
            raise Stopped("refused", f"the committer refuses the transaction: {error}", costly=True) from error

    def _decoder(self, schema: pa.Schema) -> Decoder | KeyedDecoder:
        try:
            return decoder_of(self._pipeline, schema, self.partition)
        except WrongColumns as error:
            raise Stopped("wrong_columns", str(error)) from error

    # Transactions

    async def _next(self) -> None:
        """Wait until records are to be written, and write them."""
        while True:
            self._changed.clear()  # before the look: what arrives while the mark is moved is not slept through
            if self._broken:
                raise _BeginAgain(self._broken)
            due = self.buffer.due_in(time.monotonic())
            if due is not None and (due <= 0 or self.hurry):
                break
            if due is None:
                if self._unreadable:
                    self._stop_before_unreadable()
                self.hurry = False
                if time.monotonic() - self._noted_at > _NOTE_LOOK_SECONDS:
                    await self._renew()
                if self._mark_due_in() <= 0:
                    await self._move_mark()
            try:
                # Not `asyncio.wait_for`: in Python 3.11 it drops a cancellation in whose instant the event is set.
                async with asyncio.timeout(self._mark_due_in() if due is None else due):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self._written_ms, arrived = self.buffer.records.timestamps_ms[0], self.buffer.first_at
        self.busy = True
        try:
            # Before the wait: a registry that is silent holds nobody else up.
            most, schemas = self._pipeline.flush.rows, None
            if self._registry is not None:
                most, ids = self.front(self._registry)
                schemas = await self._schemas(self._registry, ids)
                if self._seek == 0 and not self._retired:  # it has given records back
                    await self._source.seek(self.partition, self._behind, by=self)
            async with self._turn:
                if self._broken:
                    raise _BeginAgain(self._broken)
                held = self.buffer.bytes
                records = self.buffer.take(time.monotonic(), most)
                self._taken_bytes = held - self.buffer.bytes
                waited = time.monotonic() - arrived
                with work_span(f"ingest {self.partition.topic}", self._attributes(records), ago=waited):
                    past_span("poll", ago=waited)
                    await self._write(records, schemas)
        finally:
            self.busy, self._taken_bytes = False, 0
            self._freed()
        self._written_ms = None

    async def _renew(self) -> None:
        """Renew the note of a partition that has been quiet for long."""
        self._noted_at = time.monotonic()
        said = await self._says()
        if said.mark is not None and said.mark.version != self.mark:
            raise _BeginAgain(f"the mark is at {said.mark.version}, and was at {self.mark}")
        if said.note is None or now_ms() - said.note.at_ms >= NOTE_RENEWED_MS:
            await self._note(self.mark)

    def front(self, registry: Registry) -> tuple[int, set[int]]:
        """How many records the next transaction has at most, and the ids of their schemas.

        They are only so many that few schemas must be asked for.
        """
        waiting, ids, asked = self.buffer.records, set[int](), set[int]()
        most = min(len(waiting), self._pipeline.flush.rows)
        for begin in range(0, most, _LOOKED_AT_ONCE):
            records = waiting[begin : min(begin + _LOOKED_AT_ONCE, most)]
            if self._filter is not None:
                records = self._filter.readable(records)
            named = ids_of(self._pipeline, records)
            asked |= registry.lacks(named)
            if begin and len(asked) > ASKED_MAX:
                return begin, ids
            ids |= named
        return most, ids

    def _attributes(self, records: Records) -> Mapping[str, str | int]:
        """Of the span of a transaction."""
        return {
            "messaging.system": "kafka",
            "messaging.operation.name": "ingest",
            "messaging.operation.type": "process",
            "messaging.destination.name": self.partition.topic,
            "messaging.destination.partition.id": str(self.partition.number),
            "messaging.kafka.offset": records.offsets[0],
            "messaging.batch.message_count": len(records),
            "committerd.app_id": self._app_id,
        }

    async def _write(self, records: Records, schemas: Schemas | None) -> None:
        """Write records. `schemas`: those that they name."""
        same = _begun(self._same_topic())
        # Opened after the records were taken: a change of the table that was over before they were made is in it.
        latest = _begun(self._says())
        try:
            await self._write_of(records, schemas, latest=latest, same=same)
        finally:
            latest.cancel()
            same.cancel()

    async def _write_of(
        self,
        records: Records,
        schemas: Schemas | None,
        *,
        latest: Awaitable[Said[Note | None]],
        same: Awaitable[None],
    ) -> None:
        """Write records. `latest`: what the table says. `same`: must be certain before anything is staged, published
        or passed."""
        behind, read = records.offsets[-1] + 1, records
        chosen = (
            Sorted(records) if self._filter is None else await asyncio.to_thread(self._filter.sort, records, schemas)
        )
        records = chosen.mine
        ahead = None if chosen.bad or not records else await asyncio.to_thread(self._ahead, records, schemas)
        said, written = await self._fitting(ahead, latest)
        if ahead is not None and written is not None:
            decoded = ahead.decoded
        else:
            said = await self._merged(said, records, schemas, same)
            decoded = await asyncio.to_thread(self._decoded, said.schema, records, schemas)
        bad = sorted((*decoded.bad, *chosen.bad), key=lambda one: one.record.offset)
        stop = next((one for one in bad if one.stops or self._pipeline.on_error == "stop"), None)
        if stop is not None:
            behind = stop.record.offset
            records = records[: bisect_left(records.offsets, behind)]
            bad = [one for one in bad if one.record.offset < behind]
            decoded = await asyncio.to_thread(self._decoded, said.schema, records, schemas)
        if bad:
            await same
            await self._put_aside(bad)
        settled = chosen.settled(records, behind)
        if settled:
            put = self._put(decoded.rows, behind, written=written, at=said.at, same=same)
            await self._commit(put, settled, rows=decoded.rows.num_rows, bad=len(bad), behind=behind)
        else:
            await same
            await self._pass(behind)
        if self._filter is not None:
            self._count(read, settled, [one for one in chosen.unmatched if one.offset < behind], behind)
        if stop is not None:
            await same
            if self._filter is not None and self.reached != self.mark:
                await self._move_mark()  # Kafka may delete what was passed over while the partition is stopped
            await self._says()  # from now on, the partition waits until the table says something else
            self._stop_at(stop)

    def _decoded(self, schema: pa.Schema, records: Records, schemas: Schemas | None) -> Decoded:
        began = time.monotonic()
        with work_span("decode"):
            found = self._decoder(schema).decode(records, schemas)
        self._figures.took("decode", time.monotonic() - began)
        return found

    def _written(self, rows: pa.Table, at: lance.LanceDataset) -> Written:
        with work_span("write"):
            return self._table.write(rows, at=at)

    def _ahead(self, records: Records, schemas: Schemas | None) -> _Ahead | None:
        """The records in files for the version that was opened last, while the latest is opened.

        None if they do not fit that version: the latest one may be another. Blocks.
        """
        at = self._table.opened
        if at is None or self._pipeline.mode is not Mode.APPEND:
            return None
        schema: pa.Schema = at.schema
        try:
            if self._new_columns(schema, records, schemas) is not None:
                return None
            decoded = self._decoded(schema, records, schemas)
            if decoded.bad or not decoded.rows.num_rows:
                return None
            return _Ahead(decoded, self._written(decoded.rows, at), schema)
        except (Stopped, StagingError):
            return None

    async def _fitting(
        self, ahead: _Ahead | None, latest: Awaitable[Said[Note | None]]
    ) -> tuple[Said[Note | None], Written | None]:
        """What the table says, and the files that were written ahead as files for it; none if it has other columns."""
        if ahead is None:
            return await latest, None
        moved = None
        try:
            said = await latest
            if said.schema == ahead.schema:
                moved = await asyncio.to_thread(self._table.moved, ahead.written, said.at)
        finally:
            if moved is None:
                await self._table.remove(ahead.written)
        return said, moved

    async def _same_topic(self) -> None:
        """Raise `_BeginAgain` if the topic was made anew since the partition began, or is gone."""
        _, topic_id = await self._topics.identity(self.partition.topic)
        if topic_id != self._topic_id:
            raise _BeginAgain(f"the topic's id is {topic_id or 'gone'}, and was {self._topic_id}")

    async def _schemas(self, registry: Registry, ids: set[int]) -> Schemas:
        """The schemas of these ids. Raises `Stopped`.

        The registry is asked each time for an id that it does not have.
        """
        self._asks = True
        try:
            return await registry.schemas(ids)
        except RegistryUnavailable as error:
            raise Stopped("registry_unavailable", str(error)) from error
        finally:
            self._asks = False

    async def _merged(
        self, said: Said[Note | None], records: Records, schemas: Schemas | None, same: Awaitable[None]
    ) -> Said[Note | None]:
        """What the table says when it has the columns that the records' schemas bring. `same`: as of `_write_of`."""
        new = await asyncio.to_thread(self._new_columns, said.schema, records, schemas)
        if new is None:
            return said
        await same
        try:
            await self._settled(self._table.add_columns(new))
        except StagingError as error:
            raise Stopped(
                "schema_differs", f"the table can't have the columns {new.names}: {error}", costly=True
            ) from error
        _log.info("ingest.columns_added", extra={"partition": str(self.partition), "columns": new.names})
        return await self._says()

    def _new_columns(self, schema: pa.Schema, records: Records, schemas: Schemas | None) -> pa.Schema | None:
        """The columns that the records' schemas bring to a table with this one."""
        if schemas is None or self._pipeline.schema_mode is not SchemaMode.MERGE:
            return None
        return self._decoder(schema).new_columns(records, schemas)

    async def _put_aside(self, bad: Sequence[BadRecord]) -> None:
        extra = {"partition": str(self.partition), "records": len(bad), "first_offset": bad[0].record.offset}
        _log.warning("ingest.bad_records", extra=extra | {"error": bad[0].reason})
        if self._pipeline.on_error != "dead-letter":
            return
        try:
            async with self._turn.given_back():  # where bad records go may not respond
                await self._bad_records.publish(Origin(self.partition, self._topic_id), bad)
        except MessageSizeTooLargeError as error:
            raise Stopped(
                "bad_record",
                f"a bad record, at offset {bad[0].record.offset} or behind it, is too large for the topic for bad "
                f"records, where it has headers besides: {error}. Raise max.message.bytes of that topic and "
                f"kafka.max_record_bytes. {self._way_out()}",
                costly=True,
            ) from error

    def _stop_before_unreadable(self) -> NoReturn:
        text = f"the records from offset {self._behind} on can't be read: {self._unreadable}"
        if not self._not_allowed:
            text += (
                ". If it is their compression, install its library (pip install 'kafka-python[snappy,lz4,zstd]'). "
                f"{self._way_out()}"
            )
        raise Stopped("unreadable", text)

    def _stop_at(self, bad: BadRecord) -> NoReturn:
        offset = bad.record.offset
        if bad.stops:
            raise Stopped(
                "schema_differs",
                f"the schema of the record at offset {offset} can't be merged into the table's: {bad.reason}. Mend the "
                "table or what writes the topic",
                costly=True,
            )
        self._stopped_ms = bad.record.timestamp_ms
        raise Stopped(
            "bad_record",
            f"the record at offset {offset} makes no row: {bad.reason}. Mend the table or the settings, or set "
            f"ingest.on_error, or pass it over: {self._move_command(offset + 1)}",
            costly=True,
        )

    async def _put(
        self, rows: pa.Table, behind: int, *, written: Written | None, at: lance.LanceDataset, same: Awaitable[None]
    ) -> bool:
        """Commit rows, or only the mark. `written`: the rows, if they are in files for `at`."""
        unit = self._unit(behind, self.mark)
        if not rows.num_rows:
            await same
            return await self._note(behind, unit)
        if self._pipeline.mode is Mode.APPEND:
            if written is None:
                written = await asyncio.to_thread(self._written, rows, at)
            try:
                await same
            except Exception:
                await self._table.remove(written)
                raise
            return await self._table.commit(written, unit)
        await same
        there = await self._table.change(rows, unit, self._pipeline.keys)
        return await self._note(unit.version, unit) if there is None else there

    async def _commit(self, commit: Awaitable[bool], records: Records, *, rows: int, bad: int, behind: int) -> None:
        """Commit. `records`: those that are settled by it; so many make rows, and so many are bad."""
        began = time.monotonic()
        await self._advance(commit, behind)
        self._attempts, self._failures, self.trouble, self._stopped_ms = 0, 0, None, None
        self._figures.took("commit", time.monotonic() - began)
        if records.timestamps_ms[0] != NO_TIMESTAMP:
            self._figures.fresh(max(now_ms() - records.timestamps_ms[0], 0) / 1000)
        self._figures.wrote(
            records=len(records),
            rows=rows,
            bytes=records.payload_bytes,
            bad=bad,
        )

    async def _advance(self, commit: Awaitable[bool], behind: int) -> None:
        """Commit what moves the mark to `behind`."""
        if await self._settled(commit):
            mark = (await self._says()).mark
            if mark is None or mark.version != behind:
                raise _BeginAgain("another process has committed these records")
        self.mark = self.reached = behind
        self._tell_group(behind)

    # Records of other routes

    async def _pass(self, behind: int) -> None:
        """Go on behind records of which none belongs to the table. The mark follows by and by."""
        if behind == self.reached:
            return
        if self.reached == self.mark:
            self._passing_since = time.monotonic()
        self.reached = behind
        self._tell_group(behind)
        if behind >= self.end:  # the records that were the trouble are gone
            self.trouble = self._stopped_ms = None
        if self._mark_due_in() <= 0:
            await self._move_mark()

    def _mark_due_in(self) -> float:
        """Seconds until there is something to do where nothing comes: to move the mark, or to look at the note."""
        if self.reached == self.mark:
            return _NOTE_LOOK_SECONDS
        return self._passing_since + self._pipeline.mark_seconds - time.monotonic()

    async def _move_mark(self) -> None:
        """Let the mark pass the records of other routes: Kafka may delete them, and nobody reads them again."""
        await self._advance(self._note(self.reached, self._unit(self.reached, self.mark)), self.reached)

    def _count(self, read: Records, settled: Records, unmatched: Sequence[Record], behind: int) -> None:
        self._figures.passed(bisect_left(read.offsets, behind) - len(settled), unmatched=len(unmatched))
        if unmatched:
            extra = {"partition": str(self.partition), "records": len(unmatched), "first_offset": unmatched[0].offset}
            _log.warning("ingest.unmatched_records", extra=extra)


def _begun(work: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
    """Work that has begun, for which nobody may wait in the end."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


async def new_schema(new: NewTable, pipeline: Pipeline, registry: Registry | None, topic: str) -> pa.Schema:
    """The schema of a table that is created. Raises `RegistryUnavailable`, `UnusableSchema`, `WrongColumns`."""
    if new.schema is not None:
        return new.schema
    assert registry is not None
    found = await registry.newest(new.subject or f"{topic}-value")
    kind, _ = (row_schema(found) if pipeline.mode is Mode.CDC else found).split(b"\0")
    return pipeline.columns.added_to(kind.columns)


def reached(said: Said[Note | None]) -> int:
    """The offset behind the last record that is in the table, as far as the table says it; else 0."""
    if said.mark is not None:
        return max(said.mark.version, 0)
    return 0 if said.note is None else said.note.offset
