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
from committerd_client.data import rows_of
from committerd_client.errors import StagingError
from committerd_ingest.progress import Unclear, app_id_of_split, where_to_go_on
from committerd_ingest.reading import Part, ReaderStopped

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
            parts = reader.read(split, None if found is None else found.token, schema)
            rows, wrong = await asyncio.to_thread(_show, split, parts, schema, _SHOWN_MAX - count)
            count, bad = count + rows, bad + wrong
            if count >= _SHOWN_MAX:
                break
    except ReaderStopped as error:
        raise SettingsError(str(error)) from error
    finally:
        await asyncio.to_thread(reader.close)
    click.echo(f"{count} rows were read; {bad} parts are bad. Nothing was written.")


def _show(split: str, parts: Iterator[Part | None], schema: pa.Schema | None, most: int) -> tuple[int, int]:
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
        elif part.rows is not None:
            try:
                target, batches = rows_of(part.rows.slice(0, most - count)).read(schema)
                rows = pa.Table.from_batches(batches, target)
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
