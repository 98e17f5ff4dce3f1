"""The versions that a transaction is judged against: those of the table, and those that are formed on them.

A version that is formed ahead is judged against before it is created. It lies in the history of the heads that follow
it and nowhere else, so when it is not created there is nothing to take back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.table.versions import Committed, Gap, Table


@dataclass(frozen=True, slots=True)
class History:
    """The versions of a table, and those formed ahead of it."""

    table: Table
    ahead: tuple[Committed, ...] = ()
    """Versions that follow the table's and are not known to exist, ascending."""

    def then(self, committed: Committed) -> History:
        """This history and one version that is formed on it."""
        return replace(self, ahead=(*self.ahead, committed))

    def of_the_table(self) -> History:
        """This history once all its versions exist."""
        return History(self.table) if self.ahead else self

    async def committed(self, version: int) -> Committed | None:
        """What the rules need of one version; None when it is unreadable. Raises `StoreUnavailable`."""
        return self._formed(version) or await self.table.committed(version)

    async def since(self, after: int, latest: int) -> AsyncIterator[Sequence[Committed] | Gap]:
        """The versions above `after`, up to and including `latest`, ascending, a few at a time.

        They end with a `Gap` at the first that is unreadable. Raises `StoreUnavailable`.
        """
        last = min(latest, self.ahead[0].version - 1) if self.ahead else latest
        async for some in self.table.history(after, last):
            yield some
            if isinstance(some, Gap):
                return
        formed = [one for one in self.ahead if after < one.version <= latest]
        if formed:
            yield formed

    def met_by_appends(self, after: int) -> Comparison:
        """What an Append of read version `after` has met in this history, as far as that is known."""
        known = self.table.met_by_appends(after)
        if known is None:
            return NOTHING_FOUND
        found, last = known
        # It may have been found in another history, whose last versions were never created.
        is_of_this = (self._formed(last.version) or self.table.known(last.version)) is last
        return found if is_of_this else NOTHING_FOUND

    def _formed(self, version: int) -> Committed | None:
        if not self.ahead or version < self.ahead[0].version:
            return None
        return next((one for one in self.ahead if one.version == version), None)
