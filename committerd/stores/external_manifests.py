"""An object store in which an external manifest store decides which manifest becomes a version.

This is Lance's protocol for `s3+ddb://`. A manifest becomes a version in five steps; the second is the commit:

    1  put the manifest under a staging key, `{final key}-{uuid}`
    2  put the version's entry if absent; it names the staging key
    3  copy the staged manifest to its final key
    4  replace the entry; it now names the final key
    5  delete the staged manifest

If a writer stops after step 2, the next reader, Lance's or ours, does the remaining steps. A staged manifest is deleted
only when no entry can name it any more: after step 4, or once the version's entry is seen to be another writer's.

The rest of committerd sees only an `ObjectStore`.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from committerd.concurrency import Concurrently, map_each
from committerd.errors import CorruptTable, PutUnknown, StoreUnavailable
from committerd.stores.port import (
    Content,
    Created,
    Exists,
    ManifestEntry,
    ManifestStore,
    ObjectEntry,
    ObjectStore,
    Tail,
    TailOrError,
    in_one_piece,
    tails_of_each,
)
from committerd_common.paths import (
    VERSIONS,
    ManifestName,
    manifest_key,
    parse_manifest_name,
    parse_staging_name,
    staging_name,
)

_log = logging.getLogger(__name__)

_TRIAL_PUTS = 4

_Found = TypeVar("_Found")


class ExternalManifests:
    """`ObjectStore` over a table's objects and the entries of its versions.

    `count` is called with an event: `deferred` (our commit holds, but its later steps failed), `repaired` (we finished
    a version that its writer had left unfinished), `registered` (we created the missing entry of a manifest).
    """

    def __init__(
        self, objects: ObjectStore, entries: ManifestStore, *, uri: str = "", count: Callable[[str], None] | None = None
    ) -> None:
        self.uri = uri or objects.uri
        self.lists_whole_folders = objects.lists_whole_folders
        self._objects = objects
        self._entries = entries
        self._count = count or (lambda event: None)
        self._salt = secrets.token_bytes(16)
        self._deferred: dict[int, ManifestEntry] = {}

    async def get(self, key: str) -> bytes | None:
        return await self._finished(key, lambda: self._objects.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await self._finished(key, lambda: self._objects.get_range(key, start, end))

    async def get_tail(self, key: str, size: int) -> Tail | None:
        return await self._finished(key, lambda: self._objects.get_tail(key, size))

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)

    async def head(self, key: str) -> int | None:
        return await self._finished(key, lambda: self._objects.head(key))

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """As the port says. A listing of all manifests also reads the latest entry, and finishes its version if needed.

        Raises `CorruptTable`: `manifest_lost` when an entry names an object that does not exist, `manifest_entry` when
        an entry is invalid.
        """
        if prefix != VERSIONS or start_after:
            return await self._objects.list(prefix, start_after=start_after, limit=limit)
        while True:
            reading = Concurrently(self._entries.latest)
            keys = await reading.of(partial(self._objects.list, prefix, limit=limit))
            latest = reading.required()
            if latest is None:  # the table is older than its manifest store, or does not exist
                return keys
            if _place(latest) != latest.key:
                await self._repair(latest)
                continue
            listed = max(filter(None, map(_parse, keys)), default=None)
            if listed is None or listed.version < latest.version:
                if await self._is_there(latest):  # beyond the listing's limit
                    return keys
                continue
            if listed.version > latest.version:
                await self._register(listed)
            return keys

    def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        return self._objects.walk(prefix)

    async def put(self, key: str, body: bytes) -> None:
        await self._objects.put(key, body)

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        """As the port says. Returns `Created` once the entry exists, even if the later steps fail.

        The staging key is derived from the body, so a retry with the same body recognises the earlier attempt.
        """
        named = _parse(key)
        if named is None:
            return await self._objects.put_if_absent(key, body)
        # Lance reads only manifests under their final keys to find conflicts, so none may be missing below a new one.
        for deferred in list(self._deferred.values()):
            await self._complete(deferred)
            self._deferred.pop(deferred.version, None)
        whole = in_one_piece(body)
        uuid = str(UUID(bytes=hashlib.sha256(self._salt + whole).digest()[:16], version=4))
        name = staging_name(named.version, named.scheme, uuid)
        staged = ManifestEntry(version=named.version, key=VERSIONS + name, size=len(whole))
        size = Concurrently(partial(self._objects.head, _place(staged)))
        await size.of(partial(self._objects.put, staged.key, whole))
        if size.required() is not None:  # taken by a version with an entry, or by a writer that creates no entries
            return await self._read_back(staged, occupied=True)
        try:
            result = await self._entries.put_if_absent(staged)
        except PutUnknown as lost:
            return await self._read_back(staged, lost=lost)
        if isinstance(result, Exists):
            return await self._read_back(staged)
        await self._finish(staged)
        return Created()

    async def copy(self, source: str, target: str) -> bool:
        return await self._objects.copy(source, target)

    async def delete(self, key: str) -> None:
        """As the port says. Of a manifest in its final place, the entry is deleted too.

        The object goes first. A reader of the version then finds an entry without an object, and says that the version
        is not there. In the other order Lance's reader would find an object without an entry, and create the entry.
        """
        await self._objects.delete(key)
        named = _parse(key)
        if named is not None:
            await self._entries.delete(named.version, key=key)

    async def conditions_hold(self) -> bool:
        """Whether several concurrent puts of the latest entry are all refused. Also True when there is no version."""
        latest = await self._entries.latest()
        if latest is None or _place(latest) != latest.key:  # putting a staged entry again could undo a repair
            return True

        async def put(_: int) -> bool:
            try:
                return isinstance(await self._entries.put_if_absent(latest), Created)
            except PutUnknown as lost:
                raise StoreUnavailable(f"the manifest store does not reply to a put: {lost}") from lost

        return not any(await map_each(range(_TRIAL_PUTS), put))

    async def _finished(self, key: str, read: Callable[[], Awaitable[_Found | None]]) -> _Found | None:
        """Read an object. A manifest that is still staged is first copied to its final key."""
        found = await read()
        named = _parse(key)
        if found is not None or named is None:
            return found
        entry = await self._entries.get(named.version)
        if entry is None:
            return None
        if _place(entry) != entry.key:
            await self._repair(entry)
        return await read()

    async def _read_back(
        self, staged: ManifestEntry, *, occupied: bool = False, lost: PutUnknown | None = None
    ) -> Created | Exists:
        """Read the version's entry: `Created` if it is ours, else `Exists`. Raises `lost` while that is unknown.

        Deletes the staged manifest only if an earlier put of its entry, still in progress, would find the number taken.
        """
        try:
            found = await self._entries.get(staged.version)
        except StoreUnavailable:
            if lost is not None:
                raise lost from None
            return Exists()
        if found is None and lost is not None:
            raise lost
        if found is not None and found.key == staged.key:
            await self._finish(staged)
            return Created()
        if found is not None or occupied:
            await self._discard(staged)
        return Exists()

    async def _finish(self, staged: ManifestEntry) -> None:
        """Do steps 3 to 5 after our commit. On failure, the next commit does them first."""
        try:
            await self._complete(staged)
        except StoreUnavailable as error:
            self._deferred[staged.version] = staged
            self._count("deferred")
            _log.warning("manifest.deferred", extra={"version": staged.version, "error": str(error)})

    async def _repair(self, staged: ManifestEntry) -> None:
        await self._complete(staged)
        self._count("repaired")
        _log.info("manifest.repaired", extra={"version": staged.version})

    async def _complete(self, staged: ManifestEntry) -> None:
        """Do steps 3 to 5. Each step is idempotent, so several processes may do them concurrently."""
        place, size = _place(staged), staged.size
        if not await self._objects.copy(staged.key, place) or size is None:
            size = await self._objects.head(place)
            if size is None:
                await self._require_moved_on(staged)
                return
        await self._entries.replace(ManifestEntry(version=staged.version, key=place, size=size))
        await self._discard(staged)

    async def _require_moved_on(self, staged: ManifestEntry) -> None:
        """Check that a manifest under neither key was finished by another process and then removed by a cleanup.

        Raises `CorruptTable` (`manifest_lost`) when the entry still names the staged manifest.
        """
        now = await self._entries.get(staged.version)
        if now is not None and now.key == staged.key:
            raise CorruptTable(
                f"{self.uri}: version {staged.version} is committed, but its manifest is gone: the entry names "
                f"{staged.key}, and there is no such object. Lance 4.0.0 deletes the staged manifest when the reply "
                "to its commit is lost, and reports that the commit failed. Bring the object back (bucket "
                f"versioning), or delete the entry of version {staged.version} from the manifest store: the table "
                "continues from the version before it",
                code="manifest_lost",
            )

    async def _is_there(self, latest: ManifestEntry) -> bool:
        """Whether the latest version's manifest exists; False when another version is the latest by now.

        Raises `CorruptTable` (`manifest_lost`) when it is still the latest and has no manifest.
        """
        if await self._objects.head(latest.key) is not None:
            return True
        now = await self._entries.latest()
        if now == latest:
            raise CorruptTable(
                f"{self.uri}: the manifest store's latest entry is version {latest.version}, and there is no object "
                f"{latest.key}. Was the table deleted without its entries, or the bucket restored without them? Bring "
                "the object back, or delete the entries that have no object from the manifest store",
                code="manifest_lost",
            )
        return False

    async def _register(self, named: ManifestName) -> None:
        """Create the entry of a version that was written without the manifest store, so that Lance's readers see it."""
        key = manifest_key(*named)
        try:
            size = await self._objects.head(key)
            result = await self._entries.put_if_absent(ManifestEntry(version=named.version, key=key, size=size))
        except (StoreUnavailable, PutUnknown) as error:  # the next listing tries again
            _log.warning("manifest.not_registered", extra={"version": named.version, "error": str(error)})
            return
        if isinstance(result, Created):
            self._count("registered")
            _log.warning("manifest.registered", extra={"version": named.version})

    async def _discard(self, staged: ManifestEntry) -> None:
        """Delete the staged manifest. If that fails, a stray file remains, which no reader takes for a version."""
        try:
            await self._objects.delete(staged.key)
        except StoreUnavailable as error:
            _log.info("manifest.staging_left", extra={"version": staged.version, "error": str(error)})


def _parse(key: str) -> ManifestName | None:
    """Parse the key of a manifest; None for any other key."""
    return parse_manifest_name(key.removeprefix(VERSIONS)) if key.startswith(VERSIONS) else None


def _place(entry: ManifestEntry) -> str:
    """Return the manifest's final key. Raises `CorruptTable` (`manifest_entry`) when the entry names something else."""
    name = entry.key.removeprefix(VERSIONS)
    named = parse_manifest_name(name) or parse_staging_name(name)
    if named is None or named.version != entry.version or not entry.key.startswith(VERSIONS):
        raise CorruptTable(
            f"the manifest store's entry of version {entry.version} names {entry.key!r}, which is not a manifest of "
            "that version",
            code="manifest_entry",
        )
    return manifest_key(*named)
