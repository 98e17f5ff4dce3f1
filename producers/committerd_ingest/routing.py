"""Which records of a topic belong in which table, where one stream is routed to several.

Each route is a pipeline of its own, which reads whole topics and takes the records whose header, or whose field, has
one of its values. A record that no route takes is *unmatched*. The first route that reads a topic answers for its
unmatched records, so that each is counted once, and for those whose field can't be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from committerd_ingest.decoding import BadRecord, described, no_object
from committerd_ingest.records import Record, Records
from committerd_ingest.wire_format import Schemas, read

_SHOWN_CHARS_MAX = 100

By: TypeAlias = Literal["header", "field"]


def reads(topic: str, topics: Sequence[str], pattern: str) -> bool:
    """Whether a topic is among these, or, where there is a pattern, matches it."""
    return re.match(pattern, topic) is not None if pattern else topic in topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which records a pipeline takes."""

    topics: Sequence[str] = ()
    topic_pattern: str = ""
    """Matches the whole name of a topic; empty if the topics are named."""
    values: frozenset[str] = frozenset()
    """Empty = it takes all records of its topics."""

    def reads(self, topic: str) -> bool:
        """Whether it reads this topic."""
        return reads(topic, self.topics, self.topic_pattern)


@dataclass(frozen=True, slots=True)
class Sorted:
    """The records of a route, among those of its topics."""

    mine: Records
    bad: Sequence[BadRecord] = ()
    """Bad records that belong to no route, if this route answers for them."""
    unmatched: Sequence[Record] = ()
    """Records that no route takes and that are not bad, if this route answers for them."""

    def settled(self, mine: Records, behind: int) -> Records:
        """`mine` and the bad records up to an offset, in order."""
        bad = [one.record for one in self.bad if one.record.offset < behind]
        return Records.of(sorted((*mine, *bad), key=lambda one: one.offset)) if bad else mine


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a route takes from one topic."""

    by: By
    name: str
    """Of the header or the field."""
    mine: frozenset[str]
    known: frozenset[str] | None
    """The values that routes take from the topic, if this route answers for all others; None if it does not."""
    unmatched_bad: bool
    """Whether an unmatched record is a bad record."""

    def sort(self, records: Records, schemas: Schemas | None = None) -> Sorted:
        """Find the records of the route. `schemas`: those of all records of Avro."""
        mine: list[int] = []
        bad: list[BadRecord] = []
        unmatched: list[Record] = []
        for place in range(len(records)):
            try:
                value = self._value(records, place, schemas)
            except Exception as error:  # noqa: BLE001  # the libraries raise errors of any class for bytes that are none
                if self.known is not None:
                    bad.append(BadRecord(records[place], described(error)))
                continue
            if value in self.mine:
                mine.append(place)
            elif self.known is not None and value not in self.known:
                if self.unmatched_bad:
                    bad.append(BadRecord(records[place], self._why(value)))
                else:
                    unmatched.append(records[place])
        return Sorted(records.at(mine), bad, unmatched)

    def readable(self, records: Records) -> Records:
        """Those of which the value is read: with a header, only the route's own."""
        if self.by == "field":
            return records
        return records.at([place for place in range(len(records)) if self._value(records, place, None) in self.mine])

    def _value(self, records: Records, place: int, schemas: Schemas | None) -> str | None:
        """The text that decides on the record at this place; None if it has none."""
        if self.by == "field":
            return _text(_members(records.values[place], schemas).get(self.name))
        for name, value in reversed(records.headers[place]):
            if name == self.name:
                return None if value is None else value.decode(errors="replace")
        return None

    def _why(self, value: str | None) -> str:
        said = f"has no {self.by} {self.name!r} with a text or an integer"
        if value is not None:
            said = f"has {value[:_SHOWN_CHARS_MAX]!r} in its {self.by} {self.name!r}"
        return f"no route takes the record, which {said}: add a route, or set ingest.unmatched=skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """All routes of a process."""

    by: By
    name: str
    """Of the header or the field."""
    routes: Sequence[Route]
    unmatched_bad: bool

    def filter_of(self, route: Route, topic: str) -> Filter | None:
        """What one of the routes takes from a topic that it reads; None = all records."""
        if not route.values:
            return None
        readers = [one for one in self.routes if one.reads(topic)]
        answers = readers[0] is route and all(one.values for one in readers)
        return Filter(
            by=self.by,
            name=self.name,
            mine=route.values,
            known=frozenset[str]().union(*(one.values for one in readers)) if answers else None,
            unmatched_bad=self.unmatched_bad,
        )


def _members(value: bytes | None, schemas: Schemas | None) -> Any:
    """The fields of a value. Raises errors of any class if it has none."""
    if schemas is not None:
        _, made = read(value, schemas)
        return made
    try:
        found = json.loads((value or b"").decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(no_object(value))
    return found


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None
