"""Who has the most records waiting: a flood by name, for people.

A name is what the record says: header `producer`, else its `app-id`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import nlargest

SHOWN_MAX = 5
"""So many producers are named."""
NAMED_MIN = 100
"""A metric names only producers with so many waiting records: whoever makes up names needs as many records for each."""
OTHERS = "other"
"""All others together. A producer of this name is counted among them."""


def name_of(line: bytes) -> str:
    """The name of a line of records (`reach.lines_of`)."""
    kind, name = line[:1], line[1:].decode("utf-8", "backslashreplace")
    if kind == b"p":
        return name
    return f"app-id {name}" if name else "no producer"


def most_waiting(waiting: Mapping[bytes, int], *, at_least: int = 1) -> dict[str, int]:
    """How many records wait, by the name of their producer: of the five with the most, the most first, and of `other`.

    `waiting`: by line. `at_least`: with fewer records a producer is among the others.
    """
    most = nlargest(SHOWN_MAX, waiting.items(), key=lambda one: (one[1], one[0]))
    found = Counter[str]()
    for line, count in most:
        if count >= at_least:
            found[name_of(line)] += count
    others = sum(waiting.values()) - found.total()
    if others:
        found[OTHERS] += others
    return dict(found)
