"""The footprint of a schema change, by a Merge or a Project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.versions.schema import may_tighten_nullability
from committerd_common.messages import Field, Manifest


def schema_change(kind: Kind, schema: Iterable[Field], *, preserves_nullability: bool) -> Footprint:
    """The footprint of an operation that sets this schema.

    Without the previous schema, nullability can only come from the writer's assertion; older writers assert nothing.
    """
    return Footprint(
        kind=kind,
        asserts_nullability=preserves_nullability,
        preserves_nullability=preserves_nullability,
        schema_fields=frozenset(column.id for column in schema),
    )


def with_nullability(touched: Footprint, before: Manifest, schema: Iterable[Field]) -> Footprint:
    """The footprint, with nullability from a comparison of the schema with that of the version before."""
    return replace(touched, preserves_nullability=not may_tighten_nullability(before.fields, schema))
