"""Reads the manifests of many versions as a whole, in order, within a bound of memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

from committerd.concurrency import for_each, in_order
from committerd.stores.port import ObjectStore
from committerd.table.deletion_files import SMALL_BODY_BYTES, small_bodies
from committerd.table.many_versions import BATCH, BATCHES_AT_ONCE

BYTES_AT_ONCE = 16 * 1024 * 1024
"""Maximum bytes of manifests in memory, unless a single manifest has more."""

Bodies = Mapping[str, bytes | None]


async def each_body(store: ObjectStore, sizes: Mapping[str, int], take: Callable[[Bodies], Awaitable[None]]) -> None:
    """Read manifests, and call `take` with those of a batch, by key, in the order of the keys.

    `sizes`: by key, in bytes; None stands for a manifest that another cleanup has deleted since the listing. Raises
    `StoreUnavailable`, `ObjectUnreadable`, and what `take` raises.
    """

    async def go_on(_: Sequence[str], bodies: Bodies) -> bool:
        await take(bodies)
        return True

    def size(keys: Sequence[str]) -> int:
        return max(sum(sizes[key] for key in keys), BYTES_AT_ONCE // BATCHES_AT_ONCE)

    await in_order(_batches(sizes), partial(_read, store, sizes), go_on, at_once=BYTES_AT_ONCE, size=size)


def _batches(sizes: Mapping[str, int]) -> Iterator[Sequence[str]]:
    run: list[str] = []
    taken = 0
    for key, size in sizes.items():
        if run and (len(run) == BATCH or taken + size > BYTES_AT_ONCE // BATCHES_AT_ONCE):
            yield run
            run, taken = [], 0
        run.append(key)
        taken += size
    if run:
        yield run


async def _read(store: ObjectStore, sizes: Mapping[str, int], keys: Sequence[str]) -> Bodies:
    found = await small_bodies(store, [key for key in keys if sizes[key] < SMALL_BODY_BYTES])

    async def read(key: str) -> None:
        found[key] = await store.get(key)

    await for_each([key for key in keys if key not in found], read, at_once=BATCH)
    return {key: found[key] for key in keys}
