"""Caches what is known of the versions of one table.

This module decides nothing. The table caches the facts that the rules need about each version that it has read or
created: its footprint, and its queue entries (members and refusals). A committer that has created or read all
versions since a transaction's read version therefore judges the transaction without any read. The table also caches the
manifests of recent versions, within a bound; they share their chunks of fragments.

The cache holds only versions that exist. A version that is formed and not yet created is part of a `History`: only the
heads that follow it hold it, so if its put fails there is nothing to roll back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile

from pyroaring import BitMap

from committerd.concurrency import map_each
from committerd.errors import CorruptTable, InvalidRequest, UnsupportedTable
from committerd.lance.conflicts.footprint import Footprint, size_of
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison, Unreadable
from committerd.lance.conflicts.union import union
from committerd.lance.format.manifest_file import TAIL_BYTES, Body, ManifestFile
from committerd.lance.transactions.transaction import footprint_of_theirs, needs_version_below
from committerd.queue.ledger import names
from committerd.queue.outcomes import Settled
from committerd.stores.port import ObjectStore, Tail
from committerd.stretches import GiveWay, to_all
from committerd.table.budget import Budget, Budgets
from committerd.table.caches import (
    DELETION_VECTOR_BYTES_MAX,
    REUSE_BYTES_MAX,
    Cache,
    DeletionVectorCache,
    ManifestCache,
    ReuseCache,
)
from committerd.table.file_ends import EndBytes
from committerd.table.manifests import ENTRY_BYTES, Manifests, digest_of
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import VERSION_MAX
from committerd_common.unknown_fields import has_unknown_fields

MANIFESTS_MAX = 4096
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number and bytes of the manifests in the cache, besides the one that was added last."""
FOOTPRINT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of cached footprints: 100,000 Appends, about a day at one version a second."""

SETTLED_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of cached queue entries. Look-ups are of the newest versions, and of those that duplicates match."""
_KEPT_SHARE = 0.9
"""Once footprints exceed their bound, they are dropped down to this share of it, so that sorting them is rare."""
UNITED_VERSIONS = 32
"""A union of footprints covers this many versions. The first of them follows a multiple of this number."""
_UNION_PAYS = 32
"""A union is made when it was asked for this often: to make it takes as long as 32 comparisons with each version."""
_READ_VERSIONS_MAX = 32
"""Maximum number of read versions for which the comparison of Appends is cached: producers use few at a time."""
_CHECKED_MAX = 1000
"""Maximum number of checked versions in a cached comparison: a producer may keep its read version for a million."""
_READERS_MAX = 16
_MORE_READERS_MAX = 32
"""Versions to read at once while their footprints are small. More could take too much memory if large ones follow."""
_SMALL_BYTES_MAX = 512 * 1024
"""Footprints and objects up to this size are small."""
_BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the footprints that are read at once, if they are as large as those that were read before them."""
_ENDS_MAX = 4096
"""Maximum number of versions whose end is cached. Beyond it the lower half is dropped: the version to build on is among
the highest.
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


def committed_by(transaction: Transaction | None, file: ManifestFile, *, before: Manifest | None) -> Committed:
    """The facts about a version that this transaction has created (None = it can't be read).

    `before`: the version below it, without fragments; None = it is not needed, or can't be read.
    """
    footprint = _footprint(transaction, file, before)
    return Committed(
        version=file.version,
        uuid=transaction.uuid if transaction is not None else "",
        footprint=footprint,
        bytes=ENTRY_BYTES + (size_of(footprint) if isinstance(footprint, Footprint) else 0),
    )


def budgets_of(
    *,
    footprint_bytes: int = FOOTPRINT_BYTES_MAX,
    deletion_vector_bytes: int = DELETION_VECTOR_BYTES_MAX,
    manifest_bytes: int = MANIFEST_BYTES_MAX,
) -> Budgets:
    """New budgets, for all tables of a process or for one alone."""
    return Budgets(
        footprints=Budget(footprint_bytes),
        deletion_vectors=Budget(deletion_vector_bytes),
        manifests=Budget(manifest_bytes),
        outcomes=Budget(SETTLED_BYTES_MAX),
        reuse=Budget(REUSE_BYTES_MAX),
    )


@dataclass(slots=True)
class _Union:
    """The union of the footprints of `UNITED_VERSIONS` versions."""

    asked: int = 0
    """How often it was asked for."""
    footprints: Sequence[Footprint] | None = None
    bytes: int = 0


