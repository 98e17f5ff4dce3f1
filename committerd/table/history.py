"""The versions that a transaction is judged against: those of the table, and those formed ahead of it.

Transactions are judged against a version that is formed ahead before it is created. Only the heads that follow it hold
it in their history, so if its put fails there is nothing to roll back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.table.versions import Committed, Table
from committerd_common.paths import VERSION_MAX

_READ_VERSIONS_MAX = 32
"""Maximum number of read versions for which the comparison of Appends is cached: producers use few at a time."""
_CHECKED_MAX = 1000
"""Maximum number of checked versions in a cached comparison: a producer may keep its read version for a million."""


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
