"""Reads what must be known of the files that records name, for many records at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from committerd.concurrency import for_each
from committerd.errors import CommitterError, InvalidRequest, ObjectUnreadable, StoreUnavailable
from committerd.stores.port import ObjectStore, TailOrError
from committerd.stretches import GiveWay, to_all
from committerd.table.data_files import DataFileFacts, EndBytes
from committerd.table.deletion_files import DeletionFileReader
from committerd.table.needs import FoundDeletions, FoundFile, Staged, StagedFacts
from committerd.table.places import Location
from committerd.table.reading import read_named
from committerd.table.staged_files import MISSING_MAX
from committerd_common.paths import DATA

_ENDS_AT_ONCE = 256
_END_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Maximum number of files whose ends are read in one go, and maximum bytes of these ends together."""

_IN_A_STRETCH = 16
"""Files of which to decode the ends before the stretch of work may end."""

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
            await _look_in_folder(open_store(own[0][1]), own, found, end_bytes, give_way)
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
    end_bytes: EndBytes,
    give_way: GiveWay,
) -> None:
    """Look at files in the table's folder: (number of the transaction, file). Adds what is found of each."""
    missing, facts, ends = Counter[int](), DataFileFacts(store), dict[str, FoundFile | CommitterError | None]()
    left = iter(files)
    while go := list(islice(left, min(_ENDS_AT_ONCE, _END_BYTES_AT_ONCE // end_bytes.bytes))):
        some = [(number, one) for number, one in go if missing[number] < MISSING_MAX]
        keys = list(dict.fromkeys(one.key for _, one in some if one.key not in ends))
        for in_data in (True, False):
            size = end_bytes.bytes if in_data else 1
            wanted = [key for key in keys if key.startswith(DATA) is in_data]
            tails = await _tails(store, wanted, size=size)
            for place, (key, tail) in enumerate(zip(wanted, tails, strict=True)):
                if place % _IN_A_STRETCH == 0:
                    await give_way()
                ends[key] = await _found(store, key, tail, size=size, facts=facts if in_data else None)
        missing.update(number for number, one in some if ends[one.key] is None)
        await facts.finish()
        if facts.needed:
            end_bytes.note(facts.needed)
    for number, one in files:
        if one.key in ends:
            end = ends[one.key]
            said = facts.found.get(one.key)
            found[number][one] = end._replace(said=said) if isinstance(end, FoundFile) else end


async def _tails(store: ObjectStore, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
    try:
        return await store.get_tails(keys, size=size) if keys else ()
    except ObjectUnreadable as error:  # reading one of them takes too long: each is read alone
        return [error] * len(keys)


async def _found(
    store: ObjectStore, key: str, tail: TailOrError, *, size: int, facts: DataFileFacts | None
) -> FoundFile | CommitterError | None:
    try:
        end = tail
        if isinstance(end, CommitterError):
            end = await read_named(store, key, partial(store.get_tail, key, size))
    except InvalidRequest as error:
        return error
    if end is None:
        return None
    if facts is not None:
        facts.take(key, end)
    return FoundFile(end.size)


async def _look_in_base(open_store: Callable[[Location], ObjectStore], location: Location, found: _Found) -> None:
    try:
        size = await open_store(location).head(location.key)
        found[location] = None if size is None else FoundFile(size)
    except (InvalidRequest, StoreUnavailable) as error:
        found[location] = error
