"""One transaction straight into a table, without a queue: for tests, repair and conformance.

The same judging and building as the queue's, and put if absent behind it. Nothing of the queue is written: keys and
marks that the table has are carried along, as every other writer does.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio.lowlevel

from committerd.committer.putting import Backoff
from committerd.errors import OutcomeUnknown, StoreUnavailable
from committerd.format.messages import Transaction
from committerd.ports import Created
from committerd.prepare import PrepareOptions, Rejected, World, prepare, put, write_files
from committerd.rules.answers import Status
from committerd.rules.conflicts import Checked
from committerd.table import Table

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
        prepared = await prepare(table, latest, transaction, options=options, world=world)
        if isinstance(prepared, Rejected):
            return Answer(
                status=prepared.status,
                version=prepared.version,
                reason=prepared.reason,
                message=prepared.message,
                conflicting_version=prepared.conflicting_version,
                conflicting_operation=prepared.conflicting_operation,
                checked=tuple(prepared.checked),
            )
        await write_files(table, prepared)
        committed = Answer(
            status=Status.COMMITTED,
            version=prepared.version,
            reserved=prepared.reserved,
            checked=tuple(prepared.checked),
        )
        while True:
            try:
                if isinstance(await put(table, prepared), Created):
                    return committed
            except OutcomeUnknown:
                if not await _occupied(table, prepared.version, backoff):
                    continue
            break
        # Taken: by another, or by our own earlier try. The uuid tells, when the loop looks for it.
        file = await table.read(prepared.version)
        theirs = await table.transaction(file) if file is not None else None
        if theirs is not None and theirs.uuid == transaction.uuid:
            return committed
    return Answer(
        status=Status.RETRYABLE,
        reason="contended",
        message=f"{_ATTEMPTS} other versions were committed meanwhile; nothing was committed",
    )


async def _occupied(table: Table, version: int, backoff: Backoff) -> bool:
    """Whether the number is taken by now; the store may have to come back first."""
    while True:
        await backoff.wait()
        try:
            return await table.read(version) is not None
        except StoreUnavailable:
            await anyio.lowlevel.checkpoint()
