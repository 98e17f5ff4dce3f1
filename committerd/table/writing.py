"""Write a prepared version: first the files that its manifest refers to, then the manifest, if its number is free."""

from __future__ import annotations

from committerd.concurrency import for_each
from committerd.stores.port import Created, Exists
from committerd.table.prepare import Prepared
from committerd.table.staged_files import missing_file
from committerd.table.versions import Table
from committerd_common.paths import transaction_key

_FILES_AT_ONCE = 64
"""Files to put at the same time. A store with fewer connections queues them."""


async def write_files(table: Table, prepared: Prepared) -> None:
    """Write all files that the version refers to, with its transaction file. Idempotent."""
    await write_referenced(table, prepared)
    await write_transaction(table, prepared)


async def write_referenced(table: Table, prepared: Prepared) -> None:
    """Write the files without which no reader can read the version. Idempotent.

    Raises `InvalidRequest` (`missing_file`) when the source of a copy is missing.
    """
    for copy in prepared.judged.copies:
        body = await copy.store.get(copy.source)
        if body is None:
            raise missing_file([copy.source])
        await table.store.put(copy.target, body)

    async def write(one: tuple[str, bytes]) -> None:
        await table.store.put(*one)

    await for_each(prepared.judged.files.items(), write, at_once=_FILES_AT_ONCE)


async def write_transaction(table: Table, prepared: Prepared) -> None:
    """Write the transaction file, which the manifest also has inline. Idempotent."""
    file = prepared.file
    await table.store.put(transaction_key(file.outline.transaction_file), file.transaction_bytes or b"")


async def complete(table: Table, version: int) -> None:
    """Write the transaction file of a version if it is missing or differs: its writer may have died before writing it.

    An earlier attempt, which was formed for another version, may have left a file under the same name.
    """
    file = await table.read(version)
    if file is None or file.transaction_bytes is None or not file.outline.transaction_file:
        return
    key = transaction_key(file.outline.transaction_file)
    if await table.store.get(key) != file.transaction_bytes:
        await table.store.put(key, file.transaction_bytes)


async def put(table: Table, prepared: Prepared) -> Created | Exists:
    """Put the manifest if its number is free, and cache the version once it is created.

    Raises `PutUnknown` when the store did not respond, and `StoreUnavailable` when nothing was put.
    """
    result = await table.store.put_if_absent(prepared.key, prepared.body.parts)
    if isinstance(result, Created):
        table.scheme = prepared.scheme
        table.remember(prepared.file, prepared.body, prepared.committed)
        for key, rows in prepared.judged.deletion_vectors.items():
            table.deletion_vectors.add(table.uri, key, rows)
    return result
