"""Finds, reads and caches the versions of one table, over the store port.

This module decides nothing. The table caches the facts that the rules need about each version that it has read or
created: its footprint, and its queue entries (members and refusals). A committer that has created or read all
versions since a transaction's read version therefore judges the transaction without any read. The table also caches the
manifests of recent versions, within a bound; they share their chunks of fragments.

The cache holds only versions that exist. A version that is formed and not yet created is part of a `History`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile

from committerd.concurrency import ByteBudget, for_each
from committerd.errors import CorruptTable, InvalidRequest, UnsupportedTable
from committerd.lance.conflicts.footprint import Footprint, size_of
from committerd.lance.conflicts.grid import Comparison, Unreadable
from committerd.lance.format.fragment_list import ManifestSummary
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
)
from committerd.lance.transactions.transaction import footprint_of_theirs, needs_version_below
from committerd.queue.ledger import names
from committerd.queue.outcomes import Settled, settled_by
from committerd.stores.port import ObjectStore, Tail
from committerd.table.deletion_vectors import DeletionVectors
from committerd.table.kept_reuse import KeptReuse
from committerd.table.kept_versions import KeptVersions
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
from committerd_common.unknown_fields import has_unknown_fields

MANIFESTS_MAX = 4096
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number and bytes of the manifests in the cache, besides the one that was added last."""
FOOTPRINT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of cached footprints: 100,000 Appends, about a day at one version a second."""

_SETTLED_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of cached queue entries. Look-ups are of the newest versions, and of those that duplicates match.
"""
_READ_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of memory for reads of manifests and transactions at the same time."""
_DECODED_FACTOR = 6
"""Memory in bytes of decoded members, per byte of their text in the transaction properties."""

_SKIMMED_FACTOR = 4
"""Memory in bytes that skimming a manifest takes, per byte of the manifest."""
_ENTRY_BYTES = 600
"""Memory in bytes of a cached version without queue entries: its uuid, and the objects around it."""
_KEPT_SHARE = 0.9
"""Once footprints exceed their bound, they are dropped down to this share of it, so that sorting them is rare."""
_READ_VERSIONS_MAX = 32
"""Maximum number of read versions for which the comparison of Appends is cached: producers use few at a time."""
_CHECKED_MAX = 1000
"""Maximum number of checked versions in a cached comparison: a producer may keep its read version for a million."""
_LISTED_FIRST = 16
"""Keys in the first listing: enough to reach a manifest behind `.tmp` files of other writers, which sort before it."""
_LISTED_MAX = 1000
"""Keys in each listing of the versions above another one: one request to S3."""
_BEFORE_DETACHED = f"{VERSIONS}d"
"""Precedes the keys of all detached versions, and follows those of all others."""
_READERS_MAX = 16
_MORE_READERS_MAX = 32
"""Versions to read at once while their footprints are small. More could take too much memory if large ones follow."""
_SMALL_BYTES_MAX = 512 * 1024
"""Footprints and objects up to this size are small."""
_BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the footprints that are read at once, if they are as large as those that were read before them."""
_END_BYTES = 4096
"""Bytes at the end of a manifest that identify it: they hold its version, timestamp and transaction file."""
_ENDS_MAX = 4096
"""Maximum number of versions whose end is cached. Beyond it the lower half is dropped: the version to build on is among
the highest, however many versions below it are read.
"""


class VersionState(Enum):
    """State of a version that was read or created before, as the store has it now."""

    SAME = "same"
    GONE = "gone"
    REPLACED = "replaced"
    """The number now belongs to another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The facts about one committed version that the rules need."""

    version: int
    uuid: str
    """Of the transaction that created the version; empty when that can't be read."""
    footprint: Footprint | Unreadable
    bytes: int
    """The estimated memory of all this."""


def committed_by(file: ManifestFile, *, before: Manifest | None) -> Committed:
    """The facts about a version whose transaction is inline. `before`: the version below it, without fragments."""
    transaction = file.transaction
    return _committed(transaction, file.version, _footprint(transaction, file, before))