class FootprintCache:
    """The facts about versions, and unions of their footprints.

    What exceeds the bound goes from the lowest version up: unions first, because they only save time. The facts about
    the highest version stay.
    """

    def __init__(self, bytes_max: int, budget: Budget | None = None) -> None:
        """`budget`: bounds this cache and others together; None = this one is by itself."""
        self._bytes_max = bytes_max
        self._share = (budget or Budget(bytes_max)).share(self)
        self._committed: dict[int, Committed] = {}
        self._unions: dict[int, _Union] = {}
        """By the version before their first."""
        self.bytes = 0
        """Estimated memory of all facts and unions, in bytes."""

    def __contains__(self, version: int) -> bool:
        return version in self._committed

    @property
    def highest(self) -> int:
        """The highest version; 0 = none."""
        return max(self._committed, default=0)

    def get(self, version: int) -> Committed | None:
        """Return the facts about a version; None if there are none."""
        return self._committed.get(version)

    def put(self, committed: Committed) -> None:
        """Add the facts about a version."""
        self._drop(committed.version)
        self._committed[committed.version] = committed
        self.bytes += committed.bytes
        self._drop_unions(self._bytes_max)
        if self.bytes > self._bytes_max:
            self.shrink(int(self.bytes - self._bytes_max * _KEPT_SHARE))
        self._share.use(self.bytes)

    def union_after(self, after: int) -> Sequence[Footprint] | None:
        """Return the union of the versions that follow `after`, a multiple of `UNITED_VERSIONS`.

        None if `conflicts.union` makes none, if a version is not cached, if the union does not fit within the bound, or
        if it was seldom needed.
        """
        versions = range(after + 1, after + 1 + UNITED_VERSIONS)
        if versions[0] not in self._committed or versions[-1] not in self._committed:
            return None
        known = self._unions.setdefault(after, _Union())
        known.asked += 1
        if known.footprints is None and known.asked % _UNION_PAYS == 0:
            cached = [one for one in map(self._committed.get, versions) if one is not None]
            made = union(one.footprint for one in cached) if len(cached) == UNITED_VERSIONS else None
            size = sum(ENTRY_BYTES + size_of(one) for one in made or ())
            if made is not None and self.bytes + size <= self._bytes_max and self._share.fits(size):
                known.footprints, known.bytes = made, size
                self.bytes += size
                self._share.use(self.bytes)
        return known.footprints

    def shrink(self, by: int) -> int:
        """Drop this many bytes or more, as far as possible. Returns the bytes that are left."""
        bound = self.bytes - by
        self._drop_unions(bound)
        for version in sorted(self._committed)[:-1]:
            if self.bytes <= bound:
                break
            self._drop(version)
        return self.bytes

    def clear(self) -> None:
        """Drop everything."""
        self._committed.clear()
        self._unions.clear()
        self.bytes = 0
        self._share.use(0)

    def _drop_unions(self, bound: int) -> None:
        """Drop unions until this many bytes are left, as far as possible."""
        if self.bytes <= bound:
            return
        for after in sorted(self._unions):
            if self.bytes <= bound:
                break
            self.bytes -= self._unions.pop(after).bytes

    def _drop(self, version: int) -> None:
        dropped = self._committed.pop(version, None)
        united = self._unions.pop((version - 1) // UNITED_VERSIONS * UNITED_VERSIONS, None)
        for one in (dropped, united):
            if one is not None:
                self.bytes -= one.bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """A version that can't be read."""

    version: int


class Table(Manifests):
    """The versions of one table. Used by one task at a time, but for `settled`, which others may call meanwhile."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        manifests_max: int = MANIFESTS_MAX,
        manifest_bytes_max: int = MANIFEST_BYTES_MAX,
        footprint_bytes_max: int = FOOTPRINT_BYTES_MAX,
        deletion_vectors: DeletionVectorCache | None = None,
        budgets: Budgets | None = None,
        give_way: GiveWay = to_all,
    ) -> None:
        """`budgets`: bound the caches of this table and of others together; None = this one is by itself."""
        super().__init__(store, give_way=give_way)
        shared = budgets or budgets_of(footprint_bytes=footprint_bytes_max, manifest_bytes=manifest_bytes_max)
        self.deletion_vectors = deletion_vectors or DeletionVectorCache()
        """The content of deletion files that were read or written."""
        self.reuse = ReuseCache(REUSE_BYTES_MAX, shared.reuse)
        """The content of fragment reuse indices that were read."""
        self._manifests = ManifestCache(
            versions_max=manifests_max, bytes_max=manifest_bytes_max, budget=shared.manifests
        )
        self._newest: tuple[int, Tail] | None = None
        """The highest version read or created so far, and the end of its object."""
        self._gone = 0
        """The highest version that a lookup found deleted; 0 = none."""
        self._ends: dict[int, bytes] = {}
        """By version that was read or created: a digest of its object's size and end."""
        self._committed = FootprintCache(footprint_bytes_max, shared.footprints)
        self.compared_appends: OrderedDict[int, tuple[Comparison, Committed]] = OrderedDict()
        """For `History`, by read version: the comparison of its Appends, and the last version that it covers."""
        self._settled = Cache[int, Settled](SETTLED_BYTES_MAX, shared.outcomes)
        self.end_bytes = EndBytes()
        """Of the data files that transactions name."""

    @property
    def footprint_bytes(self) -> int:
        """Estimated memory of the cached footprints, in bytes."""
        return self._committed.bytes

    def cache_bytes(self) -> dict[str, int]:
        """Return the estimated memory of the other caches, in bytes, by their names among the metrics."""
        return {"manifests": self._manifests.bytes, "outcomes": self._settled.bytes, "reuse": self.reuse.bytes}

    async def latest(self) -> ManifestFile | None:
        """Return the latest version; None when there is no table. Costs one listing and one read.

        Reads the end of the manifest even when it is cached: a table that was dropped and recreated has the same
        names. In that case the whole cache is dropped. Raises as `latest_version` and `read`.
        """
        version = await self.latest_version()
        if version is None:
            self.forget()
            return None
        if version in self._manifests:
            tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
            if self._newest != (version, tail):
                self.forget()
        elif version < self._committed.highest:
            self.forget()
        return await self.read(version)

    async def read(self, version: int) -> ManifestFile | None:
        """Return one version; None when it has no manifest. Raises `CorruptTable` and `StoreUnavailable`."""
        known = self._manifests.get(version)
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
        """Check whether a version that this table has read or created still exists and is the same. Costs one read."""
        end = await self.end(version)
        if end is None:
            return VersionState.GONE
        return VersionState.SAME if self._ends.get(version) == end else VersionState.REPLACED

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

    async def committed(self, version: int) -> Committed | None:
        """Return the facts about one version that the rules need; None when its manifest is missing or damaged."""
        known = self._committed.get(version)
        if known is not None:
            return known
        file = await self.readable(version)
        if file is None:
            return None
        transaction, below = await self.transaction(file), None
        if transaction is not None and needs_version_below(transaction):
            below = await self.readable(version - 1)
        known = committed_by(transaction, file, before=below.outline if below is not None else None)
        self._committed.put(known)
        return known

    async def settled(self, version: int, *, keep: bool = True) -> Settled | None:
        """Return the queue entries of one version; None when the version is missing or damaged.

        `keep`: cache the result.
        """
        known = self._settled.get(version)
        if known is not None:
            return known
        found = await self.read_settled(version)
        if found is None:
            return None
        settled, size = found
        if keep:
            self._settled.put(version, settled, size)
        return settled

    async def some_after(self, after: int, upto: int, *, largest: int = 0) -> Sequence[Committed] | Gap:
        """Return the fact that answers `needs.Versions`, ascending; a `Gap` if the first version can't be read.

        Raises `StoreUnavailable`.
        """
        count = _READERS_MAX
        if largest:
            newest = self._newest[1].size if self._newest is not None else 0
            readers = _MORE_READERS_MAX if max(largest, newest) <= _SMALL_BYTES_MAX else _READERS_MAX
            count = max(1, min(readers, _BATCH_BYTES_MAX // largest))
        versions = range(after + 1, min(after + count, upto) + 1)
        batch = [self._committed.get(version) for version in versions]
        if None in batch:
            batch = await map_each(versions, self.committed, at_once=count)
        found = list(takewhile(lambda one: one is not None, batch))
        return [one for one in found if one is not None] or Gap(after + 1)

    def known(self, version: int) -> Committed | None:
        """Return the cached facts about a version; None when there are none."""
        return self._committed.get(version)

    def union_after(self, after: int) -> Sequence[Footprint] | None:
        """As `FootprintCache.union_after`."""
        return self._committed.union_after(after)

    async def seen(self, uuid: str, *, after: int, latest: int) -> int | None:
        """Return the version above `after` that holds the transaction of this uuid, alone or as a member, or None.

        Searches down from `latest`, and ends at the first unreadable version.
        """
        for high in range(latest, after, -_READERS_MAX):
            versions = range(high, max(after, high - _READERS_MAX), -1)
            for version, settled in zip(versions, await map_each(versions, self.settled), strict=True):
                if settled is None:
                    return None
                if names(settled, uuid):
                    return version
        return None

    def remember(self, file: ManifestFile, body: Body, committed: Committed) -> None:
        """Cache a version that this process has created, so that it is never read."""
        self._keep(file.version, file, Tail(body=body.tail(TAIL_BYTES), size=len(body)))
        self._committed.put(committed)

    def learn(self, committed: Committed) -> None:
        """Cache the facts about a version that another `Table` has read from the same store."""
        if committed.version not in self._committed:
            self._committed.put(committed)

    def forget(self) -> None:
        """Drop the whole cache."""
        self._manifests.clear()
        self._newest = None
        self._gone = 0
        self._ends.clear()
        self._committed.clear()
        self._settled.clear()
        self.compared_appends.clear()
        self.reuse.clear()

    def _keep(self, version: int, file: ManifestFile, tail: Tail) -> None:
        self._manifests.put(version, file)
        self._ends[version] = digest_of(tail)
        if len(self._ends) > _ENDS_MAX:
            for low in sorted(self._ends)[: _ENDS_MAX // 2]:
                del self._ends[low]
        if self._newest is None or version >= self._newest[0]:
            self._newest = version, tail


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


@dataclass(frozen=True, slots=True)
class History:
    """The versions of a table, followed by versions that are formed ahead."""

    table: Table
    ahead: tuple[Committed, ...] = ()
    """Versions that follow the table's latest and are not known to exist, ascending."""
    unwritten: Mapping[str, BitMap] = field(default_factory=dict)
    """The content of the deletion files of those versions, which may not be written yet, by key."""

    def then(self, committed: Committed, unwritten: Mapping[str, BitMap]) -> History:
        """Return this history extended by one version that is formed ahead, with its new deletion files."""
        return replace(self, ahead=(*self.ahead, committed), unwritten={**self.unwritten, **unwritten})

    def of_the_table(self) -> History:
        """Return this history after all its versions were created: nothing is ahead any more."""
        return History(self.table) if self.ahead else self

    @property
    def created(self) -> int:
        """The highest version that is known to exist, as far as versions follow it."""
        return self.ahead[0].version - 1 if self.ahead else VERSION_MAX

    def formed(self, version: int) -> Committed | None:
        """The facts about a version that is formed ahead; None for any other one."""
        if not self.ahead or version < self.ahead[0].version:
            return None
        return next((one for one in self.ahead if one.version == version), None)

    def formed_after(self, after: int) -> Sequence[Committed]:
        """The versions above `after` that are formed ahead, if `after` is the last one before them or one of them."""
        return [one for one in self.ahead if one.version > after] if after >= self.created else ()

    def union_after(self, after: int, latest: int) -> Sequence[Footprint] | None:
        """As `FootprintCache.union_after`; None also if one of the versions is above `latest`, or `after` isn't a
        multiple of `UNITED_VERSIONS`.
        """
        if after % UNITED_VERSIONS or after + UNITED_VERSIONS > min(latest, self.created):
            return None
        return self.table.union_after(after)

    def compared_appends(self, after: int) -> Comparison:
        """Return the cached comparison of Appends with read version `after`; `NOTHING_FOUND` when none is valid."""
        found, last = self.table.compared_appends.get(after, (NOTHING_FOUND, None))
        # The comparison may come from another history, whose last versions were never created.
        is_of_this = last is not None and (self.formed(last.version) or self.table.known(last.version)) is last
        return found if is_of_this else NOTHING_FOUND

    def note_compared_appends(self, after: int, found: Comparison, last: Committed) -> None:
        """Cache the comparison of an Append of read version `after` with the versions up to `last`."""
        cached = self.table.compared_appends
        cached[after] = replace(found, checked=found.checked[-_CHECKED_MAX:]), last
        cached.move_to_end(after)
        if len(cached) > _READ_VERSIONS_MAX:
            cached.popitem(last=False)
