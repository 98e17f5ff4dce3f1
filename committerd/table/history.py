"""The versions that a transaction is judged against: those of the table, and those formed ahead of it.

Transactions are judged against a version that is formed ahead before it is created. Only the heads that follow it hold
it in their history, so if its put fails there is nothing to roll back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.table.versions import Committed, Gap, Table


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

    async def committed(self, version: int) -> Committed | None:
        """Return the facts about one version that the rules need; None when it is unreadable.

        Raises `StoreUnavailable`.
        """
        return self._formed(version) or await self.table.committed(version)

    async def since(self, after: int, latest: int) -> AsyncIterator[Sequence[Committed] | Gap]:
        """Yield the versions above `after`, up to and including `latest`, ascending, in batches.

        Ends with a `Gap` at the first unreadable version. Raises `StoreUnavailable`.
        """
        last = min(latest, self.ahead[0].version - 1) if self.ahead else latest
        async for some in self.table.history(after, last):
            yield some
            if isinstance(some, Gap):
                return
        formed = [one for one in self.ahead if after < one.version <= latest]
        if formed:
            yield formed

    def compared_appends(self, after: int) -> Comparison:
        """Return the cached comparison of Appends with read version `after`; `NOTHING_FOUND` when none is valid."""
        known = self.table.compared_appends(after)
        if known is None:
            return NOTHING_FOUND
        found, last = known
        # The comparison may come from another history, whose last versions were never created.
        is_of_this = (self._formed(last.version) or self.table.known(last.version)) is last
        return found if is_of_this else NOTHING_FOUND

    def _formed(self, version: int) -> Committed | None:
        if not self.ahead or version < self.ahead[0].version:
            return None
        return next((one for one in self.ahead if one.version == version), None)
