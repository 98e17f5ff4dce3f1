"""One table's versions, over the store port: find, read and write them.

Nothing is decided here. A version that was read once is kept as what the rules need of it (its
footprint and what it says of the queue), so a committer that has written or seen all versions since
a read version judges without reading. Latest manifests themselves are kept within a bound; they share what they have
in common.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from committerd.errors import CorruptTable, InvalidRequest, UnsupportedTable
from committerd.format.manifest_file import (
    SECTION_HEAD_BYTES,
    TAIL_BYTES,
    Body,
    ManifestFile,
    decode,
    manifest_position,
    missing,
    section_length,
)
from committerd.format.messages import DecodeError, Manifest, Transaction
from committerd.format.paths import (
    VERSION_MAX,
    VERSIONS,
    ManifestName,
    NamingScheme,
    manifest_key,
    parse_manifest_name,
    transaction_key,
)
from committerd.format.unknown_fields import has_unknown_fields
from committerd.kept_versions import KeptVersions
from committerd.ports import ObjectStore, Tail
from committerd.rules.answers import Settled, decode_settled
from committerd.rules.conflicts import NOTHING_FOUND, Findings, Unreadable
from committerd.rules.footprint import Footprint, footprint_of_theirs
from committerd.several import for_each

MANIFESTS_MAX = 4096
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
"""Manifests kept, by number and by the bytes that they take beside the one that was kept last."""
COMMITTED_MAX = 100_000
"""Versions whose footprint is kept: a day at one version a second."""

_READ_VERSIONS_MAX = 32
"""Read versions whose Appends' findings are kept: producers stage at few at a time."""
_CHECKED_MAX = 1000
"""Of what was looked at so far: one that stays at its read version for days has passed a million versions."""
_LISTED_FIRST = 16
"""Enough to meet a manifest among what may lie before it: `.tmp` files of other writers."""
_READERS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What the rules need of one committed version."""

    version: int
    footprint: Footprint | Unreadable
    settled: Settled


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Versions in ascending order, without a hole."""

    committed: Sequence[Committed] = ()
    gap: int | None = None
    """The highest version that was asked for and can't be read; those above it are in `committed`."""


