"""The footprint of a schema change, by a Merge or a Project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.versions.schema import may_tighten_nullability
from committerd_common.messages import IndexMetadata, Manifest, Transaction


def footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    """The footprint from the message alone.

    Without the previous schema, only the writer's assertion says whether nullability stays; older writers assert
    nothing.
    """
    change = _change(transaction)
    return Footprint(
        kind=Kind.MERGE if transaction.HasField("merge") else Kind.PROJECT,
        asserts_nullability=change.preserves_nullability,
        preserves_nullability=change.preserves_nullability,
        schema_fields=frozenset(field.id for field in change.schema),
    )


def compared_with(
    touched: Footprint, transaction: Transaction, before: Manifest | None, indices: Iterable[IndexMetadata]
) -> Footprint:
    """The footprint, with nullability and casts from a comparison of the schema with that of the version before.

    None = that version can't be read. Nothing but a cast lets a Merge drop a field.
    """
    is_merge = transaction.HasField("merge")
    if before is None:
        return replace(touched, may_cast=is_merge)
    tightens = may_tighten_nullability(before.fields, _change(transaction).schema)
    drops = any(field.id not in touched.schema_fields for field in before.fields)
    return replace(touched, preserves_nullability=not tightens, may_cast=is_merge and drops)


def _change(transaction: Transaction) -> Transaction.Merge | Transaction.Project:
    return transaction.merge if transaction.HasField("merge") else transaction.project
