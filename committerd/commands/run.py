"""`committerd run`: the daemon."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import click
from anyio.lowlevel import checkpoint
from prometheus_client import CollectorRegistry, disable_created_metrics

from committerd.commands.committing import listening, opened_kafka, pylance_for
from committerd.commands.options import branch_option, config_option, served, settings_help
from committerd.commands.system import Accounts, monotonic, wall_clock
from committerd.daemon import logs
from committerd.daemon import process as daemon
from committerd.daemon.dataset import Dependencies, ProcessMemory
from committerd.daemon.process import Surroundings
from committerd.daemon.producers_file import admission
from committerd.daemon.threads import HeavyThread
from committerd.daemon.tracing import tracing
from committerd.errors import SettingsError
from committerd.kafka.options import topics_of
from committerd.memory import return_large_blocks
from committerd.parts import Parts
from committerd.settings.load import ServedDatasets, Settings
from committerd.stretches import Stretches
from committerd.table.branches import require_branch
from committerd.telemetry import Metrics, Telemetry

_log = logging.getLogger(__name__)

_LARGE_BYTES = 8 * 1024 * 1024
"""Blocks of at least this size go back to the system when they are freed. The C library keeps smaller blocks, such
as those of most manifests: it takes the system a millisecond to provide 8 MiB again.
"""
_SWITCH_SECONDS = 0.0005
"""How long a thread computes, at most, while another one waits for the interpreter: each request to Kafka or a disk has
several such waits. If it is shorter, changing from thread to thread costs more than it saves (docs/decisions/turns.md).
"""


class _WithSettings(click.Command):
    """A command whose help ends with every setting."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text("Settings, from the environment or as group.name in the --config file:")
        formatter.write_paragraph()
        formatter.write(settings_help())


@click.command(cls=_WithSettings)
@config_option
@branch_option
def run() -> None:
    """Commit the staged transactions of one dataset, or of many, until SIGTERM.

    Start as many as you like for the same datasets: for each, one is active, the others stand by and take over. The
    table itself records what was settled, so a committer may be killed at any moment.

    COMMITTERD_DATASET__NAME, COMMITTERD_DATASET__URI (which table) and COMMITTERD_KAFKA__BOOTSTRAP_SERVERS (where
    Kafka is) are required. Many datasets are named in the --config file instead of the first two, each as
    [datasets.NAME] with uri. Port 9464 serves /metrics, /livez and /readyz.
    """
    found = served()
    logs.configure(found.shared.log.level, found.shared.log.format)
    try:
        anyio.run(commit_until_stopped, found)
    except SettingsError:  # the command line prints the message
        raise
    except Exception:
        _log.exception("daemon.crashed")
        raise


def _collect_garbage_rarely() -> None:
    """Raise Python's garbage collection thresholds.

    A backlog is thousands of objects without a cycle, and each collection visits all of them: with Python's defaults
    that is a tenth of the time of a transaction.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def commit_until_stopped(served: ServedDatasets) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    _collect_garbage_rarely()
    return_large_blocks(_LARGE_BYTES)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they add a series to each counter and histogram, and no query needs them
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    work, stretches = HeavyThread(), Stretches()
    parts = Parts(lambda part: metrics.process.part_failures.add(part=part))
    memory = ProcessMemory(served.shared.memory)
    traces = tracing(os.environ)
    async with AsyncExitStack() as stack:
        accounts = Accounts(stack, metrics.process)
        if served.is_one:  # raises for what can never be served, before anything starts
            (only,) = served.datasets.values()
            (await accounts.stores_of(only)).open(only.dataset.place)
            pylance_for(only.dataset.place, only.commit.unknown)
        member = await stack.enter_async_context(opened_kafka(served, parts))

        @asynccontextmanager
        async def open_dataset(configured: Settings, telemetry: Telemetry) -> AsyncIterator[Dependencies]:
            dataset = configured.dataset
            stores = await accounts.stores_of(configured)
            open_store = partial(stores.open, telemetry=telemetry)
            store = open_store(dataset.place)  # raises for an unsupported URI, before connecting to Kafka
            topic = topics_of(configured.kafka, dataset.queue).staged
            admits = admission(configured.commit.producers_file, topic=topic)
            check = partial(require_branch, open_store(dataset.uri), dataset.branch) if dataset.branch else None
            builder = pylance_for(dataset.place, configured.commit.unknown)
            async with builder as pylance, member.serving(dataset.queue) as queue:
                yield Dependencies(
                    store=store,
                    neighbours=stores.neighbours(dataset.place),
                    check_branch=check,
                    queue=queue,
                    member=queue,
                    telemetry=telemetry,
                    wall_clock=wall_clock,
                    monotonic=monotonic,
                    rng=random.Random(),
                    new_uuid=uuid.uuid4,
                    memory=memory,
                    open_store=open_store,
                    admission=admits,
                    work=work,
                    give_way=stretches.of_one(),
                    trace=None if traces is None else traces.of(dataset.queue),
                    pylance=pylance,
                    events=queue if configured.kafka.change_events else None,
                )

        await daemon.run(
            served,
            Surroundings(
                open_dataset=open_dataset,
                metrics=metrics,
                serve=listening(served.shared.http, registry),
                wall_clock=wall_clock,
                monotonic=monotonic,
                parts=parts,
                handed_over=member.handed_over,
                drained=checkpoint if traces is None else traces.close,
            ),
        )
