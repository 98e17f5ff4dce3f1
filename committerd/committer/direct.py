"""Commits one transaction directly to a table, without a queue: for tests, repair and conformance.

It judges, builds and commits as the queue's committer does. It adds no queue entries, and keeps the position and marks
that the table has, as every other writer does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from committerd.committer.containing import require_contained
from committerd.errors import CommitterError
from committerd.lance.conflicts.grid import VersionVerdict
from committerd.queue.dedupe import Refused, looked_for_above
from committerd.queue.outcomes import Status
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.fetching import BuildWithPylance, OpenStore
from committerd.table.landing import land_alone
from committerd.table.prepare import prepare
from committerd.table.refusals import mishandled
from committerd.table.versions import Table
from committerd_common.messages import Transaction

_log = logging.getLogger(__name__)

_ATTEMPTS = 1000
"""Races that one transaction may lose before it fails; pylance gives up after 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectOutcome:
    """The outcome of a direct commit."""

    status: Status
    version: int = 0
    """COMMITTED and DUPLICATE: the version that holds the transaction; else 0."""
    reason: str = ""
    message: str = ""
    conflicting_version: int = 0
    conflicting_operation: str = ""
    reserved: tuple[int, int] = (0, 0)
    """ReserveFragments: the first fragment id and the count; else (0, 0)."""
    checked: tuple[VersionVerdict, ...] = ()
    """The committed versions that the transaction was judged against, with verdicts."""


async def commit(
    table: Table,
    transaction: Transaction,
    *,
    options: PrepareOptions,
    sources: Sources,
    open_store: OpenStore | None = None,
    pylance: BuildWithPylance | None = None,
    backoff: Backoff,
) -> DirectOutcome:
    """Commit one transaction on the latest version, and return its outcome. `open_store`, `pylance`: as for `Fetcher`.

    Raises `StoreUnavailable` when the store fails before the manifest may have been put, and `UnsupportedTable` or
    `CorruptTable` for a table that must not be written.
    """
    for _ in range(_ATTEMPTS):
        latest = await table.latest()
        base = latest.version if latest is not None else 0
        after = looked_for_above(transaction.read_version, latest=base)
        seen = await table.seen(transaction.uuid, after=after, latest=base) if base else None
        if seen is not None:
            return DirectOutcome(
                status=Status.DUPLICATE,
                version=seen,
                reason="uuid_seen",
                message=f"transaction {transaction.uuid} is in the table at version {seen}",
            )
        try:
            prepared = await prepare(
                table, latest, transaction, options=options, sources=sources, open_store=open_store, pylance=pylance
            )
        except CommitterError:
            raise
        except Exception as error:  # noqa: BLE001  # any error refuses this transaction
            require_contained(error)
            _log.error("transaction.internal_error", extra={"uuid": transaction.uuid}, exc_info=error)
            prepared = mishandled(error)
        if isinstance(prepared, Refused):
            return DirectOutcome(
                status=prepared.status,
                version=prepared.version,
                reason=prepared.reason,
                message=prepared.message,
                conflicting_version=prepared.conflicting_version,
                conflicting_operation=prepared.conflicting_operation,
                checked=prepared.found.checked,
            )
        if await land_alone(table, prepared, backoff):
            return DirectOutcome(
                status=Status.COMMITTED,
                version=prepared.version,
                message=prepared.judged.note,
                reserved=prepared.reserved,
                checked=prepared.judged.found.checked,
            )
    return DirectOutcome(
        status=Status.RETRYABLE,
        reason="contended",
        message=f"{_ATTEMPTS} other versions were committed meanwhile; nothing was committed",
    )
