"""One transaction straight into a table, without a queue: for tests, repair and conformance.

The same judging and building as the queue's, and put if absent behind it. Nothing of the queue is written: keys and
marks that the table has are carried along, as every other writer does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from committerd.committer.containing import require_contained
from committerd.committer.putting import Backoff
from committerd.errors import CommitterError, OutcomeUnknown, StoreUnavailable
from committerd.format.messages import Transaction
from committerd.ports import Created
from committerd.prepare import Prepared, PrepareOptions, Rejected, World, prepare, vet
from committerd.refusals import mishandled
from committerd.rules.answers import Status
from committerd.rules.conflicts import Checked
from committerd.table import Table
from committerd.writing import put, write_files

_log = logging.getLogger(__name__)

_ATTEMPTS = 1000
"""Races that one transaction may lose before it is given back; pylance gives up after 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of it."""

    status: Status
    version: int = 0
    """COMMITTED and DUPLICATE: where it is."""
    reason: str = ""
    message: str = ""
    conflicting_version: int = 0
    conflicting_operation: str = ""
    reserved: tuple[int, int] = (0, 0)
    """ReserveFragments: the first id and the count."""
    checked: tuple[Checked, ...] = ()
    """Each committed version that it was judged against."""


async def commit(
    table: Table, transaction: Transaction, *, options: PrepareOptions, world: World, backoff: Backoff
) -> Answer:
    """Commit one transaction on the latest version.

    Raises `StoreUnavailable` where the store does not answer before anything was written, `UnsupportedTable` and
    `CorruptTable` for a table that we must not write.
    """
    for _ in range(_ATTEMPTS):
        latest = await table.latest()
        base = latest.version if latest is not None else 0
        seen = await table.seen(transaction.uuid, after=transaction.read_version, latest=base) if base else None
        if seen is not None:
            return Answer(
                status=Status.DUPLICATE,
                version=seen,
                reason="uuid_seen",
                message=f"transaction {transaction.uuid} is in the table at version {seen}",
            )
        vet(table, latest)
        try:
            prepared = await prepare(table, latest, transaction, options=options, world=world)
        except CommitterError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it is that of this transaction
            require_contained(error)
            _log.error("transaction.internal_error", extra={"uuid": transaction.uuid}, exc_info=error)
            prepared = mishandled(error)
        if isinstance(prepared, Rejected):
            return Answer(
                status=prepared.status,
                version=prepared.version,
                reason=prepared.reason,
                message=prepared.message,
                conflicting_version=prepared.conflicting_version,
                conflicting_operation=prepared.conflicting_operation,
                checked=prepared.found.checked,
            )
        await write_files(table, prepared)
        committed = Answer(
            status=Status.COMMITTED,
            version=prepared.version,
            reserved=prepared.reserved,
            checked=prepared.found.checked,
        )
        if await _created(table, prepared, backoff):
            return committed
        # Taken: by another, or by our own earlier try. The uuid tells.
        if await _uuid_at(table, prepared.version, backoff) == transaction.uuid:
            return committed
    return Answer(
        status=Status.RETRYABLE,
        reason="contended",
        message=f"{_ATTEMPTS} other versions were committed meanwhile; nothing was committed",
    )


async def _created(table: Table, prepared: Prepared, backoff: Backoff) -> bool:
    """Put until it is known what came of it; False when the number is taken.

    Raises `StoreUnavailable` only while no put can have landed.
    """
    unknown = False
    while True:
        try:
            return isinstance(await put(table, prepared), Created)
        except OutcomeUnknown:
            unknown = True
        except StoreUnavailable:
            if not unknown:
                raise
        await backoff.wait()


async def _uuid_at(table: Table, version: int, backoff: Backoff) -> str | None:
    """The uuid of the transaction that made a version; the store may have to come back first."""
    while True:
        try:
            file = await table.read(version)
            transaction = await table.transaction(file) if file is not None else None
        except StoreUnavailable:
            await backoff.wait()
        else:
            return transaction.uuid if transaction is not None else None
