"""`committerd append`: appends files to a table, through its queue."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import click

from committerd.commands.append.sources import FORMATS, sources
from committerd.commands.lance_options import ClientAccess, client_access, client_options
from committerd.commands.options import branch_option, config_option, json_option, settings
from committerd.commands.system import open_place, stores_of
from committerd.daemon.tracing import traced_clients
from committerd.errors import SettingsError
from committerd.kafka.options import topics_of
from committerd.settings.load import Settings
from committerd.table.versions import Table
from committerd_client import SyncCommitClient
from committerd_client.table_location import table_location
from committerd_common.extras import install_line

if TYPE_CHECKING:
    from committerd.commands.append.loading import AppendResult

_PRODUCER = "committerd-append"
_STEPS = 1000
"""Steps of the progress bar for each file."""
_JOB = re.compile(r"[A-Za-z0-9._-]{1,128}")


@click.command()
@click.argument("uri")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--create", is_flag=True, help="Create the table with the first file if it does not exist.")
@click.option(
    "--format",
    "chosen",
    type=click.Choice(FORMATS),
    help="Format of all files; by default that of their names (.parquet, .arrow, .feather, .csv, .jsonl, .ndjson, "
    ".json, .lance; .csv and JSON lines also with .gz, .bz2 or .zst).",
)
@click.option(
    "--name",
    help="Name of the dataset. By default the name in the settings if their table is at URI, else the last part of URI "
    "without .lance.",
)
@click.option(
    "--job",
    help="Name of this job, with A-Z a-z 0-9 . _ -. The table records the files of a job, and each is appended once, "
    "in whatever order and company they are given.",
)
@click.option(
    "--null",
    "nulls",
    multiple=True,
    help="In CSV, a text without quotes that means null, such as NA; may be given several times. An empty field "
    "without quotes is always null.",
)
@click.option(
    "--undecided",
    type=click.Choice(("appended", "missing")),
    help="What to take files for that an earlier run of the job may have appended, where nothing shows it any more.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait for the outcome of each file.",
)
@config_option
@branch_option
@json_option
def append(
    uri: str,
    files: Sequence[str],
    create: bool,
    chosen: str | None,
    name: str | None,
    job: str | None,
    nulls: tuple[str, ...],
    undecided: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Append files to the table at URI, through its queue: Parquet, Arrow (IPC), CSV with a header, JSON lines, or
    Lance tables. FILE is a file or a folder of files, or the URI of either in S3, Azure Blob Storage or Google Cloud
    Storage, where `*` stands for any characters of a name.

    Each file is one transaction, in the order given. All schemas are checked first. If a file fails later, the files
    before it are in the table. Columns match by name, and have the types of the table: a value that does not fit is an
    error. The settings are the settings of `committerd run`, except the dataset.

    Needs pylance (extra `lance`).
    """
    if find_spec("lance") is None:
        raise SettingsError(f"`committerd append` needs pylance: {install_line('lance')}")
    if job is not None and not _JOB.fullmatch(job):
        raise click.BadParameter(f"{job!r} is not a name of 1 to 128 of A-Z a-z 0-9 . _ -", param_hint="--job")
    from committerd.commands.append.loading import Loader  # needs pylance

    configured = settings(uri, name)
    topics_of(configured.kafka, configured.dataset.queue)  # raises for a name that Kafka does not allow
    anyio.run(_require_store, configured)
    access = client_access(configured)
    found = sources(files, chosen=chosen, settings=configured, storage_options=access.storage_options)
    done: list[AppendResult] = []
    try:
        with (
            traced_clients(os.environ, _PRODUCER),
            _client(configured, access, timeout) as client,
            _progress(len(found)) as advance,
        ):
            loader = Loader(
                client=client,
                place=table_location(
                    configured.dataset.place, access.storage_options, branch=configured.dataset.branch
                ),
                create=create,
                nulls=nulls,
                assume=undecided,
                # The last tenth is for the commit.
                on_read=lambda number, share: advance(number * _STEPS + round(share * 0.9 * _STEPS)),
            )
            for number, one in enumerate(loader.load(found, job), start=1):
                done.append(one)
                advance(_STEPS * number)
                if not as_json and not _on_terminal():
                    click.echo(_line(one))
    finally:
        if as_json:
            click.echo(
                json.dumps(
                    {
                        "uri": configured.dataset.place,
                        "rows": sum(one.rows for one in done),
                        "files": list(map(asdict, done)),
                    }
                )
            )
        elif _on_terminal():
            for one in done:
                click.echo(_line(one))


async def _require_store(configured: Settings) -> None:
    """Ask the table's store: pylance, which asks it later, does so in silence, and raises anything."""
    async with stores_of(configured) as stores:
        await Table(await open_place(stores, configured.dataset)).latest_version()


def _client(configured: Settings, access: ClientAccess, timeout: float) -> SyncCommitClient:
    return SyncCommitClient(
        configured.kafka.bootstrap_servers,
        client_id="committerd-append",
        timeout=timeout,
        **client_options(configured, access, producer=_PRODUCER),
    )


def _line(one: AppendResult) -> str:
    version = "" if one.version is None else f" in version {one.version}"
    if one.duplicate:
        return f"{one.file}: appended by this job before{version and ',' + version}"
    return f"{one.file}: {one.rows:,} rows{version}"


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
