"""The operations and bases that the operator permits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from committerd.lance.format.kind import Kind

ALL_OPERATIONS = frozenset(Kind)
DEFAULT_OPERATIONS = ALL_OPERATIONS - {Kind.CLONE, Kind.UPDATE_BASES}
"""The operations that a queue commits by default. The others make the daemon's credentials read outside the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The operations and bases that the operator permits."""

    operations: frozenset[Kind] = DEFAULT_OPERATIONS
    bases: Collection[str] | None = ()
    """URIs below which base paths and clone sources may lie; None = anywhere."""


ANYTHING = Permissions(operations=ALL_OPERATIONS, bases=None)
"""For a caller that commits with its own credentials."""
