"""`committerd append`: appends files to a table, through its queue."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec

import click

from committerd.commands.lance_options import client_access
from committerd.commands.options import config_option, json_option
from committerd.commands.source_files import FORMATS, SourceFile, format_of
from committerd.errors import SettingsError
from committerd.kafka.options import topics_of
from committerd.settings.load import Settings, load_settings
from committerd_client import SyncCommitClient
from committerd_common.extras import install_line
from committerd_common.uris import canonical_uri, queue_name

_STEPS = 1000
"""Steps of the progress bar for each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Appended:
    file: str
    rows: int
    version: int | None
    duplicate: bool
    """Whether this job had appended the file before."""


@click.command()
@click.argument("uri")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--create", is_flag=True, help="Create the table with the first file if it does not exist.")
@click.option(
    "--format",
    "chosen",
    type=click.Choice(FORMATS),
    help="Format of all files; by default that of their names (.parquet, .arrow, .feather, .csv, .lance).",
)
@click.option("--name", help="Name of the dataset. By default the last part of URI without .lance.")
@click.option(
    "--job",
    help="Name of this job: files that it has appended are not appended again if the same command is repeated.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait for the outcome of each file.",
)
@config_option
@json_option
def append(
    uri: str,
    files: Sequence[str],
    create: bool,
    chosen: str | None,
    name: str | None,
    job: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Append files to the table at URI, through its queue: Parquet, Arrow (IPC), CSV with a header, or Lance tables.

    Each file is one transaction, in the order given; files before one that fails are in the table. Columns match by
    name, and values are cast to the table's types. The settings are those of `committerd run`, except the dataset.

    Needs pylance (extra `lance`).
    """
    if find_spec("lance") is None:
        raise SettingsError(f"`committerd append` needs pylance: {install_line('lance')}")
    uri = uri if "://" in canonical_uri(uri) else os.path.abspath(canonical_uri(uri))
    sources = [SourceFile(file, chosen or format_of(file)) for file in files]
    configured = load_settings(dataset={"name": name or queue_name(uri), "uri": uri})
    topics_of(configured.kafka, configured.dataset.name)  # raises for a name that Kafka does not allow
    done: list[_Appended] = []
    try:
        with _client(configured, timeout) as client, _progress(len(sources)) as advance:
            for number, source in enumerate(sources, start=1):
                source.on_read = partial(_advance_within, advance, number - 1)
                app = None if job is None else (job, number)
                result = client.append(source, create=create, app=app)
                found = _Appended(
                    file=source.path, rows=result.num_inserted_rows, version=result.version, duplicate=result.duplicate
                )
                done.append(found)
                advance(_STEPS * number)
                if not as_json and not _on_terminal():
                    click.echo(_line(found))
    finally:
        if as_json:
            click.echo(
                json.dumps({"uri": uri, "rows": sum(one.rows for one in done), "files": list(map(asdict, done))})
            )
        elif _on_terminal():
            for one in done:
                click.echo(_line(one))


def _advance_within(advance: Callable[[int], None], files: int, share: float) -> None:
    """Note how much of a file is read. `files`: whole files before it. The last tenth is for its commit."""
    advance(files * _STEPS + round(share * 0.9 * _STEPS))


def _client(configured: Settings, timeout: float) -> SyncCommitClient:
    access = client_access(configured)
    return SyncCommitClient(
        configured.kafka.bootstrap_servers,
        dataset=configured.dataset.name,
        topic_prefix=configured.kafka.topic_prefix,
        group_prefix=configured.kafka.group_prefix,
        dataset_uri=configured.dataset.uri,
        storage_options=access.storage_options,
        producer="committerd-append",
        client_id="committerd-append",
        timeout=timeout,
        kafka_options=access.kafka_options,
    )


def _line(one: _Appended) -> str:
    version = f"version {one.version}"
    return (
        f"{one.file}: appended by this job before, in {version}"
        if one.duplicate
        else f"{one.file}: {one.rows:,} rows in {version}"
    )


def _on_terminal() -> bool:
    return sys.stderr.isatty() and sys.stdout.isatty()


@contextmanager
def _progress(files: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal, and nothing elsewhere; yields a function that takes the steps done so far."""
    if not _on_terminal():
        yield lambda _: None
        return
    with click.progressbar(length=files * _STEPS, label="appending", file=sys.stderr) as bar:
        yield lambda steps: bar.update(max(steps - bar.pos, 0))
