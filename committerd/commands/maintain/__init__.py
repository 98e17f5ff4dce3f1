"""`committerd maintain`: keeps one table fit for reading."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec

import anyio
import click
from prometheus_client import CollectorRegistry, disable_created_metrics

from committerd.commands.lance_options import ClientAccess, client_access
from committerd.commands.maintain.committer_share import CommitterShare
from committerd.commands.maintain.failed_work import FailedWorkOfTable
from committerd.commands.maintain.loop import MaintenanceLoop, Stop
from committerd.commands.maintain.reporter import Reporter
from committerd.commands.maintain.rewriting import Rewriter
from committerd.commands.maintain.topic import OperatorsTopic
from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    settings,
    table_argument,
)
from committerd.commands.system import open_place, stores_of, wall_clock
from committerd.daemon import logs
from committerd.daemon.http import Health, serve
from committerd.daemon.producers_file import producer_of_command
from committerd.errors import SettingsError
from committerd.kafka.operator import open_operator
from committerd.kafka.options import topics_of
from committerd.lance.format.kind import Kind
from committerd.maintenance.cleaning import Cleanup, Policy
from committerd.settings.load import Settings
from committerd.table.versions import Table
from committerd.telemetry import MaintenanceMetrics
from committerd_client import CommitClient
from committerd_common.branches import branch_uri
from committerd_common.extras import install_line

_PRODUCER = "committerd-maintain"
HOUR_MS = 3_600_000
_log = logging.getLogger(__name__)


@click.command()
@table_argument
@click.option("--once", is_flag=True, help="Do what there is to do now, and end.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be done and why, without changing data or versions. Implies --once. Writes one empty object, "
    "_maintenance/clock, and so needs write access.",
)
@config_option
@dataset_option
@branch_option
@json_option
def maintain(uri: str | None, name: str | None, as_json: bool, dry_run: bool, once: bool) -> None:
    """Keep one table fit for reading until SIGTERM: the table at URI, or else the table of the settings.

    Rewrites small fragments, and fragments with many deleted rows, together, keeps indices up to date, and deletes old
    versions and files that nothing names. Every change goes through the queue, as a producer's does. The settings are
    those of group `maintain`; `committerd run --help` lists them. On SIGTERM it finishes the running tasks and exits.
    It may be killed at any moment, and run twice.

    Port 9464 (http.port) serves /metrics, except with --once or --dry-run.

    Needs pylance (extra `lance`).
    """
    sys.exit(0 if run(settings(uri, name), as_json=as_json, dry_run=dry_run, once=once) else 1)


def run(configured: Settings, *, as_json: bool, dry_run: bool, once: bool, hour_ms: int = HOUR_MS) -> bool:
    """Run the command; whether all of its work succeeded. `hour_ms`: the length of an hour by which ages count."""
    if find_spec("lance") is None:
        raise SettingsError(f"`committerd maintain` needs pylance: {install_line('lance')}")
    wanted = frozenset({Kind.CREATE_INDEX, Kind.RESERVE_FRAGMENTS, Kind.REWRITE})
    lacks = sorted(wanted - configured.commit.allowed_operations)
    if lacks:
        raise SettingsError(
            f"commit.allowed_operations lacks {' and '.join(lacks)}, which maintenance commits: allow it, or leave the "
            "table without maintenance"
        )
    producer = producer_of_command(configured.commit.producers_file, _PRODUCER)
    lacks = [] if producer is None else sorted(wanted - producer.of(wanted))
    if lacks:
        raise SettingsError(
            f"commit.producers_file: the operations of {_PRODUCER!r} lack {' and '.join(lacks)}, which maintenance "
            "commits: add them"
        )
    topics_of(configured.kafka, configured.dataset.queue)  # raises for a name that Kafka does not allow
    reporter = Reporter(as_json=as_json, logged=not once and not dry_run)
    if not once and not dry_run:
        logs.configure(configured.log.level, configured.log.format)
    return anyio.run(partial(_main, configured, reporter, once=once, dry_run=dry_run, hour_ms=hour_ms))


async def _main(configured: Settings, reporter: Reporter, *, once: bool, dry_run: bool, hour_ms: int) -> bool:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as in `committerd run`
    registry = CollectorRegistry()
    async with stores_of(configured) as stores, AsyncExitStack() as stack:
        table = Table(await open_place(stores, configured.dataset))
        if (once or dry_run) and not await _exists(table):
            raise SettingsError(
                f"there is no table at {configured.dataset.place}: maintenance begins when somebody has created it. Or "
                "correct dataset.uri"
            )
        operator = await stack.enter_async_context(open_operator(configured.kafka, configured.dataset.queue))
        access, telemetry = client_access(configured), MaintenanceMetrics(registry).of(configured.dataset.queue)
        client = _client(configured, access)
        share = CommitterShare(client, configured.maintain.committer_share, telemetry)
        stop = await stack.enter_async_context(_stopping())
        cleaning = Cleanup(
            table,
            OperatorsTopic(operator),
            policy_of(configured, hour_ms=hour_ms),
            wall_clock=wall_clock,
            open_branch=lambda branch: stores.open(branch_uri(configured.dataset.uri, branch)),
            branch=configured.dataset.branch,
            note=reporter.deletes,
            passes_over=reporter.passes_over,
            progress=reporter.deleted,
        )
        stack.callback(cleaning.close)
        loop = MaintenanceLoop(
            Rewriter(
                share,
                configured.dataset.place,
                access.storage_options,
                configured.maintain,
                failed=FailedWorkOfTable(table.store, wall_clock=wall_clock),
            ),
            cleaning,
            configured.maintain,
            reporter,
            exists=partial(_exists, table),
            share=share,
            telemetry=telemetry,
            wall_clock=wall_clock,
            stop=stop,
        )
        if dry_run:
            return await loop.say()
        await stack.enter_async_context(client)
        if once:
            return await loop.once()
        health = Health(live=lambda: (), ready=lambda: (True, loop.doing))
        address = await stack.enter_async_context(serve(configured.http, registry, health))
        _log.info("http.listening", extra={"url": address.url})
        return await loop.forever()


async def _exists(table: Table) -> bool:
    return await table.latest_version() is not None


def policy_of(settings: Settings, *, hour_ms: int) -> Policy:
    """How long versions and files are kept by these settings, with hours of this length."""
    return Policy(
        keep_ms=int(settings.maintain.keep_hours * hour_ms),
        keep_versions=settings.maintain.keep_versions,
        reclaim_ms=int(settings.maintain.reclaim_hours * hour_ms),
        republish_max=settings.commit.republish_max,
        transaction_bytes_max=settings.commit.transaction_bytes_max,
    )


def _client(configured: Settings, access: ClientAccess) -> CommitClient:
    producer = producer_of_command(configured.commit.producers_file, _PRODUCER)
    return CommitClient(
        configured.kafka.bootstrap_servers,
        dataset=configured.dataset.name,
        topic_prefix=configured.kafka.topic_prefix,
        dataset_uri=configured.dataset.uri,
        branch=configured.dataset.branch,
        storage_options=access.storage_options,
        producer=_PRODUCER,
        producer_key=None if producer is None else producer.key,
        client_id="committerd-maintain",
        kafka_options=access.kafka_options,
    )


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
