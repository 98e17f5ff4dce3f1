"""What the operator lets transactions do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from committerd.lance.format.kind import Kind

ALL_OPERATIONS = frozenset(Kind)
DEFAULT_OPERATIONS = ALL_OPERATIONS - {Kind.CLONE, Kind.UPDATE_BASES}
"""What a queue commits unless told otherwise. The others make the daemon's credentials read elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the operator lets through."""

    operations: frozenset[Kind] = DEFAULT_OPERATIONS
    bases: Collection[str] | None = ()
    """URIs below which base paths and clone sources may lie; None = anywhere."""


ANYTHING = Allowed(operations=ALL_OPERATIONS, bases=None)
"""For whoever commits with credentials of their own."""