def _committed(transaction: Transaction | None, version: int, footprint: Footprint | Unreadable) -> Committed:
    return Committed(
        version=version,
        uuid=transaction.uuid if transaction is not None else "",
        footprint=footprint,
        bytes=_ENTRY_BYTES + (size_of(footprint) if isinstance(footprint, Footprint) else 0),
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """A version that can't be read."""

    version: int


class Table:
    """The versions of one table. Used by one task at a time, but for `settled`, which others may call meanwhile."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        manifests_max: int = MANIFESTS_MAX,
        manifest_bytes_max: int = MANIFEST_BYTES_MAX,
        footprint_bytes_max: int = FOOTPRINT_BYTES_MAX,
        deletion_vectors: DeletionVectors | None = None,
    ) -> None:
        self.store = store
        self.deletion_vectors = deletion_vectors or DeletionVectors()
        """The content of deletion files that were read or written."""
        self.reuse = KeptReuse()
        """The content of fragment reuse indices that were read."""
        self.key_room = key_room(store.uri)
        """Maximum bytes that the key of an object of this table may have."""
        self.scheme: NamingScheme | None = None
        """How the table names its manifests; None until a listing has found a manifest."""
        self._footprint_bytes_max = footprint_bytes_max
        self._footprint_bytes = 0
        self._kept = KeptVersions(versions_max=manifests_max, bytes_max=manifest_bytes_max)
        self._newest: tuple[int, Tail] | None = None
        """The highest version read or created so far, and the end of its object."""
        self._gone = 0
        """The highest version that a lookup found deleted; 0 = none."""
        self._ends: dict[int, bytes] = {}
        """By version that was read or created: a digest of its object's size and end."""
        self._committed: dict[int, Committed] = {}
        self._compared_appends: OrderedDict[int, tuple[Comparison, Committed]] = OrderedDict()
        """By read version: the comparison of its Appends, and the last version that it covers."""
        self._settled: OrderedDict[int, tuple[Settled, int]] = OrderedDict()
        """By version, least recently used first: its queue entries, and the estimate of their memory in bytes."""
        self._settled_bytes = 0
        self._reading = ByteBudget(_READ_BYTES_MAX)

    @property
    def footprint_bytes(self) -> int:
        """Estimated memory of the cached footprints, in bytes."""
        return self._footprint_bytes

    def cache_bytes(self) -> dict[str, int]:
        """Return the estimated memory of the other caches, in bytes, by their names among the metrics."""
        return {"manifests": self._kept.bytes, "outcomes": self._settled_bytes, "reuse": self.reuse.bytes}

    @property
    def uri(self) -> str:
        return self.store.uri

    async def latest_version(self) -> int | None:
        """Return the highest version; None when there is no table. Costs one listing.

        Raises `UnsupportedTable` (`mixed_manifest_names`) when manifests have V1 and V2 names: two writers don't see
        each other's versions, or a migration is unfinished. Raises `StoreUnavailable`.
        """
        # In byte order the first V2 name is the latest version. V1 names must all be listed.
        names = await self.store.list(VERSIONS, limit=_LISTED_FIRST)
        first = _parsed(names)
        if first and all(name.scheme is NamingScheme.V2 for name in first):
            self.scheme = NamingScheme.V2
            return max(name.version for name in first)
        versions = self._versions_of(first) if len(names) < _LISTED_FIRST else await self.versions()
        return versions[-1] if versions else None

    async def versions(self) -> list[int]:
        """Return all versions that have a manifest, ascending. Raises as `latest_version`."""
        return self._versions_of(_parsed(await self.store.list(VERSIONS)))

    async def versions_above(self, version: int) -> list[int]:
        """Return the versions above this one, ascending. Raises as `versions`. Lists only these if all names are V2."""
        keys = await self.store.list(VERSIONS, limit=_LISTED_MAX)
        while True:
            names = _parsed(keys)
            if not all(name.scheme is NamingScheme.V2 for name in names):
                return [one for one in await self.versions() if one > version]
            # In byte order V2 names come from the highest version down.
            if len(keys) % _LISTED_MAX or not keys or any(name.version <= version for name in names):
                return [one for one in self._versions_of(names) if one > version]
            keys += await self.store.list(VERSIONS, start_after=keys[-1], limit=_LISTED_MAX)

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

    async def latest(self) -> ManifestFile | None:
        """Return the latest version; None when there is no table. Costs one listing and one read.

        Reads the end of the manifest even when it is cached: a table that was dropped and recreated has the same
        names. In that case the whole cache is dropped. Raises as `latest_version` and `read`.
        """
        version = await self.latest_version()
        if version is None:
            self.forget()
            return None
        if version in self._kept:
            tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
            if self._newest != (version, tail):
                self.forget()
        elif version < max(self._committed, default=0):
            self.forget()
        return await self.read(version)

    async def read(self, version: int) -> ManifestFile | None:
        """Return one version; None when it has no manifest. Raises `CorruptTable` and `StoreUnavailable`."""
        known = self._kept.get(version)
        if known is not None:
            return known
        fetched = await self._fetch(version)
        if fetched is None:
            return None
        file, tail = fetched
        self._keep(version, file, tail)
        return file

    async def readable(self, version: int) -> ManifestFile | None:
        """Return one version; None when its number is out of range, or its manifest is missing or damaged.

        Raises `StoreUnavailable`.
        """
        try:
            return await self.read(version) if 0 < version <= VERSION_MAX else None
        except CorruptTable:
            return None

    async def standing(self, version: int) -> VersionState:
        """Check whether a version that this table has read or created still exists and is the same. Costs one read.

        A table that was deleted and recreated has other versions under the same numbers.
        """
        end = await self.end(version)
        if end is None:
            return VersionState.GONE
        return VersionState.SAME if self._ends.get(version) == end else VersionState.REPLACED

    async def end(self, version: int) -> bytes | None:
        """Return what tells a version from another one with its number; None when it does not exist. Costs one read."""
        tail = await self.store.get_tail(self._key(version), _END_BYTES)
        return None if tail is None else _end(tail)

    def has_read(self, version: int, end: bytes) -> bool:
        """Whether this table has read this version with this end, as `end_of` returns it."""
        return self._ends.get(version) == end

    async def is_gone(self, version: int) -> bool:
        """Whether a version no longer exists. Costs one read, unless `is_known_gone` is True."""
        if not self.is_known_gone(version) and await self.standing(version) is VersionState.GONE:
            self._gone = version
        return self.is_known_gone(version)

    def is_known_gone(self, version: int) -> bool:
        """Whether `is_gone` has found this version or a higher one deleted."""
        return version <= self._gone

    async def transaction(self, file: ManifestFile) -> Transaction | None:
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

    async def committed(self, version: int) -> Committed | None:
        """Return the facts about one version that the rules need; None when its manifest is missing or damaged."""
        known = self._committed.get(version)
        if known is not None:
            return known
        try:
            file = await self.read(version)
        except CorruptTable:
            return None
        if file is None:
            return None
        transaction = await self.transaction(file)
        known = _committed(transaction, version, await self._footprint(transaction, file))
        self._note(known)
        return known

    async def settled(self, version: int, *, keep: bool = True) -> Settled | None:
        """Return the queue entries of one version; None when the version is missing or damaged.

        Reads only the inline transaction, which lies before the manifest's fragments. `keep`: cache the result.
        """
        known = self._settled.get(version)
        if known is not None:
            self._settled.move_to_end(version)
            return known[0]
        tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
        if tail is None:
            return None
        try:
            found = await self._settled_in_front(version, tail)
            if found is None:
                # Rare: old writers keep the transaction only in a file of its own.
                file = self._kept.get(version)
                if file is None:
                    fetched = await self._fetch(version)
                    if fetched is None:
                        return None
                    file, _ = fetched
                transaction = await self.transaction(file)
                found = settled_by(transaction, version=version), _text_bytes(transaction)
        except CorruptTable:
            return None
        settled, size = found
        if keep:
            self._settled[version] = settled, size
            self._settled_bytes += size
            while self._settled_bytes > _SETTLED_BYTES_MAX:
                _, (_, dropped) = self._settled.popitem(last=False)
                self._settled_bytes -= dropped
        return settled

    async def skim(self, version: int) -> tuple[ManifestSummary, int] | None:
        """Return one version without its fragments, and its object's size in bytes; None when it has no manifest.

        The result is not cached, and large manifests are read one at a time. Raises `CorruptTable`.
        """
        key = self._key(version)
        tail = await self.store.get_tail(key, TAIL_BYTES)
        if tail is None:
            return None
        body: bytes | None = tail.body
        position = manifest_position(tail.body, tail.size)
        async with self._reading.taking(_SKIMMED_FACTOR * (tail.size - position)):
            if position < tail.size - len(tail.body):
                body = await self.store.get_range(key, position, tail.size)
            return None if body is None else (skim_manifest(body, tail.size), tail.size)

    async def examine(self, version: int, known: bytes = b"") -> ShallowManifest | None:
        """Return one version without decoding its fragments; None when it has no manifest.

        The result is not cached. `known`: as for `fragments_range`. Raises `CorruptTable`.
        """
        body = await self.store.get(self._key(version))
        if body is None:
            return None
        found = examine(body, known)
        if found.transaction is not None:
            return found
        return found._replace(transaction=await self._transaction_in_file(found.outline))

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
                # Twice the length: the decoded label copies the bytes.
                async with self._reading.taking(2 * length):
                    if start + len(head) < end:
                        head += await self.store.get_range(key, start + len(head), end) or b""
                    label = _usable(head[SECTION_HEAD_BYTES:])
                    if label is None:
                        return None
                    return settled_by(label, version=version), _text_bytes(label)
            start = end
        return None

    async def some_after(self, after: int, upto: int, *, largest: int = 0) -> Sequence[Committed] | Gap:
        """Return the next few versions above `after`, up to and including `upto`, ascending; a `Gap` if the first of
        them can't be read.

        `largest`: the bytes of the largest one that the caller has seen so far (0 = none). Of large ones, fewer are
        read at once, so that all fit in memory. Raises `StoreUnavailable`.
        """
        count = _READERS_MAX
        if largest:
            newest = self._newest[1].size if self._newest is not None else 0
            readers = _MORE_READERS_MAX if max(largest, newest) <= _SMALL_BYTES_MAX else _READERS_MAX
            count = max(1, min(readers, _BATCH_BYTES_MAX // largest))
        batch = await self._several(range(after + 1, min(after + count, upto) + 1))
        found = list(takewhile(lambda one: one is not None, batch))
        return [one for one in found if one is not None] or Gap(after + 1)

    def known(self, version: int) -> Committed | None:
        """Return the cached facts about a version; None when there are none."""
        return self._committed.get(version)

    def compared_appends(self, after: int) -> tuple[Comparison, Committed] | None:
        """Return the cached comparison of Appends with read version `after`, and the last version that it covers.

        The caller must check that this version belongs to its history.
        """
        return self._compared_appends.get(after)

    def note_compared_appends(self, after: int, found: Comparison, last: Committed) -> None:
        """Cache the comparison of an Append of read version `after` with the versions up to `last`."""
        self._compared_appends[after] = replace(found, checked=found.checked[-_CHECKED_MAX:]), last
        self._compared_appends.move_to_end(after)
        if len(self._compared_appends) > _READ_VERSIONS_MAX:
            self._compared_appends.popitem(last=False)

    async def seen(self, uuid: str, *, after: int, latest: int) -> int | None:
        """Return the version above `after` that holds the transaction of this uuid, alone or as a member, or None.

        Searches down from `latest`, and ends at the first unreadable version.
        """
        for high in range(latest, after, -_READERS_MAX):
            versions = range(high, max(after, high - _READERS_MAX), -1)
            found: dict[int, Settled | None] = {}

            async def read(version: int, found: dict[int, Settled | None] = found) -> None:
                found[version] = await self.settled(version)

            await for_each(versions, read)
            for version in versions:
                settled = found[version]
                if settled is None:
                    return None
                if names(settled, uuid):
                    return version
        return None

    def remember(self, file: ManifestFile, body: Body, committed: Committed) -> None:
        """Cache a version that this process has created, so that it is never read."""
        self._keep(file.version, file, Tail(body=body.tail(TAIL_BYTES), size=len(body)))
        self._note(committed)

    def learn(self, committed: Committed) -> None:
        """Cache the facts about a version that another `Table` has read from the same store."""
        if committed.version not in self._committed:
            self._note(committed)

    def forget(self) -> None:
        """Drop the whole cache."""
        self._kept.clear()
        self._newest = None
        self._gone = 0
        self._ends.clear()
        self._committed.clear()
        self._footprint_bytes = 0
        self._settled.clear()
        self._settled_bytes = 0
        self._compared_appends.clear()
        self.reuse.clear()

    async def _several(self, versions: Sequence[int]) -> list[Committed | None]:
        found: dict[int, Committed | None] = {version: self._committed.get(version) for version in versions}
        unknown = [version for version, known in found.items() if known is None]

        async def load(version: int) -> None:
            found[version] = await self.committed(version)

        if len(unknown) == 1:
            await load(unknown[0])
        elif unknown:
            await for_each(unknown, load, at_once=len(unknown))
        return [found[version] for version in versions]

    async def _footprint(self, transaction: Transaction | None, file: ManifestFile) -> Footprint | Unreadable:
        before = None
        if transaction is not None and needs_version_below(transaction):
            below = await self.readable(file.version - 1)
            before = below.outline if below else None
        return _footprint(transaction, file, before)

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

    def _keep(self, version: int, file: ManifestFile, tail: Tail) -> None:
        self._kept.keep(version, file)
        self._ends[version] = _end(tail)
        if len(self._ends) > _ENDS_MAX:
            for low in sorted(self._ends)[: _ENDS_MAX // 2]:
                del self._ends[low]
        if self._newest is None or version >= self._newest[0]:
            self._newest = version, tail

    def _note(self, committed: Committed) -> None:
        self._drop(committed.version)
        self._committed[committed.version] = committed
        self._footprint_bytes += committed.bytes
        if self._footprint_bytes > self._footprint_bytes_max:
            # Drop the lowest versions first, which are needed least. The highest stays, whatever its size.
            for version in sorted(self._committed)[:-1]:
                self._drop(version)
                if self._footprint_bytes <= self._footprint_bytes_max * _KEPT_SHARE:
                    break

    def _drop(self, version: int) -> None:
        dropped = self._committed.pop(version, None)
        if dropped is not None:
            self._footprint_bytes -= dropped.bytes


def detached_manifests(keys: Iterable[str]) -> list[str]:
    """Of these keys, those of the manifests of detached versions."""
    return [key for key in keys if key.startswith(_BEFORE_DETACHED) and key.endswith(".manifest")]


def end_of(body: Body) -> bytes:
    """Return what tells the version with this manifest from another one with its number, as `Table.end`."""
    return _end(Tail(body=body.tail(_END_BYTES), size=len(body)))


def _end(tail: Tail) -> bytes:
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
    return _DECODED_FACTOR * sum(map(len, texts)) + _ENTRY_BYTES


def _parsed(keys: Sequence[str]) -> list[ManifestName]:
    names = (parse_manifest_name(key.removeprefix(VERSIONS)) for key in keys)
    return [name for name in names if name is not None]


def _footprint(transaction: Transaction | None, file: ManifestFile, before: Manifest | None) -> Footprint | Unreadable:
    if transaction is None:
        return Unreadable.NO_TRANSACTION
    if transaction.WhichOneof("operation") is None:
        return Unreadable.UNKNOWN_OPERATION
    if has_unknown_fields(transaction):
        return Unreadable.UNKNOWN_FIELDS
    try:
        return footprint_of_theirs(transaction, before=before, after=file.outline, indices=file.indices)
    except (InvalidRequest, CorruptTable, UnsupportedTable):
        # The transaction is unusable. The version itself is checked before anything is built on it.
        return Unreadable.NO_TRANSACTION
