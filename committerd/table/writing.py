"""Write a prepared version: first the files that its manifest refers to, then the manifest, if its number is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from committerd.concurrency import for_each
from committerd.errors import PutUnknown, StoreUnavailable
from committerd.lance.format.manifest_file import Body
from committerd.stores.port import Created, Exists, ObjectStore, PutResult, TakesParts, TakesSeveral
from committerd.table.prepare import Prepared
from committerd.table.staged_files import missing_file
from committerd.table.versions import Table
from committerd_common.paths import transaction_key

_FILES_AT_ONCE = 64
"""Files to put at the same time. A store with fewer connections queues them."""
_PARTS_BYTES_MIN = 1024 * 1024
"""Size from which a manifest is put in parts. Joining a smaller one costs next to nothing."""


async def write_files(table: Table, prepared: Prepared) -> None:
    """Write all files that the version refers to, with its transaction file. Idempotent."""
    await write_referenced(table, [prepared])
    await write_transaction(table, prepared)


async def write_referenced(table: Table, several: Sequence[Prepared]) -> None:
    """Write the files without which no reader can read these versions, and the transaction files of all but the last.

    Idempotent. Raises `InvalidRequest` (`missing_file`) when the source of a copy is missing.
    """
    for prepared in several:
        for copy in prepared.copies:
            body = await copy.store.get(copy.source)
            if body is None:
                raise missing_file([copy.source])
            await table.store.put(copy.target, body)
    objects = [item for prepared in several for item in prepared.files.items()]
    objects += [(prepared.transaction_key, prepared.transaction_body) for prepared in several[:-1]]
    if isinstance(table.store, TakesSeveral):
        if objects:
            await table.store.put_several(objects)
        return

    async def write(one: tuple[str, bytes]) -> None:
        await table.store.put(*one)

    await for_each(objects, write, at_once=_FILES_AT_ONCE)


async def write_transaction(table: Table, prepared: Prepared) -> None:
    """Write the transaction file, which the manifest also has inline. Idempotent."""
    await table.store.put(prepared.transaction_key, prepared.transaction_body)


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
    result = await put_manifest(table.store, prepared.key, prepared.body)
    if isinstance(result, Created):
        _remember(table, prepared)
    return result


async def put_in_turn(
    table: Table, several: Sequence[Prepared], *, as_long_as: Callable[[], bool]
) -> Sequence[PutResult]:
    """Put versions in order, up to the first that is not created; returns one put result for each that was tried.

    Tries more than one only on a store that implements `TakesSeveral`, and only while `as_long_as` returns True.
    """
    if len(several) > 1 and isinstance(table.store, TakesSeveral):
        objects = [(prepared.key, prepared.body.parts) for prepared in several]
        results = await table.store.put_in_turn_if_absent(objects, as_long_as=as_long_as)
        for prepared, result in zip(several, results, strict=False):
            if isinstance(result, Created):
                _remember(table, prepared)
        return results
    try:
        return [await put(table, several[0])]
    except (StoreUnavailable, PutUnknown) as error:
        return [error]


async def put_manifest(store: ObjectStore, key: str, body: Body) -> Created | Exists:
    """Put a manifest if its key is free. Raises as `put`."""
    if len(body) >= _PARTS_BYTES_MIN and isinstance(store, TakesParts):
        return await store.put_parts_if_absent(key, body.parts)
    return await store.put_if_absent(key, bytes(body))


def _remember(table: Table, prepared: Prepared) -> None:
    table.scheme = prepared.scheme
    table.remember(prepared.file, prepared.body, prepared.committed)
    for key, rows in prepared.deletion_vectors.items():
        table.deletion_vectors.keep(table.uri, key, rows)
