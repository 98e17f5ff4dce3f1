"""Finds what a table says of its queue, from few of its versions, for commands that only show it.

A committer reads down to the newest version of its queue (`committer.loading`). Other writers may have committed
thousands of versions above that one, and whoever asks at a terminal does not wait for them.

Each version of the queue changes the keys that it carries (position, marks, pause), and other writers copy the keys
that they find. So the newest version of the queue is the newest one at which the keys change, and a search that reads
a few versions of each stretch finds it. Where another writer has changed the keys (a Restore, a replaced
configuration), the search goes on below that version, as Start does.

What it can't see: a version of the queue and, later, a Restore to a version before it, both between the same two
versions of the sample, with nothing of the queue since. A short history is read as a whole, and so misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.position import AppMark, Pause, Position
from committerd.queue.race import VersionSummary
from committerd.table.carrying import Carrying, summaries_of
from committerd.table.versions import Table

_NEWEST = 16
"""Versions that are read first: in most tables, one of them is of the queue."""
_WHOLE_MAX = 256
"""Up to this number of versions below them is read as a whole."""
_SAMPLE = 32
"""Versions of a stretch that are read at once. 10,000 versions take three samples."""
_CHANGES_MAX = 8
"""Changes of the keys by other writers that the search looks below. If there are more, it reads all versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the table says of its queue."""

    version: int = 0
    """The latest version; 0 = there is no table."""
    position: Position | None = None
    """The highest position of the versions that count; None = none carries one."""
    marks: Mapping[str, AppMark] = field(default_factory=dict)
    pause: Pause | None = None
    newest_ours: int = 0
    """The newest version of the queue; 0 = none was found."""


async def sample(
    table: Table, versions: Sequence[int], *, report: Callable[[int], None] = lambda count: None
) -> Sampled:
    """Find position, marks and pause.

    `versions`: all that there are, ascending. `report`: called with the number of versions that were just read.

    Raises `CorruptTable` for the latest version, `RefusedToRun` for keys of a newer format, and `StoreUnavailable`.
    """
    if not versions:
        return Sampled()
    # As Start: down to the first number without a version.
    has_gap = versions[-1] - versions[0] >= len(versions)
    places = range(len(versions) - 1, 0, -1) if has_gap else ()
    first = next((place for place in places if versions[place - 1] < versions[place] - 1), 0)
    search = _Search(table, versions[first:], report)
    await search.run()
    return search.found()


class _Search:
    """Places in `versions`, which are ascending, stand for versions."""

    def __init__(self, table: Table, versions: Sequence[int], report: Callable[[int], None]) -> None:
        self._table = table
        self._versions = versions
        self._report = report
        self._read: dict[int, VersionSummary | None] = {}
        """By place; None for a version that can't be read."""

    def found(self) -> Sampled:
        carrying = Carrying()
        for place in sorted(self._read, reverse=True):
            carrying.add(self._read[place])
            if carrying.newest_ours:
                break
        return Sampled(
            version=self._versions[-1],
            position=carrying.position,
            marks=carrying.marks,
            pause=carrying.pause,
            newest_ours=carrying.newest_ours,
        )

    async def run(self) -> None:
        """Read what the answer depends on."""
        below = max(len(self._versions) - _NEWEST, 0)
        await self._look(range(below, len(self._versions)))
        if any(map(self._is_ours, range(below, len(self._versions)))):
            return
        if below <= _WHOLE_MAX:
            await self._look(range(below))
            return
        place = next((one for one in range(below, len(self._versions)) if self._read[one] is not None), None)
        for _ in range(_CHANGES_MAX):
            if place is None:
                break
            place = await self._newest_change(place)
            if place is None or self._is_ours(place):
                return
        await self._rest()

    async def _newest_change(self, top: int) -> int | None:
        """Return the newest place below `top` that is of the queue or carries other keys; None if there is none.

        Versions between the two that can't be read are no obstacle.
        """
        carried = self._read[top]
        assert carried is not None
        low, high = -1, top
        while True:
            places = _spread(low + 1, high, self._read)
            if not places:
                return low if low >= 0 else None
            await self._look(places)
            for place in sorted((one for one in self._read if low < one < high), reverse=True):
                one = self._read[place]
                if one is None:
                    continue
                if one.settled.ours or _keys(one) != _keys(carried):
                    low = place
                    break
                high = place

    async def _rest(self) -> None:
        """Read all versions, from the newest down to one of the queue."""
        for end in range(len(self._versions), 0, -_WHOLE_MAX):
            places = [one for one in range(max(end - _WHOLE_MAX, 0), end) if one not in self._read]
            await self._look(places)
            if any(map(self._is_ours, range(max(end - _WHOLE_MAX, 0), end))):
                return

    def _is_ours(self, place: int) -> bool:
        one = self._read[place]
        return one is not None and one.settled.ours

    async def _look(self, places: Iterable[int]) -> None:
        given = list(places)
        latest = len(self._versions) - 1
        versions = [self._versions[place] for place in given]
        for place, one in zip(given, await summaries_of(self._table, versions, latest=self._versions[-1]), strict=True):
            if isinstance(one, RefusedToRun) or (place == latest and isinstance(one, CorruptTable)):
                raise one
            self._read[place] = one if isinstance(one, VersionSummary) else None
        self._report(len(given))


def _keys(one: VersionSummary) -> tuple[Position | None, Mapping[str, AppMark], Pause | None]:
    return one.position, one.marks, one.pause


def _spread(low: int, high: int, read: Mapping[int, object]) -> list[int]:
    """Places from `low` up to `high` (half-open) that were not read: all, or a sample that has the lowest of them."""
    unread = [place for place in range(low, high) if place not in read]
    if len(unread) <= 2 * _SAMPLE:
        return unread
    return [unread[number * len(unread) // _SAMPLE] for number in range(_SAMPLE)]
