"""The table that a pipeline writes to: what it says of a partition, and the transactions of a partition."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from committerd_batch.target import Mode, SchemaMode, Target
from committerd_client import CommitClient, staging
from committerd_client.app_marks import AppMark, mark_in
from committerd_client.errors import RetryableConflict
from committerd_client.headers import App
from committerd_client.panics import panics_raised
from committerd_client.reexecution import Reexecution
from committerd_client.staging.transactions import read_table
from committerd_client.table_location import TableLocation
from committerd_ingest.marks import NOTE_PREFIX, Note, note_in


@dataclass(frozen=True, slots=True)
class Said:
    """What a version of the table says of a partition."""

    schema: pa.Schema
    mark: AppMark | None
    note: Note | None


class Table:
    """Reads with pylance, and commits through the queue."""

    def __init__(self, place: TableLocation, client: CommitClient, *, timeout: float) -> None:
        """`timeout`: seconds for each commit."""
        self._place, self._client, self._timeout = place, client, timeout

    async def says(self, app_id: str) -> Said | None:
        """What the latest version says of a partition; None if there is no table.

        Raises `ValueError`, and what pylance raises.
        """
        return await asyncio.to_thread(self._says, app_id)

    def _says(self, app_id: str) -> Said | None:
        with panics_raised():
            dataset = self._place.find()
            if dataset is None:
                return None
            metadata = read_table(dataset).manifest.table_metadata
            return Said(dataset.schema, mark_in(metadata, app_id), note_in(metadata, app_id))

    async def append(self, rows: pa.Table, unit: App) -> bool:
        """Write the rows as data files, and commit them as this unit; whether the mark was there or beyond it already.

        Raises the errors of `CommitClient.append`.
        """
        return (await self._client.append(rows, app=unit, timeout=self._timeout)).duplicate

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

    async def write_note(self, app_id: str, note: Note, unit: App | None, *, reason: str = "") -> bool:
        """Commit a note; with a unit, that moves the mark too. Returns and raises what `append` does.

        `reason`: why, which the version keeps.
        """

        def stage() -> Any:
            properties = {"__lance_commit_message": reason} if reason else None
            entry = {NOTE_PREFIX + app_id: note.text()}
            with panics_raised():
                return staging.update_config(self._place.open(), table_metadata=entry, properties=properties)

        staged = await asyncio.to_thread(stage)
        return (await self._client.commit(staged, app=unit, timeout=self._timeout)).duplicate


def now_ms() -> int:
    """Unix milliseconds."""
    return int(time.time() * 1000)
