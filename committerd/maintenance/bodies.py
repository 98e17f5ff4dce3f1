"""Reads the manifests of many versions as a whole, in order, within a bound of memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from committerd.concurrency import for_each, in_order
from committerd.errors import CorruptTable
from committerd.lance.format.manifest_file import ShallowManifest, examine, indices_of
from committerd.stores.port import ObjectStore
from committerd.table.deletion_files import SMALL_BODY_BYTES, small_bodies
from committerd.table.many_versions import BATCH, BATCHES_AT_ONCE
from committerd_common.messages import IndexMetadata

BYTES_AT_ONCE = 16 * 1024 * 1024
"""Maximum bytes of manifests that are read at once, unless a single manifest has more.

A batch has at most a quarter of these bytes. While it is decoded, it takes about four times its size on top.
"""


class IndexedManifest(NamedTuple):
    """A manifest whose fragments were not decoded, with its indices."""

    file: ShallowManifest
    indices: Sequence[IndexMetadata]


ManifestBatch = Mapping[str, IndexedManifest | None]
_Bodies = Mapping[str, bytes | None]


async def each_manifest(
    store: ObjectStore, sizes: Mapping[str, int], take: Callable[[ManifestBatch], Awaitable[None]]
) -> None:
    """Read manifests, and call `take` with those of a batch, by key, in the order of the keys: the newest first.

    `sizes`: by key, in bytes; None stands for a manifest that another cleanup has deleted since the listing. Raises
    `StoreUnavailable`, `ObjectUnreadable`, `CorruptTable` for a manifest that can't be read, and what `take` raises.
    """

    async def go_on(_: Sequence[str], bodies: _Bodies) -> bool:
        await take(_examined(bodies))
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


def _examined(bodies: _Bodies) -> ManifestBatch:
    """Examine manifests from the oldest on: a version mostly begins with the fragments of the version before it."""
    found, known = dict[str, IndexedManifest | None](), b""
    for key, body in reversed(list(bodies.items())):
        found[key] = None
        if body is not None:
            try:
                file = examine(body, known)
                found[key] = IndexedManifest(file, indices_of(body, file.outline))
            except CorruptTable as error:
                raise unreadable(key, error) from error
            known = file.fragments
    return {key: found[key] for key in bodies}


def unreadable(key: str, error: CorruptTable) -> CorruptTable:
    """The error for a manifest with this key that can't be decoded."""
    return CorruptTable(
        f"{key} can't be read as a manifest ({error}), so the files that it names are not known, and nothing "
        "is deleted. If it is not the manifest of a version, move it away",
        code=error.code,
    )


async def _read(store: ObjectStore, sizes: Mapping[str, int], keys: Sequence[str]) -> _Bodies:
    found = await small_bodies(store, [key for key in keys if sizes[key] < SMALL_BODY_BYTES])

    async def read(key: str) -> None:
        found[key] = await store.get(key)

    await for_each([key for key in keys if key not in found], read, at_once=BATCH)
    return {key: found[key] for key in keys}
