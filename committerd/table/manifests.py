"""Finds and reads the manifests of one table, over the store port. Nothing is cached here."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple, TypeVar

from committerd.concurrency import ByteBudget, for_each, map_each
from committerd.errors import CommitterError, CorruptTable, UnsupportedTable
from committerd.lance.format.fragment_list import ManifestSummary, Outlines
from committerd.lance.format.manifest_file import (
    SECTION_HEAD_BYTES,
    TAIL_BYTES,
    Body,
    ManifestFile,
    ShallowManifest,
    decode,
    examine,
    manifest_position,
    missing,
    section_length,
    skim_manifest,
    skim_outline,
)
from committerd.queue.outcomes import Settled, settled_by
from committerd.stores.port import ObjectStore, Tail
from committerd.stretches import GiveWay, to_all
from committerd_common.messages import DecodeError, Manifest, Transaction, TransactionLabel
from committerd_common.paths import (
    VERSION_MAX,
    VERSIONS,
    ManifestName,
    NamingScheme,
    key_room,
    manifest_key,
    parse_manifest_name,
    transaction_key,
)

ENTRY_BYTES = 600
"""Memory in bytes of what is cached of a version, beyond its footprint or queue entries."""

RECENT_SECONDS_MAX = 1800.0
"""How long it counts as recent that a version was the latest. All versions since are there: cleanups keep those of the
last hour at least.
"""

_READ_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of memory for reads of manifests and transactions at the same time."""
_DECODED_FACTOR = 6
"""Memory in bytes of decoded members, per byte of their text in the transaction properties."""
_SKIMMED_FACTOR = 4
"""Memory in bytes that skimming a manifest takes, per byte of the manifest."""
_LISTED_FIRST = 16
"""Keys in the first listing: enough to reach a manifest behind `.tmp` files of other writers, which sort before it."""
_LISTED_MAX = 1000
"""Keys in each listing of the versions above another one: one request to S3."""
_LISTED_TO_SHOW = 100
"""Keys in the listing for commands that show versions; a server may take a millisecond for each key."""
_PROBED_MAX = 64
"""Versions to look for at the same time."""
_PROBED_FOR_LOWEST = 32
"""Versions to look for at the same time, while the lowest one is searched."""
_BEFORE_DETACHED = f"{VERSIONS}d"
"""Precedes the keys of all detached versions, and follows those of all others."""
_END_BYTES = 4096
"""Bytes at the end of a manifest that identify it: they hold its version, timestamp and transaction file."""

_T = TypeVar("_T")


class OutlineSettled(NamedTuple):
    """What a version says of itself and of the queue."""

    outline: Manifest
    """The manifest without its fragments."""
    settled: Settled


