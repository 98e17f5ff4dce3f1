"""One split of a reader on its way into the table.

It goes on where the table's note and mark say (`progress`), and commits one transaction after the other. Whatever goes
wrong, it begins again there: rows that were staged before are committed once or refused, since they follow their plan.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import pyarrow as pa
from kafka.errors import KafkaError, MessageSizeTooLargeError

from committerd_batch.target import Mode
from committerd_client.data import rows_of
from committerd_client.errors import (
    InvalidTransaction,
    RetryableConflict,
    StagingError,
    TableMissing,
    UnsupportedTransaction,
)
from committerd_client.headers import App
from committerd_client.tracing import past_span, work_span
from committerd_common.errors import CommitterError
from committerd_common.request import MARK_MOVED
from committerd_ingest.calls import Calls
from committerd_ingest.dead_letters import Origin
from committerd_ingest.decoding import BadRecord
from committerd_ingest.figures import Figures
from committerd_ingest.gathering import BadRows, Ending, Gathered, Gathering, OneByOne
from committerd_ingest.kafka_facts import BadRecords
from committerd_ingest.progress import GoOn, Progress, Unclear, app_id_of_split, where_to_go_on
from committerd_ingest.reading import BadRow, Part, Reader, ReaderStopped
from committerd_ingest.records import NO_TIMESTAMP, Partition, Record
from committerd_ingest.row_changes import RowChanges, columns_of
from committerd_ingest.settings import ReaderPipeline
from committerd_ingest.table import Said, Table, Written, now_ms

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_FAILED_SECONDS = 2.0
_FAILURES_MAX = 3
"""Failures without a commit between them, with which the split counts as stopped."""
_OTHER_SECONDS = 5.0
"""After which a process looks again that was not the first to commit these rows: another one works on the split."""
_SETTLED_SECONDS = 3600.0
"""A split that was quiet for so long is settled: then it does not matter when the mark is forgotten."""
_NOTE_SECONDS = 7 * 24 * 3600.0
"""A quiet split writes its note again, and its mark with it."""
_STOPPED_SECONDS_MAX = 300.0
_REASON_CHARS_MAX = 1000
_EXPECTED = (CommitterError, KafkaError, OSError, ValueError)
"""What Kafka, the store and the committer do; the log has no traceback of it."""


class Stopped(Exception):
    """The split can't go on before somebody acts."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _BeginAgain(Exception):
    """What the process believes of the split is not so any more."""


class _ReadAgain(Exception):
    """The split is read again, from where the table has it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the split is."""

    at: GoOn
    schema: pa.Schema


