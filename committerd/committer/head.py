"""The head: the version that the next one is built on, and the state of the queue in the history up to it.

A head is immutable. `then` returns the head that follows it: after versions that were read, after one that was created,
or after one that is only formed. Versions formed ahead are formed on such a head, which is dropped if its version is
not created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyroaring import BitMap

from committerd.lance.format.manifest_file import ManifestFile
from committerd.queue.ledger import Ledger
from committerd.queue.position import AppMark, Pause, Position, highest, kept_marks, merge_marks
from committerd.queue.race import VersionSummary
from committerd.table.versions import Committed, History, Table


class StartAgain(Exception):
    """This committer's state is outdated or contradicts itself: read group offset, outcomes and table again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The table's state after one version. Position and marks never go down, whatever a foreign version carries."""

    version: int
    """The latest version; 0 = there is no table."""
    manifest: ManifestFile | None
    """The manifest of that version."""
    history: History
    ledger: Ledger
    position: Position
    """The highest position that any readable version carries; the position that Start chose when none carries one."""
    marks: Mapping[str, AppMark]
    is_carried: bool
    """Whether any readable version carries a position."""
    carried: Position | None
    """The position that the latest version itself carries; None = it carries none."""
    carried_marks: Mapping[str, AppMark]
    """The marks that the latest version itself carries."""
    pause: Pause | None = None
    """The pause that an operator has put in place; None = the queue is not paused."""
    carried_pause: Pause | None = None
    """The pause that the latest version itself carries."""

    @property
    def table(self) -> Table:
        return self.history.table

    def then(
        self,
        versions: Sequence[VersionSummary],
        manifest: ManifestFile,
        *,
        formed: Committed | None = None,
        unwritten: Mapping[str, BitMap] | None = None,
    ) -> Head:
        """Return the head after these versions, which follow this head, ascending; `manifest` is the last one's.

        `formed`: the facts about the version, when it is a single one that is formed and not created, and `unwritten`
        the content of its new deletion files, by key. Raises `StartAgain` when an operator has set the position.
        """
        ledger, position, marks, is_carried = self.ledger, self.position, self.marks, self.is_carried
        pause = self.pause
        for one in versions:
            ledger = ledger.then(one.settled)
            if one.settled.ours:
                # It carries all that counts of the versions before it. A mark that it dropped is gone, as after a
                # restart.
                marks, pause = one.marks, one.pause
            elif not is_carried:
                marks = dict(marks)
                merge_marks(marks, one.marks)
            # Other writers copy the position that they found, or drop it. Ignore a higher one, which is made up.
            if one.position is not None and (one.settled.ours or not is_carried):
                if one.position.era != position.era:
                    raise StartAgain(f"version {one.settled.version} sets the position by hand")
                position, is_carried = highest((position, one.position)) or position, True
        last = versions[-1]
        return Head(
            version=last.settled.version,
            manifest=manifest,
            history=self.history if formed is None else self.history.then(formed, unwritten or {}),
            ledger=ledger,
            position=position,
            marks=marks,
            is_carried=is_carried,
            carried=last.position,
            carried_marks=last.marks,
            pause=pause,
            carried_pause=last.pause,
        )

    def without_what_is_gone(self) -> Head:
        """Return this head, without the ledger's floor if the versions that the ledger has dropped are deleted.

        The readable history extends from the latest version down to the first missing number. Once a cleanup has
        deleted the newest dropped version, that one and all below it are outside the history, as after a restart. No
        uuid is unknown on their account any more.
        """
        if self.ledger.floor == 0 or not self.table.is_known_gone(self.ledger.floor):
            return self
        return replace(self, ledger=replace(self.ledger, floor=0))

    def created(self) -> Head:
        """Return this head after all its versions were created."""
        return replace(self, history=self.history.of_the_table())

    def lacks_keys(self) -> bool:
        """Whether the latest version carries another position, pause or marks than the head, which must be put back."""
        if not self.is_carried:
            return False
        if (self.carried, self.carried_pause) != (self.position, self.pause):
            return True
        return any(self.carried_marks.get(app_id) != mark for app_id, mark in kept_marks(self.marks).items())

    def acknowledgeable(self) -> tuple[Position, int] | None:
        """Return the position and version that may be acknowledged; None before any version carries a position.

        A group offset without a version that carries it would look as if the table had gone back.
        """
        return (self.position, self.version) if self.is_carried else None
