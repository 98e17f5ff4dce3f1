"""What the next version is built on: the latest version, and what the history up to it says of the queue.

A head never changes. `then` makes the head that follows it: of versions that were read, of one that was created, and of
one that is only formed. Whoever forms ahead forms on such a head and drops it when the version is not created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from committerd.lance.format.manifest_file import ManifestFile
from committerd.queue.ledger import NOT_SEEN, Earlier, Ledger, names, refusal_in
from committerd.queue.position import AppMark, Position, highest, kept_marks, merge_marks
from committerd.queue.race import Found
from committerd.table.history import History
from committerd.table.versions import Committed, Table


class StartAgain(Exception):
    """What this committer knows no longer holds together: read group offset, outcomes and table anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The table as one version leaves it. Position and marks never go down, whatever a foreign version carries."""

    version: int
    """The latest version; 0 = there is no table."""
    manifest: ManifestFile | None
    """Of that version."""
    history: History
    ledger: Ledger
    position: Position
    """The highest that any readable version carries, or where Start begins when none carries one."""
    marks: Mapping[str, AppMark]
    is_carried: bool
    """Whether any readable version carries a position."""
    carried: Position | None
    """What the latest version itself carries."""
    carried_marks: Mapping[str, AppMark]

    @property
    def table(self) -> Table:
        return self.history.table

    def then(self, versions: Sequence[Found], manifest: ManifestFile, *, formed: Committed | None = None) -> Head:
        """The head after these versions, which follow it in ascending order; `manifest` is that of the last one.

        `formed`: the one version, where it is not known to exist. Raises `StartAgain` where an operator has set the
        position.
        """
        ledger, position, marks, is_carried = self.ledger, self.position, self.marks, self.is_carried
        for one in versions:
            ledger = ledger.then(one.settled)
            if one.settled.ours:
                # It carries what counts of all before it. A mark that it has dropped is gone, as after a restart.
                marks = one.marks
            elif not is_carried:
                marks = dict(marks)
                merge_marks(marks, one.marks)
            # Other writers hand down what they found, or less. A higher position of theirs was made up.
            if one.position is not None and (one.settled.ours or not is_carried):
                if one.position.era != position.era:
                    raise StartAgain(f"version {one.settled.version} sets the position by hand")
                position, is_carried = highest((position, one.position)) or position, True
        last = versions[-1]
        return Head(
            version=last.settled.version,
            manifest=manifest,
            history=self.history if formed is None else self.history.then(formed),
            ledger=ledger,
            position=position,
            marks=marks,
            is_carried=is_carried,
            carried=last.position,
            carried_marks=last.marks,
        )

    def without_what_is_gone(self) -> Head:
        """This head, which calls nothing unknown any more once the versions that the ledger has dropped are gone.

        The readable history goes from the latest version down to the first number that is missing. Once a cleanup has
        removed the newest dropped version, neither it nor those below it belong to the history, as after a restart.
        """
        if self.ledger.floor == 0 or not self.table.is_known_gone(self.ledger.floor):
            return self
        return replace(self, ledger=self.ledger.with_nothing_dropped())

    def created(self) -> Head:
        """This head, once all its versions exist."""
        return replace(self, history=self.history.of_the_table())

    def lacks_keys(self, *, marks_max: int) -> bool:
        """Whether the latest version carries less than an earlier one did: our keys have to be put back."""
        if not self.is_carried:
            return False
        if self.carried != self.position:
            return True
        kept = kept_marks(self.marks, most=marks_max)
        return any(self.carried_marks.get(app_id) != mark for app_id, mark in kept.items())

    def acknowledgeable(self) -> tuple[Position, int] | None:
        """Position and version that may be acknowledged; None before any version carries a position.

        A group offset that no version stands behind would look like a table that went back.
        """
        return (self.position, self.version) if self.is_carried else None

    async def earlier(self, uuid: str, after: int) -> Earlier:
        """What is known of a uuid in the versions above `after`. Raises `StoreUnavailable`."""
        ahead = self.history.ahead
        return await earlier(self.ledger, self.table, uuid, after, created=ahead[0].version - 1 if ahead else None)


async def earlier(ledger: Ledger, table: Table, uuid: str, after: int, *, created: int | None = None) -> Earlier:
    """What is known of a uuid in the versions above `after`. Versions that may hold it are read again.

    The ledger may have dropped versions that are formed ahead: those above `created` do not exist yet, and are not
    gone. None = all versions of the ledger exist. Raises `StoreUnavailable`.
    """
    if ledger.rules_out(uuid, after):
        return NOT_SEEN
    floor = ledger.floor
    is_formed = created is not None and floor > created
    unknown_at = floor if after < floor and (is_formed or not await table.is_gone(floor)) else None
    committed, maybe = ledger.committed_at(uuid, after)
    for version in maybe:
        settled = await table.settled(version)
        if settled is None:
            unknown_at = version
        elif names(settled, uuid):
            committed = version
            break
    refusal, maybe = ledger.refused_at(uuid)
    for version in maybe:
        settled = await table.settled(version)
        refusal = refusal_in(settled, uuid) if settled is not None else None
        if refusal is not None:
            break
        if settled is None:
            unknown_at = version
    return Earlier(committed=committed, refusal=refusal, unknown_at=unknown_at)
