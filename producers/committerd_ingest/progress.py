"""How far a split of a reader is in the table, decided from what the table says.

A token is a text, and the mark of an application is a number. So rows take two units, one behind the other:

1. The *plan*, which has an odd number: a note in the table's metadata (`committerd-ingest.APP-ID`) with the token
   before the rows, and that behind them. The mark moves in the same transaction.
2. The *rows*, whose number is one higher, and which are committed only if the mark is still that of the plan.

A mark at the plan's number says that its rows are not in the table, and never will be once another plan is there: one
goes on at the token before. A mark one higher says that they are: one goes on at the token behind. A plan whose tokens
are equal is a plain note: it settles the split, or passes over what makes no rows. A mark that the committer has
forgotten, as it does after 30 days, is missed only where the last plan has rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from committerd_client.app_marks import AppMark
from committerd_ingest.marks import read_note


def app_id_of_split(pipeline: str, reader: str, split: str) -> str:
    """The application of a split. `reader`: the reader's name. `pipeline` has no dot."""
    hashed = hashlib.sha256(f"{reader}\0{split}".encode()).hexdigest()[:32]
    return f"{pipeline}.{hashed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The note of a split."""

    plan: int
    """The number of the plan; odd."""
    before: str | None
    """The token before the planned rows; None = the beginning of the split."""
    after: str | None
    """The token behind them."""
    at_ms: int
    """When it was written: Unix milliseconds by the clock of the process."""
    of: str
    """The reader and the split, for people."""
    by: str
    """The process that wrote it, and which of its notes it is: two processes may plan under one number."""

    @property
    def settled(self) -> bool:
        """Whether it plans no rows."""
        return self.before == self.after

    def text(self) -> str:
        """What stands in the table. Where a token continues the one before it, their common part stands there once."""
        common = _common(self.before or "", self.after or "")
        return json.dumps(
            {
                "of": self.of,
                "plan": self.plan,
                "after": self.after,
                "before": None if self.before is None else [common, self.before[common:]],
                "at_ms": self.at_ms,
                "by": self.by,
            }
        )


def progress_in(table_metadata: Mapping[str, str], app_id: str) -> Progress | None:
    """The note of a split; None if there is none. Raises `ValueError` for a note that can't be read."""
    return read_note(table_metadata, app_id, _progress)


def _progress(raw: Any) -> Progress:
    after, before = _text(raw["after"]), raw["before"]
    return Progress(
        plan=int(raw["plan"]),
        before=None if before is None else (after or "")[: int(before[0])] + str(before[1]),
        after=after,
        at_ms=int(raw["at_ms"]),
        of=str(raw["of"]),
        by=str(raw["by"]),
    )


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _text(found: Any) -> str | None:
    return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class GoOn:
    """Where a split goes on."""

    token: str | None
    mark: int
    """The number of the last unit in the table; 0 = there is none."""

    @property
    def plan(self) -> int:
        """The number of the next plan: the next odd one, which no unit that may still wait in the queue has."""
        return self.mark + 1 + self.mark % 2


@dataclass(frozen=True, slots=True)
class Unclear:
    """It is not certain what the table has: an operator decides."""

    reason: str
    """`mark_lost` or `mark_released`."""
    text: str


def where_to_go_on(mark: AppMark | None, note: Progress | None) -> GoOn | Unclear:
    """Where a split goes on."""
    if mark is not None and mark.version < 0:
        return Unclear(
            "mark_released",
            "an operator has released the split's mark (`committerd app release`), so the table does not say which "
            "rows it has",
        )
    if note is None:
        if mark is None:
            return GoOn(None, 0)
        return Unclear("mark_lost", f"the table has unit {mark.version} of the split, and no note of its token")
    if mark is None:
        if note.settled:
            return GoOn(note.after, 0)
        return Unclear(
            "mark_lost",
            "the table has forgotten the split's mark, as it does after 30 days without a commit, and so it does not "
            "say whether it has the last rows that were planned",
        )
    if mark.version == note.plan:
        return GoOn(note.before, mark.version)
    if mark.version == note.plan + 1:
        return GoOn(note.after, mark.version)
    return Unclear(
        "mark_lost", f"the table has unit {mark.version} of the split, and its note is of units {note.plan} and behind"
    )
