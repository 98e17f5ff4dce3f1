"""Runs decisions, and fetches the facts that they need: from the table's store, base paths, and a cloned table.

Fetching decides nothing. What is read often is kept: footprints and manifests (`versions`), deletion vectors, the
content of fragment reuse indices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, assert_never

from committerd.concurrency import map_each
from committerd.errors import InvalidRequest, SettingsError, StoreUnavailable, UnsupportedRequest
from committerd.lance.format.fragment_reuse import Content, ExternalContent, decode_content, reuse_content
from committerd.lance.format.manifest_file import ManifestFile
from committerd.stores.port import ObjectStore
from committerd.stretches import GiveWay, to_all
from committerd.table.data_files import descriptor_of
from committerd.table.deletion_files import DeletionFileReader, cleaned_up
from committerd.table.heavy_work import HeavyWork, at_once
from committerd.table.needs import (
    BuiltByPylance,
    Checkpoint,
    Copies,
    Copy,
    Described,
    EmptyFolders,
    Enough,
    Gone,
    InThread,
    Need,
    OneVersion,
    PylanceBuilt,
    QueueEntries,
    Reuse,
    Rows,
    Source,
    Stage,
    Staged,
    StagedFacts,
    Steps,
    Versions,
)
from committerd.table.places import Location, data_file_location, deletion_file_location, located
from committerd.table.reading import read_named
from committerd.table.staged_files import missing_file
from committerd.table.staged_reading import read_staged
from committerd.table.versions import Table
from committerd_common.index_details import FRAGMENT_REUSE_INDEX
from committerd_common.messages import Transaction
from committerd_common.paths import VERSIONS, data_key, deletion_key, index_prefix

_T = TypeVar("_T")

Fetch = Callable[[Need], Awaitable[Any]]
"""Reads the fact that answers a need, as its class says; raises the error of the read."""

OpenStore = Callable[[str], ObjectStore]

BuildWithPylance = Callable[[ObjectStore, BuiltByPylance], Awaitable[PylanceBuilt]]
"""Answers the need, for the table in this store. Raises `UnsupportedRequest`, or an `Unavailable`."""


async def run(steps: Steps[_T], fetch: Fetch, *, work: HeavyWork = at_once) -> _T:
    """Run a decision to its end; returns its result or raises its error.

    An error of a read is thrown into the decision, which refuses a record for it or raises it again. `work`: runs the
    steps that may take long.
    """
    step: Need | _End[_T] = _step(steps, partial(next, steps))
    while not isinstance(step, _End):
        try:
            if isinstance(step, InThread):
                step = await work(partial(_step, steps, partial(next, steps)), size=step.size)
                continue
            fact = await fetch(step)
        except Exception as error:  # noqa: BLE001  # the decision knows whose fault it is
            step = _step(steps, partial(steps.throw, error))
        else:
            step = _step(steps, partial(steps.send, fact))
    result: _T = step.result
    return result


class _End(NamedTuple, Generic[_T]):
    result: _T


def _step(steps: Steps[_T], advance: Callable[[], Need]) -> Need | _End[_T]:
    """Go on to the next need, or to the end."""
    try:
        return advance()
    except StopIteration as end:
        return _End(end.value)


class Fetcher:
    """Fetches facts about one table."""

    def __init__(
        self,
        table: Table,
        open_store: OpenStore | None = None,
        pylance: BuildWithPylance | None = None,
        *,
        give_way: GiveWay = to_all,
    ) -> None:
        """`open_store`: opens the store of a base path or of the source of a Clone; None = those can't be read.

        `pylance`: needed if `Sources.knowledge` is set. `give_way`: called at each `Checkpoint`.
        """
        self._table = table
        self._open_store = open_store
        self._pylance = pylance
        self._give_way = give_way
        self._deletions = DeletionFileReader(self.open, table.deletion_vectors)

    async def __call__(self, need: Need) -> Any:
        """Return the fact that answers a need, as its class says. Raises `StoreUnavailable` too."""
        table = self._table
        match need:
            case Staged():
                return (await self.staged([need]))[0]
            case Rows(wanted=wanted, bytes_max=bytes_max):
                return await self._deletions.rows(wanted, staged_bytes_max=bytes_max)
            case Versions(after=after, upto=upto, largest=largest):
                return await table.some_after(after, upto, largest=largest)
            case OneVersion(number=number):
                return await table.readable(number)
            case QueueEntries(versions=versions):
                found = await map_each(versions, table.settled, at_once=_ENTRIES_AT_ONCE)
                return dict(zip(versions, found, strict=True))
            case Gone(version=version):
                return await table.is_gone(version)
            case Reuse():
                return await self._reuse(need)
            case EmptyFolders(prefixes=prefixes):
                listed = await map_each(prefixes, lambda prefix: table.store.list(prefix, limit=1))
                return [prefix for prefix, keys in zip(prefixes, listed, strict=True) if not keys]
            case Described(files=files):
                once = list(dict.fromkeys(files))
                said = await map_each(once, lambda one: descriptor_of(self.open(one), one.key))
                by_file = dict(zip(once, said, strict=True))
                return [by_file[one] for one in files]
            case Source(clone=clone):
                return await self._of_source(self._source(clone))
            case Copies(clone=clone, source=source):
                return await self._of_source(self._copies(self._cloned(clone), source))
            case BuiltByPylance():
                assert self._pylance is not None
                return await self._pylance(table.store, need)
            case InThread() | Stage():
                return None
            case Enough():
                return False
            case Checkpoint():
                await self._give_way()
                return None
            case _:
                assert_never(need)

    async def staged(self, needs: Sequence[Staged]) -> list[StagedFacts]:
        """As for each `Staged`, for many at once."""
        return await read_staged(
            needs, self.open, self._deletions, end_bytes=self._table.end_bytes, give_way=self._give_way
        )

    def open(self, location: Location) -> ObjectStore:
        """The store that has an object. Raises `InvalidRequest` (`base_unreadable`)."""
        if location.base is None:
            return self._table.store
        if self._open_store is None:
            raise InvalidRequest(
                f"{location.key} lies in base path {location.base}, which can't be read from here; commit it with "
                "`committerd commit`",
                code="base_unreadable",
            )
        try:
            return self._open_store(location.base)
        except SettingsError as error:
            raise InvalidRequest(
                f"{location.key} lies in base path {location.base}: {error}", code="base_unreadable"
            ) from error

    async def _reuse(self, need: Reuse) -> Content | None:
        index = next((index for index in need.indices if index.name == FRAGMENT_REUSE_INDEX), None)
        if index is None:
            return None
        cache = None if need.is_staged else self._table.reuse
        known = cache.content(index) if cache is not None else None
        if known is not None:
            return known
        content = reuse_content(index)
        if isinstance(content, ExternalContent):
            content = await self._external(content, need)
        if cache is not None:
            cache.add(index, content)
        return content

    async def _external(self, content: ExternalContent, need: Reuse) -> Content:
        key, start, end = content
        if key in need.written:
            return decode_content(need.written[key][start:end], end - start)
        store = self._table.store
        body = await read_named(store, key, lambda: store.get_range(key, start, end))
        if body is None and need.is_old:
            raise cleaned_up(f"{key}, which is a part of an index of an earlier version")
        if body is None:
            raise missing_file([key])
        return decode_content(body, end - start)

    def _cloned(self, clone: Transaction.Clone) -> ObjectStore:
        if self._open_store is None:
            raise UnsupportedRequest("committerd can't make clones here", code="clone_unsupported")
        try:
            return self._open_store(clone.ref_path)
        except SettingsError as error:
            raise UnsupportedRequest(f"the table that is cloned: {error}", code="clone_unsupported") from error

    async def _source(self, clone: Transaction.Clone) -> ManifestFile | None:
        origin = Table(self._cloned(clone))
        await origin.latest_version()
        return await origin.readable(clone.ref_version)

    async def _of_source(self, reading: Awaitable[_T]) -> _T:
        """Read the table that is cloned. Raises `StoreUnavailable` only if this table can't be read either."""
        try:
            return await reading
        except StoreUnavailable as error:
            await self._table.store.list(VERSIONS, limit=1)
            raise UnsupportedRequest(
                f"the table that is cloned can't be read: {error}", code="clone_unsupported"
            ) from error

    async def _copies(self, origin: ObjectStore, source: ManifestFile) -> list[Copy]:
        """List the data files, deletion files and index files of a version."""
        bases = source.outline.base_paths
        wanted = dict[str, Location]()
        for fragment in source.fragments:
            for file in fragment.files:
                wanted[data_key(file.path)] = data_file_location(file, bases)
            if fragment.HasField("deletion_file"):
                key = deletion_key(fragment.id, fragment.deletion_file, staged=False)
                wanted[key] = deletion_file_location(fragment, bases, staged=False)

        def store_of(one: Location) -> ObjectStore:
            return origin if one.base is None else self.open(one)

        copies = [Copy(store_of(one), one.key, key) for key, one in wanted.items()]
        for index in source.indices:
            prefix = index_prefix(index.uuid.uuid)
            folder = located(prefix, index.base_id if index.HasField("base_id") else None, bases)
            store = store_of(folder)
            keys = await store.list(folder.key)
            copies += [Copy(store, key, prefix + key.removeprefix(folder.key)) for key in keys]
        return copies


_ENTRIES_AT_ONCE = 64
"""Versions to read concurrently for look-ups of uuids, so that a distant store is kept busy."""
