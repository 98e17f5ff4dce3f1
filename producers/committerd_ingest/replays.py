"""Which records of the topic for bad records have been replayed into the table, as the table itself says it.

Records are replayed in any order, since some are bad still. So a single number does not say how far a replay is. The
table's metadata has a note with the offsets that are settled, and with the *plan*: those whose rows the next unit adds.
Note and rows can't be one transaction. But each is a unit of one application, and each names the unit before it
(`app-after`): the plan is written by unit N, and its rows are unit N + 1. So the mark says whether they are in the
table, and of two replays at once one is refused.

The committer forgets a mark that nothing has used for 30 days. A replay ends with a note without a plan, which needs no
mark. Of a plan that a killed replay left, and whose mark is gone, nobody knows: its records are *in doubt*, stay out,
and are named each time.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from committerd_client.app_marks import AppMark
from committerd_ingest.marks import read_note

_STRETCHES_MAX = 1000


class TooScattered(ValueError):
    """The offsets that are settled lie in too many stretches for the table's metadata."""


def replay_app_id(pipeline: str, cluster_id: str, topic: str, topic_id: str) -> str:
    """The application of the replays of a topic for bad records. `pipeline` has no dot."""
    hashed = hashlib.sha256("\0".join((cluster_id, topic, topic_id)).encode()).hexdigest()[:32]
    return f"{pipeline}.replay.{hashed}"


class Offsets:
    """Offsets of partitions, as stretches without gaps. Immutable."""

    def __init__(self, stretches: Mapping[int, Iterable[tuple[int, int]]] | None = None) -> None:
        """`stretches`: for each partition, first offset and the one behind the last."""
        self._stretches = {
            number: joined for number, given in sorted((stretches or {}).items()) if (joined := _joined(given))
        }

    @classmethod
    def of(cls, places: Iterable[tuple[int, int]]) -> Offsets:
        """Of partitions and offsets."""
        found: dict[int, list[tuple[int, int]]] = {}
        for partition, offset in places:
            found.setdefault(partition, []).append((offset, offset + 1))
        return cls(found)

    def __or__(self, other: Offsets) -> Offsets:
        numbers = self._stretches.keys() | other._stretches.keys()
        return Offsets({one: (*self._stretches.get(one, ()), *other._stretches.get(one, ())) for one in numbers})

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and self._stretches == other._stretches

    def __hash__(self) -> int:
        return hash(tuple(self._stretches.items()))

    def __str__(self) -> str:
        return ", ".join(
            f"partition {number}: " + ", ".join(f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in stretches)
            for number, stretches in self._stretches.items()
        )

    def __contains__(self, place: tuple[int, int]) -> bool:
        stretches = self._stretches.get(place[0], ())
        before = bisect_right(stretches, place[1], key=lambda one: one[0]) - 1
        return before >= 0 and place[1] < stretches[before][1]

    def from_on(self, starts: Mapping[int, int]) -> Offsets:
        """Without those below the first offsets that Kafka still has."""
        return Offsets(
            {
                number: [(max(begin, starts.get(number, 0)), end) for begin, end in stretches]
                for number, stretches in self._stretches.items()
            }
        )

    def stretches(self) -> int:
        """How many there are."""
        return sum(map(len, self._stretches.values()))

    def raw(self) -> dict[str, list[list[int]]]:
        """For JSON."""
        return {str(number): [list(one) for one in stretches] for number, stretches in self._stretches.items()}


def _joined(stretches: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    made: list[tuple[int, int]] = []
    for begin, end in sorted(stretches):
        if begin >= end:
            continue
        if made and begin <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((begin, end))
    return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """What a version of the table says of the replays of a topic for bad records."""

    unit: int = 0
    """The number of the unit that wrote the note; 0 = there is none."""
    by: str = ""
    """Which run of the command wrote it."""
    settled: Offsets = field(default_factory=Offsets)
    plan: Offsets = field(default_factory=Offsets)
    """Those whose rows unit `unit` + 1 adds."""
    doubt: Offsets = field(default_factory=Offsets)
    """Those of which nobody knows whether their rows are in the table."""

    def text(self) -> str:
        """For the table's metadata. Raises `TooScattered`."""
        if self.settled.stretches() + self.plan.stretches() + self.doubt.stretches() > _STRETCHES_MAX:
            raise TooScattered(
                f"the records that are replayed would lie in more than {_STRETCHES_MAX} stretches of the topic, with "
                "others between them: mend those that are bad still, choose by no --reason, or let Kafka delete the "
                "oldest records of the topic"
            )
        parts = {"settled": self.settled.raw(), "plan": self.plan.raw(), "doubt": self.doubt.raw()}
        return json.dumps({"unit": self.unit, "by": self.by} | parts)


def replays_in(table_metadata: Mapping[str, str], app_id: str) -> Replays:
    """The note of the replays; an empty one if there is none. Raises `ValueError` for a note that can't be read."""
    return read_note(table_metadata, app_id, _replays) or Replays()


def _replays(raw: Any) -> Replays:
    parts = {
        name: Offsets({int(number): [(int(a), int(b)) for a, b in one] for number, one in raw[name].items()})
        for name in ("settled", "plan", "doubt")
    }
    return Replays(unit=int(raw["unit"]), by=str(raw["by"]), **parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Where replays are."""

    unit: int
    """The number of the last unit."""
    after: int
    """The number that the next unit names as the one before it: 0 if the committer has forgotten the mark."""
    settled: Offsets
    doubt: Offsets
    left_a_plan: bool
    """Whether the note has a plan, which a replay has left that was killed."""


def known(mark: AppMark | None, note: Replays) -> Known:
    """What mark and note say together."""
    if mark is None or mark.version < 0:
        return Known(
            unit=note.unit,
            after=0,
            settled=note.settled,
            doubt=note.doubt | note.plan,
            left_a_plan=bool(note.plan),
        )
    done = mark.version > note.unit
    return Known(
        unit=mark.version,
        after=mark.version,
        settled=note.settled | note.plan if done else note.settled,
        doubt=note.doubt,
        left_a_plan=bool(note.plan),
    )
