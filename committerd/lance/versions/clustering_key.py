"""The clustering key that a schema declares: columns by which the rows are meant to be ordered.

Lance does not enforce it; 4.0.0 does not know it, and leaves it out of the versions that it writes.
"""

from __future__ import annotations

from collections.abc import Iterable

from committerd.lance.versions.primary_key import position
from committerd_common.messages import Field

CLUSTERING_KEY_POSITION = "lance-schema:unenforced-clustering-key:position"


def declare_position(field: Field) -> None:
    """Set, in place, the field's position in the clustering key to the one that its metadata declares.

    Lance 14: manifest_build.rs, UpdateConfig. Position 0 is stored like no position.
    """
    field.unenforced_clustering_key_position = position(field, CLUSTERING_KEY_POSITION) or 0


def clustering_fields(fields: Iterable[Field]) -> list[int]:
    """The ids of the clustering key's fields, in their order. Lance 14: schema.rs, unenforced_clustering_key."""
    declared = [one for one in fields if one.unenforced_clustering_key_position]
    return [one.id for one in sorted(declared, key=lambda one: one.unenforced_clustering_key_position)]