class SplitWork:
    """The work on one split."""

    def __init__(
        self,
        split: str,
        pipeline: ReaderPipeline,
        *,
        reader: Reader,
        table: Table,
        bad_records: BadRecords,
        figures: Figures,
        ending: threading.Event,
    ) -> None:
        """`ending`: set when the process ends; then `run` returns when what was taken is in the table."""
        self.split = split
        self._pipeline, self._reader, self._table, self._figures = pipeline, reader, table, figures
        self._bad_records, self._ending = bad_records, ending
        self._app_id = app_id_of_split(pipeline.name, reader.name, split)
        self._by, self._notes = uuid.uuid4().hex[:16], 0
        self._calls = Calls()
        self.trouble: Stopped | ReaderStopped | None = None
        """Why it was stopped; also during an attempt to go on."""
        self._asked_at: float | None = None
        """Since when the reader has been asked for something; None = it is not asked."""
        self.oldest_ms: int | None = None
        """When the oldest row of the transaction that is on its way came into being."""
        self._place: _Place | None = None
        self._parts: Iterator[Part | None] = iter(())
        self._gathering: Gathering | None = None
        self._one_by_one = False
        self._attempts = self._failures = 0
        self._settled = False
        self._noted_ms = 0
        """When the note in the table was written: Unix milliseconds."""
        self._ended = False
        """Whether the split never has more."""

    async def run(self) -> None:
        """Work until cancelled, until the process ends, or until the split never has more."""
        try:
            while not (self._ending.is_set() or self._ended):
                await self._attempt()
            await self._keep(unsettled_seconds=0.0)  # nobody may come back to it within 30 days
        except Exception as error:  # noqa: BLE001  # whatever it is: the next process looks at it
            _log.warning("ingest.not_settled", extra={"split": self.split, "error": f"{type(error).__name__}: {error}"})
        finally:
            self._calls.end(getattr(self._parts, "close", None))

    def silent_seconds(self) -> float:
        """For how long the reader has not responded; 0 while it is not asked."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    async def _attempt(self) -> None:
        """Go on until something is wrong."""
        try:
            await self._begin()
            while await self._next():
                pass
        except (Stopped, ReaderStopped) as error:
            await self._forget()
            await self._stay(error)
        except _BeginAgain as error:
            await self._forget()
            self._figures.began_again("mark_moved")
            _log.info("ingest.begins_again", extra={"split": self.split, "why": str(error)})
            await self._pause(_OTHER_SECONDS)
        except (OneByOne, _ReadAgain) as error:
            await self._forget()
            self._one_by_one = isinstance(error, OneByOne)
        except Ending:
            pass
        except Exception as error:  # noqa: BLE001  # whatever it is: nobody else would work on the split
            await self._forget()
            self._failures += 1
            self._figures.began_again("failed")
            said = f"{type(error).__name__}: {error}"
            foreseen, extra = isinstance(error, _EXPECTED), {"split": self.split, "error": said}
            _log.warning("ingest.failed", extra=extra, exc_info=not foreseen)
            if self._failures < _FAILURES_MAX:
                await self._pause(_FAILED_SECONDS)
            else:
                text = f"it failed {self._failures} times without a commit between them: {said}"
                await self._stay(Stopped("failed", text), ever_longer=not foreseen)

    def _asking(self, now: bool) -> None:
        self._asked_at = time.monotonic() if now else None

    async def _forget(self) -> None:
        """Drop what was read. It is read again."""
        parts, self._parts, self._gathering, self.oldest_ms = self._parts, iter(()), None, None
        close = getattr(parts, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # whatever it is, nothing more is wanted of it
                await self._calls(lambda: self._asked(close))

    def _asked(self, call: Callable[[], _T]) -> _T:
        """What the reader returns."""
        self._asking(True)
        try:
            return call()
        finally:
            self._asking(False)

    async def _pause(self, seconds: float) -> None:
        await self._calls(lambda: self._ending.wait(seconds))

    async def _stay(self, error: Stopped | ReaderStopped, *, ever_longer: bool = True) -> None:
        """Stay stopped until it is time to look whether the split may go on."""
        self.trouble, pause = error, self._pipeline.retry_seconds
        if ever_longer:
            pause = max(min(pause * 2 ** min(self._attempts, 20), _STOPPED_SECONDS_MAX), pause)
            self._attempts += 1
        extra = {"split": self.split, "reason": error.reason, "error": str(error)}
        _log.error("ingest.split_stopped", extra=extra | {"next_attempt_seconds": pause})
        with contextlib.suppress(Exception):  # the next attempt looks at it
            await self._keep()
        await self._pause(pause)

    # Where it goes on

    async def _begin(self) -> None:
        said = await self._says()
        found = where_to_go_on(said.mark, said.note)
        if isinstance(found, Unclear):
            raise Stopped(found.reason, f"{found.text}. {self._way_out()}")
        lacks = [name for name in self._pipeline.keys if name not in said.schema.names]
        if lacks:
            raise Stopped("wrong_columns", f"the table has no columns {lacks}, which are ingest.keys")
        self._settled = said.note is None or said.note.settled
        self._noted_ms = 0 if said.note is None else said.note.at_ms
        self._place = _Place(found, said.schema)
        columns = columns_of(self._pipeline.mode, said.schema)
        self._parts = await self._calls(
            lambda: self._asked(lambda: self._reader.read(self.split, found.token, columns))
        )
        self._gathering = Gathering(
            self._parts,
            token=found.token,
            limits=self._pipeline.flush,
            ending=self._ending,
            one_by_one=self._one_by_one,
            asking=self._asking,
        )

    async def _says(self) -> Said[Progress | None]:
        said = await self._table.says_of_split(self._app_id)
        if said is None and self._pipeline.new_table is not None:
            await self._create(self._pipeline.new_table.schema)
            said = await self._table.says_of_split(self._app_id)
        if said is None:
            raise Stopped(
                "table_missing",
                "there is no table: create it, with client.create(schema) for example, or set ingest.create_from",
            )
        return said

    async def _create(self, schema: pa.Schema | None) -> None:
        """Create the table; with None, from the first rows."""
        if schema is None:
            schema = await self._calls(self._first_columns)
        if schema is None:
            raise Ending
        try:
            await self._table.create(schema)
        except (StagingError, InvalidTransaction, UnsupportedTransaction) as error:
            raise Stopped("table_missing", f"there is no table, and it can't be created: {error}") from error
        _log.info("ingest.table_created", extra={"split": self.split, "columns": schema.names})

    def _first_columns(self) -> pa.Schema | None:
        """The columns of the first rows; None if the process or the split ends before there are any."""
        parts = self._asked(lambda: self._reader.read(self.split, None, None))
        while True:
            try:
                part = self._asked(lambda: next(parts))
            except StopIteration:
                break
            if self._ending.is_set():
                return None
            if part is not None and part.bad:
                raise Stopped("bad_rows", f"there is no table, and the first rows would make it: {part.bad}")
            if part is not None and part.rows is not None:
                schema, _ = rows_of(part.rows.slice(0, 0)).read()
                return schema
        self._ended = True
        return None

    def _way_out(self) -> str:
        return (
            "Find out whether it has them, and then say it: committerd ingest settle SPLIT --rows there (or missing) "
            f"--apply --reason TEXT, with {self.split!r} for SPLIT"
        )

    # One transaction

    async def _next(self) -> bool:
        """Bring one transaction into the table, if something comes; whether there may be more."""
        place, gathering = self._place, self._gathering
        assert place is not None
        assert gathering is not None
        made: list[Written | pa.Table] = []
        making: list[float] = []
        began = time.monotonic()

        def make(rows: pa.RecordBatchReader) -> None:
            making.append(time.monotonic())
            made.append(self._make(place, rows))

        try:
            found = await self._calls(lambda: gathering.take(make))
        except BadRows as error:
            await self._pass_over(place, error)
        except TableMissing as error:
            raise _BeginAgain(str(error)) from error
        if found is None:
            if self._one_by_one:
                raise _ReadAgain  # from now on, tokens share transactions again
            await self._keep()
            self.trouble, self._attempts, self._failures = None, 0, 0
            self._ended = gathering.ended
            return not (self._ended or self._ending.is_set())
        self._figures.took("decode", time.monotonic() - began)
        self.oldest_ms = found.at_ms
        if found.bad:
            await self._look_at(found.bad, place, made)
        took = time.monotonic() - min(making, default=time.monotonic())
        attributes: dict[str, str | int] = {"committerd.app_id": self._app_id, "committerd.rows": found.rows}
        with work_span(f"ingest {self._reader.name}", attributes, ago=took):
            past_span("write", ago=took)
            await self._commit(place, found, made[0] if made else None)
        self._ended = gathering.ended
        return not self._ended

    def _make(self, place: _Place, rows: pa.RecordBatchReader) -> Written | pa.Table:
        """What is committed of the rows: data files, or with upserts and deletes the changes."""
        pipeline = self._pipeline
        if pipeline.mode is Mode.APPEND:
            return self._table.write(rows)
        made = RowChanges(place.schema, mode=pipeline.mode, keys=pipeline.keys, bytes_max=pipeline.buffer_bytes_max)
        return made(rows)

    async def _pass_over(self, place: _Place, bad: BadRows) -> NoReturn:
        if (await self._says()).schema != place.schema:
            raise _ReadAgain  # they may fit the columns that the table has by now
        if self._pipeline.on_error == "stop":
            raise Stopped("bad_rows", f"{bad}. Mend that or the table, or set ingest.on_error to skip")
        await self._put_aside([(bad.origin, BadRow(0, b"", str(bad)))])
        await self._note(place, bad.token, reason=f"committerd ingest passes over: {bad}"[:_REASON_CHARS_MAX])
        self._figures.wrote(records=1, rows=0, bytes=0, bad=1)
        raise _ReadAgain

    async def _look_at(
        self, bad: Sequence[tuple[str, BadRow]], place: _Place, made: Sequence[Written | pa.Table]
    ) -> None:
        """Raise if the rows beside what is bad are not to be committed now."""
        if (await self._says()).schema != place.schema:
            again: Exception = _ReadAgain()  # it may fit the columns that the table has by now
        elif self._pipeline.on_error != "stop":
            return
        elif not self._one_by_one:
            again = OneByOne()
        else:
            origin, row = bad[0]
            why = f"{origin}, {row.number}: {row.why}. Mend that or the table, or set ingest.on_error"
            again = Stopped("bad_rows", why)
        for one in made:
            if isinstance(one, Written):
                await self._table.remove(one)
        raise again

    async def _put_aside(self, bad: Sequence[tuple[str, BadRow]]) -> None:
        """Log what makes no row, and publish it to the topic for bad records, if it is wanted."""
        origin, first = bad[0]
        extra = {"split": self.split, "rows": len(bad), "origin": origin, "number": first.number, "error": first.why}
        _log.warning("ingest.bad_rows", extra=extra)
        if self._pipeline.on_error != "dead-letter":
            return
        by_origin: dict[str, list[BadRecord]] = {}
        for origin, row in bad:
            record = Record(row.number, NO_TIMESTAMP, None, row.value, [])
            by_origin.setdefault(origin, []).append(BadRecord(record, row.why))
        try:
            for origin, records in by_origin.items():
                await self._bad_records.publish(Origin(Partition(origin, 0), ""), records)
        except MessageSizeTooLargeError as error:
            raise Stopped(
                "bad_rows",
                f"a bad row of {origin} is too large for the topic for bad records: {error}. Raise max.message.bytes "
                "of that topic and kafka.max_record_bytes",
            ) from error

    async def _commit(self, place: _Place, found: Gathered, made: Written | pa.Table | None) -> None:
        began = time.monotonic()
        if found.bad:
            try:
                await self._put_aside(found.bad)
            except Exception:  # the rows were not staged
                if isinstance(made, Written):
                    await self._table.remove(made)
                raise
        if made is None:
            await self._note(place, found.token)
        else:
            await self._plan_and_rows(place, found.token, made)
        self.trouble, self._attempts, self.oldest_ms = None, 0, None
        self._figures.took("commit", time.monotonic() - began)
        if found.at_ms is not None:
            self._figures.fresh(max(now_ms() - found.at_ms, 0) / 1000)
        bad = len(found.bad)
        self._figures.wrote(records=found.rows + bad, rows=found.rows, bytes=found.bytes, bad=bad)

    async def _plan_and_rows(self, place: _Place, token: str | None, made: Written | pa.Table) -> None:
        note = self._progress(place, place.at.token, token)
        try:
            await self._write_note(place, note)
        except Exception:  # the rows were not staged
            if isinstance(made, Written):
                await self._table.remove(made)
            raise
        if await self._unit(self._put(made, note, App(self._app_id, note.plan + 1, "", note.plan))):
            mark = (await self._says()).mark
            if mark is None or mark.version != note.plan + 1:
                raise _BeginAgain("another process works on the split")
        self._moved(place, token, note.plan + 1, settled=False)

    async def _put(self, made: Written | pa.Table, note: Progress, unit: App) -> bool:
        if isinstance(made, Written):
            return await self._table.commit(made, unit)
        there = await self._table.change(made, unit, self._pipeline.keys)
        return await self._table.write_note(self._app_id, note, unit) if there is None else there

    async def _keep(self, *, unsettled_seconds: float = _SETTLED_SECONDS) -> None:
        """Settle a split that was quiet for so long, or renew its note, so that its mark is not missed when it is
        forgotten."""
        place, quiet = self._place, (now_ms() - self._noted_ms) / 1000
        if place is not None and place.at.mark and quiet >= (_NOTE_SECONDS if self._settled else unsettled_seconds):
            await self._note(place, place.at.token)

    async def _note(self, place: _Place, token: str | None, *, reason: str = "") -> None:
        """Say that the split goes on at this token, without rows."""
        await self._write_note(place, self._progress(place, token, token), reason=reason)
        self._moved(place, token, place.at.plan, settled=True)

    async def _write_note(self, place: _Place, note: Progress, *, reason: str = "") -> None:
        unit = App(self._app_id, note.plan, "", place.at.mark)
        if await self._unit(self._table.write_note(self._app_id, note, unit, reason=reason)):
            said = await self._says()
            if said.note != note or said.mark is None or said.mark.version != note.plan:
                raise _BeginAgain("another process works on the split")

    def _progress(self, place: _Place, before: str | None, after: str | None) -> Progress:
        self._notes += 1
        return Progress(
            plan=place.at.plan,
            before=before,
            after=after,
            at_ms=now_ms(),
            of=f"{self._reader.name} {self.split}",
            by=f"{self._by}-{self._notes}",
        )

    async def _unit(self, commit: Awaitable[bool]) -> bool:
        """The result of a commit. Raises `Stopped` if the committer will never take it."""
        try:
            return await commit
        except (InvalidTransaction, UnsupportedTransaction) as error:
            raise Stopped("refused", f"the committer refuses the transaction: {error}") from error
        except RetryableConflict as error:
            if error.code != MARK_MOVED:
                raise
            raise _BeginAgain("another process works on the split") from error

    def _moved(self, place: _Place, token: str | None, mark: int, *, settled: bool) -> None:
        self._place = _Place(GoOn(token, mark), place.schema)
        self._failures = 0
        self._settled, self._noted_ms = settled, now_ms()
