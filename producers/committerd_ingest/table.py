"""The table that a pipeline writes to: what it says of a partition, and the transactions of a partition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from committerd_batch.committing import remove_files
from committerd_batch.errors import TableChanged
from committerd_batch.gathering import BatchFiles, gather, stage
from committerd_batch.target import Mode, SchemaMode, Target
from committerd_client import CommitClient, staging
from committerd_client.app_marks import AppMark, mark_in
from committerd_client.changes import Append
from committerd_client.data import rows_of
from committerd_client.errors import InvalidTransaction, NotCommitted, RetryableConflict, UnsupportedTransaction
from committerd_client.headers import App, StagedChange
from committerd_client.panics import panics_raised
from committerd_client.reexecution import Reexecution
from committerd_client.staging.transactions import read_table
from committerd_client.table_location import TableLocation
from committerd_client.tracing import work_span
from committerd_ingest.keyed import OP, ORDER
from committerd_ingest.marks import NOTE_PREFIX, Note, note_in
from committerd_ingest.progress import Progress, progress_in
from committerd_ingest.replays import Replays, replays_in

if TYPE_CHECKING:
    import lance

_T = TypeVar("_T")
_Note = TypeVar("_Note")

_LOOKS_MAX = 4
"""Threads that read what a table says, so that a store that does not respond leaves threads to other tables."""


@dataclass(frozen=True, slots=True)
class Said(Generic[_Note]):
    """What a version of the table says of an application: a partition, a split of a reader, or replays."""

    at: lance.LanceDataset
    """The version."""
    schema: pa.Schema
    mark: AppMark | None
    note: _Note


@dataclass(frozen=True, slots=True)
class Written:
    """Rows in data files, which no version names yet."""

    change: Append
    staged: StagedChange

    @property
    def rows(self) -> int:
        return self.staged.inserted


class Table:
    """Reads with pylance, and commits through the queue."""

    def __init__(self, place: TableLocation, client: CommitClient, *, timeout: float) -> None:
        """`timeout`: seconds for each commit."""
        self._place, self._client, self._timeout = place, client, timeout
        self._looks = asyncio.Semaphore(_LOOKS_MAX)
        self.opened: lance.LanceDataset | None = None
        """The version that a look found last: what can be done for it need not wait for the next look."""

    async def says(self, app_id: str) -> Said[Note | None] | None:
        """What the latest version says of a partition; None if there is no table.

        Raises `ValueError`, and what pylance raises.
        """
        return await self._says(app_id, note_in)

    async def says_of_split(self, app_id: str) -> Said[Progress | None] | None:
        """What the latest version says of a split. Returns and raises what `says` does."""
        return await self._says(app_id, progress_in)

    async def says_of_replays(self, app_id: str) -> Said[Replays] | None:
        """What the latest version says of replays. Returns and raises what `says` does."""
        return await self._says(app_id, replays_in)

    async def _says(self, app_id: str, read: Callable[[Mapping[str, str], str], _Note]) -> Said[_Note] | None:
        """`read`: finds the application's note in the table's metadata."""

        def look() -> Said[_Note] | None:
            with panics_raised():
                dataset = self.opened = self._place.find()
                if dataset is None:
                    return None
                metadata = read_table(dataset).manifest.table_metadata
                return Said(dataset, dataset.schema, mark_in(metadata, app_id), read(metadata, app_id))

        return await self._look(look)

    async def _look(self, look: Callable[[], _T]) -> _T:
        async with self._looks:
            return await asyncio.to_thread(look)

    async def values(self, column: str, where: str) -> list[Any]:
        """The values of a column in the rows for which a filter of SQL holds. Raises what pylance raises."""

        def look() -> list[Any]:
            with panics_raised():
                return list(self._place.open().to_table(columns=[column], filter=where)[column].to_pylist())

        return await self._look(look)

    def write(self, rows: pa.Table | pa.RecordBatchReader, *, at: lance.LanceDataset | None = None) -> Written:
        """Write rows as data files while they are read, so that they need not be in memory together. It blocks.

        `at`: the version for which the files are written; None = the latest. Raises `StagingError` for rows that do not
        fit the table, and what the reader raises.
        """
        change = Append(place=self._place, rows=rows_of(rows), at=at)
        with panics_raised():
            return Written(change, change())

    def moved(self, written: Written, at: lance.LanceDataset) -> Written | None:
        """The same files for another version; None if it has other columns, and the files do not fit it.

        Reads nothing from the store, but blocks for as long as it takes to decode a manifest. Raises what `read_table`
        raises.
        """
        staged = written.change.with_written_files(at)
        return None if staged is None else Written(replace(written.change, at=at), staged)

    async def commit(self, written: Written, unit: App) -> bool:
        """Commit written rows as this unit; whether the mark was there or beyond it already.

        Raises the errors of `CommitClient.commit`; refused files are removed.
        """

        def work(refused: Reexecution | None = None) -> Any:
            with panics_raised():
                return written.change(refused)

        try:
            with work_span("commit"):
                result = await self._client.commit(written.staged, app=unit, reexecute=work, timeout=self._timeout)
        except NotCommitted as error:
            if not isinstance(error, InvalidTransaction | UnsupportedTransaction):  # an operator may replay those
                await self.remove(written)
            raise
        return bool(result.duplicate)

    async def remove(self, written: Written) -> None:
        """Remove the files of rows that were not committed, and never will be."""
        target = Target(uri=self._place.uri, branch=self._place.branch, storage_options=self._place.options)
        names = {file.path for one in written.staged.transaction.append.fragments for file in one.files}
        await asyncio.to_thread(remove_files, target, names)

    async def append(self, rows: pa.Table, unit: App) -> bool:
        """Write the rows as data files, and commit them as this unit, unless the mark is there or beyond it already.

        Returns whether it was. Raises the errors of `CommitClient.append`.
        """
        return (await self._client.append(rows, app=unit, timeout=self._timeout)).duplicate

    async def change(self, rows: pa.Table, unit: App, keys: Sequence[str]) -> bool | None:
        """Commit changes of rows by their keys (`keyed`) as this unit, as the writer for Spark does in its mode `cdc`.

        Returns what `commit` does; None if they change nothing, and nothing was committed. Raises `BatchWriteError`,
        and the errors of `CommitClient.commit`.
        """
        target = Target(
            uri=self._place.uri,
            branch=self._place.branch,
            storage_options=self._place.options,
            keys=tuple(keys),
            op_column=OP,
            order_by=(ORDER,),
            schema_mode=SchemaMode.MERGE,  # a column that was added since the rows were made is null
        )

        def gathered() -> BatchFiles:
            with panics_raised(), work_span("write"):
                plan = target.plan(rows.schema, Mode.CDC, self._place.open())
                return gather(plan, [plan.task(rows.to_batches())])

        files = await asyncio.to_thread(gathered)
        names = set(files.file_names)

        def work(refused: Reexecution | None = None) -> Any:
            with panics_raised():
                staged = stage(files, self._place.open(), refused)
            if staged is not None:
                names.update(file.path for one in staged.transaction.update.new_fragments for file in one.files)
            return staged

        try:
            staged = await asyncio.to_thread(work)
            if staged is not None:
                with work_span("commit"):
                    result = await self._client.commit(staged, app=unit, reexecute=work, timeout=self._timeout)
                return bool(result.duplicate)
        except NotCommitted as error:
            if not isinstance(error, InvalidTransaction | UnsupportedTransaction):  # an operator may replay those
                await asyncio.to_thread(remove_files, target, names)
            raise
        except TableChanged:
            await asyncio.to_thread(remove_files, target, names)
            raise
        await asyncio.to_thread(remove_files, target, names)
        return None

    async def create(self, schema: pa.Schema) -> None:
        """Create the table, unless somebody else has. Raises the errors of `CommitClient.create`."""
        await self._client.create(schema, exist_ok=True, timeout=self._timeout)

    async def add_columns(self, wanted: pa.Schema) -> None:
        """Add those of these columns that the table does not have, nullable, as the writer for Spark does.

        Raises `StagingError` if the table can't have one of them, and the errors of `CommitClient.commit`.
        """
        target = Target(uri=self._place.uri, schema_mode=SchemaMode.MERGE)

        def stage(_: Reexecution | None = None) -> Any:
            with panics_raised():
                dataset = self._place.open()
                new = target.new_columns(wanted, Mode.APPEND, dataset)
                return None if new is None else staging.add_columns(dataset, new)

        staged = await asyncio.to_thread(stage)
        if staged is None:
            return
        try:
            await self._client.commit(staged, reexecute=stage, timeout=self._timeout)
        except RetryableConflict:
            if await asyncio.to_thread(stage) is not None:  # otherwise somebody else has added them
                raise

    async def write_note(
        self, app_id: str, note: Note | Progress | Replays, unit: App | None, *, reason: str = ""
    ) -> bool:
        """Commit a note; with a unit, that moves the mark too. Returns and raises what `commit` does.

        `reason`: why, which the version keeps.
        """

        def stage() -> Any:
            properties = {"__lance_commit_message": reason} if reason else None
            entry = {NOTE_PREFIX + app_id: note.text()}
            with panics_raised():
                return staging.update_config(self._place.open(), table_metadata=entry, properties=properties)

        staged = await asyncio.to_thread(stage)
        with work_span("commit"):
            return (await self._client.commit(staged, app=unit, timeout=self._timeout)).duplicate


def now_ms() -> int:
    """Unix milliseconds."""
    return int(time.time() * 1000)
