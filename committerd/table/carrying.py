"""What the versions of a table carry of its queue: position, marks and pause; and which of it counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from committerd.errors import CommitterError, CorruptTable, RefusedToRun
from committerd.queue.outcomes import Settled
from committerd.queue.position import (
    AppMark,
    Pause,
    Position,
    SaysOfPause,
    decode_marks,
    decode_pause,
    decode_position,
    highest,
    merge_marks,
    pause_of,
)
from committerd.queue.race import VersionSummary
from committerd.table.versions import Table
from committerd_common.messages import Manifest

_log = logging.getLogger(__name__)


async def summaries_of(
    table: Table, versions: Sequence[int], *, latest: int = 0
) -> list[VersionSummary | CorruptTable | RefusedToRun | None]:
    """Return what the queue knows of each of these versions, without its fragments; None when it has no manifest.

    Reads them together, and caches nothing. What is wrong with a version is returned in its place. `latest`: the latest
    version, if it may be among them. Raises `StoreUnavailable`.
    """
    found: list[VersionSummary | CorruptTable | RefusedToRun | None] = []
    for version, one in zip(versions, await table.outline_settled_of_each(versions), strict=True):
        if one is None or isinstance(one, CorruptTable):
            found.append(one)
            continue
        try:
            found.append(summary(*one, is_latest=version == latest))
        except (CorruptTable, RefusedToRun) as error:
            found.append(error)
    return found


class Carrying:
    """What versions carry of the queue, added from the latest down to the newest one of ours, which has all."""

    def __init__(self) -> None:
        self._counting = list[VersionSummary]()
        self._said_of_pause = list[SaysOfPause | None]()
        self._gap = False
        self.newest_ours = 0
        """The newest version of ours; 0 = it was not added yet. None may be added after it."""

    def add(self, found: VersionSummary | None) -> None:
        """Add the next version down; None = it can't be read."""
        if found is None:
            self._gap = True
            self._said_of_pause.append(None)
            return
        self._said_of_pause.append(says_of_pause(found))
        # Other writers copy the keys that they found, or drop them. Higher ones are made up, unless an unreadable
        # version between may be ours.
        if found.settled.ours and found.position is not None and not self._gap:
            self._counting.clear()
        if found.position is not None or found.marks:
            self._counting.append(found)
        if found.settled.ours:
            self.newest_ours = found.settled.version

    @property
    def position(self) -> Position | None:
        """The highest position of those that count."""
        return highest(one.position for one in self._counting if one.position is not None)

    @property
    def marks(self) -> Mapping[str, AppMark]:
        """The latest mark of each application, of those that count."""
        marks: dict[str, AppMark] = {}
        for one in self._counting:
            merge_marks(marks, one.marks)
        return marks

    @property
    def pause(self) -> Pause | None:
        """The pause of the queue."""
        return pause_of(self._said_of_pause)


def says_of_pause(found: VersionSummary) -> SaysOfPause:
    """What a version says of the pause."""
    return SaysOfPause(ours=found.settled.ours, has_keys=found.position is not None, pause=found.pause)


def summary(outline: Manifest, settled: Settled, *, is_latest: bool) -> VersionSummary:
    """Decode the position, the marks and the pause that a version carries.

    Those that a foreign writer made unreadable count as dropped, so the committer puts them back.
    """
    metadata, branch = outline.table_metadata, outline.branch
    problem: CommitterError
    try:
        return VersionSummary(
            settled=settled,
            position=decode_position(metadata, branch=branch),
            marks=decode_marks(metadata, branch=branch),
            pause=decode_pause(metadata, branch=branch),
        )
    except CorruptTable as error:
        if settled.ours:
            raise
        problem = error
    except RefusedToRun as error:
        if settled.ours or is_latest:
            raise
        problem = error
    _log.warning("keys.unreadable", extra={"version": settled.version, "error": str(problem)})
    return VersionSummary(settled=settled, position=None)
