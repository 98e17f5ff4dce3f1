"""`committerd maintain`: keeps tables fit for reading."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from importlib.util import find_spec

import anyio
import click
from prometheus_client import CollectorRegistry, disable_created_metrics

from committerd.commands.maintain.loop import Stop, Turns
from committerd.commands.maintain.many import Tables
from committerd.commands.maintain.one_table import PRODUCER, Shared
from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    served,
    settings,
    table_argument,
)
from committerd.daemon import logs
from committerd.daemon.producers_file import producer_of_command
from committerd.daemon.tracing import traced_clients
from committerd.errors import SettingsError
from committerd.kafka.options import topics_of
from committerd.lance.format.kind import Kind
from committerd.settings.load import ServedDatasets, Settings, of_one
from committerd.telemetry import MaintenanceMetrics
from committerd_common.extras import install_line

HOUR_MS = 3_600_000
TABLES = 2


@click.command()
@table_argument
@click.option("--once", is_flag=True, help="Do what there is to do now, and end.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be done and why, without changing data or versions. Implies --once. Writes one empty object, "
    "_maintenance/clock, and so needs write access.",
)
@click.option(
    "--tables",
    type=click.IntRange(min=1),
    default=TABLES,
    show_default=True,
    help="Of many datasets in the settings: how many tables are rewritten at once, and how many are cleaned up. Each "
    "takes memory of its own.",
)
@config_option
@dataset_option
@branch_option
@json_option
def maintain(uri: str | None, name: str | None, *, as_json: bool, dry_run: bool, once: bool, tables: int) -> None:
    """Keep tables fit for reading until SIGTERM: the table at URI, or else those of the settings.

    Rewrites small fragments, and fragments with many deleted rows, together, keeps indices up to date, and deletes old
    versions and files that nothing names. Every change goes through the queue, as a producer's does. The settings are
    those of group `maintain`; `committerd run --help` lists them. On SIGTERM it finishes the running tasks and exits.
    It may be killed at any moment, and run twice.

    Where the settings name many datasets, what fails for one of them is reported and tried again, and the others go on.
    With --once the exit code is 1 if anything failed for any of them.

    Port 9464 (http.port) serves /metrics, except with --once or --dry-run.

    Needs pylance (extra `lance`).
    """
    found = served() if uri is None and name is None else of_one(settings(uri, name))
    sys.exit(0 if run(found, as_json=as_json, dry_run=dry_run, once=once, tables=tables) else 1)


def run(
    found: ServedDatasets, *, as_json: bool, dry_run: bool, once: bool, tables: int = TABLES, hour_ms: int = HOUR_MS
) -> bool:
    """Run the command; whether all of its work succeeded. `hour_ms`: the length of an hour by which ages count."""
    if find_spec("lance") is None:
        raise SettingsError(f"`committerd maintain` needs pylance: {install_line('lance')}")
    for configured in found.datasets.values():
        _check(configured, "" if found.is_one else f"dataset {configured.dataset.queue}: ")
    _check_environment(found)
    if not once and not dry_run:
        logs.configure(found.shared.log.level, found.shared.log.format)
    how = partial(_main, found, as_json=as_json, once=once, dry_run=dry_run, tables=tables, hour_ms=hour_ms)
    with nullcontext() if dry_run else traced_clients(os.environ, PRODUCER):
        return anyio.run(how)


def _check(configured: Settings, where: str) -> None:
    """Raise `SettingsError` for what maintenance can never do."""
    wanted = frozenset({Kind.CREATE_INDEX, Kind.RESERVE_FRAGMENTS, Kind.REWRITE})
    lacks = sorted(wanted - configured.commit.allowed_operations)
    if lacks:
        raise SettingsError(
            f"{where}commit.allowed_operations lacks {' and '.join(lacks)}, which maintenance commits: allow it, or "
            "leave the table without maintenance"
        )
    producer = producer_of_command(configured.commit.producers_file, PRODUCER)
    lacks = [] if producer is None else sorted(wanted - producer.of(wanted))
    if lacks:
        raise SettingsError(
            f"{where}commit.producers_file: the operations of {PRODUCER!r} lack {' and '.join(lacks)}, which "
            "maintenance commits: add them"
        )
    topics_of(configured.kafka, configured.dataset.queue)  # raises for a name that Kafka does not allow


def _check_environment(found: ServedDatasets) -> None:
    """Raise `SettingsError` for datasets that pylance can't reach from one process.

    It takes the AWS profile and the authorities from the environment (`client_access`), which a process has once.
    """
    names: dict[tuple[object, ...], str] = {}
    for queue, one in found.datasets.items():
        key = (one.s3.profile, one.s3.ca_bundle, one.s3.access_key_id is None, one.azure.ca_bundle, one.gcs.ca_bundle)
        names.setdefault(key, queue)
    if len(names) > 1:
        first, second, *_ = names.values()
        raise SettingsError(
            f"datasets {first} and {second} differ in s3.profile, s3.ca_bundle, azure.ca_bundle or gcs.ca_bundle, or "
            "only one of them has s3.access_key_id: one process can't maintain both. Start `committerd maintain "
            "--dataset NAME` for each, or give them settings files of their own"
        )


async def _main(found: ServedDatasets, *, as_json: bool, once: bool, dry_run: bool, tables: int, hour_ms: int) -> bool:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as in `committerd run`
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        stop = await stack.enter_async_context(_stopping())
        shared = Shared(stop=stop, turns=Turns(tables), hour_ms=hour_ms, commits=not dry_run)
        kept = Tables(found, shared, MaintenanceMetrics(registry), stack, as_json=as_json)
        if dry_run:
            return await kept.say()
        return await kept.once(tables) if once else await kept.forever(registry)


@asynccontextmanager
async def _stopping() -> AsyncIterator[Stop]:
    """Set `Stop` at SIGTERM or SIGINT; a second signal ends the process at once."""
    stop = Stop()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:

        async def watch() -> None:
            async for _ in received:
                if stop.wanted:
                    raise KeyboardInterrupt
                stop.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            yield stop
            tasks.cancel_scope.cancel()
