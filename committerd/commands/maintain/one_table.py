"""The work on one table of `committerd maintain`, with all that it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from committerd.commands.lance_options import ClientAccess, client_access, client_options
from committerd.commands.maintain.committer_share import CommitterShare
from committerd.commands.maintain.failed_work import FailedWorkOfTable
from committerd.commands.maintain.loop import MaintenanceLoop, Stop, Turns
from committerd.commands.maintain.reporter import Reporter
from committerd.commands.maintain.rewriting import Rewriter
from committerd.commands.maintain.topic import OperatorsTopic
from committerd.commands.system import open_place, wall_clock
from committerd.kafka.operator import open_operator
from committerd.maintenance.cleaning import Cleanup, Policy
from committerd.settings.load import Settings
from committerd.stores.open import Stores
from committerd.table.versions import Table
from committerd.telemetry import MaintenanceTelemetry
from committerd_client import CommitClient
from committerd_common.branches import branch_uri

PRODUCER = "committerd-maintain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the tables of a process have in common."""

    stop: Stop
    turns: Turns
    hour_ms: int
    """Length of an hour by which ages count."""
    commits: bool
    """Whether anything is committed; otherwise the client stays closed."""


@asynccontextmanager
async def opened(
    configured: Settings, stores: Stores, reporter: Reporter, telemetry: MaintenanceTelemetry, *, shared: Shared
) -> AsyncIterator[MaintenanceLoop]:
    """Open what the work on this table needs, for as long as the block runs.

    Raises what opening raises: `RefusedToRun` (`branch_missing`), `SettingsError`, and the errors of Kafka.
    """
    async with AsyncExitStack() as stack:
        table = Table(await open_place(stores, configured.dataset))
        operator = await stack.enter_async_context(open_operator(configured.kafka, configured.dataset.queue))
        access = client_access(configured)
        client = _client(configured, access)
        share = CommitterShare(client, configured.maintain.committer_share, telemetry)
        cleaning = Cleanup(
            table,
            OperatorsTopic(operator),
            policy_of(configured, hour_ms=shared.hour_ms),
            wall_clock=wall_clock,
            open_branch=lambda branch: stores.open(branch_uri(configured.dataset.uri, branch)),
            branch=configured.dataset.branch,
            note=reporter.deletes,
            passes_over=reporter.passes_over,
            progress=reporter.deleted,
            reads=reporter.reads,
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
            exists=partial(exists, table),
            share=share,
            telemetry=telemetry,
            wall_clock=wall_clock,
            stop=shared.stop,
            turns=shared.turns,
        )
        if shared.commits:
            await stack.enter_async_context(client)
        yield loop


async def is_there(configured: Settings, stores: Stores) -> bool:
    """Whether there is a table. Raises as `opened` does."""
    return await exists(Table(await open_place(stores, configured.dataset)))


async def exists(table: Table) -> bool:
    """Whether there is a table."""
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
    return CommitClient(
        configured.kafka.bootstrap_servers,
        client_id="committerd-maintain",
        **client_options(configured, access, producer=PRODUCER),
    )
