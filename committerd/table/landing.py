"""The commit protocol: put a version, and determine the result.

    put result            next step
    created               the version is ours
    exists                read the version back: our own earlier attempt may have created it
    no response           the result is unknown: read back; if the number is still free, put the same bytes again
    unavailable           nothing was sent: wait, then put the same bytes again

Once a put's result is unknown, it stays unknown until the version number is occupied. Until then the caller must not
form another version from the same records, and must not delete any staged file. The queue's committer, `committerd
commit` and the operator's commands all commit this way. They differ in what they put, and in how they tell their own
version from another writer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from committerd.errors import PutUnknown, StoreUnavailable, Unavailable
from committerd.stores.port import Created
from committerd.table.backoff import Backoff
from committerd.table.prepare import Prepared
from committerd.table.versions import Table
from committerd.table.writing import put, write_files

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Landing(Protocol, Generic[R_co]):
    """One version, or several consecutive versions, to be committed under their version numbers."""

    async def put(self) -> R_co | None:
        """Put the version; returns the result when it was created, None when the number is taken.

        Raises `PutUnknown` when the store did not respond, and `Unavailable` when nothing was put.
        """

    async def read_back(self, *, taken: bool) -> R_co | None:
        """Find whose version has the number; None when the number is free, or can't be read now.

        `taken`: the store reported that the number is taken.
        """

    def failed(self, error: PutUnknown | Unavailable, *, may_be_there: bool) -> None:
        """Handle an error that `put` raised.

        `may_be_there`: this put or an earlier one may have created the version. Implementations may re-raise the error,
        to give up, only when this is False.
        """


async def land(landing: Landing[R], backoff: Backoff) -> R:
    """Put and read back until it is known whose version has the number; returns the result of `put` or `read_back`.

    Any other exception of `put` and `read_back` propagates.
    """
    may_be_there = False
    while True:
        try:
            result = await landing.put()
            if result is not None:
                return result
            taken = may_be_there = True
        except PutUnknown as error:
            taken, may_be_there = False, True
            landing.failed(error, may_be_there=True)
        except Unavailable as error:
            landing.failed(error, may_be_there=may_be_there)
            await backoff.wait()
            continue
        result = await landing.read_back(taken=taken)
        if result is not None:
            return result
        await backoff.wait()


async def land_alone(table: Table, prepared: Prepared, backoff: Backoff, *, files_first: bool = True) -> bool:
    """Put a version that holds one new transaction; returns whether it was created. False = the number is taken.

    `files_first`: write the files that the manifest refers to before it. Raises `StoreUnavailable` when the store fails
    before the manifest may have been put.
    """
    if files_first:
        await write_files(table, prepared)
    return await land(_Alone(table, prepared), backoff)


@dataclass(frozen=True, slots=True)
class _Alone:
    """The `Landing` of one version. The result is whether it holds our transaction."""

    table: Table
    prepared: Prepared

    async def put(self) -> bool | None:
        return True if isinstance(await put(self.table, self.prepared), Created) else None

    async def read_back(self, *, taken: bool) -> bool | None:
        try:
            file = await self.table.read(self.prepared.version)
            transaction = await self.table.transaction(file) if file is not None else None
        except StoreUnavailable:
            return None
        if file is None and not taken:
            return None
        return transaction is not None and transaction.uuid == self.prepared.transaction.uuid

    def failed(self, error: PutUnknown | Unavailable, *, may_be_there: bool) -> None:
        if not may_be_there:
            raise error
