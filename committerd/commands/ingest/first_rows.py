"""Shows what the first rows of a reader make of a table, and writes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import click
import pyarrow as pa

from committerd.commands.ingest.parts import client_of, reader_of, reader_pipeline_of, reading_table, table_of
from committerd.commands.lance_options import client_access
from committerd.commands.system import monotonic
from committerd.errors import SettingsError
from committerd.settings.load import Settings
from committerd_batch.target import Mode
from committerd_client.data import rows_of
from committerd_client.errors import StagingError
from committerd_ingest.progress import Unclear, app_id_of_split, where_to_go_on
from committerd_ingest.reading import Part, ReaderStopped
from committerd_ingest.row_changes import RowChanges, columns_of
from committerd_ingest.settings import ReaderPipeline

_SHOWN_MAX = 100
_SECONDS_MAX = 20.0


async def show_first_rows(configured: Settings) -> None:
    """Print the columns of the table, and up to 100 rows that come next. Raises `SettingsError`."""
    pipeline, access = reader_pipeline_of(configured), client_access(configured)
    table = table_of(configured, access, client_of(configured, access))
    reader = reader_of(configured, access)
    count = bad = 0
    try:
        for split in await asyncio.to_thread(reader.splits):
            with reading_table(configured):
                said = await table.says_of_split(app_id_of_split(pipeline.name, reader.name, split))
            if said is None and pipeline.new_table is None:
                raise SettingsError(f"there is no table at {configured.dataset.place}: create it first")
            schema = pipeline.new_table.schema if said is None and pipeline.new_table else said and said.schema
            found = where_to_go_on(said.mark, said.note) if said is not None else None
            if isinstance(found, Unclear):
                click.echo(f"{split} is stopped: {found.text}")
                continue
            columns = None if schema is None else columns_of(pipeline.mode, schema)
            parts = reader.read(split, None if found is None else found.token, columns)
            rows, wrong = await asyncio.to_thread(_show, split, parts, pipeline, schema, most=_SHOWN_MAX - count)
            count, bad = count + rows, bad + wrong
            if count >= _SHOWN_MAX:
                break
    except ReaderStopped as error:
        raise SettingsError(str(error)) from error
    finally:
        await asyncio.to_thread(reader.close)
    click.echo(f"{count} rows were read; {bad} parts are bad. Nothing was written.")


def _show(
    split: str, parts: Iterator[Part | None], pipeline: ReaderPipeline, schema: pa.Schema | None, *, most: int
) -> tuple[int, int]:
    """Print the next rows, until no more wait; returns how many, and how many parts are bad."""
    count = bad = 0
    until = monotonic() + _SECONDS_MAX
    for part in parts:
        if part is None:
            if count or bad or monotonic() > until:
                break
            continue
        if part.bad:
            click.echo(f"{split} is bad: {part.bad}")
            bad += 1
            continue
        for one in part.bad_rows:
            click.echo(f"{part.origin or split}, {one.number} is bad: {one.why}")
            bad += 1
        if part.rows is not None:
            try:
                rows = _made(part.rows.slice(0, most - count), pipeline, schema)
            except StagingError as error:
                click.echo(f"{split} is bad: {part.origin}: {error}")
                bad += 1
                continue
            for row in rows.to_pylist():
                click.echo(f"{part.origin or split}: {json.dumps(row, default=str, ensure_ascii=False)}")
            count += rows.num_rows
        if count >= most:
            break
    return count, bad


def _made(given: pa.Table | pa.RecordBatch, pipeline: ReaderPipeline, schema: pa.Schema | None) -> pa.Table:
    """The rows with the types of the table; with upserts and deletes, the changes. Raises `StagingError`."""
    if schema is None or pipeline.mode is Mode.APPEND:
        target, batches = rows_of(given).read(schema)
        return pa.Table.from_batches(batches, target)
    changes = RowChanges(schema, mode=pipeline.mode, keys=pipeline.keys, bytes_max=pipeline.buffer_bytes_max)
    return changes(rows_of(given).open({}, True))
