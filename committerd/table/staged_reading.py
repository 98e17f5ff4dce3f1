"""Reads what must be known of the files that records name, for many records at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from committerd.concurrency import for_each
from committerd.errors import CommitterError, InvalidRequest, ObjectUnreadable, StoreUnavailable
from committerd.stores.port import ObjectStore, Tail, TailOrError
from committerd.stretches import GiveWay, to_all
from committerd.table.data_files import DataFileFacts
from committerd.table.deletion_files import DeletionFileReader
from committerd.table.file_ends import EndBytes
from committerd.table.needs import FoundDeletions, FoundFile, Staged, StagedFacts
from committerd.table.places import Location
from committerd.table.reading import read_named
from committerd.table.staged_files import MISSING_MAX
from committerd_common.paths import DATA

_ENDS_AT_ONCE = 256
"""The most files whose ends are read at once."""
_END_BYTES_AT_ONCE = 4 * 1024 * 1024
"""The most bytes of these ends together."""

_STRETCH_BYTES = 256 * 1024
"""Bytes of ends to look at before the stretch of work may end."""

_Found = dict[Location, FoundFile | CommitterError | None]


async def read_staged(
    needs: Sequence[Staged],
    open_store: Callable[[Location], ObjectStore],
    deletions: DeletionFileReader,
    *,
    end_bytes: EndBytes,
    give_way: GiveWay = to_all,
) -> list[StagedFacts]:
    """Return what is known of the files of each of these transactions. Raises `StoreUnavailable`.

    One request for a file, and another one for a data file whose descriptor lies before the end that is read.
    `open_store`: as for `DeletionFileReader`.
    """
    found: list[_Found] = [{} for _ in needs]
    found_deletions: list[dict[Location, FoundDeletions]] = [{} for _ in needs]

    async def look_at_files() -> None:
        files = [(number, one.location) for number, need in enumerate(needs) for one in need.files]
        own = [(number, one) for number, one in files if one.base is None]
        if own:
            await _look_in_folder(open_store(own[0][1]), own, found, end_bytes=end_bytes, give_way=give_way)
        await for_each(
            [(number, one) for number, one in files if one.base is not None],
            lambda one: _look_in_base(open_store, one[1], found[one[0]]),
        )

    async def read_deletions() -> None:
        bytes_max = max(need.deletion_bytes_max for need in needs)
        found_deletions[:] = await deletions.check([need.deletions for need in needs], bytes_max=bytes_max)

    calls = [look_at_files, read_deletions] if any(need.deletions for need in needs) else [look_at_files]
    await for_each(calls, lambda call: call())
    return [
        StagedFacts(files=files, deletions=deletions) for files, deletions in zip(found, found_deletions, strict=True)
    ]


async def _look_in_folder(
    store: ObjectStore,
    files: Sequence[tuple[int, Location]],
    found: Sequence[_Found],
    *,
    end_bytes: EndBytes,
    give_way: GiveWay,
) -> None:
    """Look at files in the table's folder: (number of the transaction, file). Adds what is found of each."""
    facts, missing = DataFileFacts(store, give_way=give_way), Counter[int]()
    ends: dict[str, FoundFile | CommitterError | None] = {}
    for start in range(0, len(files), _ENDS_AT_ONCE):
        some = [(number, one) for number, one in files[start : start + _ENDS_AT_ONCE] if missing[number] < MISSING_MAX]
        keys = list(dict.fromkeys(one.key for _, one in some if one.key not in ends))
        data_files = [key for key in keys if key.startswith(DATA)]
        others = [key for key in keys if not key.startswith(DATA)]
        ends |= await _read_ends(store, data_files, facts, end_bytes=end_bytes, give_way=give_way)
        for key, tail in zip(others, await _tails(store, others, size=1), strict=True):
            ends[key] = _found(await _tail(store, key, tail, size=1))
        missing.update(number for number, one in some if ends[one.key] is None)
    for number, one in files:
        if one.key in ends:
            end = ends[one.key]
            said = facts.found.get(one.key)
            found[number][one] = end._replace(said=said) if isinstance(end, FoundFile) else end


async def _read_ends(
    store: ObjectStore, keys: Sequence[str], facts: DataFileFacts, *, end_bytes: EndBytes, give_way: GiveWay
) -> dict[str, FoundFile | CommitterError | None]:
    """Read the ends of these data files; returns what is found, by key, and adds what they say to `facts`."""
    found, left = dict[str, FoundFile | CommitterError | None](), keys
    while left:
        size, needed = end_bytes.bytes, list[int]()
        count = _END_BYTES_AT_ONCE // size
        some, left = left[:count], left[count:]
        for place, (key, tail) in enumerate(zip(some, await _tails(store, some, size=size), strict=True)):
            if place % max(_STRETCH_BYTES // size, 1) == 0:
                await give_way()
            end = await _tail(store, key, tail, size=size)
            found[key] = _found(end)
            if isinstance(end, Tail):
                needed.append(facts.take(key, end))
        end_bytes.note(needed)
        await facts.finish()
    return found


def _found(end: Tail | CommitterError | None) -> FoundFile | CommitterError | None:
    return FoundFile(end.size) if isinstance(end, Tail) else end


async def _tails(store: ObjectStore, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
    try:
        return await store.get_tails(keys, size=size) if keys else ()
    except ObjectUnreadable as error:  # reading one of them takes too long: each is read alone
        return [error] * len(keys)


async def _tail(store: ObjectStore, key: str, tail: TailOrError, *, size: int) -> Tail | CommitterError | None:
    """The end of a file, which is read again alone if reading it together with others has failed."""
    try:
        if isinstance(tail, CommitterError):
            return await read_named(store, key, partial(store.get_tail, key, size))
    except InvalidRequest as error:
        return error
    return tail


async def _look_in_base(open_store: Callable[[Location], ObjectStore], location: Location, found: _Found) -> None:
    try:
        size = await open_store(location).head(location.key)
        found[location] = None if size is None else FoundFile(size)
    except (InvalidRequest, StoreUnavailable) as error:
        found[location] = error