class Manifests:
    """The manifests of one table."""

    def __init__(self, store: ObjectStore, *, give_way: GiveWay = to_all) -> None:
        """`give_way`: called before a version is decoded for its queue entries alone."""
        self.store = store
        self._give_way = give_way
        self.key_room = key_room(store.uri)
        """Maximum bytes that the key of an object of this table may have."""
        self.scheme: NamingScheme | None = None
        """How the table names its manifests; None until a listing has found a manifest."""
        self._reading = ByteBudget(_READ_BYTES_MAX)

    @property
    def uri(self) -> str:
        return self.store.uri

    async def latest_version(self, *, recent: int = 0) -> int | None:
        """Return the highest version; None when there is no table. Costs one listing.

        `recent`: a version that was the latest at most `RECENT_SECONDS_MAX` ago; 0 = unknown. Then one look at the
        number above it replaces the listing where that would be of all versions; it is not noticed then if this version
        is gone.

        Raises `UnsupportedTable` (`mixed_manifest_names`) when manifests have V1 and V2 names: two writers don't see
        each other's versions, or a migration is unfinished. Raises `StoreUnavailable`.
        """
        if recent and self.store.lists_whole_folders:
            return await self._highest_from(recent)
        # In byte order the first V2 name is the latest version. V1 names must all be listed.
        names = await self.store.list(VERSIONS, limit=_LISTED_FIRST)
        first = _parsed(names)
        if first and all(name.scheme is NamingScheme.V2 for name in first):
            self.scheme = NamingScheme.V2
            return max(name.version for name in first)
        versions = self._versions_of(first) if len(names) < _LISTED_FIRST else await self.versions()
        return versions[-1] if versions else None

    async def _highest_from(self, version: int) -> int:
        """Return the end of the unbroken run of versions from this one up, as `probe_versions_upward` of Lance."""
        count = 1
        while version < VERSION_MAX:
            numbers = range(version + 1, min(version + count, VERSION_MAX) + 1)
            for size in await map_each(numbers, lambda number: self.store.head(self._key(number))):
                if size is None:
                    return version
                version += 1
            count = min(2 * count, _PROBED_MAX)
        return version

    async def versions(self) -> list[int]:
        """Return all versions that have a manifest, ascending. Raises as `latest_version`."""
        return await self.versions_among(await self._keys())

    async def versions_among(self, keys: Iterable[str]) -> list[int]:
        """As `versions`, from the keys that a listing of their folder has just had."""
        versions = self._versions_of(_parsed(keys))
        return await self._filled(versions, above=versions[0]) if versions else []

    async def _keys(self) -> list[str]:
        """List the folder of the manifests. Those of a long history are listed in parts, many at once."""
        if self.store.lists_whole_folders:
            return await self.store.list(VERSIONS)
        keys = await self.store.list(VERSIONS, limit=_LISTED_MAX)
        if len(keys) < _LISTED_MAX:
            return keys
        found = self._in_a_row(keys)
        if found is None:
            return keys + await self.store.list(VERSIONS, start_after=keys[-1])
        lowest = await self._lowest_below(found[0])
        # In byte order V2 names come from the highest version down. The last part has what follows the lowest version.
        bounds = [*range(found[0], lowest, -_LISTED_MAX), lowest]
        parts = [(self._key(high), self._key(low)) for high, low in pairwise(bounds)]
        listed = await map_each([*parts, (self._key(lowest), "")], lambda part: self._listed(*part))
        return [*(key for key in keys if key <= self._key(found[0])), *chain.from_iterable(listed)]

    async def _listed(self, after: str, upto: str) -> list[str]:
        """List the keys after a key, up to another one; without it, to the end."""
        if not upto:
            return await self.store.list(VERSIONS, start_after=after)
        keys = list[str]()
        while True:
            some = await self.store.list(VERSIONS, start_after=keys[-1] if keys else after, limit=_LISTED_MAX)
            keys += some
            if len(some) < _LISTED_MAX or some[-1] >= upto:
                return [key for key in keys if key <= upto]

    def _in_a_row(self, keys: Sequence[str]) -> Sequence[int] | None:
        """The versions of these keys, ascending, if the table has V2 names and no number between them is missing."""
        found = self._versions_of(_parsed(keys))
        in_a_row = bool(found) and found[-1] - found[0] == len(found) - 1
        return found if in_a_row and self.scheme is NamingScheme.V2 else None

    async def _filled(self, versions: list[int], *, above: int) -> list[int]:
        """Add what a listing has missed between `above` and the newest version, down to the first number without one.

        A listing without an order, as of a folder on a local disk, may miss a version that comes meanwhile, and yet
        have a later one.
        """
        found = set(versions)
        for number in range(max(found, default=0) - 1, above, -1):
            if number not in found:
                if await self.store.head(self._key(number)) is None:
                    break
                found.add(number)
        return sorted(found)

    async def shown_versions(self) -> Sequence[int]:
        """Return the versions for a command that only shows the table, ascending, by few requests.

        They are all versions of a short history. Of a history with more than 100 keys they are the versions from the
        latest down to the first number without a version. Cleanups delete the oldest versions, so the search assumes no
        gap above a version that exists; only an old version with a tag may mislead it. Raises as `versions`.
        """
        if self.store.lists_whole_folders:
            return await self.versions()
        keys = await self.store.list(VERSIONS, limit=_LISTED_TO_SHOW)
        found = self._in_a_row(keys)
        if len(keys) < _LISTED_TO_SHOW or found is None:
            return await self.versions()
        return range(await self._lowest_below(found[0]), found[-1] + 1)

    async def _lowest_below(self, version: int) -> int:
        """Return the lowest version from which on there is no gap up to this version."""
        missing = 0
        while version - missing > 1:
            step = max((version - missing) // (_PROBED_FOR_LOWEST + 1), 1)
            numbers = range(version - step, missing, -step)[:_PROBED_FOR_LOWEST]
            sizes = await map_each(
                numbers, lambda number: self.store.head(self._key(number)), at_once=_PROBED_FOR_LOWEST
            )
            for number, size in zip(numbers, sizes, strict=True):
                if size is None:
                    missing = number
                    break
                version = number
        return version

    async def versions_above(self, version: int) -> list[int]:
        """Return the versions above this one, ascending. Raises as `versions`. Lists only these if all names are V2."""
        keys = page = await self.store.list(VERSIONS, limit=_LISTED_MAX)
        while True:
            names = _parsed(keys)
            if not all(name.scheme is NamingScheme.V2 for name in names):
                return [one for one in await self.versions() if one > version]
            # In byte order V2 names come from the highest version down.
            if len(page) < _LISTED_MAX or any(name.version <= version for name in names):
                return await self._filled([one for one in self._versions_of(names) if one > version], above=version)
            page = await self.store.list(VERSIONS, start_after=keys[-1], limit=_LISTED_MAX)
            keys = keys + page

    async def detached_manifests(self) -> list[str]:
        """Return the keys of the manifests of detached versions, such as `_versions/d9223372036854775809.manifest`."""
        return detached_manifests(await self.store.list(VERSIONS, start_after=_BEFORE_DETACHED))

    def _versions_of(self, names: Sequence[ManifestName]) -> list[int]:
        schemes = {name.scheme for name in names}
        if len(schemes) > 1:
            raise UnsupportedTable(
                f"{self.uri}: some manifests have V1 names and some V2; finish the migration "
                "(`migrate_manifest_paths_v2`) before anything is committed",
                code="mixed_manifest_names",
            )
        self.scheme = schemes.pop() if schemes else None
        return sorted(name.version for name in names)

    async def end(self, version: int) -> bytes | None:
        """Return what tells a version from another one with its number; None when it does not exist. Costs one read."""
        tail = await self.store.get_tail(self._key(version), _END_BYTES)
        return None if tail is None else digest_of(tail)

    async def transaction(self, file: ManifestFile | ShallowManifest) -> Transaction | None:
        """Return the transaction that created a version, inline or from its file; None when neither is readable."""
        return file.transaction if file.transaction is not None else await self._transaction_in_file(file.outline)

    async def _transaction_in_file(self, outline: Manifest) -> Transaction | None:
        name = outline.transaction_file
        body = await self.store.get(transaction_key(name)) if name else None
        if body is None:
            return None
        try:
            return Transaction.FromString(body)
        except DecodeError:
            return None

    async def outline(self, version: int) -> Manifest | None:
        """Return one version without its fragments; None when it has no manifest.

        The result is not cached, and large manifests are read one at a time. Raises `CorruptTable`.
        """
        tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
        return None if tail is None else await self._skimmed(version, tail, skim_outline)

    async def skim_settled(self, version: int) -> tuple[ManifestSummary, int, Settled] | None:
        """Return one version with its fragments counted, its object's size in bytes, and the queue entries of
        `read_settled`; None when it has no manifest, or no entries can be read. As `outline` otherwise.

        Takes one read for a small version.
        """
        tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
        skimmed = None if tail is None else await self._skimmed(version, tail, skim_manifest)
        if tail is None or skimmed is None:
            return None
        settled = await self._settled_in(version, tail)
        return None if settled is None else (skimmed, tail.size, settled[0])

    async def outline_settled(self, version: int) -> OutlineSettled | None:
        """As `skim_settled`, without what is said of the fragments; takes a fraction of the time."""
        tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
        return None if tail is None else await self._outline_settled_in(version, tail)

    async def outline_settled_of_each(self, versions: Sequence[int]) -> list[OutlineSettled | CorruptTable | None]:
        """Return `outline_settled` of each of these versions, or the error that it raises; reads them together."""
        skim = partial(skim_outline, decode_manifest=Outlines().outline_of)

        async def found(version: int, tail: Tail) -> OutlineSettled | CorruptTable | None:
            try:
                return await self._outline_settled_in(version, tail, skim)
            except CorruptTable as error:
                return error

        return await self._in_each(versions, found)

    async def _outline_settled_in(
        self, version: int, tail: Tail, skim: Callable[[bytes, int], Manifest] = skim_outline
    ) -> OutlineSettled | None:
        outline = await self._skimmed(version, tail, skim)
        settled = None if outline is None else await self._settled_in(version, tail)
        return None if outline is None or settled is None else OutlineSettled(outline, settled[0])

    async def _skimmed(self, version: int, tail: Tail, skim: Callable[[bytes, int], _T]) -> _T | None:
        position = manifest_position(tail.body, tail.size)
        if position >= tail.size - len(tail.body):
            return skim(tail.body, tail.size)
        async with self._reading.taking(_SKIMMED_FACTOR * (tail.size - position)):
            body = await self.store.get_range(self._key(version), position, tail.size)
            return None if body is None else skim(body, tail.size)

    async def _in_each(self, versions: Sequence[int], found: Callable[[int, Tail], Awaitable[_T]]) -> list[_T | None]:
        """Return what is found in the end of each of these versions; None for a version that does not exist.

        Reads the ends together, and what `found` reads beyond the end of a large one several at once. The small
        ones come first, from the oldest on, as `Outlines` needs it.
        """
        if not versions:
            return []
        tails = await self.store.get_tails([self._key(version) for version in versions], size=TAIL_BYTES)
        results, large = dict[int, _T | None](), list[tuple[int, Tail]]()
        for version, tail in sorted(zip(versions, tails, strict=True), key=itemgetter(0)):
            if isinstance(tail, CommitterError):
                raise tail
            if tail is not None and tail.size > len(tail.body):
                large.append((version, tail))
            else:
                results[version] = None if tail is None else await found(version, tail)

        async def look(one: tuple[int, Tail]) -> None:
            results[one[0]] = await found(*one)

        await for_each(large, look)
        return [results[version] for version in versions]

    async def small_bodies(self, versions: Sequence[int]) -> list[bytes | None]:
        """Return the whole object of each of these versions, for `examine`; None for a large one, or if there is none.

        Reads them together.
        """
        tails = await self.store.get_tails([self._key(version) for version in versions], size=TAIL_BYTES)
        return [tail.body if isinstance(tail, Tail) and tail.size == len(tail.body) else None for tail in tails]

    async def examine(self, version: int, known: bytes = b"", *, body: bytes | None = None) -> ShallowManifest | None:
        """Return one version without decoding its fragments; None when it has no manifest.

        The result is not cached. `known`: as for `fragments_range`. `body`: the object; None = it is read. Raises
        `CorruptTable`.
        """
        if body is None:
            body = await self.store.get(self._key(version))
        if body is None:
            return None
        found = examine(body, known)
        if found.transaction is not None:
            return found
        return found._replace(transaction=await self._transaction_in_file(found.outline))

    async def read_settled(self, version: int) -> tuple[Settled, int] | None:
        """Return the queue entries of one version, and their memory in bytes; None when it is missing or damaged.

        Reads only the inline transaction, which lies before the manifest's fragments.
        """
        tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
        return None if tail is None else await self._settled_in(version, tail)

    async def settled_of_each(self, versions: Sequence[int]) -> list[Settled | None]:
        """Return the queue entries of each of these versions, as `read_settled`; reads them together."""

        async def found(version: int, tail: Tail) -> Settled | None:
            settled = await self._settled_in(version, tail)
            return None if settled is None else settled[0]

        return await self._in_each(versions, found)

    async def _settled_in(self, version: int, tail: Tail) -> tuple[Settled, int] | None:
        try:
            found = await self._settled_in_front(version, tail)
            if found is not None:
                return found
            # Rare: old writers keep the transaction only in a file of its own.
            fetched = await self._fetch(version)
        except CorruptTable:
            return None
        if fetched is None:
            return None
        transaction = await self.transaction(fetched[0])
        return settled_by(transaction, version=version), _text_bytes(transaction)

    async def _settled_in_front(self, version: int, tail: Tail) -> tuple[Settled, int] | None:
        """Return the queue entries of the inline transaction, and their memory in bytes.

        Walks the sections of the file from its start. The last section before the manifest is the transaction, or, in a
        version without an inline transaction, the indices; those do not decode as a transaction with a uuid. None for
        such a version, and for any other layout.
        """
        key, position, start = self._key(version), manifest_position(tail.body, tail.size), 0
        whole = tail.body if tail.size == len(tail.body) else None
        while start < position:
            if whole is not None:
                head: bytes | None = whole[start:position]
            else:
                head = await self.store.get_range(key, start, min(start + TAIL_BYTES, position))
            if head is None or len(head) < SECTION_HEAD_BYTES:
                return None
            length = section_length(head)
            end = start + SECTION_HEAD_BYTES + length
            if end == position:
                # Twice the length: the decoded label copies the bytes. What is in memory already takes no room.
                async with nullcontext() if whole is not None else self._reading.taking(2 * length):
                    if start + len(head) < end:
                        head += await self.store.get_range(key, start + len(head), end) or b""
                    await self._give_way()
                    label = _usable(head[SECTION_HEAD_BYTES:])
                    if label is None:
                        return None
                    return settled_by(label, version=version), _text_bytes(label)
            start = end
        return None

    async def _fetch(self, version: int) -> tuple[ManifestFile, Tail] | None:
        key = self._key(version)
        tail = await self.store.get_tail(key, TAIL_BYTES)
        if tail is None:
            return None
        body = tail.body
        wanted = missing(body, tail.size)
        if wanted is not None:
            rest = await self.store.get_range(key, wanted.start, wanted.end)
            if rest is None:
                return None
            body = rest + body
            del rest  # 100 MB for a table of 1,000,000 fragments
        return decode(body, tail.size), tail

    def _key(self, version: int) -> str:
        return manifest_key(version, self.scheme or NamingScheme.V2)


def detached_manifests(keys: Iterable[str]) -> list[str]:
    """Of these keys, those of the manifests of detached versions."""
    return [key for key in keys if key.startswith(_BEFORE_DETACHED) and key.endswith(".manifest")]


def end_of(body: Body) -> bytes:
    """Return what tells the version with this manifest from another one with its number, as `Table.end`."""
    return digest_of(Tail(body=body.tail(_END_BYTES), size=len(body)))


def digest_of(tail: Tail) -> bytes:
    """Return a digest of the size and the end of an object."""
    return hashlib.sha256(b"%d " % tail.size + tail.body[-_END_BYTES:]).digest()


def _usable(body: bytes) -> TransactionLabel | None:
    """Decode these bytes as a transaction; None when they are something else."""
    try:
        label = TransactionLabel.FromString(body)
    except DecodeError:
        return None
    return label if label.uuid and label.WhichOneof("operation") else None


def _text_bytes(transaction: Transaction | TransactionLabel | None) -> int:
    """Estimate the memory of its decoded members, in bytes."""
    texts = transaction.transaction_properties.values() if transaction is not None else ()
    return _DECODED_FACTOR * sum(map(len, texts)) + ENTRY_BYTES


def _parsed(keys: Iterable[str]) -> list[ManifestName]:
    names = (parse_manifest_name(key.removeprefix(VERSIONS)) for key in keys)
    return [name for name in names if name is not None]