class Table:
    """The versions of one table. Used by one task at a time."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        manifests_max: int = MANIFESTS_MAX,
        manifest_bytes_max: int = MANIFEST_BYTES_MAX,
        committed_max: int = COMMITTED_MAX,
    ) -> None:
        self.store = store
        self.scheme: NamingScheme | None = None
        """How the table names its manifests; None until `latest` found one."""
        self.vetted: ManifestFile | None = None
        """The version last found to be one that may be built upon."""
        self._committed_max = committed_max
        self._kept = KeptVersions(versions_max=manifests_max, bytes_max=manifest_bytes_max)
        self._newest: tuple[int, Tail] | None = None
        """The highest version kept so far, and how its object ends."""
        self._committed: dict[int, Committed] = {}
        self._expected: dict[int, ManifestFile] = {}
        """Versions of ours that are judged against, and not known to be there."""
        self._met_by_appends: OrderedDict[int, Findings] = OrderedDict()

    @property
    def uri(self) -> str:
        return self.store.uri

    async def latest_version(self) -> int | None:
        """The highest version there is; None when there is no table. One listing.

        Raises `UnsupportedTable` (`mixed_manifest_names`) when manifests have both kinds of names:
        two writers that don't see each other, or a migration that has not ended.
        """
        # The first V2 name in byte order is the latest version; V1 names need them all.
        first = _parsed(await self.store.list(VERSIONS, limit=_LISTED_FIRST))
        if first and all(name.scheme is NamingScheme.V2 for name in first):
            self.scheme = NamingScheme.V2
            return max(name.version for name in first)
        versions = await self.versions()
        return versions[-1] if versions else None

    async def versions(self) -> list[int]:
        """All versions that have a manifest, ascending. Raises as `latest_version`."""
        names = _parsed(await self.store.list(VERSIONS))
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
        """The latest version; None when there is no table. One listing and one read.

        The end of the object is read even when it is known: a table that was dropped and made anew
        has the same names. Then all that was known is forgotten.
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
        """One version; None when it has no manifest (any more). Raises `CorruptTable`."""
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
        """One version; None when it can't be read: it has no manifest, or a damaged one, or there can't be one."""
        try:
            return await self.read(version) if 0 < version <= VERSION_MAX else None
        except CorruptTable:
            return None

    async def transaction(self, file: ManifestFile) -> Transaction | None:
        """The transaction that made a version: inline, else from its file; None when neither can
        be used.
        """
        if file.transaction is not None:
            return file.transaction
        name = file.outline.transaction_file
        body = await self.store.get(transaction_key(name)) if name else None
        if body is None:
            return None
        try:
            return Transaction.FromString(body)
        except DecodeError:
            return None

    async def committed(self, version: int) -> Committed | None:
        """What the rules need of one version; None when it can't be read."""
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
        known = Committed(
            version=version,
            footprint=await self._footprint(transaction, file),
            settled=decode_settled(transaction, version=version),
        )
        self._note(known)
        return known

    async def settled(self, version: int) -> Settled | None:
        """What the transaction of one version says of the queue; None when the version can't be read.

        Of a large manifest only the transaction is read: it lies in front of the fragments.
        """
        known = self._committed.get(version)
        if known is not None:
            return known.settled
        tail = await self.store.get_tail(self._key(version), TAIL_BYTES)
        if tail is None:
            return None
        transaction = await self._transaction_in_front(version, tail) if tail.size > len(tail.body) else None
        if transaction is None:
            file = await self.read(version)
            transaction = await self.transaction(file) if file is not None else None
        return decode_settled(transaction, version=version)

    async def _transaction_in_front(self, version: int, tail: Tail) -> Transaction | None:
        """The inline transaction, found by walking the sections from the start; None where the layout is another.

        The last section before the manifest is the transaction, or the indices alone, which have no uuid as one.
        """
        key, position, start = self._key(version), manifest_position(tail.body, tail.size), 0
        while start < position:
            head = await self.store.get_range(key, start, min(start + TAIL_BYTES, position))
            if head is None or len(head) < SECTION_HEAD_BYTES:
                return None
            end = start + SECTION_HEAD_BYTES + section_length(head)
            if end == position:
                if start + len(head) < end:
                    head += await self.store.get_range(key, start + len(head), end) or b""
                return _usable(head[SECTION_HEAD_BYTES:])
            start = end
        return None

    async def history(self, after: int, latest: int) -> History:
        """The versions in the half-open range from `after + 1` to `latest + 1`, down to the first that can't be read.

        What is not known yet is read, the newest first and several at once.
        """
        found: list[Committed] = []
        for high in range(latest, after, -_READERS_MAX):
            low = max(after, high - _READERS_MAX)
            batch = await self._several(range(high, low, -1))
            for version, committed in zip(range(high, low, -1), batch, strict=True):
                if committed is None:
                    return History(committed=tuple(reversed(found)), gap=version)
                found.append(committed)
        return History(committed=tuple(reversed(found)))

    def met_by_appends(self, after: int) -> Findings:
        """What an Append read at version `after` met in the versions behind it, as far as that was noted."""
        return self._met_by_appends.get(after, NOTHING_FOUND)

    def note_met_by_appends(self, after: int, found: Findings, last: Committed) -> None:
        """Keep what an Append read at version `after` met, up to `last`, for others of that version.

        Not where something else than `last` has turned out to be its version meanwhile.
        """
        if self._committed.get(found.through) is not last:
            return
        self._met_by_appends[after] = replace(found, checked=found.checked[-_CHECKED_MAX:])
        self._met_by_appends.move_to_end(after)
        if len(self._met_by_appends) > _READ_VERSIONS_MAX:
            self._met_by_appends.popitem(last=False)

    async def seen(self, uuid: str, *, after: int, latest: int) -> int | None:
        """The version above `after` that holds the transaction of this uuid, alone or as a member;
        else None.

        Looks at what is readable: a hole ends the search.
        """
        history = await self.history(after, latest)
        for committed in history.committed:
            settled = committed.settled
            if settled.uuid == uuid or any(member.uuid == uuid for member in settled.members):
                return committed.version
        return None

    def remember(self, file: ManifestFile, body: Body, *, before: Manifest | None) -> None:
        """Keep a version that we made, so that nothing has to be read of it. `before` is the version below it."""
        self._keep(file.version, file, Tail(body=body.tail(TAIL_BYTES), size=len(body)))
        self.expect(file, before=before)
        del self._expected[file.version]

    def expect(self, file: ManifestFile, *, before: Manifest | None) -> None:
        """Judge as if this version, which we are about to create, were there; until `expect_no_more`."""
        if self._expected.get(file.version) is file:
            return
        self._expected[file.version] = self.vetted = file
        self._note(
            Committed(
                version=file.version,
                footprint=_footprint(file.transaction, file, before),
                settled=decode_settled(file.transaction, version=file.version),
            )
        )

    def expect_no_more(self) -> None:
        """What was expected and not made by us since is not created, or not by us: what is there is read."""
        if not self._expected:
            return
        first = min(self._expected)
        for version in self._expected:
            self._committed.pop(version, None)
        self._expected.clear()
        for after in [after for after, found in self._met_by_appends.items() if found.through >= first]:
            del self._met_by_appends[after]

    def forget(self) -> None:
        """Drop all that was read: what comes next is read anew."""
        self._kept.clear()
        self._newest = None
        self._committed.clear()
        self._expected.clear()
        self._met_by_appends.clear()
        self.vetted = None

    async def _several(self, versions: Sequence[int]) -> list[Committed | None]:
        found: dict[int, Committed | None] = {version: self._committed.get(version) for version in versions}
        unknown = [version for version, known in found.items() if known is None]

        async def load(version: int) -> None:
            found[version] = await self.committed(version)

        if len(unknown) == 1:
            await load(unknown[0])
        elif unknown:
            await for_each(unknown, load)
        return [found[version] for version in versions]

    async def _footprint(self, transaction: Transaction | None, file: ManifestFile) -> Footprint | Unreadable:
        before = None
        if transaction is not None and transaction.WhichOneof("operation") in ("merge", "project"):
            # Whether a schema change tightened anything shows in the schema below it.
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
            del rest  # of 1,000,000 fragments 100 MB
        return decode(body, tail.size), tail

    def _key(self, version: int) -> str:
        return manifest_key(version, self.scheme or NamingScheme.V2)

    def _keep(self, version: int, file: ManifestFile, tail: Tail) -> None:
        self._kept.keep(version, file)
        if self._newest is None or version >= self._newest[0]:
            self._newest = version, tail

    def _note(self, committed: Committed) -> None:
        self._committed[committed.version] = committed
        if len(self._committed) > self._committed_max:
            # The lowest tenth: those are asked for least.
            for version in sorted(self._committed)[: len(self._committed) // 10 or 1]:
                del self._committed[version]


def _usable(body: bytes) -> Transaction | None:
    """The transaction in these bytes, None when they are something else."""
    try:
        transaction = Transaction.FromString(body)
    except DecodeError:
        return None
    return transaction if transaction.uuid and transaction.WhichOneof("operation") else None


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
        # Of no use to us; the version itself is judged where something is built upon it.
        return Unreadable.NO_TRANSACTION
