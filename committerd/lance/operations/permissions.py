"""What the operator permits to records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from committerd.lance.format.kind import Kind

ALL_OPERATIONS = frozenset(Kind)
DEFAULT_OPERATIONS = ALL_OPERATIONS - {Kind.CLONE, Kind.UPDATE_BASES}
"""The operations that a queue commits by default. The others make the daemon's credentials read outside the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the operator permits to records."""

    operations: frozenset[Kind] = DEFAULT_OPERATIONS
    bases: Collection[str] | None = ()
    """URIs below which base paths and clone sources may lie; None = anywhere."""
    mixed_file_versions: bool = False
    """Whether a table may become one whose data files have several versions, which older Lance can't read."""
    producer: str = ""
    """The producer whose operations these are; empty = they are those of every producer."""

    def of(self, producer: str, operations: Collection[str]) -> Permissions:
        """Return what is permitted to a producer that may stage only these operations."""
        return replace(self, operations=self.operations.intersection(operations), producer=producer)


ANYTHING = Permissions(operations=ALL_OPERATIONS, bases=None, mixed_file_versions=True)
"""For a caller that commits with its own credentials."""
