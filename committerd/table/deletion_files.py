"""Reads the rows that deletion files hold: those of versions, and those that records name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pyroaring import BitMap

from committerd.concurrency import for_each
from committerd.errors import (
    CommitterError,
    CorruptTable,
    InvalidRequest,
    ObjectUnreadable,
    OutdatedRequest,
    RequestError,
    StoreUnavailable,
)
from committerd.stores.port import ObjectStore, Tail
from committerd.table.caches import DeletionVectorCache
from committerd.table.needs import DeletionFile, FoundDeletions, described_part
from committerd.table.places import Location
from committerd.table.reading import read_named
from committerd.table.staged_files import MISSING_MAX, NAME_CHARS_MAX, missing_file
from committerd_common.deletion_file import decode_deletions

BODIES_AT_ONCE = 256
"""Maximum number of small objects that are read in one go."""
SMALL_BODY_BYTES = 64 * 1024
"""Objects below this size are read in one go: 16 MiB at most."""


class Allowance:
    """Bytes of deletion files that may still be read for one transaction."""

    def __init__(self, bytes_max: int) -> None:
        self._all = self.left = bytes_max

    def spend(self, body: bytes, key: str) -> None:
        """Deduct the size of `body`. Raises `InvalidRequest` (`named_bytes`) when it exceeds the rest."""
        self.left -= len(body)
        if self.left < 0:
            raise InvalidRequest(
                f"the deletion files that the transaction names have more than the {self._all} bytes that are allowed "
                f"(setting commit.named_bytes_max), with {key[:NAME_CHARS_MAX]}: commit in smaller parts",
                code="named_bytes",
            )


class DeletionFileReader:
    """Reads deletion files, and keeps what they hold."""

    def __init__(self, open_store: Callable[[Location], ObjectStore], vectors: DeletionVectorCache) -> None:
        """`open_store`: returns the store that has an object, or raises `InvalidRequest` (`base_unreadable`)."""
        self._open = open_store
        self._vectors = vectors

    async def rows(self, wanted: Sequence[DeletionFile], *, staged_bytes_max: int) -> list[BitMap]:
        """Return the rows that each of these files holds. Files whose content is kept are not read.

        Raises as `needs.Rows` throws, and `CorruptTable` (`deletion_file`) for a damaged file of a version.
        """
        allowance = Allowance(staged_bytes_max)
        found = [self._vectors.rows(self._open(one.location).uri, one.location.key, one.fragment) for one in wanted]

        faults = dict[int, CommitterError]()

        async def read(place: int) -> None:
            try:
                found[place] = await self._read(wanted[place], allowance)
            except (RequestError, CorruptTable) as error:
                faults[place] = error

        await for_each([place for place, rows in enumerate(found) if rows is None], read)
        if faults:
            raise faults[min(faults)]
        return [rows for rows in found if rows is not None]

    async def check(
        self, several: Sequence[Sequence[DeletionFile]], *, bytes_max: int
    ) -> list[dict[Location, FoundDeletions]]:
        """Read the staged deletion files of several transactions, even those whose content is kept: are they there?

        Once ten files of a transaction are at fault, its others are not read. Raises `StoreUnavailable`.
        """
        found: list[dict[Location, FoundDeletions]] = [{} for _ in several]
        allowances = [Allowance(bytes_max) for _ in several]
        wanted = [(number, one) for number, files in enumerate(several) for one in files]
        for start in range(0, len(wanted), BODIES_AT_ONCE):
            batch = [
                (number, one)
                for number, one in wanted[start : start + BODIES_AT_ONCE]
                if _faults(found[number]) < MISSING_MAX
            ]
            own = [one for _, one in batch if one.location.base is None]
            small = await small_bodies(self._open(own[0].location), [one.location.key for one in own]) if own else {}

            of_each: dict[int, list[DeletionFile]] = {}
            for number, one in batch:
                of_each.setdefault(number, []).append(one)

            async def check(
                number: int,
                of_each: Mapping[int, Sequence[DeletionFile]] = of_each,
                small: Mapping[str, bytes | None] = small,
            ) -> None:
                for one in of_each[number]:  # one after the other: each may have all bytes that are left
                    found[number][one.location] = await self._checked(one, allowances[number], small)

            await for_each(of_each, check)
        return found

    async def _checked(
        self, file: DeletionFile, allowance: Allowance, small: Mapping[str, bytes | None]
    ) -> FoundDeletions:
        rows, fault = 0, None
        try:
            rows = len(await self._read(file, allowance, small if file.location.base is None else {}))
        except (RequestError, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and file.location.base is None:
                raise
            fault = error
        return FoundDeletions(described_part(file.fragment), rows, fault)

    async def _read(
        self, file: DeletionFile, allowance: Allowance, small: Mapping[str, bytes | None] | None = None
    ) -> BitMap:
        """Read one file. `small`: small bodies that were just read, by key; None = the object is missing."""
        key, store = file.location.key, self._open(file.location)
        if small is not None and key in small:
            body = small[key]
        elif file.is_staged:
            body = await read_named(store, key, lambda: store.get_range(key, 0, allowance.left + 1))
        else:
            body = await read_named(store, key, lambda: store.get(key))
        if body is None:
            what = f"{key}, which has the rows of fragment {file.fragment.id} that were deleted in an earlier version"
            raise missing_file([key]) if file.is_staged else cleaned_up(what)
        if file.is_staged:
            allowance.spend(body, key)
        rows = decode_deletions(body, file.fragment, staged=file.is_staged)
        self._vectors.add(store.uri, key, rows)
        return rows


def _faults(found: Mapping[Location, FoundDeletions]) -> int:
    """How many files of the table's folder are at fault."""
    return sum(one.fault is not None and location.base is None for location, one in found.items())


def cleaned_up(file: str) -> OutdatedRequest:
    """The error for a file that only old versions have and that is missing."""
    return OutdatedRequest(f"{file}, is gone: a cleanup has removed it. Read the latest version and do the work again")


async def small_bodies(store: ObjectStore, keys: Sequence[str]) -> dict[str, bytes | None]:
    """Read these objects as far as they are readable and below `SMALL_BODY_BYTES`; None for a missing one."""
    distinct, bodies = list(dict.fromkeys(keys)), dict[str, bytes | None]()
    for start in range(0, len(distinct), BODIES_AT_ONCE):
        some = distinct[start : start + BODIES_AT_ONCE]
        with suppress(ObjectUnreadable):  # reading one of them takes too long: each is read alone
            for key, tail in zip(some, await store.get_tails(some, size=SMALL_BODY_BYTES), strict=True):
                if tail is None:
                    bodies[key] = None
                elif isinstance(tail, Tail) and tail.size < SMALL_BODY_BYTES:
                    bodies[key] = tail.body
    return bodies
